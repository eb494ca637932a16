//! The controller's start: InfraNodes as JSON and Pods as typed objects become an engine that can decide.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use berth_api::{Class, InfraNode};
use berth_controller::engine::{Engine, Needs};
use berth_controller::inventory::HostFacts;
use berth_controller::launcher::Existing;
use berth_controller::rules::PodSpecParts;
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

use super::workload::{PAGE, host_labels, taints};
use crate::fleet::infra_node;

/// VMs on each host, in CPUs and GiB with their zones: 74 of 92 CPUs.
const VMS: [(u32, u64, u32); 10] = [
    (16, 56, 0),
    (8, 28, 0),
    (8, 28, 0),
    (4, 14, 0),
    (2, 4, 0),
    (16, 56, 1),
    (8, 28, 1),
    (4, 8, 1),
    (4, 14, 1),
    (4, 14, 1),
];

/// What a rebuild costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) pods: usize,
    /// Seconds in all, and of them for hosts: parsing and reading, and for pods.
    pub(super) seconds: f64,
    pub(super) hosts_seconds: f64,
    /// MiB resident afterwards.
    pub(super) resident: f64,
}

/// Rebuilds once. Objects are made host by host and dropped again, so that what stays resident is the engine; making them
/// is not counted.
pub(super) fn rebuild(hosts: usize) -> Result<Cost> {
    let mut engine = Engine::new();
    let (mut of_hosts, mut of_pods) = (Duration::ZERO, Duration::ZERO);
    let mut problems = Vec::new();
    for at in 0..hosts {
        let name = format!("host-{at:05}");
        let (allocations, pods) = vms(at, &name)?;
        let text = infra_node(&name, PAGE, &allocations).to_string();
        let node = node(at, &name)?;
        let begin = Instant::now();
        let infra: InfraNode = serde_json::from_str(&text).context("InfraNode")?;
        let facts = HostFacts::read(&infra, Some(&node), &mut problems)
            .map_err(|problem| anyhow!("{problem}"))?;
        let id = engine.set_host(facts, Class::Performance)?;
        of_hosts += begin.elapsed();
        let begin = Instant::now();
        for pod in &pods {
            let existing = Existing::read(pod).map_err(|invalid| anyhow!("{invalid}"))?;
            let needs = Needs { is_vm: true, is_pinned: true, ..Needs::default() };
            let request = engine.request(&PodSpecParts::of(pod, &existing.pod), needs)?;
            engine.bound(&request, id).map_err(|reason| anyhow!("{reason}"))?;
        }
        of_pods += begin.elapsed();
    }
    if let Some(problem) = problems.first() {
        return Err(anyhow!("{problem}"));
    }
    Ok(Cost {
        pods: engine.pods(),
        seconds: (of_hosts + of_pods).as_secs_f64(),
        hosts_seconds: of_hosts.as_secs_f64(),
        resident: resident()?,
    })
}

/// MiB of this process.
fn resident() -> Result<f64> {
    #[expect(clippy::disallowed_methods, reason = "this process, not a host, is measured")]
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib = line.trim().trim_end_matches(" kB");
    Ok(kib.parse::<f64>().with_context(|| format!("VmRSS: {line}"))? / 1024.0)
}

/// What a host's agent lists, and the pods that it is of.
fn vms(host: usize, name: &str) -> Result<(Vec<Value>, Vec<v1::Pod>)> {
    let mut free = [[2_u32, 50], [24, 72]];
    let mut allocations = Vec::new();
    let mut pods = Vec::new();
    for (at, (cpus, gib, zone)) in VMS.into_iter().enumerate() {
        let [first, second] = &mut free[usize::try_from(zone)?];
        let (a, b) = (*first, *second);
        *first += cpus / 2;
        *second += cpus / 2;
        let uid = format!("{:08x}-0000-4000-8000-{:012x}", host * 16 + at, at);
        let deployment = (host * VMS.len() + at) / 25;
        let namespace = format!("cluster-{}", deployment / 10);
        let memory = (u64::from(cpus) * 8 + 256) << 20;
        allocations.push(json!({
            "podUID": uid, "namespace": namespace, "pod": format!("virt-launcher-vm-{host}-{at}"),
            "cpus": format!("{a}-{},{b}-{}", *first - 1, *second - 1), "zones": [zone],
            "hugepages": [{"size": "1Gi", "count": gib}], "memory": memory.to_string(),
            "devices": [{"resource": "devices.kubevirt.io/kvm", "count": 1},
                {"resource": "devices.kubevirt.io/tun", "count": 1},
                {"resource": "devices.kubevirt.io/vhost-net", "count": 1}],
        }));
        let amounts = json!({
            "cpu": cpus.to_string(), "memory": memory.to_string(), "hugepages-1Gi": format!("{gib}Gi"),
            "devices.kubevirt.io/kvm": "1", "devices.kubevirt.io/tun": "1",
            "devices.kubevirt.io/vhost-net": "1",
        });
        let deployment = format!("md-{deployment}");
        let selector = json!({"matchLabels": {"md": deployment}});
        let pod = json!({
            "metadata": {
                "uid": uid, "namespace": namespace, "name": format!("virt-launcher-vm-{host}-{at}"),
                "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid, "md": deployment},
            },
            "spec": {
                "nodeName": name,
                "nodeSelector": {"kubevirt.io/schedulable": "true"},
                "containers": [{"name": "compute", "resources": {"requests": amounts, "limits": amounts}}],
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}],
            },
            "status": {"phase": "Running"},
        });
        pods.push(serde_json::from_value(pod).context("a pod")?);
    }
    Ok((allocations, pods))
}

fn node(at: usize, name: &str) -> Result<v1::Node> {
    let mut labels = serde_json::Map::new();
    labels.extend(host_labels(at, name).map(|(key, value)| (key, Value::from(value))));
    labels.insert("kubevirt.io/schedulable".to_owned(), "true".into());
    let node = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints(at)},
        "status": {
            "allocatable": {"cpu": "92", "memory": "124Gi", "hugepages-1Gi": "384Gi", "pods": "110",
                "devices.kubevirt.io/kvm": "1k", "devices.kubevirt.io/tun": "1k",
                "devices.kubevirt.io/vhost-net": "1k"},
            "nodeInfo": {"kubeletVersion": "v1.36.2", "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux",
                "osImage": "", "systemUUID": ""},
        },
    });
    serde_json::from_value(node).context("a node")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_makes_sense_and_is_counted() {
        let cost = rebuild(3).unwrap();
        assert_eq!(cost.pods, 30);
        assert!(cost.seconds > cost.hosts_seconds && cost.resident > 1.0, "{cost:?}");
    }
}
