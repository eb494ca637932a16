//! A real Kubernetes control plane on loopback, thrown away with the test.
//!
//! Its programs are those of `KUBEBUILDER_ASSETS`, as the controller-runtime world has them, else those that
//! `tests/cluster/assets.sh` builds once. What their version cannot do tests skip by name.

#![expect(clippy::disallowed_methods, reason = "tests run programs and look at files")]

mod definitions;
mod join;
mod keys;
mod objects;
pub mod proxy;
mod scheduler;

use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::running::Running;
use crate::wait;
pub use keys::ADMIN;
use keys::Keys;
pub use objects::{CLUSTER_DNS, condition, registered};

/// A control plane that runs until it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    // In the order in which they are ended: etcd last, as the others wait for it.
    scheduler: Option<Running>,
    others: Vec<Running>,
    server: Option<Running>,
    etcd: Running,
    assets: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    server_command: Vec<String>,
    version: Version,
    /// Of kubectl, for messages.
    last_output: Mutex<String>,
}

/// Version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// What is wanted of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts {
    /// The controllers and a scheduler: what needs pods made, objects collected or tokens given to pods.
    pub controllers: bool,
    /// An audit log of all requests, `audit.log` in the folder.
    pub audit: bool,
}

/// Of services; the API server is the first.
const SERVICES: &str = "10.96.0.0/16";
/// Emulated hosts reach this machine's loopback there.
pub const FROM_HOSTS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// How long a program may take to be ready.
const READY: Duration = Duration::from_secs(120);

impl ControlPlane {
    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// If the programs cannot be had or do not start; the message has the end of their log.
    pub fn start(parts: Parts) -> Result<Self> {
        let assets = assets()?;
        let folder = tempfile::tempdir()?;
        let at = folder.path();
        let keys = Keys::make(at)?;
        let [client, peer, port] = free_ports()?;
        let etcd = program(
            &assets,
            at,
            "etcd",
            &[
                "--unsafe-no-fsync".to_owned(),
                format!("--data-dir={}", at.join("etcd").display()),
                format!("--listen-client-urls=http://127.0.0.1:{client}"),
                format!("--advertise-client-urls=http://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
            ],
        )?;
        let version = version_of(&assets)?;
        let mut plane = Self {
            scheduler: None,
            others: Vec::new(),
            server: None,
            etcd,
            server_command: server(&keys, at, version, parts, client, port)?,
            assets,
            port,
            version,
            folder,
            last_output: Mutex::default(),
        };
        keys.kubeconfig(&plane.kubeconfig(), &format!("https://127.0.0.1:{port}"), ADMIN)?;
        plane.start_server()?;
        plane.add_dns()?;
        if parts.controllers {
            plane.start_controllers(&keys)?;
        }
        Ok(plane)
    }

    /// Starts the API server, or starts it again.
    ///
    /// # Errors
    /// If it does not become ready.
    pub fn start_server(&mut self) -> Result<()> {
        self.server = Some(program(
            &self.assets,
            self.folder.path(),
            "kube-apiserver",
            &self.server_command,
        )?);
        wait::until("kube-apiserver is ready", READY, || {
            // Ready means that its own roles and namespaces are there too.
            let asked = self.kubectl(&["get", "--raw", "/readyz"]);
            let asked =
                asked.and_then(|_| self.kubectl(&["get", "namespace", "default", "kube-system"]));
            asked
                .map(drop)
                .map_err(|error| format!("{error:#}\n{}", self.log("kube-apiserver")).into())
        })
    }

    /// Takes the API server away, as if it had crashed.
    pub fn stop_server(&mut self) {
        self.server = None;
    }

    fn start_controllers(&mut self, keys: &Keys) -> Result<()> {
        let kubeconfig = self.kubeconfig().display().to_string();
        let manager = [
            format!("--kubeconfig={kubeconfig}"),
            "--leader-elect=false".to_owned(),
            format!("--secure-port={}", free_ports::<1>()?[0]),
            "--bind-address=127.0.0.1".to_owned(),
            "--use-service-account-credentials".to_owned(),
            format!("--service-account-private-key-file={}", keys.accounts.display()),
            format!("--root-ca-file={}", keys.authority.display()),
            // CertificateSigningRequests are signed.
            format!("--cluster-signing-cert-file={}", keys.authority.display()),
            format!("--cluster-signing-key-file={}", keys.authority_key.display()),
            // Pods of a node that went away are evicted, and objects collected, without long waits.
            "--pod-eviction-timeout=5s".to_owned(),
        ];
        let manager: Vec<String> = manager
            .into_iter()
            .chain(self.no_insecure_port())
            .filter(|flag| {
                self.version < Version(1, 27) || !flag.starts_with("--pod-eviction-timeout")
            })
            .collect();
        let manager =
            program(&self.assets, self.folder.path(), "kube-controller-manager", &manager)?;
        self.others.push(manager);
        self.start_scheduler(None)
    }

    /// Controllers and schedulers before 1.24 also listen without TLS, on a port that is the same for all on a machine:
    /// the second one there ends at its start.
    fn no_insecure_port(&self) -> Option<String> {
        (self.version < Version(1, 24)).then(|| "--port=0".to_owned())
    }

    /// The server's version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Reports whether the server is of that version or later. If not, the part of a test that needs it counts as left out.
    #[must_use]
    pub fn supports(&self, part: &str, since: Version) -> bool {
        if self.version < since {
            let version = self.version;
            crate::skip::record(&format!(
                "part: {part}: needs Kubernetes {since}, this is {version}"
            ));
        }
        self.version >= since
    }

    /// Where the programs are; a kubelet is among them where it could be had.
    #[must_use]
    pub fn assets(&self) -> &Path {
        &self.assets
    }

    /// The port on this machine's loopback.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Process ids of the API server, while it runs, and of its etcd.
    #[must_use]
    pub fn processes(&self) -> (Option<u32>, u32) {
        (self.server.as_ref().map(|server| server.process.id()), self.etcd.process.id())
    }

    /// The folder of keys, logs and kubeconfigs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A kubeconfig for the holder of a token, from this machine or from emulated hosts.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn kubeconfig_for(&self, name: &str, token: &str, from_hosts: bool) -> Result<PathBuf> {
        let address = if from_hosts { FROM_HOSTS } else { Ipv4Addr::LOCALHOST };
        let file = self.folder.path().join(format!("{name}.kubeconfig"));
        let keys = Keys::of(self.folder.path());
        keys.kubeconfig(&file, &format!("https://{address}:{}", self.port), token)?;
        Ok(file)
    }

    /// A client certificate of a user in a group, signed by the control plane's own authority, and its key.
    ///
    /// # Errors
    /// If openssl fails.
    pub fn certificate_for(&self, name: &str, user: &str, group: &str) -> Result<[PathBuf; 2]> {
        Keys::of(self.folder.path()).client(&self.folder.path().join(name), user, group)
    }

    /// Runs kubectl as administrator; gives its standard output.
    ///
    /// # Errors
    /// If it fails; the message has its standard error.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(&self.kubeconfig(), arguments, "")
    }

    /// Runs kubectl with another kubeconfig and a standard input.
    ///
    /// # Errors
    /// As [`Self::kubectl`].
    pub fn kubectl_with(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        use std::io::Write as _;
        let mut command = Command::new(self.assets.join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(self.folder.path().join("cache"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read its input may be gone already.
            stdin.write_all(input.as_bytes()).unwrap_or_default();
        }
        let output = child.wait_with_output()?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if let Ok(mut last) = self.last_output.lock() {
            *last = format!("{}{}", text(&output.stdout), text(&output.stderr));
        }
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            arguments.join(" "),
            text(&output.stderr).trim()
        );
        Ok(text(&output.stdout))
    }

    /// Applies objects.
    ///
    /// # Errors
    /// As [`Self::kubectl`].
    pub fn apply(&self, objects: &str) -> Result<String> {
        self.kubectl_with(
            &self.kubeconfig(),
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            objects,
        )
    }

    /// An object as JSON.
    ///
    /// # Errors
    /// As [`Self::kubectl`], also if it is not there.
    pub fn get(&self, what: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get", "-o", "json"], what].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Waits until a question has an answer, as [`wait::until`].
    ///
    /// # Errors
    /// If it has none in that time. The message has the last output of kubectl.
    pub fn until<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut answer: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        wait::until(what, timeout, || {
            answer(self).ok_or_else(|| {
                self.last_output.lock().map(|last| last.clone()).unwrap_or_default().into()
            })
        })
    }

    /// The end of a program's log.
    #[must_use]
    pub fn log(&self, program: &str) -> String {
        let log = fs::read(self.folder.path().join(format!("{program}.log"))).unwrap_or_default();
        String::from_utf8_lossy(log.get(log.len().saturating_sub(3000)..).unwrap_or_default())
            .into_owned()
    }
}

fn server(
    keys: &Keys,
    at: &Path,
    version: Version,
    parts: Parts,
    etcd: u16,
    port: u16,
) -> Result<Vec<String>> {
    let mut flags = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        "--bind-address=127.0.0.1".to_owned(),
        // A loopback address is not published as the endpoint of default/kubernetes, and every cluster has one.
        "--advertise-address=192.0.2.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", keys.certificate.display()),
        format!("--tls-private-key-file={}", keys.key.display()),
        format!("--client-ca-file={}", keys.authority.display()),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--token-auth-file={}", keys.tokens.display()),
        "--service-account-issuer=https://berth.test".to_owned(),
        format!("--service-account-key-file={}", keys.accounts_public.display()),
        format!("--service-account-signing-key-file={}", keys.accounts.display()),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
    ];
    if version < Version(1, 21) {
        // Tokens of pods that know their pod and its node.
        flags.push("--feature-gates=BoundServiceAccountTokenVolume=true".to_owned());
    }
    if parts.audit {
        let policy = at.join("audit-policy.yaml");
        fs::write(
            &policy,
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n",
        )?;
        flags.push(format!("--audit-policy-file={}", policy.display()));
        flags.push(format!("--audit-log-path={}", at.join("audit.log").display()));
    }
    Ok(flags)
}

/// Starts a program that goes away with this one; its log is in the folder.
fn program(assets: &Path, at: &Path, name: &str, flags: &[String]) -> Result<Running> {
    let log = File::options().create(true).append(true).open(at.join(format!("{name}.log")))?;
    let mut command = Running::command(&assets.join(name), None);
    command.args(flags).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Running::spawn(command).with_context(|| name.to_owned())
}

/// The folder of programs.
fn assets() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS") {
        let folder = PathBuf::from(folder);
        for name in ["etcd", "kube-apiserver", "kubectl"] {
            ensure!(
                folder.join(name).exists(),
                "KUBEBUILDER_ASSETS={}: no {name} in it",
                folder.display()
            );
        }
        return Ok(folder);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/assets.sh");
    let built = Command::new(&script)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| script.display().to_string())?;
    ensure!(built.status.success(), "{} failed", script.display());
    Ok(PathBuf::from(String::from_utf8(built.stdout)?.trim()))
}

/// `Kubernetes v1.20.2`.
fn version_of(assets: &Path) -> Result<Version> {
    let said = Command::new(assets.join("kube-apiserver")).arg("--version").output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.lines().find_map(|line| {
        let mut numbers = line.trim().strip_prefix("Kubernetes v")?.split('.');
        Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    });
    version.with_context(|| format!("kube-apiserver --version says `{said}`"))
}

/// Ports that were free a moment ago.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    }
    let ports: Result<Vec<u16>> =
        listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect();
    match <[u16; N]>::try_from(ports?) {
        Ok(ports) => Ok(ports),
        Err(_) => bail!("no free ports"),
    }
}
