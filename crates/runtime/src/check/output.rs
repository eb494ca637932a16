//! Output format of `check`, and its exit code.

use std::process::ExitCode;

use clap::ValueEnum;

use super::definition::Check;
use super::findings::Findings;
use super::table;
use crate::cli::EXIT_PROBLEMS;
use crate::cli::style::Style;

/// Format in which checks and findings are printed.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OutputFormat {
    /// Text for a terminal of 80 columns
    Table,
    /// JSON
    Json,
}

impl OutputFormat {
    /// Returns the ids, titles and explanations of checks.
    ///
    /// # Errors
    /// Returns an error if the checks cannot be written as JSON, which would be a bug.
    pub fn render_list<F>(self, checks: &[Check<F>]) -> Result<String, serde_json::Error> {
        Ok(match self {
            Self::Table => table::render_list(checks, Style::for_stdout()),
            Self::Json => serde_json::to_string_pretty(checks)? + "\n",
        })
    }

    /// Returns the findings in this format. `heading` returns the text that precedes the table in the text format.
    ///
    /// # Errors
    ///
    /// Returns an error if the findings cannot be written as JSON, which would be a bug.
    pub fn render(
        self,
        findings: &Findings,
        heading: impl FnOnce(Style) -> String,
    ) -> Result<String, serde_json::Error> {
        Ok(match self {
            Self::Table => {
                let style = Style::for_stdout();
                heading(style) + &table::render(findings, style)
            }
            Self::Json => serde_json::to_string_pretty(findings)? + "\n",
        })
    }
}

impl Findings {
    /// Returns the exit code of `check`: [`EXIT_PROBLEMS`] if a check failed. Warnings do not change it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.summary.fail > 0 { EXIT_PROBLEMS } else { 0 })
    }
}
