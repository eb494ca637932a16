//! Writes the result of a benchmark as JSON and as Markdown.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};

use crate::render;
use crate::result::BenchResult;

/// Arguments that all benchmarks have: the folder and the date of the result.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Folder for the result
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    results: PathBuf,
    /// Date of the result; default: today in UTC
    #[arg(long)]
    date: Option<Date>,
}

/// Parses the arguments of a benchmark from these words, as its command line does.
#[cfg(test)]
pub(crate) fn parse_args<A: clap::Args>(words: &[&str]) -> A {
    let words = ["benches"].iter().chain(words);
    let matches = A::augment_args(clap::Command::new("benches")).get_matches_from(words);
    A::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

impl OutputArgs {
    /// Returns the date of the result.
    pub(crate) fn date(&self) -> Date {
        self.date.unwrap_or_else(|| Timestamp::now().to_zoned(TimeZone::UTC).date())
    }

    /// Writes the result as JSON and as Markdown and prints the Markdown. Returns true if all goals are met.
    pub(crate) fn publish(&self, result: &BenchResult) -> Result<bool> {
        let text = render::document(result);
        let json = serde_json::to_string_pretty(result)? + "\n";
        fs::create_dir_all(&self.results)
            .with_context(|| format!("create {}", self.results.display()))?;
        for (extension, content) in [("json", &json), ("md", &text)] {
            let name = format!("{}-{}.{extension}", result.date, result.name);
            let file = self.results.join(name);
            fs::write(&file, content).with_context(|| format!("write {}", file.display()))?;
        }
        std::io::stdout().lock().write_all(text.as_bytes())?;
        Ok(result.all_goals_met())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Goal, Section, Table};

    #[test]
    fn a_result_is_published_as_json_and_markdown() {
        let folder = tempfile::tempdir().unwrap();
        let date: Date = "2026-01-02".parse().unwrap();
        let output = OutputArgs { results: folder.path().join("results"), date: Some(date) };
        let mut result = BenchResult {
            name: "plan".to_owned(),
            title: "A plan".to_owned(),
            date: output.date(),
            conditions: vec!["on a machine".to_owned()],
            sections: vec![Section::untitled("", vec![Table::new(&["what"], &["ms"])])],
            goals: vec![Goal::new("at most 1 s", true, "0.5 s")],
            command: "berth-benches plan".to_owned(),
        };
        assert!(output.publish(&result).unwrap());
        let json = fs::File::open(output.results.join("2026-01-02-plan.json")).unwrap();
        assert_eq!(serde_json::from_reader::<_, BenchResult>(json).unwrap(), result);
        assert!(output.results.join("2026-01-02-plan.md").exists());
        result.goals.push(Goal::new("at most 1 MiB", false, "2 MiB"));
        assert!(!output.publish(&result).unwrap());
    }
}
