//! Output of `berth-controller plan`.

#![expect(clippy::disallowed_methods, reason = "tests run programs")]

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Runs `berth-controller plan -o json` with these arguments in the repository, and returns its output. The exit code
/// is not checked: it is not zero if a VM fits on no host.
///
/// # Errors
/// Fails if the output is not JSON; the error message has the standard error of the program.
pub fn run_plan<S: AsRef<OsStr>>(arguments: &[S]) -> Result<Value> {
    let output = Command::new(crate::program("berth-controller"))
        .args(["plan", "-o", "json"])
        .args(arguments)
        .current_dir(crate::repository())
        .output()?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
}
