//! Two real API servers, one of the infra cluster and one of a tenant, in a network namespace of the test.

#![expect(
    clippy::disallowed_methods,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests run programs, and fail by panicking"
)]

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cluster::{ControlPlane, ControlPlaneOptions, Version, condition, spread_workload};
use crate::skip;

/// Address of the tenant's API server, from a documentation range (RFC 5737). The controller would refuse the loopback
/// address.
pub const TENANT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);
const TIMEOUT: Duration = Duration::from_secs(60);
/// User of the controller in the tenant's cluster.
const TENANT_USER: &str = "system:serviceaccount:kube-system:berth-controller";
/// Variable that is set in the network namespace of the test.
const IN_NAMESPACE: &str = "BERTH_TEST_IN_NAMESPACE";

/// The control planes of both clusters.
#[derive(Debug)]
pub struct Clusters {
    pub infra: ControlPlane,
    /// The tenant's cluster.
    pub tenant: ControlPlane,
    /// Name of the controller's log.
    log: &'static str,
}

/// Runs a test again in a separate network namespace, in which [`TENANT_ADDRESS`] is an address of the loopback.
/// Returns true in this namespace.
#[must_use]
pub fn is_in_namespace(test: &str) -> bool {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return true;
    }
    let unshare = |command: &str| {
        let program = std::env::current_exe().unwrap();
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", command]).arg(program).env(IN_NAMESPACE, "1").status()
    };
    if !unshare("true").is_ok_and(|status| status.success()) {
        skip::skip(test, "no network namespace can be created (root)");
        return false;
    }
    let command = format!(
        "ip link set lo up && ip address add {TENANT_ADDRESS}/32 dev lo && \
         exec \"$0\" --exact {test} --include-ignored --nocapture"
    );
    let status = unshare(&command).unwrap();
    assert!(status.success(), "the test failed in its network namespace: {status}");
    false
}

impl Clusters {
    /// Starts both control planes, and applies the permissions of the controller in the infra cluster. The tenant's API
    /// server writes an audit log. `log` is the name of the controller's log.
    #[must_use]
    pub fn start(log: &'static str) -> Self {
        let tenant = ControlPlaneOptions { has_audit_log: true, ..ControlPlaneOptions::default() };
        Self::start_with(log, ControlPlaneOptions::default(), tenant)
    }

    /// Starts both control planes like [`Self::start`], with these options.
    #[must_use]
    pub fn start_with(
        log: &'static str,
        infra: ControlPlaneOptions,
        tenant: ControlPlaneOptions,
    ) -> Self {
        let infra = ControlPlane::start(infra).unwrap();
        let server_address = Some(TENANT_ADDRESS);
        let tenant = ControlPlane::start(ControlPlaneOptions { server_address, ..tenant }).unwrap();
        infra.install_machine_kinds().unwrap();
        infra.deploy(&["base/rbac-controller.yaml"]).unwrap();
        Self { infra, tenant, log }
    }

    /// Starts both control planes with their controllers, for a tenant whose machines are drained. The tenant's
    /// controller manager does not mark Nodes as not ready, because there are no kubelets.
    #[must_use]
    pub fn start_for_drains(log: &'static str) -> Self {
        let infra = ControlPlaneOptions { has_controllers: true, ..ControlPlaneOptions::default() };
        let tenant = ControlPlaneOptions { has_kubevirt: true, ..infra };
        let clusters = Self::start_with(log, infra, tenant);
        clusters.grant_permissions(&[]);
        clusters
    }

    /// Starts both control planes like [`Self::start_for_drains`], for a test that also drains hosts of the infra cluster.
    /// The infra cluster has migrations, and its controller manager does not mark hosts as not ready either.
    #[must_use]
    pub fn start_for_host_drains(log: &'static str) -> Self {
        let options = ControlPlaneOptions {
            has_controllers: true,
            has_kubevirt: true,
            ..ControlPlaneOptions::default()
        };
        let clusters = Self::start_with(log, options, options);
        let migrations = "virtualmachineinstancemigrations.kubevirt.io";
        clusters.infra.install_kubevirt_crds(&[migrations]).unwrap();
        clusters.grant_permissions(&[]);
        clusters
    }

    /// Applies the output of `render --tenant-rbac`, with further options, in the tenant's cluster.
    pub fn grant_permissions(&self, options: &[&str]) {
        let program = crate::program("berth-controller");
        let mut render = Command::new(program);
        let output = render.args(["render", "--tenant-rbac"]).args(options).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        self.tenant.apply(&String::from_utf8(output.stdout).unwrap()).unwrap();
    }

    /// Returns a token of the controller for the tenant's API server.
    #[must_use]
    pub fn token(&self) -> String {
        self.tenant.create_token_in("kube-system", "berth-controller").unwrap()
    }

    /// Returns a kubeconfig for the tenant's API server with this token.
    #[must_use]
    pub fn kubeconfig(&self, token: &str) -> String {
        let file = self.tenant.write_kubeconfig("berth", token, false).unwrap();
        std::fs::read_to_string(file).unwrap()
    }

    /// Returns a kubeconfig for the tenant's API server with the content of a client certificate and its key.
    #[must_use]
    pub fn certificate_kubeconfig(&self, files: &[PathBuf; 2]) -> String {
        let [certificate, key] =
            files.each_ref().map(|file| STANDARD.encode(std::fs::read(file).unwrap()));
        let data = format!("client-certificate-data: {certificate}, client-key-data: {key}");
        self.kubeconfig("any").replace("token: \"any\"", &data)
    }

    /// Creates a TenantCluster that refers to the Secret `kubeconfig`, and waits for the tenant's namespace.
    pub fn create_tenant(&self, name: &str) {
        self.create_tenant_with(name, &json!({"kubeconfigSecretRef": {"name": "kubeconfig"}}));
    }

    /// Creates a TenantCluster like [`Self::create_tenant`], with this `spec`.
    pub fn create_tenant_with(&self, name: &str, spec: &Value) {
        let tenant = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name}, "spec": spec,
        });
        self.infra.apply(&tenant.to_string()).unwrap();
        let namespace = format!("cluster-{name}");
        self.wait_until("the namespace exists", |clusters| {
            clusters.infra.get_json(&["namespace", &namespace]).is_ok()
        });
    }

    /// Creates a TenantCluster whose machines get user data, and the Secrets with the user data and the kubeconfig.
    pub fn create_tenant_with_machines(&self, name: &str) {
        let spec = json!({
            "kubeconfigSecretRef": {"name": "kubeconfig"}, "userDataSecretRef": {"name": "user-data"},
        });
        self.create_tenant_with(name, &spec);
        let namespace = format!("cluster-{name}");
        let user_data = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data", "namespace": namespace},
            "stringData": {"userdata": "#cloud-config\nhostname: x\n"},
        });
        self.infra.apply(&user_data.to_string()).unwrap();
        self.write_secret(&namespace, &self.kubeconfig(&self.token()));
    }

    /// Applies a Deployment in the tenant's namespace `default`, whose pods have the label `app` and are spread over
    /// the Nodes.
    pub fn apply_workload(&self, app: &str, pods: usize) {
        let deployment = spread_workload(app, "default", pods);
        self.tenant.apply(&deployment.to_string()).unwrap();
    }

    /// Applies the PodDisruptionBudget of [`Self::apply_workload`], and waits until the tenant's controller manager has
    /// updated its status.
    pub fn apply_budget(&self, app: &str, minimum: usize) {
        let is_old = self.tenant.version() < Version(1, 21);
        let version = if is_old { "policy/v1beta1" } else { "policy/v1" };
        let budget = json!({
            "apiVersion": version, "kind": "PodDisruptionBudget", "metadata": {"name": app, "namespace": "default"},
            "spec": {"minAvailable": minimum, "selector": {"matchLabels": {"app": app}}},
        });
        self.tenant.apply(&budget.to_string()).unwrap();
        self.wait_until("the budget is observed", |clusters| {
            clusters.budget_status(app)["desiredHealthy"] == json!(minimum)
        });
    }

    /// Returns the status of a PodDisruptionBudget in the tenant's namespace `default`.
    #[must_use]
    pub fn budget_status(&self, app: &str) -> Value {
        let budget = self.tenant.get_json(&["pdb", app, "-n", "default"]);
        budget.unwrap_or_default()["status"].clone()
    }

    /// Writes a kubeconfig to the Secret of a tenant.
    pub fn write_secret(&self, namespace: &str, kubeconfig: &str) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubeconfig", "namespace": namespace},
            "stringData": {"kubeconfig": kubeconfig},
        });
        self.infra.apply(&secret.to_string()).unwrap();
    }

    /// Writes the InfraConfig.
    pub fn write_config(&self, spec: &Value) {
        let config = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"}, "spec": spec,
        });
        self.infra.apply(&config.to_string()).unwrap();
    }

    /// Waits until a state is reached.
    pub fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        self.infra
            .wait_until(what, TIMEOUT, |_| is_reached(self).then_some(()))
            .unwrap_or_else(|error| panic!("{error}: {}", self.infra.log_tail(self.log)));
    }

    /// Waits until a condition of a tenant has the status and the reason `expected`, such as `True Connected`, and
    /// returns the message of the condition.
    #[must_use]
    pub fn condition_message(&self, tenant: &str, type_: &str, expected: &str) -> String {
        let mut last = Value::Null;
        let reached = self.infra.wait_until(expected, TIMEOUT, |infra| {
            last = infra.get_json(&["tenantcluster", tenant]).unwrap_or_default();
            let one = condition(&last, type_);
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
            let found = format!("{} {}", text("status"), text("reason"));
            (found == expected).then(|| text("message"))
        });
        reached.unwrap_or_else(|error| {
            panic!("{error}: {:#}\n{}", last["status"], self.infra.log_tail(self.log))
        })
    }

    /// Waits until a condition of a tenant has the status and the reason `expected`, such as `True Connected`.
    pub fn wait_until_condition(&self, tenant: &str, type_: &str, expected: &str) {
        drop(self.condition_message(tenant, type_, expected));
    }

    /// Returns the requests of the controller to the tenant's API server, from its audit log.
    #[must_use]
    pub fn tenant_requests(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.tenant.folder().join("audit.log")).unwrap();
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["user"]["username"] == TENANT_USER).collect()
    }

    /// Checks that the controller sends no request to the tenant's API server for ten seconds, after its last writes.
    pub fn check_idle(&self) {
        let last = Cell::new(self.tenant_requests().len());
        // The last writes may still cause an event and a reconcile.
        self.wait_until("the controller has sent no request for five seconds", |clusters| {
            std::thread::sleep(Duration::from_secs(5));
            let current = clusters.tenant_requests().len();
            last.replace(current) == current
        });
        assert!(last.get() > 3, "the controller should have sent requests, found {}", last.get());
        std::thread::sleep(Duration::from_secs(10));
        assert_eq!(
            self.tenant_requests().len(),
            last.get(),
            "an idle controller should send no requests"
        );
    }
}
