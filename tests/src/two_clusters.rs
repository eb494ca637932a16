//! Control planes of the infra cluster and of a tenant, in a network namespace of their own.

#![expect(clippy::disallowed_methods, reason = "tests run programs and read files")]

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{ControlPlane, ControlPlaneOptions};
use crate::{repository, skip};

/// Address of the tenant's API server, from a network for documentation. The loopback address would be refused.
pub const TENANT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);
/// User of the controller in the tenant's cluster.
pub const TENANT_USER: &str = "system:serviceaccount:kube-system:berth-controller";

/// Variable that is set in the network namespace of a test.
const IN_NAMESPACE: &str = "BERTH_TEST_IN_NAMESPACE";

/// Control planes of the infra cluster and of a tenant.
#[derive(Debug)]
pub struct TwoClusters {
    /// The infra cluster, with the kinds of machines and the permissions of the controller.
    pub infra: ControlPlane,
    /// The tenant's cluster, with the permissions of the controller.
    pub tenant: ControlPlane,
}

/// Runs a test in a network namespace of its own, in which [`TENANT_ADDRESS`] is an address of the loopback. Returns true
/// in that namespace, where the caller must run the test. The test is skipped if no namespace can be created.
///
/// # Errors
/// Fails if the test fails in its namespace.
pub fn enter_namespace(test: &str) -> Result<bool> {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return Ok(true);
    }
    let program = std::env::current_exe()?;
    let unshare = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", command]).arg(&program).env(IN_NAMESPACE, "1").status()
    };
    if !unshare("true").is_ok_and(|status| status.success()) {
        skip::skip(test, "no network namespace can be created (root)");
        return Ok(false);
    }
    let command = format!(
        "ip link set lo up && ip address add {TENANT_ADDRESS}/32 dev lo && \
         exec \"$0\" --exact {test} --nocapture"
    );
    let status = unshare(&command)?;
    ensure!(status.success(), "the test failed in its network namespace: {status}");
    Ok(false)
}

impl TwoClusters {
    /// Starts both control planes. The tenant's API server gets its address from this function.
    ///
    /// # Errors
    /// Fails if a program does not start.
    pub fn start(infra: ControlPlaneOptions, tenant: ControlPlaneOptions) -> Result<Self> {
        let infra = ControlPlane::start(infra)?;
        let server_address = Some(TENANT_ADDRESS);
        let tenant = ControlPlane::start(ControlPlaneOptions { server_address, ..tenant })?;
        infra.install_machine_kinds()?;
        infra.deploy(&["base/rbac-controller.yaml"])?;
        let clusters = Self { infra, tenant };
        clusters.grant_permissions()?;
        Ok(clusters)
    }

    /// Applies the output of `render --tenant-rbac` in the tenant's cluster.
    fn grant_permissions(&self) -> Result<()> {
        let program = repository().join("target/release/berth-controller");
        let output = Command::new(program).args(["render", "--tenant-rbac"]).output()?;
        ensure!(output.status.success(), "{output:?}");
        self.tenant.apply(&String::from_utf8(output.stdout)?).map(drop)
    }

    /// Returns a token of the controller in the tenant's cluster.
    ///
    /// # Errors
    /// Fails if the API server refuses the request.
    pub fn token(&self) -> Result<String> {
        self.tenant.create_token_in("kube-system", "berth-controller")
    }

    /// Returns a kubeconfig for the tenant's cluster.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn kubeconfig(&self, token: &str) -> Result<String> {
        let file = self.tenant.write_kubeconfig("berth", token, false)?;
        std::fs::read_to_string(&file).with_context(|| file.display().to_string())
    }

    /// Applies a TenantCluster.
    ///
    /// # Errors
    /// Fails if the API server refuses the object.
    pub fn apply_tenant(&self, name: &str, spec: &Value) -> Result<()> {
        let tenant = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name}, "spec": spec,
        });
        self.infra.apply(&tenant.to_string()).map(drop)
    }

    /// Writes a Secret in the infra cluster.
    ///
    /// # Errors
    /// Fails if the API server refuses the object.
    pub fn write_secret(&self, namespace: &str, name: &str, data: &Value) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
            "stringData": data,
        });
        self.infra.apply(&secret.to_string()).map(drop)
    }
}
