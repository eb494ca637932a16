//! Text of a host, as it may go into an object and to a terminal.

/// Replaces line ends and control characters: firmware and drives can hold anything, and an escape sequence in their text
/// is not for the reader's terminal to obey.
#[must_use]
pub fn one_line(text: &str) -> String {
    let plain = |c: char| match c {
        '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(plain).collect()
}
