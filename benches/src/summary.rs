//! Writes a page that summarizes all benchmarks: the conditions, the first table and the goals of the newest result
//! of each benchmark.

#![expect(clippy::disallowed_methods, reason = "the benchmark reads the repository's results")]

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use jiff::civil::Date;

use crate::render;

/// Names of the benchmarks, which are the suffixes of the result files, in the order in which `make bench` runs
/// them.
const BENCHMARKS: [&str; 15] = [
    "report",
    "idle",
    "links",
    "agents",
    "trace",
    "engine",
    "plan",
    "tenants",
    "tenant-access",
    "extender",
    "dhcp",
    "lease-memory",
    "claims",
    "trunk",
    "views",
];

/// Writes the newest results of all benchmarks to one page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory with the results
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    results: PathBuf,
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.md")]
    output: PathBuf,
}

/// Reads the results and writes the page. Always returns true, because each result already states if the goals are
/// met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let folder = &args.results;
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        names.extend(entry?.file_name().into_string());
    }
    let mut page = String::from(
        "# Benchmarks\n\nThis page is written by `make bench`. It shows the newest result of each benchmark, shortened. \
         Each result includes a peer that is measured in the same run.\n",
    );
    for name in BENCHMARKS {
        let result = newest_file(&names, name, "json");
        let Some(newest) = result.or_else(|| newest_file(&names, name, "md")) else {
            writeln!(page, "\n## {name}\n\nNot measured yet.")?;
            continue;
        };
        let path = folder.join(newest);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let (short, document) = if result.is_some() {
            let result = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            (render::summary(&result), newest.replace(".json", ".md"))
        } else {
            (shorten(&text), newest.clone())
        };
        ensure!(!short.is_empty(), "{}: the file has no title", path.display());
        write!(page, "\n{short}\nComplete result: [{document}](results/{document})\n")?;
    }
    fs::write(&args.output, page).with_context(|| args.output.display().to_string())?;
    Ok(true)
}

/// Returns the newest file name with the form `<year>-<month>-<day>-<name>.<extension>`.
fn newest_file<'a>(names: &'a [String], name: &str, extension: &str) -> Option<&'a String> {
    let ending = format!("-{name}.{extension}");
    let has_name = |file: &&String| {
        file.strip_suffix(&ending).is_some_and(|date| date.parse::<Date>().is_ok())
    };
    names.iter().filter(has_name).max()
}

/// Summarizes a result of an older release, which wrote only Markdown and no JSON: the title as a second-level
/// heading, the list of conditions, the first table, and the goals. Returns an empty string if `text` has no title.
fn shorten(text: &str) -> String {
    let mut lines = text.lines();
    let Some(title) = lines.next().and_then(|line| line.strip_prefix("# ")) else {
        return String::new();
    };
    let rest: Vec<&str> = lines.collect();
    let list = rest.iter().skip_while(|line| !line.starts_with("- "));
    let list = list.take_while(|line| line.starts_with("- ") || line.starts_with("  "));
    let table = rest.iter().skip_while(|line| !line.starts_with('|'));
    let table = table.take_while(|line| line.starts_with('|'));
    let goals: Vec<String> = rest
        .iter()
        .filter(|line| line.starts_with("goal") || line.starts_with("Goals:"))
        .map(|line| format!("* {line}"))
        .collect();
    let mut short = format!("## {title}\n");
    let parts = [list.copied().collect::<Vec<_>>(), table.copied().collect()];
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        write!(short, "\n{}\n", part.join("\n")).unwrap_or_default();
    }
    if !goals.is_empty() {
        write!(short, "\n{}\n", goals.join("\n")).unwrap_or_default();
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_result_of_a_name_is_chosen() {
        let names =
            ["2026-01-02-plan.md", "2026-01-10-plan.md", "2026-02-01-no-plan.md", "plan.md"]
                .map(str::to_owned);
        assert_eq!(newest_file(&names, "plan", "md").unwrap(), "2026-01-10-plan.md");
        assert!(newest_file(&names, "engine", "md").is_none());
    }

    #[test]
    fn conditions_a_table_and_goals_are_kept() {
        let text = "# A, 2026\n\n- on this\n  machine\n\n| a |\n|---|\n| 1 |\n\nWords.\n\n| b |\n\ngoal: 1: met (2)\n";
        assert_eq!(
            shorten(text),
            "## A, 2026\n\n- on this\n  machine\n\n| a |\n|---|\n| 1 |\n\n* goal: 1: met (2)\n"
        );
        assert!(shorten("no title").is_empty());
    }

    #[test]
    fn the_page_shows_results_as_json_before_old_documents() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("2026-01-01-plan.md", "# An old plan, 2026\n\n- on this\n");
        write("2026-01-01-engine.md", "# An old engine, 2026\n\n- on that\n");
        let json = r#"{"name":"plan","title":"A plan","date":"2026-01-02","conditions":["here"],"sections":[],
            "goals":[{"text":"at most 1 s","value":"2 s","met":false}],"command":"benches"}"#;
        write("2026-01-02-plan.json", json);
        let output = folder.path().join("page.md");
        assert!(run(&Args { results: folder.path().into(), output: output.clone() }).unwrap());
        let page = fs::read_to_string(output).unwrap();
        for part in [
            "## idle\n\nNot measured yet.\n",
            "## An old engine, 2026\n\n- on that\n\nComplete result: [2026-01-01-engine.md](results/2026-01-01-engine.md)\n",
            "## A plan, 2026-01-02\n\n- here\n\n- goal: at most 1 s: missed (2 s)\n\nComplete result: \
             [2026-01-02-plan.md](results/2026-01-02-plan.md)\n",
        ] {
            assert!(page.contains(part), "{page}");
        }
        assert!(!page.contains("An old plan"), "{page}");
    }
}
