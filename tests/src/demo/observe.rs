//! Reads the state of the cluster and the hosts, and converts it to plain data.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use berth_api::{InfraNode, TenantCluster};
use berth_kubevirt_render::launcher::ExistingPod;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::attach::Addresses;
use super::cluster_state::{ClusterState, Vm, is_refusal};
use super::hosts::HOSTS;
use crate::cluster::ControlPlane;
use crate::host::Host;

/// Returns the objects of a kind, sorted by name.
///
/// # Errors
/// Fails like [`ControlPlane::get_json`].
pub(super) fn list_items(plane: &ControlPlane, arguments: &[&str]) -> Result<Vec<Value>> {
    let list = plane.get_json(arguments)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Returns the VirtualMachine of a VM; `None` if it was deleted.
pub(super) fn find_machine<'o>(machines: &'o [Value], vm: &Vm) -> Option<&'o Value> {
    machines.iter().find(|machine| {
        machine["metadata"]["name"] == vm.name.as_str()
            && machine["metadata"]["namespace"] == vm.namespace.as_str()
    })
}

fn string_value(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns all VMs, and the pod of each VM that has a pod.
///
/// # Errors
/// Fails like [`list_items`], and if a pod cannot be read.
pub(super) fn read_vms(plane: &ControlPlane, addresses: &mut Addresses) -> Result<Vec<Vm>> {
    let pods = list_items(plane, &["pods", "-A", "-l", "kubevirt.io=virt-launcher"])?;
    let machines = list_items(plane, &["virtualmachines", "-A"])?;
    let read = machines.iter().map(|machine| {
        let meta = &machine["metadata"];
        let networks = machine["spec"]["template"]["spec"]["networks"].as_array();
        let network =
            networks.into_iter().flatten().find_map(|one| one["multus"]["networkName"].as_str());
        let (namespace, name) = (string_value(&meta["namespace"]), string_value(&meta["name"]));
        let mut vm = Vm {
            tenant: namespace.strip_prefix("cluster-").unwrap_or_default().to_owned(),
            address: addresses.address_of_vm(&namespace, &name),
            namespace,
            name,
            network: network.unwrap_or_default().to_owned(),
            phase: "Missing".to_owned(),
            ..Vm::default()
        };
        let belongs_to_vm = |pod: &&Value| {
            let meta = &pod["metadata"];
            meta["namespace"] == vm.namespace.as_str()
                && meta["labels"]["vm.kubevirt.io/name"] == vm.name.as_str()
        };
        // If a VM has several pods, all pods except one are being deleted.
        let is_leaving = |pod: &&Value| !pod["metadata"]["deletionTimestamp"].is_null();
        let vm_pod = pods.iter().filter(belongs_to_vm).min_by_key(is_leaving);
        if let Some(pod) = vm_pod {
            read_pod(&mut vm, pod)?;
            if is_leaving(&pod) {
                vm.phase = "Terminating".to_owned();
            }
        }
        anyhow::Ok(vm)
    });
    read.collect()
}

fn read_pod(vm: &mut Vm, pod: &Value) -> Result<()> {
    let meta = &pod["metadata"];
    let status = &pod["status"];
    vm.pod = string_value(&meta["name"]);
    vm.pod_uid = string_value(&meta["uid"]);
    vm.host = string_value(&pod["spec"]["nodeName"]);
    vm.scheduler = string_value(&pod["spec"]["schedulerName"]);
    vm.phase = format!("{} {}", string_value(&status["phase"]), string_value(&status["reason"]))
        .trim()
        .to_owned();
    let typed: Pod = serde_json::from_value(pod.clone()).with_context(|| vm.pod.clone())?;
    let existing = ExistingPod::read(&typed)?.pod;
    let requests = existing.requests();
    vm.cpu_millis = requests.cpu_millis;
    vm.hugepages = requests.hugepages.values().sum();
    let whole = |millis: u64| millis > 0 && millis.is_multiple_of(1000);
    let mut containers = existing.containers.iter();
    vm.is_pinned = existing.is_guaranteed() && containers.any(|one| whole(one.requests.cpu_millis));
    Ok(())
}

/// Returns the pods that a kubelet has refused, with the reason.
///
/// # Errors
/// Fails like [`list_items`].
pub(super) fn read_refused_pods(plane: &ControlPlane) -> Result<Vec<String>> {
    let describe = |namespace: &Value, name: &Value, reason: &Value| {
        format!("{}/{}: {}", string_value(namespace), string_value(name), string_value(reason))
    };
    let mut all = Vec::new();
    for pod in list_items(plane, &["pods", "-A"])? {
        let reason = &pod["status"]["reason"];
        if is_refusal(reason.as_str().unwrap_or_default()) {
            all.push(describe(&pod["metadata"]["namespace"], &pod["metadata"]["name"], reason));
        }
    }
    for event in list_items(plane, &["events", "-A"])? {
        let (object, reason) = (&event["involvedObject"], &event["reason"]);
        if object["kind"] == "Pod" && is_refusal(reason.as_str().unwrap_or_default()) {
            all.push(describe(&object["namespace"], &object["name"], reason));
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// Returns the whole state except the pings.
///
/// # Errors
/// Fails like [`list_items`], and if an object does not match its kind's schema.
pub(super) fn observe_state(
    plane: &ControlPlane,
    hosts: &mut [Host],
    addresses: &mut Addresses,
) -> Result<ClusterState> {
    let mut cluster_state = ClusterState {
        vms: read_vms(plane, addresses)?,
        refused_pods: read_refused_pods(plane)?,
        ..ClusterState::default()
    };
    for (demo_host, host) in HOSTS.iter().zip(hosts) {
        let infra: InfraNode =
            serde_json::from_value(plane.get_json(&["infranode", demo_host.name])?)?;
        let node = plane.get_json(&["node", demo_host.name])?;
        let state =
            host.run_checked("cat /var/lib/kubelet/cpu_manager_state 2>/dev/null || echo '{}'")?;
        let state: Value = serde_json::from_str(&state)?;
        let status = infra.status.clone().unwrap_or_default();
        for vm in cluster_state.vms.iter_mut().filter(|vm| vm.host == demo_host.name) {
            if let Some(given) = status.allocations.iter().find(|one| one.pod_uid == vm.pod_uid) {
                vm.cpus.clone_from(&given.cpus);
                vm.zones.clone_from(&given.zones);
            }
            let checkpoint_cpus = state["entries"][&vm.pod_uid]["compute"].as_str();
            vm.checkpoint_cpus = checkpoint_cpus.and_then(|own| own.parse().ok());
        }
        cluster_state.hosts.insert(demo_host.name.to_owned(), (infra, node));
    }
    let tenants = list_items(plane, &["tenantclusters"])?.into_iter();
    cluster_state.tenants =
        tenants.map(serde_json::from_value::<TenantCluster>).collect::<Result<_, _>>()?;
    cluster_state.deployments = list_items(plane, &["machinedeployments", "-A"])?;
    let lease = plane.get_json(&["lease", "-n", "kube-system", "berth-scheduler"])?;
    cluster_state.scheduler = string_value(&lease["spec"]["holderIdentity"]);
    Ok(cluster_state)
}

/// Returns the requested number of machines of each MachineDeployment.
///
/// # Errors
/// Fails like [`list_items`].
pub(super) fn read_requested_machines(plane: &ControlPlane) -> Result<BTreeMap<String, u64>> {
    let all = list_items(plane, &["machinedeployments", "-A"])?;
    let count = |one: &Value| {
        let name = format!(
            "{}/{}",
            string_value(&one["metadata"]["namespace"]),
            string_value(&one["metadata"]["name"])
        );
        (name, one["spec"]["replicas"].as_u64().unwrap_or_default())
    };
    Ok(all.iter().map(count).collect())
}
