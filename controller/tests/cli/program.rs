//! Runs the program in the folder of the repository.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(super) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(super) fn run_controller(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth-controller"))
        .args(arguments)
        .current_dir(repository())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that ignores its input may exit before all input is written.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap_or_default();
    child.wait_with_output().unwrap()
}

pub(super) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(super) fn run_plan(arguments: &[&str], input: &str) -> (i32, Value) {
    let all: Vec<&str> = ["plan", "-o", "json"].iter().chain(arguments).copied().collect();
    let output = run_controller(&all, input);
    let code = output.status.code().unwrap();
    let value = serde_json::from_str(&stdout(&output));
    (code, value.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output))))
}
