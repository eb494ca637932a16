//! Output of `berth-controller check`.

#![expect(clippy::disallowed_methods, reason = "tests run programs")]

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Findings of `berth-controller check -o json`.
#[derive(Debug)]
pub struct CheckOutput {
    /// Exit code.
    pub code: Option<i32>,
    /// Findings as JSON.
    pub stdout: String,
    /// Error messages.
    pub stderr: String,
}

impl CheckOutput {
    /// Runs the command with a kubeconfig and further arguments.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub fn run(kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let output = Command::new(crate::program("berth-controller"))
            .args(["check", "-o", "json", "--kubeconfig"])
            .arg(kubeconfig)
            .args(arguments)
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }

    /// Tests that the checks with these ids have these statuses.
    ///
    /// # Errors
    /// Fails with the first finding that has another status, or like [`Self::finding`].
    pub fn require(&self, expected: &[(&str, &str)]) -> Result<()> {
        for (id, status) in expected {
            let finding = self.finding(id)?;
            ensure!(finding["status"] == *status, "{status} was expected: {finding:#}");
        }
        Ok(())
    }

    /// Returns the finding of a check.
    ///
    /// # Errors
    /// Fails if the output is not JSON, or has no such check; the error message contains the command's output to
    /// stderr.
    pub fn finding(&self, id: &str) -> Result<Value> {
        let findings: Value =
            serde_json::from_str(&self.stdout).with_context(|| self.stderr.clone())?;
        let checks = findings["checks"].as_array();
        let found = checks.and_then(|all| all.iter().find(|one| one["id"] == id));
        found.cloned().with_context(|| format!("the output has no check {id}: {findings:#}"))
    }
}
