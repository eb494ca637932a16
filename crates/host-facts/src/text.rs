//! Text from a host, in a form that is safe for API objects and terminals.

/// Replaces line ends and control characters: firmware and drives can have any bytes in their texts, and the reader's
/// terminal must not execute escape sequences.
#[must_use]
pub fn one_line(text: &str) -> String {
    let plain = |c: char| match c {
        '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(plain).collect()
}
