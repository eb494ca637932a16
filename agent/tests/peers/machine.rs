//! A captured machine: its tree, the report of the agent, and the differences between the report and the output of
//! other tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::units::{Cpus, parse_bytes};

/// Time limit of a single command of the agent.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum width of tables, in columns.
const TABLE_WIDTH: usize = 80;

pub(crate) struct CapturedMachine {
    pub(crate) name: String,
    /// Root of the captured tree: the folder that contains `sys`.
    pub(crate) root: PathBuf,
    /// Standard output of `berth-agent report -o json`.
    report: Value,
    /// Standard error of `berth-agent report`: its warnings.
    pub(crate) stderr: String,
    pub(crate) mismatches: Vec<String>,
    _unpacked_folder: TempDir,
}

impl CapturedMachine {
    pub(crate) fn unpack(archive: &Path, suffix: &str) -> Self {
        let unpacked = TempDir::new().expect("a temporary folder should be created");
        let status = Command::new("tar")
            .args(["--extract", "--no-same-owner", "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(unpacked.path())
            .status()
            .expect("tar should start");
        assert!(status.success(), "tar cannot unpack {}", archive.display());

        let file_name = archive.file_name().unwrap_or_default().to_string_lossy();
        Self {
            name: file_name.trim_end_matches(suffix).to_owned(),
            root: folder_with_sys(unpacked.path())
                .unwrap_or_else(|| panic!("no sys in {}", archive.display())),
            report: Value::Null,
            stderr: String::new(),
            mismatches: Vec::new(),
            _unpacked_folder: unpacked,
        }
    }

    /// Runs the read-only commands of the agent, and checks properties that the output must have for any tree.
    /// Returns true if the agent printed a report, which can then be compared.
    pub(crate) fn run_agent(&mut self) -> bool {
        let (code, report, log) = self.run_command("report", "json");
        if code != "0" {
            self.add_mismatch(format!("exit code of report: expected 0, got {code}: {log}"));
        }
        let (_, again, _) = self.run_command("report", "json");
        if report != again {
            self.add_mismatch("two reports of the same tree differ".to_owned());
        }
        self.report = self.parse("report", &report);
        self.stderr = log;

        let (code, table, _) = self.run_command("report", "table");
        if code != "0" {
            self.add_mismatch(format!(
                "exit code of report --output table: expected 0, got {code}"
            ));
        }
        for line in table.lines().filter(|line| line.chars().count() > TABLE_WIDTH) {
            let width = line.chars().count();
            self.add_mismatch(format!("the table has a line of {width} columns: {line}"));
        }

        let (code, check, _) = self.run_command("check", "json");
        if !["0", "1"].contains(&code.as_str()) {
            self.add_mismatch(format!("exit code of check: expected 0 or 1, got {code}"));
        }
        self.parse("check", &check);
        !self.report.is_null()
    }

    /// Runs a command, and returns the exit code, standard output and standard error.
    fn run_command(&mut self, command: &str, format: &str) -> (String, String, String) {
        let start = Instant::now();
        let output = Command::new(env!("CARGO_BIN_EXE_berth-agent"))
            .arg(command)
            .arg("--root")
            .arg(&self.root)
            .args(["--output", format])
            .output()
            .expect("the agent should start");
        let took = start.elapsed();
        if took > TIME_LIMIT {
            self.add_mismatch(format!("{command} --output {format} took {took:?}"));
        }
        (
            output.status.code().map_or_else(|| "a signal".to_owned(), |code| code.to_string()),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    fn parse(&mut self, command: &str, output: &str) -> Value {
        serde_json::from_str(output).unwrap_or_else(|error| {
            self.add_mismatch(format!("{command} does not print JSON: {error}"));
            Value::Null
        })
    }

    pub(crate) fn add_mismatch(&mut self, message: String) {
        self.mismatches.push(format!("{}: {message}", self.name));
    }

    /// Records a difference if the two values are not equal.
    pub(crate) fn compare_values(
        &mut self,
        field: &str,
        tool: impl ToString,
        berth: impl ToString,
    ) {
        let (tool, berth) = (tool.to_string(), berth.to_string());
        if tool != berth {
            self.add_mismatch(format!(
                "{field}: the tool reports {tool:?}, berth reports {berth:?}"
            ));
        }
    }

    /// Returns a field of `status.capabilities`; `path` contains slashes between the names.
    pub(crate) fn capability(&self, path: &str) -> String {
        json_text(self.report.pointer(&format!("/status/capabilities/{path}")))
    }

    /// Returns a list of `status.capabilities`; `path` contains slashes between the names.
    pub(crate) fn capabilities(&self, path: &str) -> Vec<Value> {
        let list = self.report.pointer(&format!("/status/capabilities/{path}"));
        list.and_then(Value::as_array).cloned().unwrap_or_default()
    }

    /// Returns the ids of the zones. Their type is `Cpus`, because lists of zones and lists of CPUs have the same
    /// format.
    pub(crate) fn zone_ids(&self) -> Cpus {
        self.zones().filter_map(|zone| zone["id"].as_u64()?.try_into().ok()).collect()
    }

    /// Returns a field of a zone.
    pub(crate) fn zone(&self, id: u32, field: &str) -> String {
        json_text(self.zone_value(id, field))
    }

    /// Returns a list in a zone.
    pub(crate) fn zone_list(&self, id: u32, field: &str) -> &[Value] {
        self.zone_value(id, field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn zones(&self) -> impl Iterator<Item = &Value> {
        self.report.pointer("/status/zones").and_then(Value::as_array).into_iter().flatten()
    }

    fn zone_value(&self, id: u32, field: &str) -> Option<&Value> {
        self.zones().find(|zone| zone["id"] == id)?.get(field)
    }
}

/// Returns a JSON value as text without quotes, for a comparison with the output of a tool.
pub(crate) fn json_text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(Value::String(string)) => string.clone(),
        Some(other) => other.to_string(),
    }
}

/// Converts a quantity to bytes, so that `1Gi` equals `1048576Ki`. Returns text that is no quantity unchanged.
pub(crate) fn in_bytes(quantity: &str) -> String {
    parse_bytes(quantity).map_or_else(|| quantity.to_owned(), |(bytes, _)| bytes.to_string())
}

fn folder_with_sys(folder: &Path) -> Option<PathBuf> {
    if folder.join("sys").is_dir() {
        return Some(folder.to_owned());
    }
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).find_map(|p| folder_with_sys(&p))
}
