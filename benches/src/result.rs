//! The result of a benchmark as data: conditions, tables and goals.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

/// Result of one run of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BenchResult {
    /// Name of the subcommand, which is also the suffix of the file name.
    pub(crate) name: String,
    /// Title without the date.
    pub(crate) title: String,
    pub(crate) date: Date,
    /// Machine, programs and input of the run, as Markdown without line breaks.
    pub(crate) conditions: Vec<String>,
    pub(crate) sections: Vec<Section>,
    pub(crate) goals: Vec<Goal>,
    /// Command that runs this benchmark alone.
    pub(crate) command: String,
}

impl BenchResult {
    /// Returns true if all goals are met.
    pub(crate) fn all_goals_met(&self) -> bool {
        self.goals.iter().all(|goal| goal.met)
    }
}

/// Section of a result: a heading, an explanation, and the tables that it explains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Section {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heading: Option<String>,
    /// Paragraphs before the tables, as Markdown.
    pub(crate) text: String,
    pub(crate) tables: Vec<Table>,
}

impl Section {
    pub(crate) fn new(heading: &str, text: impl Into<String>, tables: Vec<Table>) -> Self {
        Self { heading: Some(heading.to_owned()), text: text.into(), tables }
    }

    /// Creates a section without a heading.
    pub(crate) fn untitled(text: impl Into<String>, tables: Vec<Table>) -> Self {
        Self { heading: None, text: text.into(), tables }
    }
}

/// Table of measured values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table without rows: first columns for text, then columns for numbers.
    pub(crate) fn new(texts: &[&str], numbers: &[&str]) -> Self {
        let column =
            |is_number: bool| move |name: &&str| Column { name: (*name).to_owned(), is_number };
        let columns = texts.iter().map(column(false)).chain(numbers.iter().map(column(true)));
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    /// Appends a row.
    pub(crate) fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

/// Column of a table. A column with numbers is aligned to the right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) is_number: bool,
}

/// Goal of a benchmark, and whether the measured value meets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Goal {
    pub(crate) text: String,
    /// Measured value with its unit.
    pub(crate) value: String,
    pub(crate) met: bool,
}

impl Goal {
    pub(crate) fn new(text: impl Into<String>, met: bool, value: impl Into<String>) -> Self {
        Self { text: text.into(), value: value.into(), met }
    }
}
