//! Makes text from a host safe for API objects and terminals.

/// Replaces line ends and control characters. Strings from firmware and drives can contain any bytes, and a terminal
/// that shows them must not execute escape sequences.
#[must_use]
pub fn sanitize_to_one_line(text: &str) -> String {
    let sanitize = |c: char| match c {
        '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(sanitize).collect()
}
