//! A fleet of hosts with most of their CPUs in use: Nodes, launcher pods, and the resources that the kubelets have
//! allocated.

use berth_api::PageSize;
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

/// Huge page size of the hosts.
pub(crate) const PAGE_SIZE: PageSize = PageSize::GIB_1;

/// VMs on each host: CPUs, GiB, and NUMA zone. Together the VMs use 74 of 92 CPUs.
pub(crate) const VMS_OF_HOST: [(u32, u64, u32); 10] = [
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
/// Number of VMs of a MachineDeployment.
const VMS_PER_DEPLOYMENT: usize = 25;
/// Number of MachineDeployments of a tenant.
const DEPLOYMENTS_PER_TENANT: usize = 10;

/// Returns the name of the host with this number.
pub(crate) fn host_name(at: usize) -> String {
    format!("host-{at:05}")
}

/// Returns the labels of a host. The hosts are in two pools and ten failure domains.
pub(crate) fn host_labels(at: usize, name: &str) -> [(String, String); 3] {
    let label = |key: &str, value: String| (key.to_owned(), value);
    [
        label("kubernetes.io/hostname", name.to_owned()),
        label("topology.kubernetes.io/zone", format!("z{}", at % 10)),
        label("pool", format!("p{}", at / 10 % 2)),
    ]
}

/// Returns the taints of a host. Some hosts are tainted.
pub(crate) fn taints(at: usize) -> Vec<Taint> {
    let taint = |effect: &str| Taint {
        key: "dedicated".to_owned(),
        value: Some("large".to_owned()),
        effect: effect.to_owned(),
        ..Taint::default()
    };
    match at % 40 {
        7 | 19 => vec![taint("NoSchedule")],
        31 => vec![taint("PreferNoSchedule")],
        _ => Vec::new(),
    }
}

/// Returns the Node of a host.
pub(crate) fn node(at: usize) -> Value {
    let name = host_name(at);
    let mut labels = serde_json::Map::new();
    labels.extend(host_labels(at, &name).map(|(key, value)| (key, Value::from(value))));
    labels.insert("kubevirt.io/schedulable".to_owned(), "true".into());
    json!({
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
    })
}

/// The launcher pod of a VM. A pod with huge pages has whole CPUs; a pod without huge pages shares CPUs.
#[derive(Debug, Clone)]
pub(crate) struct Launcher {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// UID of the VirtualMachineInstance.
    pub(crate) instance_uid: String,
    pub(crate) cpus: u32,
    pub(crate) gib: u64,
    /// Name of the VM's MachineDeployment, if the scheduler should spread its VMs over hosts.
    pub(crate) deployment: Option<String>,
}

impl Launcher {
    /// Returns the launcher pod of a VM. `host` is the number of the host, `at` the number of the VM on the host.
    pub(crate) fn new(host: usize, at: usize) -> Self {
        let (cpus, gib, _) = VMS_OF_HOST.get(at).copied().unwrap_or_default();
        let deployment = (host * VMS_OF_HOST.len() + at) / VMS_PER_DEPLOYMENT;
        Self {
            name: format!("virt-launcher-vm-{host}-{at}"),
            namespace: format!("cluster-{}", deployment / DEPLOYMENTS_PER_TENANT),
            instance_uid: format!("{:08x}-0000-4000-8000-{at:012x}", host * 16 + at),
            cpus,
            gib,
            deployment: Some(format!("md-{deployment}")),
        }
    }

    /// Returns the pod's memory without huge pages, in bytes: for its processes, and for the guest if the VM has no
    /// huge pages.
    fn memory(&self) -> u64 {
        let guest = if self.gib == 0 { 512 * u64::from(self.cpus) } else { 0 };
        (u64::from(self.cpus) * 8 + 256 + guest) << 20
    }

    /// Returns the pod as `KubeVirt` creates it, without an assigned host.
    pub(crate) fn pod(&self) -> Value {
        let memory = self.memory().to_string();
        let mut limits = json!({
            "memory": memory, "devices.kubevirt.io/kvm": "1", "devices.kubevirt.io/tun": "1",
            "devices.kubevirt.io/vhost-net": "1",
        });
        let mut requests = limits.clone();
        if self.gib == 0 {
            // `KubeVirt` requests a tenth of a CPU for each vCPU by default (`cpuAllocationRatio`).
            requests["cpu"] = format!("{}m", self.cpus * 100).into();
        } else {
            for amounts in [&mut limits, &mut requests] {
                amounts["cpu"] = self.cpus.to_string().into();
                amounts["hugepages-1Gi"] = format!("{}Gi", self.gib).into();
            }
        }
        let mut pod = json!({
            "metadata": {
                "namespace": self.namespace, "name": self.name,
                "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": self.instance_uid},
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                    "name": self.instance_uid, "uid": self.instance_uid, "controller": true}],
            },
            "spec": {
                "schedulerName": berth_api::names::SCHEDULER_NAME,
                "automountServiceAccountToken": false,
                "nodeSelector": {"kubevirt.io/schedulable": "true"},
                "containers": [{"name": "compute", "image": "none", "resources": {"requests": requests, "limits": limits}}],
            },
        });
        if let Some(deployment) = &self.deployment {
            pod["metadata"]["labels"]["md"] = deployment.as_str().into();
            pod["spec"]["topologySpreadConstraints"] = json!([{
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"md": deployment}},
            }]);
        }
        pod
    }
}

/// Returns the allocations that the agent of a host reports for these pods and UIDs, which are in the order of
/// [`VMS_OF_HOST`].
pub(crate) fn allocations(pods: &[(Launcher, String)]) -> Vec<Value> {
    let mut free = [[2_u32, 50], [24, 72]];
    let each = pods.iter().zip(VMS_OF_HOST).map(|((pod, uid), (.., zone))| {
        let mut cpus = String::new();
        for first in free.get_mut(zone as usize).into_iter().flatten() {
            let next = *first + pod.cpus / 2;
            let comma = if cpus.is_empty() { "" } else { "," };
            cpus += &format!("{comma}{first}-{}", next - 1);
            *first = next;
        }
        json!({
            "podUID": uid, "namespace": pod.namespace, "pod": pod.name,
            "cpus": cpus, "zones": [zone],
            "hugepages": [{"size": "1Gi", "count": pod.gib}], "memory": pod.memory().to_string(),
            "devices": [{"resource": "devices.kubevirt.io/kvm", "count": 1},
                {"resource": "devices.kubevirt.io/tun", "count": 1},
                {"resource": "devices.kubevirt.io/vhost-net", "count": 1}],
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_have_exclusive_cpus_on_both_threads_of_each_core() {
        let pods: Vec<_> =
            (0..VMS_OF_HOST.len()).map(|at| (Launcher::new(3, at), format!("uid-{at}"))).collect();
        let all = allocations(&pods);
        assert_eq!(all[0]["cpus"], "2-9,50-57");
        assert_eq!(all[1]["cpus"], "10-13,58-61");
        assert_eq!((&all[5]["cpus"], &all[5]["zones"][0]), (&json!("24-31,72-79"), &json!(1)));
        assert_eq!(all[9]["podUID"], "uid-9");
    }

    #[test]
    fn vm_without_huge_pages_shares_cpus() {
        let plain = Launcher { gib: 0, deployment: None, ..Launcher::new(0, 3) }.pod();
        let amounts = &plain["spec"]["containers"][0]["resources"];
        assert_eq!(amounts["requests"]["cpu"], "400m");
        assert_eq!(amounts["limits"]["memory"], (2336_u64 << 20).to_string());
        assert!(amounts["limits"]["cpu"].is_null());
        let pinned = Launcher::new(0, 3).pod();
        let amounts = &pinned["spec"]["containers"][0]["resources"];
        assert_eq!(amounts["requests"], amounts["limits"]);
    }
}
