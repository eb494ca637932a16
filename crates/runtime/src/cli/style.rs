//! Colour, only where a person looks at a terminal.

use std::io::IsTerminal;

/// Whether text is dressed for a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As it is: pipes, files, `NO_COLOR`.
    Plain,
    /// With ANSI escape codes.
    Coloured,
}

impl Style {
    /// Coloured if standard output is a terminal and `NO_COLOR` (no-color.org) is not set.
    #[must_use]
    pub fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !refused { Self::Coloured } else { Self::Plain }
    }

    /// The name of what is shown.
    #[must_use]
    pub fn title(self, text: &str) -> String {
        self.dress("1", text)
    }

    /// A heading or label.
    #[must_use]
    pub fn heading(self, text: &str) -> String {
        self.dress("36", text)
    }

    /// Something that is fine.
    #[must_use]
    pub fn good(self, text: &str) -> String {
        self.dress("32", text)
    }

    /// Something to look at.
    #[must_use]
    pub fn warning(self, text: &str) -> String {
        self.dress("33", text)
    }

    /// Something that is wrong.
    #[must_use]
    pub fn bad(self, text: &str) -> String {
        self.dress("31;1", text)
    }

    fn dress(self, code: &str, text: &str) -> String {
        match self {
            Self::Coloured if !text.trim().is_empty() => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            _ => text.to_owned(),
        }
    }
}
