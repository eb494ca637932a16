//! Another process that undoes a change on trial, if the agent does not say how it ended.
//!
//! `systemctl stop`, an out-of-memory kill of the control group and the end of a container end all processes of the
//! agent's control group together. So where systemd can be asked, the guard is a transient service. Else
//! it is a child, which outlives the agent alone; then the agent's next start undoes the change.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;

use super::error::Guard;
use crate::apply::hands::Hands;
use crate::systemd::SystemdError;

/// The guard's name among the commands.
pub const COMMAND: &str = "trial-guard";

/// Starts a guard for the note that is saved. `deadline` makes the name of its unit unique.
pub(super) fn start(hands: &Hands, deadline: u64) -> Guard {
    match unit(hands, deadline) {
        Ok(unit) => {
            tracing::info!(
                unit,
                "started a transient unit that undoes the trial if the agent dies"
            );
            return Guard::Unit(unit);
        }
        Err(error) => {
            tracing::warn!(%error, "failed to start a transient unit as guard of the trial")
        }
    }
    match child(hands) {
        Ok(()) => Guard::Child,
        Err(error) => {
            tracing::warn!(%error, "failed to start a child process as guard of the trial");
            Guard::NextStart
        }
    }
}

fn unit(hands: &Hands, deadline: u64) -> Result<String, SystemdError> {
    if hands.root.is_from_container() {
        return Err(SystemdError::container());
    }
    let program = program().map_err(|error| SystemdError::because(&error))?;
    let name = format!("berth-trial-guard-{deadline}.service");
    let root = hands.root.path().to_string_lossy();
    hands.systemd()?.start_transient(&name, &program.to_string_lossy(), &[COMMAND, &root])?;
    Ok(name)
}

fn child(hands: &Hands) -> io::Result<()> {
    use std::os::unix::process::CommandExt as _;
    #[expect(clippy::disallowed_methods, reason = "this program itself, not another")]
    let mut command = std::process::Command::new(program()?);
    // In a separate process group: signals to a terminal's or a script's group do not end it.
    command.arg(COMMAND).arg(hands.root.path()).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    // It ends by itself, and its parent has to wait for it.
    std::thread::spawn(move || child.wait());
    Ok(())
}

/// This program. After an upgrade the file that runs is deleted, and the new one has its name.
fn program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}
