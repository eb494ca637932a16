//! Process of an agent that uses the credential of its ServiceAccount.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_tests::running::Running;

use crate::tree::Tree;

pub(crate) struct Agent {
    running: Running,
    command: Vec<String>,
    log: PathBuf,
}

impl Agent {
    /// Starts an agent with a kubeconfig, a port for its HTTP endpoints, and a log.
    pub(crate) fn start(
        tree: &Tree,
        node: &str,
        kubeconfig: &Path,
        port: u16,
        log: PathBuf,
    ) -> Self {
        let command = [
            berth_tests::program("berth-agent").to_str().unwrap().to_owned(),
            "run".to_owned(),
            format!("--node-name={node}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root={}", tree.path().display()),
            format!("--listen=127.0.0.1:{port}"),
            "--interval=2".to_owned(),
        ]
        .to_vec();
        Self { running: spawn_agent(&command, &log), command, log }
    }

    /// Kills the agent like a crash, and restarts the agent with its previous flags and these additional flags.
    pub(crate) fn restart(&mut self, extra_flags: &[&str]) {
        self.command.extend(extra_flags.iter().map(|flag| (*flag).to_owned()));
        self.running.stop();
        self.running = spawn_agent(&self.command, &self.log);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            writeln!(std::io::stderr(), "--- log of the agent ---\n{log}").unwrap_or_default();
        }
    }
}

fn spawn_agent(command: &[String], log: &PathBuf) -> Running {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--pdeathsig", "KILL"]).args(command);
    setpriv.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Running::spawn(setpriv).unwrap()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns the content of a file of the simulated host.
pub(crate) fn read_file(tree: &Tree, path: &str) -> String {
    std::fs::read_to_string(tree.path().join(path)).unwrap().trim().to_owned()
}
