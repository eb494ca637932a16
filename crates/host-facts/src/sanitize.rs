//! Makes text that was read from a host safe for API objects and terminals.

/// Replaces line ends and control characters. Strings from firmware and drives can contain any bytes, even escape
/// sequences, which a terminal that shows the string would execute.
#[must_use]
pub fn sanitize_to_one_line(text: &str) -> String {
    let sanitize = |c: char| match c {
        '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(sanitize).collect()
}
