//! Creates the objects that exist before the scheduler sends requests: hosts with reports, and VMs on the hosts.

use anyhow::Result;
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use serde_json::{Value, json};

use crate::cluster::{Cluster, NewObject, collection_path};
use crate::fleet::infra_node;
use crate::full_fleet::{self, Launcher, PAGE_SIZE, VMS_OF_HOST, allocations, taints};

pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const INFRA_NODES: &str = "/apis/berth.dev/v1alpha1/infranodes";

/// Starts a control plane with the CustomResourceDefinitions and RBAC rules of Berth, and with the Lease of the
/// scheduler.
pub(super) fn start() -> Result<ControlPlane> {
    let plane = ControlPlane::start(ControlPlaneOptions::default())?;
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"])?;
    Ok(plane)
}

/// Creates Nodes and InfraNodes. The InfraNodes report hosts without allocations.
pub(super) fn create_hosts(cluster: &Cluster, count: usize) -> Result<()> {
    let nodes: Vec<NewObject> =
        (0..count).map(|at| NewObject::new(NODES, &full_fleet::node(at))).collect();
    cluster.create(&nodes)?;
    // The API server adds a not-ready taint to each new Node. No node controller runs that would remove it, so the
    // taints are replaced.
    let taints = |at: usize| (full_fleet::host_name(at), json!({"spec": {"taints": taints(at)}}));
    cluster.merge(NODES, "", &(0..count).map(taints).collect::<Vec<_>>())?;
    let reports: Vec<Value> =
        (0..count).map(|at| infra_node(&full_fleet::host_name(at), PAGE_SIZE, &[])).collect();
    let new: Vec<NewObject> =
        reports.iter().map(|report| NewObject::new(INFRA_NODES, report)).collect();
    cluster.create(&new)?;
    write_reports(cluster, reports)
}

fn write_reports(cluster: &Cluster, reports: Vec<Value>) -> Result<()> {
    let change = |(at, mut report): (usize, Value)| {
        (full_fleet::host_name(at), json!({"status": report["status"].take()}))
    };
    let changes: Vec<(String, Value)> = reports.into_iter().enumerate().map(change).collect();
    cluster.merge(INFRA_NODES, "status", &changes)
}

/// Creates namespaces with a default ServiceAccount, so that pods can be created in the namespaces.
pub(super) fn create_namespaces(cluster: &Cluster, names: &[String]) -> Result<()> {
    let named = |name: &str| json!({"metadata": {"name": name}});
    let namespaces = names.iter().map(|name| NewObject::new("/api/v1/namespaces", &named(name)));
    cluster.create(&namespaces.collect::<Vec<_>>())?;
    let account = |name: &String| {
        NewObject::new(collection_path("v1", name, "serviceaccounts"), &named("default"))
    };
    cluster.create(&names.iter().map(account).collect::<Vec<_>>())?;
    Ok(())
}

/// Creates the pods of VMs on all hosts, and the reports of the agents about these pods. Returns the number of
/// pods, and the size of one pod in bytes.
pub(super) fn create_vms(cluster: &Cluster, hosts: usize) -> Result<(usize, usize)> {
    let places = (0..hosts).flat_map(|host| (0..VMS_OF_HOST.len()).map(move |at| (host, at)));
    let launchers: Vec<Launcher> = places.map(|(host, at)| Launcher::new(host, at)).collect();
    let mut namespaces: Vec<String> = launchers.iter().map(|one| one.namespace.clone()).collect();
    namespaces.dedup();
    create_namespaces(cluster, &namespaces)?;
    let pods = launchers.iter().enumerate().map(|(number, launcher)| {
        let mut pod = launcher.pod();
        pod["spec"]["nodeName"] = full_fleet::host_name(number / VMS_OF_HOST.len()).into();
        NewObject::new(collection_path("v1", &launcher.namespace, "pods"), &pod)
    });
    let uids = cluster.create_returning_uids(&pods.collect::<Vec<_>>())?;
    let count = uids.len();
    let known: Vec<(Launcher, String)> = launchers.into_iter().zip(uids).collect();
    let reports = known.chunks(VMS_OF_HOST.len()).enumerate();
    let reports = reports
        .map(|(at, own)| infra_node(&full_fleet::host_name(at), PAGE_SIZE, &allocations(own)));
    write_reports(cluster, reports.collect())?;
    let one = known.first().map(|(launcher, _)| collection_path("v1", &launcher.namespace, "pods"));
    let bytes = one.map(|path| cluster.first(&path)).transpose()?.map(|pod| pod.to_string().len());
    Ok((count, bytes.unwrap_or_default()))
}
