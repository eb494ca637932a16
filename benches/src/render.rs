//! Renders the result of a benchmark as Markdown.

use std::iter;

use crate::result::{BenchResult, Goal, Section, Table};

/// Returns the complete result as a document that ends with a line break.
pub(crate) fn document(result: &BenchResult) -> String {
    let head = format!("# {}, {}", result.title, result.date);
    let goals = if result.goals.is_empty() { String::new() } else { "## Goals".to_owned() };
    let command = format!("Command: `make bench`, or `{}`.", result.command);
    let blocks = iter::once(head)
        .chain([render_list(&result.conditions)])
        .chain(result.sections.iter().flat_map(render_section))
        .chain([goals, render_goals(&result.goals), command]);
    join(blocks)
}

/// Returns a summary: the title as a second-level heading, the conditions, the first table and the goals.
pub(crate) fn summary(result: &BenchResult) -> String {
    let first = result.sections.iter().flat_map(|section| &section.tables).next();
    join([
        format!("## {}, {}", result.title, result.date),
        render_list(&result.conditions),
        first.map(render_table).unwrap_or_default(),
        render_goals(&result.goals),
    ])
}

/// Joins the blocks that are not empty, with an empty line between two blocks.
fn join(blocks: impl IntoIterator<Item = String>) -> String {
    let blocks: Vec<String> = blocks.into_iter().filter(|block| !block.is_empty()).collect();
    blocks.join("\n\n") + "\n"
}

fn render_section(section: &Section) -> Vec<String> {
    let heading = section.heading.as_ref().map(|heading| format!("## {heading}"));
    let text = iter::once(section.text.trim().to_owned());
    heading.into_iter().chain(text).chain(section.tables.iter().map(render_table)).collect()
}

fn render_list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| format!("- {item}")).collect();
    items.join("\n")
}

fn render_goals(goals: &[Goal]) -> String {
    let line = |goal: &Goal| {
        let result = if goal.met { "met" } else { "missed" };
        format!("goal: {}: {result} ({})", goal.text, goal.value)
    };
    render_list(&goals.iter().map(line).collect::<Vec<_>>())
}

fn render_table(table: &Table) -> String {
    let names = table.columns.iter().map(|column| column.name.as_str());
    let alignment = table.columns.iter().map(|column| if column.is_number { "--:" } else { "---" });
    let alignment = format!("|{}|", alignment.collect::<Vec<_>>().join("|"));
    let rows = table.rows.iter().map(|cells| render_row(cells.iter().map(String::as_str)));
    [render_row(names), alignment].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn render_row<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> BenchResult {
        let mut first = Table::new(&["what"], &["ms", "ratio"]);
        first.push(["a | b", "1.0", "0.50"].map(str::to_owned));
        let second = Table::new(&["other"], &[]);
        BenchResult {
            name: "plan".to_owned(),
            title: "A plan".to_owned(),
            date: "2026-01-02".parse().unwrap(),
            conditions: vec!["on a machine".to_owned(), "with a file".to_owned()],
            sections: vec![
                Section::untitled("", vec![first]),
                Section::new("Memory", "Peak of all rounds.", vec![second]),
            ],
            goals: vec![
                Goal::new("at most 1 s", true, "0.5 s"),
                Goal::new("at most 1 MiB", false, "2 MiB"),
            ],
            command: "berth-benches plan".to_owned(),
        }
    }

    #[test]
    fn a_document_has_all_parts_in_order() {
        assert_eq!(
            document(&result()),
            "# A plan, 2026-01-02\n\n- on a machine\n- with a file\n\n| what | ms | ratio |\n|---|--:|--:|\n\
             | a \\| b | 1.0 | 0.50 |\n\n## Memory\n\nPeak of all rounds.\n\n| other |\n|---|\n\n## Goals\n\n\
             - goal: at most 1 s: met (0.5 s)\n- goal: at most 1 MiB: missed (2 MiB)\n\n\
             Command: `make bench`, or `berth-benches plan`.\n"
        );
    }

    #[test]
    fn a_summary_has_conditions_the_first_table_and_goals() {
        assert_eq!(
            summary(&result()),
            "## A plan, 2026-01-02\n\n- on a machine\n- with a file\n\n| what | ms | ratio |\n|---|--:|--:|\n\
             | a \\| b | 1.0 | 0.50 |\n\n- goal: at most 1 s: met (0.5 s)\n- goal: at most 1 MiB: missed (2 MiB)\n"
        );
    }

    #[test]
    fn a_result_without_goals_has_no_heading_for_goals() {
        let result = BenchResult { goals: Vec::new(), sections: Vec::new(), ..result() };
        assert_eq!(
            document(&result),
            "# A plan, 2026-01-02\n\n- on a machine\n- with a file\n\n\
             Command: `make bench`, or `berth-benches plan`.\n"
        );
    }
}
