//! Launcher pods as KubeVirt creates them, with the fields that the extender reads.

use berth_extender::ObservedPod;
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

/// Builder of a launcher pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodBuilder {
    /// Name and UID of the pod.
    pub(crate) name: String,
    /// UID of the VM's VirtualMachineInstance; `None` if the pod has no VM.
    pub(crate) instance: Option<String>,
    pub(crate) migration: Option<String>,
    pub(crate) is_first_consumer: bool,
    pub(crate) cpus: u64,
    /// CPU request of a second container, in thousandths of a CPU.
    pub(crate) second_container_millis: u64,
    /// Huge pages of 1 GiB, in GiB.
    pub(crate) huge_pages_gib: u64,
    /// Value of the label `app`, if the pod has this label. Such a pod has a required anti-affinity to pods with the
    /// same value.
    pub(crate) anti_affinity_app: Option<String>,
    pub(crate) claim: Option<String>,
    /// NetworkAttachmentDefinition of the pod's network, as `namespace/name`.
    pub(crate) network: Option<String>,
    /// Role that Berth's label gives the VM in the tenant's cluster.
    pub(crate) role: Option<&'static str>,
    /// Namespace of the pod; `None` means `default`.
    pub(crate) namespace: Option<String>,
}

impl PodBuilder {
    /// Returns a builder for the launcher pod of a VM with `cpus` exclusive CPUs.
    pub(crate) fn vm(name: &str, cpus: u64) -> Self {
        let instance = Some(format!("vmi-{name}"));
        Self { name: name.to_owned(), instance, cpus, ..Self::default() }
    }

    fn container(name: &str, millis: u64, huge: u64, memory: &str) -> Value {
        let mut amounts = json!({"cpu": format!("{millis}m"), "memory": memory});
        if huge > 0 {
            amounts["hugepages-1Gi"] = format!("{huge}Gi").into();
        }
        json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
    }

    pub(crate) fn build(&self) -> v1::Pod {
        let mut labels = json!({});
        if let Some(instance) = &self.instance {
            labels["kubevirt.io"] = "virt-launcher".into();
            labels["kubevirt.io/created-by"] = instance.clone().into();
        }
        if let Some(role) = self.role {
            labels["cluster.x-k8s.io/role"] = role.into();
        }
        if let Some(migration) = &self.migration {
            labels["kubevirt.io/migrationJobUID"] = migration.clone().into();
        }
        // The owner reference that virt-controller writes (`NewControllerRef`).
        let owners = self.instance.iter().map(|uid| {
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": uid,
                "controller": true})
        });
        let owners: Vec<Value> = owners.collect();
        let mut annotations = json!({});
        if self.is_first_consumer {
            annotations["kubevirt.io/ephemeral-provisioning"] = "true".into();
        }
        if let Some((namespace, name)) = self.network.as_ref().and_then(|it| it.split_once('/')) {
            let networks =
                json!([{"name": name, "namespace": namespace, "interface": "pod37a8eec1ce1"}]);
            annotations["k8s.v1.cni.cncf.io/networks"] = networks.to_string().into();
        }
        let mut containers =
            vec![Self::container("compute", self.cpus * 1000, self.huge_pages_gib, "256Mi")];
        if self.second_container_millis > 0 {
            containers.push(Self::container("beside", self.second_container_millis, 0, "64Mi"));
        }
        let mut spec = json!({"schedulerName": "berth-scheduler", "containers": containers});
        if let Some(app) = &self.anti_affinity_app {
            labels["app"] = app.clone().into();
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}]}});
        }
        if let Some(claim) = &self.claim {
            spec["volumes"] =
                json!([{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]);
        }
        let pod = json!({
            "metadata": {"name": self.name, "namespace": self.namespace.as_deref().unwrap_or("default"),
                "uid": self.name, "labels": labels, "annotations": annotations, "ownerReferences": owners},
            "spec": spec,
        });
        serde_json::from_value(pod).expect("the pod should be valid")
    }
}

/// Returns the pod as the API server has it after it was bound to a host.
pub(crate) fn bind_to(mut pod: v1::Pod, host: &str) -> v1::Pod {
    pod.spec.get_or_insert_default().node_name = Some(host.to_owned());
    pod
}

pub(crate) fn observe_pod(pod: &v1::Pod) -> ObservedPod {
    ObservedPod::read(pod).expect("the pod should be readable")
}

pub(crate) fn uid(pod: &v1::Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}
