//! The guard: another process that rolls back a trial if the agent does not finish the trial before the deadline.
//!
//! `systemctl stop`, an out-of-memory kill of the control group and the end of a container end all processes of
//! the agent's control group together. So the guard is a transient service if systemd is available. Otherwise the
//! guard is a child process, which only survives the end of the agent's process; if the whole control group ends,
//! the next start of the agent rolls back the change.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;

use super::error::TrialGuard;
use crate::apply::context::ApplyContext;
use crate::systemd::SystemdError;

/// Name of the command that runs the guard.
pub const GUARD_COMMAND: &str = "trial-guard";

/// Starts a guard process, which reads the note of the trial from the disk. `deadline` makes the name of the transient
/// unit unique.
pub(super) fn start_guard(context: &ApplyContext, deadline: u64) -> TrialGuard {
    match start_guard_unit(context, deadline) {
        Ok(unit) => {
            tracing::info!(
                unit,
                "started a transient unit that rolls back the trial if the agent exits"
            );
            return TrialGuard::TransientUnit(unit);
        }
        Err(error) => {
            tracing::warn!(%error, "failed to start a transient unit as guard of the trial")
        }
    }
    match spawn_guard_process(context) {
        Ok(()) => TrialGuard::ChildProcess,
        Err(error) => {
            tracing::warn!(%error, "failed to start a child process as guard of the trial");
            TrialGuard::NextAgentStart
        }
    }
}

fn start_guard_unit(context: &ApplyContext, deadline: u64) -> Result<String, SystemdError> {
    if context.root.is_from_container() {
        return Err(SystemdError::in_container());
    }
    let program = program_path().map_err(|error| SystemdError::from_error(&error))?;
    let name = format!("berth-trial-guard-{deadline}.service");
    let root = context.root.path().to_string_lossy();
    context.systemd()?.start_transient(
        &name,
        &program.to_string_lossy(),
        &[GUARD_COMMAND, &root],
    )?;
    Ok(name)
}

fn spawn_guard_process(context: &ApplyContext) -> io::Result<()> {
    use std::os::unix::process::CommandExt as _;
    #[expect(clippy::disallowed_methods, reason = "starts this program itself")]
    let mut command = std::process::Command::new(program_path()?);
    // The guard has a separate process group, so that signals to the group of a terminal or a
    // script do not end it.
    command.arg(GUARD_COMMAND).arg(context.root.path()).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    // The parent process has to wait for the guard to exit, so that the guard does not stay a zombie.
    std::thread::spawn(move || child.wait());
    Ok(())
}

/// Returns the path of this program. If an upgrade replaced the file of the running program, returns the path of the
/// new file.
fn program_path() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}
