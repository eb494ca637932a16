//! Excerpts of invalid values for messages.

/// Maximum number of characters of an excerpt.
const MAX_EXCERPT_CHARS: usize = 60;

/// Returns the beginning of an invalid value for a message, on one line and without control characters. The value comes
/// from a user or another program: it may be very long, and a terminal would interpret escape sequences in it.
#[must_use]
pub fn excerpt(value: &str) -> String {
    let mut characters = value.chars().map(|c| match c {
        '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    });
    let mut text: String = characters.by_ref().take(MAX_EXCERPT_CHARS).collect();
    if characters.next().is_some() {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_are_short_and_have_no_control_characters() {
        assert_eq!(excerpt("10.0.0.0/33"), "10.0.0.0/33");
        assert_eq!(excerpt("a\nb\r\u{1b}[2J\u{9b}"), "a b\u{fffd}\u{fffd}[2J\u{fffd}");
        assert_eq!(excerpt(&"é".repeat(60)), "é".repeat(60));
        assert_eq!(excerpt(&"é".repeat(61)), "é".repeat(60) + "...");
    }
}
