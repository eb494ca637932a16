//! Runs scripts in new network and mount namespaces, so that they do not affect this machine.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Time limit of a script, in seconds.
const MAX_SECONDS: &str = "3600";

/// Runs a bash script in new network and mount namespaces, with `folder` as `$1` and with these variables. Returns
/// the standard output of the script.
pub(crate) fn run_unshared(
    script: &str,
    folder: &Path,
    variables: &[(&str, &OsStr)],
) -> Result<String> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces require root: run the benchmark as root"
    );
    #[expect(clippy::disallowed_methods, reason = "this crate runs other programs")]
    let mut command = Command::new("timeout");
    command
        .args([MAX_SECONDS, "unshare", "--net", "--mount", "--propagation", "private"])
        .args(["bash", "-ec", script, "bash"])
        .arg(folder)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().context("run timeout and unshare")?;
    ensure!(output.status.success(), "{}: the messages above show the cause", output.status);
    String::from_utf8(output.stdout).context("output of the script")
}
