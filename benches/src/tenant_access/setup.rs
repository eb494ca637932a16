//! Starts the API servers and the controller, and creates hosts, tenants and machines.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, registered_node};
use berth_tests::controller::Controller;
use serde_json::{Value, json};

use super::fake::FakeTenants;
use super::namespace::TENANT_ADDRESS;
use super::{Args, LABEL, POLL_INTERVAL, TIMEOUT, server};
use crate::cluster::{Cluster, NewObject, collection_path};
use crate::counts::samples;
use crate::memory::Usage;

/// Maximum number of tenants with a real API server.
const MAX_REAL_SERVERS: u32 = 2;
/// Number of parallel requests to the infra API server.
const CONCURRENCY: usize = 8;
/// Number of images in the status of a Node. A kubelet reports the images of its node, and they make up most of the
/// size of a Node.
const IMAGE_COUNT: u32 = 30;
/// Name of the controller's log.
const LOG_NAME: &str = "tenant-access";
/// Value of the measured label before the first change.
const FIRST_VALUE: &str = "first";
const TENANT_CLUSTERS_PATH: &str = "/apis/berth.dev/v1alpha1/tenantclusters";

/// All servers, and the controller under test, which is terminated before the servers.
pub(super) struct Testbed {
    controller: Controller,
    pub(super) cluster: Cluster,
    pub(super) fake_tenants: Arc<FakeTenants>,
    pub(super) real_tenants: Vec<RealTenant>,
    pub(super) infra: ControlPlane,
    /// Names and kubeconfigs of all tenants.
    pub(super) kubeconfigs: Vec<(String, String)>,
}

/// A tenant with a real API server.
pub(super) struct RealTenant {
    cluster: Cluster,
    /// The control plane, which is terminated when this value is dropped.
    _plane: ControlPlane,
}

impl RealTenant {
    /// Returns the value of a label on the Node of the tenant's first machine.
    pub(super) fn label(&self, key: &str) -> Result<Option<String>> {
        let client = self.cluster.counting_client();
        let node = self.cluster.block_on(client.get("/api/v1/nodes", &machine_name(1)))?;
        Ok(node["metadata"]["labels"][key].as_str().map(str::to_owned))
    }
}

/// Returns the name of a host by its number, which starts with 1.
pub(super) fn host_name(number: u32) -> String {
    format!("host-{number}")
}

/// Returns the name of a machine by its number, which starts with 1. Its Node in the tenant's cluster has the same
/// name.
pub(super) fn machine_name(number: u32) -> String {
    format!("web-{number}")
}

fn tenant_name(number: u32) -> String {
    format!("t{number:04}")
}

/// Returns the name of the host on which a machine runs. The first machine of each tenant runs on the first host;
/// all other machines run on the other hosts.
fn host_of(tenant: u32, machine: u32, hosts: u32) -> String {
    match machine {
        1 => host_name(1),
        _ => host_name(2 + (tenant.wrapping_mul(7).wrapping_add(machine)) % (hosts - 1)),
    }
}

/// Starts all servers and the controller, and creates the hosts.
pub(super) fn start(args: &Args) -> Result<Testbed> {
    let infra = ControlPlane::start(ControlPlaneOptions::default())?;
    infra.deploy(&["base/rbac-controller.yaml"])?;
    infra.install_machine_kinds()?;
    let cluster = Cluster::new(&infra.kubeconfig(), CONCURRENCY)?;
    create_hosts(&cluster, args.hosts)?;
    let names: Vec<String> = (1..=args.tenants).map(tenant_name).collect();
    let real_count = usize::try_from(args.tenants.min(MAX_REAL_SERVERS))?;
    let (real_names, fake_names) = names.split_at(real_count);
    let (mut real_tenants, mut kubeconfigs) = (Vec::new(), Vec::new());
    for name in real_names {
        let (tenant, text) = start_real_server(args)?;
        real_tenants.push(tenant);
        kubeconfigs.push((name.clone(), text));
    }
    let nodes: Vec<Value> = (1..=args.machines).map(node).collect();
    let fake_tenants = Arc::new(FakeTenants::new(fake_names, &nodes, LABEL));
    let certificate =
        infra.create_serving_certificate("small-server", &format!("IP:{TENANT_ADDRESS}"))?;
    let address = SocketAddr::from((TENANT_ADDRESS, 0));
    let port = cluster.block_on(server::start(address, &certificate, Arc::clone(&fake_tenants)))?;
    // The kubeconfig must contain the CA certificate of the emulated server; that server accepts any token.
    let file = infra.write_kubeconfig("small-server", "token", false)?;
    let template = read_file(&file)?;
    let infra_server = format!("https://127.0.0.1:{}", infra.port());
    ensure!(template.contains(&infra_server), "the kubeconfig does not name {infra_server}");
    for name in fake_names {
        let server = format!("https://{TENANT_ADDRESS}:{port}/t/{name}");
        kubeconfigs.push((name.clone(), template.replace(&infra_server, &server)));
    }
    let controller = Controller::start_program(&args.controller, &infra, LOG_NAME, None, &[])?;
    Ok(Testbed { controller, cluster, fake_tenants, real_tenants, infra, kubeconfigs })
}

#[expect(clippy::disallowed_methods, reason = "the benchmark reads its own kubeconfigs")]
fn read_file(file: &std::path::Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

fn create_hosts(cluster: &Cluster, count: u32) -> Result<()> {
    let config = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {"replicatedNodeLabels": [LABEL]},
    });
    let mut all = vec![NewObject::new("/apis/berth.dev/v1alpha1/infraconfigs", &config)];
    for number in 1..=count {
        let mut host = registered_node(&host_name(number));
        host["metadata"]["labels"][LABEL] = FIRST_VALUE.into();
        all.push(NewObject::new("/api/v1/nodes", &host));
    }
    cluster.create(&all).map(drop)
}

fn start_real_server(args: &Args) -> Result<(RealTenant, String)> {
    let options =
        ControlPlaneOptions { server_address: Some(TENANT_ADDRESS), ..Default::default() };
    let plane = ControlPlane::start(options)?;
    let cluster = Cluster::new(&plane.kubeconfig(), CONCURRENCY)?;
    let nodes = (1..=args.machines)
        .map(|number| NewObject::new("/api/v1/nodes", &registered_node(&machine_name(number))));
    cluster.create(&nodes.collect::<Vec<_>>())?;
    let text = read_file(&plane.kubeconfig())?;
    Ok((RealTenant { cluster, _plane: plane }, text))
}

/// Returns a Node that is about as large as a real Node.
fn node(number: u32) -> Value {
    let mut node = registered_node(&machine_name(number));
    let images = (0..IMAGE_COUNT).map(|image| {
        let name = format!("registry.example.com/team/image-{image:02}@sha256:{image:064x}");
        json!({"names": [name, format!("registry.example.com/team/image-{image:02}:v1")], "sizeBytes": 1})
    });
    node["status"]["images"] = images.collect::<Vec<_>>().into();
    let labels = json!({"f:kubernetes.io/hostname": {}, "f:kubernetes.io/os": {}});
    node["metadata"]["managedFields"] = json!([{
        "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": labels}},
    }]);
    node
}

impl Testbed {
    /// Creates the tenants, their machines and their kubeconfigs. Returns the seconds from the first kubeconfig
    /// until the label has reached all Nodes.
    pub(super) fn connect_tenants(&self, args: &Args) -> Result<f64> {
        let tenants = self.kubeconfigs.iter().map(|(name, _)| {
            let tenant = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
                "spec": {"kubeconfigSecretRef": {"name": "kubeconfig"}},
            });
            NewObject::new(TENANT_CLUSTERS_PATH, &tenant)
        });
        self.cluster.create(&tenants.collect::<Vec<_>>())?;
        let wanted = self.kubeconfigs.len();
        self.cluster.wait_until("namespaces", TIMEOUT, |cluster| {
            let all = cluster.list_from_cache(TENANT_CLUSTERS_PATH)?;
            let count = all.iter().filter(|one| one["status"]["namespace"].is_string()).count();
            Ok(if count == wanted {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(format!("{count} of {wanted}"))
            })
        })?;
        let (mut machines, mut secrets) = (Vec::new(), Vec::new());
        for ((name, kubeconfig), tenant) in self.kubeconfigs.iter().zip(1..) {
            let namespace = format!("cluster-{name}");
            let path = collection_path("kubevirt.io/v1", &namespace, "virtualmachineinstances");
            machines.extend((1..=args.machines).map(|machine| {
                let host = host_of(tenant, machine, args.hosts);
                NewObject::new(path.as_str(), &virtual_machine_instance(&namespace, machine, &host))
            }));
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubeconfig", "namespace": namespace},
                "stringData": {"kubeconfig": kubeconfig},
            });
            secrets.push(NewObject::new(collection_path("v1", &namespace, "secrets"), &secret));
        }
        self.cluster.create(&machines)?;
        let begin = Instant::now();
        self.cluster.create(&secrets)?;
        let machines = usize::try_from(args.machines)?;
        let wanted_labels = self.fake_tenants.tenant_count() * machines;
        loop {
            let (connected, labels) =
                (self.connected_count()?, self.fake_tenants.arrivals(FIRST_VALUE).len());
            if connected == wanted && labels >= wanted_labels && self.real_servers_have_label()? {
                return Ok(begin.elapsed().as_secs_f64());
            }
            ensure!(
                begin.elapsed() < TIMEOUT,
                "timeout: {connected} of {wanted} tenants are connected, {labels} of {wanted_labels} Nodes have the \
                 label: {}",
                self.log_tail()
            );
            std::thread::sleep(POLL_INTERVAL * 10);
        }
    }

    fn real_servers_have_label(&self) -> Result<bool> {
        for tenant in &self.real_tenants {
            if tenant.label(LABEL)?.as_deref() != Some(FIRST_VALUE) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of tenants to which the controller is connected.
    pub(super) fn connected_count(&self) -> Result<usize> {
        // An error is ignored, because the controller does not serve metrics immediately after its start.
        let text = self.controller.http_get("/metrics").map(|(_, text)| text).unwrap_or_default();
        let all = samples(&text, "berth_controller_tenant_connections");
        let connected = all.filter(|sample| sample.label("state") == Some("connected"));
        Ok(format!("{:.0}", connected.map(|sample| sample.value).sum::<f64>()).parse()?)
    }

    /// Returns memory and CPU time of the controller.
    pub(super) fn controller_usage(&self) -> Result<Usage> {
        Usage::of_process(self.controller.running.process.id())
    }

    /// Returns the last lines of the controller's log.
    pub(super) fn log_tail(&self) -> String {
        self.infra.log_tail(LOG_NAME)
    }
}

fn virtual_machine_instance(namespace: &str, machine: u32, host: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": machine_name(machine), "namespace": namespace, "labels": {"md": "web"}},
        "spec": {"domain": {"devices": {}}}, "status": {"phase": "Running", "nodeName": host},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_machines_are_on_the_first_host() {
        for tenant in 1..=50 {
            assert_eq!(host_of(tenant, 1, 5), "host-1");
            for machine in 2..=9 {
                let host = host_of(tenant, machine, 5);
                assert!((2..=5).any(|number| host_name(number) == host), "{host}");
            }
        }
        let length = node(1).to_string().len();
        assert!((5_000..20_000).contains(&length), "{length}");
    }
}
