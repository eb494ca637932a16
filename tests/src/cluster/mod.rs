//! Real Kubernetes control plane on loopback that is removed after the test.
//!
//! The programs come from the folder `KUBEBUILDER_ASSETS`, as for controller-runtime's envtest. Without this variable,
//! `tests/cluster/assets.sh` builds them once. A part of a test that needs a newer Kubernetes version is skipped, and
//! the name of the part is recorded.

#![expect(clippy::disallowed_methods, reason = "tests run programs and read files")]

mod certificates;
mod client;
mod definitions;
mod get;
mod join;
mod keys;
mod kinds;
mod load_balancers;
mod objects;
pub mod proxy;
mod scheduler;
mod write;

use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::running::Running;
use crate::wait;
pub use client::{ApiClient, Refusal, Response};
pub use keys::ADMIN_TOKEN;
use keys::Keys;
use kinds::Kinds;
pub use load_balancers::METALLB_NAMESPACE;
pub use objects::{CLUSTER_DNS, condition, registered_node, spread_workload, web_deployment};

/// Control plane that runs until it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    // On drop, the programs are stopped in the order of the fields: etcd is the last, because the others wait for etcd.
    scheduler: Option<Running>,
    controllers: Vec<Running>,
    server: Option<Running>,
    etcd: Running,
    assets: PathBuf,
    folder: tempfile::TempDir,
    address: Ipv4Addr,
    port: u16,
    server_command: Vec<String>,
    version: Version,
    has_pod_groups: bool,
    client: ApiClient,
    kinds: Kinds,
    /// Last output of kubectl or response of the API server, for error messages.
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

#[derive(Debug, Clone, Copy, Default)]
pub struct ControlPlaneOptions {
    /// Starts the controller manager and a scheduler, which tests need if pods are created by controllers, objects
    /// are garbage-collected or pods get tokens.
    pub has_controllers: bool,
    /// Writes an audit log of all requests to `audit.log` in the folder.
    pub has_audit_log: bool,
    /// Prepares the servers for KubeVirt's programs and for Nodes without a kubelet: the API server publishes the CA of
    /// front proxies, without which virt-api does not start, and accepts privileged pods; the controller manager does
    /// not mark Nodes as not ready, so that tests can write the status of Nodes without a kubelet.
    pub has_kubevirt: bool,
    /// The Nodes have kubelets: also with [`has_kubevirt`](Self::has_kubevirt), the controller manager marks a Node as
    /// not ready if its kubelet does not report.
    pub has_kubelets: bool,
    /// Address of this machine on which the API server listens, in place of the loopback address. Controllers refuse
    /// tenants' API servers on the loopback.
    pub server_address: Option<Ipv4Addr>,
    /// Enables PodGroups in the API server and the schedulers, if the release has them ([`POD_GROUPS_RELEASE`]).
    pub has_pod_groups: bool,
}

/// Oldest Kubernetes release with the API `scheduling.k8s.io/v1alpha2`, which has PodGroups. The release disables the
/// API by default.
pub const POD_GROUPS_RELEASE: Version = Version(1, 36);
/// Flag of API servers and schedulers that enables PodGroups.
const POD_GROUPS_FLAG: &str = "--feature-gates=GenericWorkload=true,GangScheduling=true";

/// Address range of Services; the API server has the first address.
const SERVICE_CIDR: &str = "10.96.0.0/16";
/// Address at which emulated hosts reach this machine's loopback.
pub const HOST_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// Time limit for a program to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

impl ControlPlane {
    /// Starts a control plane, and waits until the control plane is ready.
    ///
    /// # Errors
    /// Fails if the programs are missing or do not start; the error message has the end of their log.
    pub fn start(options: ControlPlaneOptions) -> Result<Self> {
        let assets = find_assets()?;
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        let address = options.server_address.unwrap_or(Ipv4Addr::LOCALHOST);
        let keys = Keys::create_in_folder(path, address)?;
        let [etcd_port, peer_port, port] = free_ports()?;
        let etcd = start_program(
            &assets,
            path,
            "etcd",
            &[
                "--unsafe-no-fsync".to_owned(),
                format!("--data-dir={}", path.join("etcd").display()),
                format!("--listen-client-urls=http://127.0.0.1:{etcd_port}"),
                format!("--advertise-client-urls=http://127.0.0.1:{etcd_port}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}"),
                format!("--initial-cluster=default=http://127.0.0.1:{peer_port}"),
            ],
        )?;
        let version = read_version(&assets)?;
        let kubeconfig = path.join("kubeconfig");
        keys.write_kubeconfig(&kubeconfig, &format!("https://{address}:{port}"), ADMIN_TOKEN)?;
        let mut plane = Self {
            scheduler: None,
            controllers: Vec::new(),
            server: None,
            etcd,
            server_command: server_flags(&keys, path, version, options, etcd_port, port)?,
            assets,
            address,
            port,
            version,
            has_pod_groups: options.has_pod_groups && version >= POD_GROUPS_RELEASE,
            client: ApiClient::start(kubeconfig)?,
            kinds: Kinds::default(),
            folder,
            last_output: Mutex::default(),
        };
        plane.start_server()?;
        plane.create_dns_service()?;
        if options.has_controllers {
            plane.start_controller_manager(&keys, options)?;
        }
        Ok(plane)
    }

    /// Starts or restarts the API server.
    ///
    /// # Errors
    /// Fails if the API server does not become ready.
    pub fn start_server(&mut self) -> Result<()> {
        self.server = Some(start_program(
            &self.assets,
            self.folder.path(),
            "kube-apiserver",
            &self.server_command,
        )?);
        self.wait_until_ready()
    }

    /// Stops the API server with SIGKILL, like a crash.
    pub fn stop_server(&mut self) {
        self.server = None;
    }

    fn start_controller_manager(
        &mut self,
        keys: &Keys,
        options: ControlPlaneOptions,
    ) -> Result<()> {
        let kubeconfig = self.kubeconfig().display().to_string();
        let manager = [
            format!("--kubeconfig={kubeconfig}"),
            "--leader-elect=false".to_owned(),
            format!("--secure-port={}", free_ports::<1>()?[0]),
            "--bind-address=127.0.0.1".to_owned(),
            "--use-service-account-credentials".to_owned(),
            format!("--service-account-private-key-file={}", keys.service_account_key.display()),
            format!("--root-ca-file={}", keys.authority.display()),
            // The controller manager signs CertificateSigningRequests with this key.
            format!("--cluster-signing-cert-file={}", keys.authority.display()),
            format!("--cluster-signing-key-file={}", keys.authority_key.display()),
            // After 5 s instead of 5 minutes, the controller manager evicts the pods of a Node that is not ready.
            "--pod-eviction-timeout=5s".to_owned(),
            // After 10 s instead of 5 minutes, quotas count the objects of a kind that was defined after the start.
            "--resource-quota-sync-period=10s".to_owned(),
        ];
        let certificate = keys.serving_flags();
        // By default, a Node without a kubelet is marked as not ready within a minute.
        let grace_periods = ["--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"];
        let grace_periods =
            grace_periods.into_iter().filter(|_| options.has_kubevirt && !options.has_kubelets);
        let manager: Vec<String> = manager
            .into_iter()
            .chain(certificate)
            .chain(self.insecure_port_flag())
            .chain(grace_periods.map(str::to_owned))
            .filter(|flag| {
                self.version < Version(1, 27) || !flag.starts_with("--pod-eviction-timeout")
            })
            .collect();
        let manager =
            start_program(&self.assets, self.folder.path(), "kube-controller-manager", &manager)?;
        self.controllers.push(manager);
        self.start_scheduler(None)
    }

    /// Returns the flag that closes the port without TLS. Controller managers and schedulers before 1.24 open this
    /// port, and all instances on a machine use the same port number: the second instance on a machine exits at
    /// startup.
    fn insecure_port_flag(&self) -> Option<String> {
        (self.version < Version(1, 24)).then(|| "--port=0".to_owned())
    }

    /// Returns the server's version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns true if the server has at least the version `since`. Otherwise records the given part of the test as
    /// skipped.
    #[must_use]
    pub fn supports(&self, part: &str, since: Version) -> bool {
        supports(self.version, part, since)
    }

    /// Returns the same as [`Self::supports`] for a control plane that has not been started.
    ///
    /// # Errors
    /// Fails if the programs are missing.
    pub fn programs_support(part: &str, since: Version) -> Result<bool> {
        Ok(supports(read_version(&find_assets()?)?, part, since))
    }

    /// Returns the folder of the programs. The folder contains a kubelet if one was available.
    #[must_use]
    pub fn assets(&self) -> &Path {
        &self.assets
    }

    /// Returns the port of the API server on this machine's loopback.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the process ids of the API server, while the API server runs, and of etcd.
    #[must_use]
    pub fn server_process_ids(&self) -> (Option<u32>, u32) {
        (self.server.as_ref().map(|server| server.process.id()), self.etcd.process.id())
    }

    /// Returns the folder of keys, logs and kubeconfigs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the client of the administrator.
    #[must_use]
    pub fn api_client(&self) -> ApiClient {
        self.client.clone()
    }

    /// Returns the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Writes a kubeconfig for the holder of a token, for use on this machine or on emulated hosts.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_kubeconfig(&self, name: &str, token: &str, from_hosts: bool) -> Result<PathBuf> {
        let address = if from_hosts { HOST_GATEWAY } else { self.address };
        let file = self.folder.path().join(format!("{name}.kubeconfig"));
        let keys = Keys::in_folder(self.folder.path());
        keys.write_kubeconfig(&file, &format!("https://{address}:{}", self.port), token)?;
        Ok(file)
    }

    /// Runs kubectl as administrator and returns its standard output.
    ///
    /// # Errors
    /// Fails if kubectl fails; the error message has the standard error of kubectl.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(&self.kubeconfig(), arguments, "")
    }

    /// Returns the folder in which kubectl caches the kinds that the API server serves.
    fn kubectl_cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Runs kubectl with another kubeconfig and with standard input.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn kubectl_with(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        use std::io::Write as _;
        let mut command = Command::new(self.assets.join("kubectl"));
        command.arg("--kubeconfig").arg(kubeconfig).arg("--cache-dir").arg(self.kubectl_cache());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            // If kubectl does not read its input, it may have exited before this write.
            stdin.write_all(input.as_bytes()).unwrap_or_default();
        }
        let output = child.wait_with_output()?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        self.record_output(&format!("{}{}", text(&output.stdout), text(&output.stderr)));
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            arguments.join(" "),
            text(&output.stderr).trim()
        );
        Ok(text(&output.stdout))
    }

    fn record_output(&self, output: &str) {
        if let Ok(mut last) = self.last_output.lock() {
            output.clone_into(&mut last);
        }
    }

    /// Calls a function repeatedly until the function returns a value, like [`wait::wait_until`].
    ///
    /// # Errors
    /// Fails if there is no value within the time limit. The error message has the last output of kubectl.
    pub fn wait_until<T>(
        &self,
        description: &str,
        timeout: Duration,
        mut answer: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        wait::wait_until(description, timeout, || {
            answer(self).ok_or_else(|| {
                self.last_output.lock().map(|last| last.clone()).unwrap_or_default().into()
            })
        })
    }

    /// Returns a program's log.
    ///
    /// # Errors
    /// Fails if there is no log.
    pub fn log(&self, program: &str) -> Result<String> {
        let file = self.folder.path().join(format!("{program}.log"));
        let log = fs::read(&file).with_context(|| file.display().to_string())?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// Returns the end of a program's log.
    #[must_use]
    pub fn log_tail(&self, program: &str) -> String {
        let log = fs::read(self.folder.path().join(format!("{program}.log"))).unwrap_or_default();
        String::from_utf8_lossy(log.get(log.len().saturating_sub(3000)..).unwrap_or_default())
            .into_owned()
    }
}

fn server_flags(
    keys: &Keys,
    folder: &Path,
    version: Version,
    options: ControlPlaneOptions,
    etcd_port: u16,
    port: u16,
) -> Result<Vec<String>> {
    let mut flags = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        format!("--bind-address={}", options.server_address.unwrap_or(Ipv4Addr::LOCALHOST)),
        // The API server does not publish a loopback address as the endpoint of the Service default/kubernetes, but
        // this endpoint exists in every real cluster.
        "--advertise-address=192.0.2.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--client-ca-file={}", keys.authority.display()),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--token-auth-file={}", keys.tokens.display()),
        "--service-account-issuer=https://berth.test".to_owned(),
        format!("--service-account-key-file={}", keys.service_account_public_key.display()),
        format!("--service-account-signing-key-file={}", keys.service_account_key.display()),
        format!("--service-cluster-ip-range={SERVICE_CIDR}"),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
    ];
    flags.extend(keys.serving_flags());
    if version < Version(1, 21) {
        // Before 1.21, this feature gate is needed so that tokens of pods are bound to the pod and its node.
        flags.push("--feature-gates=BoundServiceAccountTokenVolume=true".to_owned());
    }
    if options.has_kubevirt {
        flags.extend(keys.front_proxy_flags()?);
        // KubeVirt reads the properties of a host's CPUs in a privileged pod.
        flags.push("--allow-privileged=true".to_owned());
    }
    if options.has_pod_groups && version >= POD_GROUPS_RELEASE {
        flags.push(POD_GROUPS_FLAG.to_owned());
        flags.push("--runtime-config=scheduling.k8s.io/v1alpha2=true".to_owned());
    }
    if options.has_audit_log {
        let policy = folder.join("audit-policy.yaml");
        fs::write(
            &policy,
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n",
        )?;
        flags.push(format!("--audit-policy-file={}", policy.display()));
        flags.push(format!("--audit-log-path={}", folder.join("audit.log").display()));
    }
    Ok(flags)
}

fn supports(version: Version, part: &str, since: Version) -> bool {
    if version < since {
        crate::skip::record(&format!(
            "part: {part}: requires Kubernetes {since}, the server has {version}"
        ));
    }
    version >= since
}

/// Starts a program that ends when this process ends, and writes its log to `folder`.
pub(crate) fn start_program(
    assets: &Path,
    folder: &Path,
    name: &str,
    flags: &[String],
) -> Result<Running> {
    let log = File::options().create(true).append(true).open(folder.join(format!("{name}.log")))?;
    let mut command = Running::command(&assets.join(name), None);
    command.args(flags).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Running::spawn(command).with_context(|| name.to_owned())
}

/// Returns the folder of the Kubernetes programs.
fn find_assets() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS") {
        let folder = PathBuf::from(folder);
        for name in ["etcd", "kube-apiserver", "kubectl"] {
            ensure!(
                folder.join(name).exists(),
                "KUBEBUILDER_ASSETS={}: {name} is missing in this folder",
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

/// Parses the version of kube-apiserver from text like `Kubernetes v1.20.2`.
fn read_version(assets: &Path) -> Result<Version> {
    let output = Command::new(assets.join("kube-apiserver")).arg("--version").output()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = output.lines().find_map(|line| {
        let mut numbers = line.trim().strip_prefix("Kubernetes v")?.split('.');
        Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    });
    version.with_context(|| format!("kube-apiserver --version: unexpected output `{output}`"))
}

/// Returns TCP ports that no program uses at the time of the call.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    }
    let ports: Result<Vec<u16>> =
        listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect();
    match <[u16; N]>::try_from(ports?) {
        Ok(ports) => Ok(ports),
        Err(_) => bail!("no free TCP ports"),
    }
}
