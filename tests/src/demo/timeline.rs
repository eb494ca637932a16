//! Observations of an operator during a fault of the demo, as a table: each observation once, with its time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::screen::Screen;
use super::tables;
use crate::cluster::condition;

/// Delay between two observations. A longer delay leaves the emulated hosts more CPU time.
pub(super) const OBSERVATION_INTERVAL: Duration = Duration::from_secs(3);

/// Observations in the order of their times.
#[derive(Debug)]
pub(super) struct Timeline<'a> {
    screen: &'a Screen,
    began: Instant,
    /// Last observation of each source.
    last: BTreeMap<String, String>,
    rows: Vec<Vec<String>>,
}

impl<'a> Timeline<'a> {
    /// Starts a timeline at the current time.
    pub(super) fn start(screen: &'a Screen) -> Self {
        Self { screen, began: Instant::now(), last: BTreeMap::new(), rows: Vec::new() }
    }

    /// Returns the output for progress messages.
    pub(super) const fn screen(&self) -> &'a Screen {
        self.screen
    }

    /// Adds an observation, and prints it.
    pub(super) fn add(&mut self, source: &str, text: &str) {
        self.screen.print_step(&format!("  {source}: {text}"));
        let time = format!("{} s", self.began.elapsed().as_secs());
        self.rows.push(vec![time, source.to_owned(), text.to_owned()]);
    }

    /// Adds the current state of a source if it has changed. An empty text means that the source does not exist or has
    /// no state.
    pub(super) fn observe(&mut self, source: &str, text: &str) {
        let before = self.last.insert(source.to_owned(), text.to_owned()).unwrap_or_default();
        if before != text {
            self.add(source, if text.is_empty() { "-" } else { text });
        }
    }

    /// Returns the table.
    pub(super) fn render(self, title: &str) -> String {
        tables::render_table(title, &["TIME", "SOURCE", "WHAT IT SHOWS"], self.rows)
    }
}

/// Returns status, reason and message of a condition; empty if the object has no condition of this type.
pub(super) fn condition_text(object: &Value, type_: &str) -> String {
    let found = condition(object, type_);
    if found.is_null() {
        return String::new();
    }
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_changes_are_listed() {
        let screen = Screen::default();
        let mut timeline = Timeline::start(&screen);
        for text in ["", "", "draining", "draining", "", "draining"] {
            timeline.observe("InfraNode", text);
        }
        timeline.observe("Node", "ready");
        let texts: Vec<&str> = timeline.rows.iter().map(|row| row[2].as_str()).collect();
        assert_eq!(texts, ["draining", "-", "draining", "ready"]);
        let table = timeline.render("Drain");
        assert!(table.starts_with("\nDrain\nTIME"), "{table}");
    }

    #[test]
    fn conditions_are_rendered_in_one_line() {
        let ready = json!({"type": "Ready", "status": "False", "reason": "A", "message": "b"});
        let object = json!({"status": {"conditions": [ready]}});
        assert_eq!(condition_text(&object, "Ready"), "False A: b");
        assert_eq!(condition_text(&object, "Draining"), "");
    }
}
