//! Text for terminals of 80 columns.

/// Replaces control characters except line ends by U+FFFD. Strings from a host, such as firmware versions and link
/// aliases, can contain escape sequences, which the terminal of the user must not execute.
#[must_use]
pub fn replace_control_characters(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Replaces control characters by U+FFFD and line ends by spaces, so that values from API objects can be shown on one
/// line.
#[must_use]
pub fn to_single_line(text: &str) -> String {
    replace_control_characters(text).replace('\n', " ")
}

/// Returns the message of an error, and the messages of its sources, without repetitions. The message of a client error
/// is only "transport error"; the last source contains the reason.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

/// Appends a line that consists of `first` and `second`, without white space at its end.
pub fn push_line(out: &mut String, first: &str, second: &str) {
    let text = format!("{first}{second}");
    out.push_str(text.trim_end());
    out.push('\n');
}

/// Wraps a string at spaces and after commas, to lines of at most `width` characters. A word that is longer than a line
/// is broken at any character.
#[must_use]
pub fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in text.split_inclusive([' ', ',']) {
        let mut rest = piece;
        loop {
            let last = lines.len() - 1;
            let used = lines[last].chars().count();
            let needed = rest.trim_end().chars().count();
            if used + needed <= width {
                lines[last].push_str(rest);
                break;
            }
            if used > 0 {
                lines.push(String::new());
                continue;
            }
            let split_index = rest.char_indices().nth(width).map_or(rest.len(), |(index, _)| index);
            let (now, later) = rest.split_at(split_index);
            lines[last].push_str(now);
            lines.push(String::new());
            rest = later;
        }
    }
    lines
        .into_iter()
        .map(|line| line.trim_end().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_list_is_wrapped_after_commas() {
        assert_eq!(wrap_text("online 0-3,8-11,20", 12), ["online 0-3,", "8-11,20"]);
        assert_eq!(wrap_text("abcdefgh", 3), ["abc", "def", "gh"]);
    }

    proptest! {
        #[test]
        fn wrapped_text_fits_the_width_and_keeps_all_letters(text in "[a-z, ]{0,200}", width in 1usize..40) {
            let lines = wrap_text(&text, width);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width));
            let letters = |text: &str| text.replace(' ', "");
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }
}
