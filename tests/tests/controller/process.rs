//! A controller's process, with the credential of its ServiceAccount.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use berth_tests::cluster::ControlPlane;
use berth_tests::running::Running;

pub(crate) struct Controller {
    pub(crate) running: Running,
    pub(crate) port: u16,
}

/// Seconds for which the others wait.
pub(crate) const LEASE: u64 = 6;

impl Controller {
    pub(crate) fn start(plane: &ControlPlane, name: &str) -> Self {
        let kubeconfig = plane.kubeconfig_for("berth-controller", &token(plane), false).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = plane.folder().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        command.arg(berth_tests::repository().join("target/release/berth-controller"));
        command.args(["run", "--resync=2", "--identity", name]);
        command.arg(format!("--lease-duration={LEASE}"));
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.arg(format!("--listen=127.0.0.1:{port}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self { running: Running::spawn(command).unwrap(), port }
    }

    /// What it answers: the code and the text.
    pub(crate) fn page(&self, path: &str) -> Option<(u16, String)> {
        let address = format!("http://127.0.0.1:{}{path}", self.port);
        let answer =
            Command::new("curl").args(["-s", "-w", "\n%{http_code}", &address]).output().unwrap();
        let text = String::from_utf8(answer.stdout).unwrap();
        let (text, code) = text.rsplit_once('\n')?;
        Some((code.parse().ok()?, text.to_owned()))
    }

    /// A number of its metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.page("/metrics").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn terminate(&mut self) -> bool {
        let id = self.running.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.running.process.wait().unwrap().success()
    }
}

/// What all of them said.
pub(crate) fn logs(plane: &ControlPlane) -> String {
    let log = |name: &str| format!("--- {name} ---\n{}\n", plane.log(name));
    ["first", "second", "third"].map(log).concat()
}

fn token(plane: &ControlPlane) -> String {
    let path = "/api/v1/namespaces/berth-system/serviceaccounts/berth-controller/token";
    let request = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600}}"#;
    let answer = plane
        .kubectl_with(&plane.kubeconfig(), &["create", "--raw", path, "-f", "-"], request)
        .unwrap();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Requests of controllers that write, without the Lease.
pub(crate) fn writes(plane: &ControlPlane) -> Vec<serde_json::Value> {
    let log = std::fs::read_to_string(plane.folder().join("audit.log")).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let ours = lines.filter(|line| {
        line["user"]["username"].as_str().unwrap_or_default().ends_with(":berth-controller")
    });
    let reads = ["get", "list", "watch"];
    let writes = ours.filter(|line| !reads.contains(&line["verb"].as_str().unwrap_or_default()));
    writes.filter(|line| line["objectRef"]["resource"] != "leases").collect()
}
