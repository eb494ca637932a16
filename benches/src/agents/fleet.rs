//! Many agents on one machine. Each agent is a process with separate files, which simulate a host.

#![expect(clippy::disallowed_methods, reason = "this crate runs other programs")]

#[path = "../../../agent/tests/common/host.rs"]
mod host;
#[path = "../../../agent/tests/common/tree.rs"]
#[expect(clippy::unwrap_used, reason = "the simulated host is created as in the tests")]
mod tree;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::running::Running;
use tree::Tree;

use crate::memory::Usage;

/// Number of agents that run as the same user. An agent uses one inotify instance, and the kernel permits 128 for
/// each user (`fs.inotify.max_user_instances`), so the benchmark runs the agents as several users. In production,
/// only one agent runs on a host.
const AGENTS_PER_USER: usize = 60;
/// UID of the first user that runs agents. Further users have the next UIDs.
const FIRST_UID: u32 = 60_600;
/// Time between the starts of two agents.
const START_INTERVAL: Duration = Duration::from_millis(50);

/// Agents that run until the value is dropped.
#[derive(Debug)]
pub(super) struct Fleet {
    // Declared before `folder`, so that the agents, which write to the folder, are stopped before it is removed.
    running: Vec<Running>,
    names: Vec<String>,
    folder: tempfile::TempDir,
}

impl Fleet {
    /// Creates the files of the hosts without starting an agent.
    pub(super) fn prepare(agent: &Path, kubeconfig: &Path, names: Vec<String>) -> Result<Self> {
        ensure!(nix::unistd::geteuid().is_root(), "only root can run agents as several users");
        let folder = tempfile::tempdir()?;
        let root = folder.path();
        fs::set_permissions(root, Permissions::from_mode(0o755))?;
        // Copies the binary, because other users have no access to the build directory.
        fs::copy(agent, root.join("berth-agent")).with_context(|| agent.display().to_string())?;
        fs::set_permissions(root.join("berth-agent"), Permissions::from_mode(0o755))?;
        let template = host::rack1_a();
        for (number, name) in names.iter().enumerate() {
            let user = user_id(number)?;
            let user_kubeconfig = root.join(user.to_string());
            if !user_kubeconfig.exists() {
                fs::copy(kubeconfig, &user_kubeconfig)
                    .with_context(|| user_kubeconfig.display().to_string())?;
                chown(&user_kubeconfig, Some(user), Some(user))?;
                // The kubeconfig contains a token, so only its user may read it.
                fs::set_permissions(&user_kubeconfig, Permissions::from_mode(0o600))?;
            }
            copy_tree(template.path(), &root.join(name), user)?;
        }
        Ok(Self { running: Vec::new(), names, folder })
    }

    /// Starts all agents, with an interval of [`START_INTERVAL`] between two starts.
    pub(super) fn start(&mut self) -> Result<()> {
        let root = self.folder.path();
        for (number, name) in self.names.iter().enumerate() {
            let begin = Instant::now();
            let user = user_id(number)?;
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--clear-groups"]);
            command.args([format!("--reuid={user}"), format!("--regid={user}")]);
            command.arg(root.join("berth-agent")).arg("run");
            command.arg(format!("--node-name={name}"));
            command.arg(format!("--kubeconfig={}", root.join(user.to_string()).display()));
            command.arg(format!("--root={}", root.join(name).display()));
            command.arg(format!("--listen=unix:{}", root.join(name).join("agent.sock").display()));
            let log = File::create(self.log_path(name))?;
            command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            self.running.push(Running::spawn(command)?);
            std::thread::sleep(START_INTERVAL.saturating_sub(begin.elapsed()));
        }
        Ok(())
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the memory and CPU time of each agent.
    pub(super) fn usage(&self) -> Result<Vec<Usage>> {
        let each = self.running.iter().zip(&self.names);
        each.map(|(one, name)| {
            Usage::of_process(one.process.id()).with_context(|| {
                format!(
                    "the agent of {name} has exited; the end of its log: {}",
                    self.log_tail(name)
                )
            })
        })
        .collect()
    }

    /// Returns the content of a file of a simulated host.
    pub(super) fn read_file(&self, name: &str, path: &str) -> Result<String> {
        let path = self.folder.path().join(name).join(path);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.trim().to_owned())
    }

    /// Returns the last five log lines of an agent.
    pub(super) fn log_tail(&self, name: &str) -> String {
        let log = fs::read_to_string(self.log_path(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("\n")
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }
}

fn user_id(number: usize) -> Result<u32> {
    Ok(FIRST_UID + u32::try_from(number / AGENTS_PER_USER)?)
}

/// Copies a folder tree. Files that an agent may change are copied and owned by `user`. All other files are hard
/// links to one shared file, which stays unchanged.
fn copy_tree(from: &Path, to: &Path, user: u32) -> Result<()> {
    fs::create_dir(to).with_context(|| to.display().to_string())?;
    chown(to, Some(user), Some(user))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&from, &to, user)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else if may_change(&from) {
            fs::copy(&from, &to)?;
            chown(&to, Some(user), Some(user))?;
        } else {
            fs::hard_link(&from, &to).with_context(|| to.display().to_string())?;
        }
    }
    Ok(())
}

/// Returns true if the specs of this benchmark can change the file. The specs change KSM and huge pages only.
fn may_change(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "ksm" || part.as_os_str() == "hugepages")
}
