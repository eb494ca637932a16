//! Colour in the output, used only on terminals.

use std::io::IsTerminal;

/// Style of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// No colour: for pipes, files and `NO_COLOR`.
    Plain,
    /// Colour with ANSI escape codes.
    Coloured,
}

impl Style {
    /// Returns `Coloured` if standard output is a terminal and `NO_COLOR` (no-color.org) is not set.
    #[must_use]
    pub fn for_stdout() -> Self {
        let is_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !is_disabled { Self::Coloured } else { Self::Plain }
    }

    #[must_use]
    pub fn format_title(self, text: &str) -> String {
        self.apply_colour("1", text)
    }

    /// Formats a heading or label.
    #[must_use]
    pub fn format_heading(self, text: &str) -> String {
        self.apply_colour("36", text)
    }

    /// Formats a good result.
    #[must_use]
    pub fn format_success(self, text: &str) -> String {
        self.apply_colour("32", text)
    }

    #[must_use]
    pub fn format_warning(self, text: &str) -> String {
        self.apply_colour("33", text)
    }

    /// Formats a bad result.
    #[must_use]
    pub fn format_failure(self, text: &str) -> String {
        self.apply_colour("31;1", text)
    }

    fn apply_colour(self, code: &str, text: &str) -> String {
        match self {
            Self::Coloured if !text.trim().is_empty() => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            _ => text.to_owned(),
        }
    }
}
