//! Output of a view: the document for programs, and options of tables for people.

use berth_api::{Bytes, Problem};
use berth_runtime::cli::columns::{Cell, Column, Emphasis, TERMINAL_WIDTH, format_table, shorten};
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{push_line, replace_control_characters, to_single_line, wrap_text};
use berth_runtime::cli::{Failure, print_error};
use berth_views::hosts::Amount;
use berth_views::{Severity, Unread};
use serde::Serialize;

use super::arguments::Output;
use super::program::PROGRAM;

/// Options of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableOptions {
    pub(super) style: Style,
    /// True if the table shows all columns, and shortens no text.
    pub(super) is_wide: bool,
}

impl TableOptions {
    pub(super) fn table(self, columns: &[Column], rows: &[Vec<Cell>]) -> String {
        let width = (!self.is_wide).then_some(TERMINAL_WIDTH);
        format_table(columns, rows, width, self.style)
    }

    /// Appends a heading, after an empty line.
    pub(super) fn push_heading(self, out: &mut String, text: &str) {
        if !out.is_empty() {
            out.push('\n');
        }
        let text = if self.is_wide { text.to_owned() } else { shorten(text, TERMINAL_WIDTH) };
        push_line(out, &self.style.format_title(&text), "");
    }
}

/// Appends a paragraph of at most 80 columns. The first line starts with `bullet`; the other lines are indented by as many
/// spaces.
pub(super) fn push_paragraph(out: &mut String, bullet: &str, text: &str) {
    let indent = bullet.chars().count();
    let lines = wrap_text(&to_single_line(text), TERMINAL_WIDTH.saturating_sub(indent));
    for (number, line) in lines.iter().enumerate() {
        let first = if number == 0 { bullet.to_owned() } else { " ".repeat(indent) };
        push_line(out, &first, line);
    }
}

/// A view with the objects that it lacks, as JSON and YAML show it.
#[derive(Debug, Serialize)]
pub(super) struct Document<'s, T> {
    #[serde(flatten)]
    pub(super) view: T,
    /// Kinds that were not read completely.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) unread: &'s [Unread],
    /// Objects that were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) problems: Vec<&'s Problem>,
}

impl<T: Serialize> Document<'_, T> {
    /// Returns the document in a format. `table` is called for the formats that people read.
    pub(super) fn render(
        &self,
        output: Output,
        table: impl FnOnce(&T, TableOptions) -> String,
    ) -> Result<String, Failure> {
        let style = Style::for_stdout();
        Ok(match output {
            Output::Table => table(&self.view, TableOptions { style, is_wide: false }),
            Output::Wide => table(&self.view, TableOptions { style, is_wide: true }),
            Output::Yaml => to_yaml(self)?,
            Output::Json => to_json(self)?,
        })
    }

    /// Returns one line for each kind that was not read and for each object that was left out, unless the document has
    /// them.
    pub(super) fn remarks(&self, output: Output) -> Vec<String> {
        if matches!(output, Output::Json | Output::Yaml) {
            return Vec::new();
        }
        let unread = self.unread.iter().map(|unread| format!("{PROGRAM}: not shown: {unread}"));
        let problems = self.problems.iter().map(|problem| format!("{PROGRAM}: {problem}"));
        unread.chain(problems).map(|line| to_single_line(&line)).collect()
    }

    /// Prints the remarks to standard error.
    pub(super) fn print_remarks(&self, output: Output) {
        self.remarks(output).iter().for_each(|line| print_error(line));
    }
}

/// Returns a value as JSON. JSON permits the control characters U+007F to U+009F in strings, but a terminal interprets
/// them, so they are escaped too.
pub(super) fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(&serde_json::to_value(value)?)?;
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{7f}'..='\u{9f}' => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => escaped.push(letter),
        }
    }
    Ok(escaped + "\n")
}

/// Returns a value as YAML. Control characters are replaced.
pub(super) fn to_yaml(value: &impl Serialize) -> Result<String, Failure> {
    // A YAML serializer cannot write a flattened struct; a value can be written.
    let text = serde_saphyr::to_string(&serde_json::to_value(value)?)?;
    Ok(replace_control_characters(&text))
}

/// Returns the colour of a severity.
pub(super) const fn emphasis(severity: Severity) -> Emphasis {
    match severity {
        Severity::Ok => Emphasis::None,
        Severity::Warning => Emphasis::Warning,
        Severity::Failure => Emphasis::Failure,
    }
}

/// Returns a cell in the colour of a severity.
pub(super) fn severe(text: &str, severity: Severity) -> Cell {
    Cell::new(text).with_emphasis(emphasis(severity))
}

/// Returns a cell with a number of issues, in the colour of the most severe one.
pub(super) fn issue_count(issues: &[berth_views::Issue]) -> Cell {
    let severity = issues.iter().map(|issue| issue.severity).max().unwrap_or_default();
    match issues.len() {
        0 => Cell::new(""),
        count => severe(&count.to_string(), severity),
    }
}

/// Formats an amount of bytes as people read it: `12 GiB`.
pub(super) fn bytes(count: u64) -> String {
    Bytes(count).to_human_readable()
}

/// Formats used and total amount: `12/44`.
pub(super) fn count_pair(amount: Amount) -> String {
    format!("{}/{}", amount.used, amount.total)
}

/// Formats used and total bytes: `12 GiB/96 GiB`, or `none` without any.
pub(super) fn bytes_pair(amount: Amount) -> String {
    match amount {
        Amount { total: 0, .. } => "none".to_owned(),
        Amount { used: 0, total } => format!("0/{}", bytes(total)),
        Amount { used, total } => format!("{}/{}", bytes(used), bytes(total)),
    }
}

/// Returns `yes`, `no`, or an empty text for an unknown value.
pub(super) fn yes_no(value: Option<bool>) -> &'static str {
    match value {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    }
}
