//! Predicts the launcher pod, with the steps in the order in which they occur in a cluster.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};

use super::cluster_objects::ClusterObjects;
use super::configuration::Configuration;
use super::invalid::Invalid;
use super::machine::Machine;
use super::network_resources::with_resources;
use super::{
    amounts, annotations, check, compute, containers, defaults, instancetype, labels, overhead,
    preference, requirements, selector,
};
use berth_kubelet_admission::pod::{Pod, Resources};

/// A predicted launcher pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Launcher {
    /// Requests and limits of the pod's containers. Its UID is empty, because the pod does not exist yet.
    pub pod: Pod,
    /// Device plugin resources of the machine's networks that the pod does not request, because the feature gate
    /// `ExternalNetResourceInjection` leaves these requests to a separate webhook. Only hosts with these resources have
    /// the networks.
    pub unrequested_resources: Vec<String>,
    /// Bytes of the node's disk that the pod requests. They are not part of `pod`, because they belong to no NUMA zone.
    pub ephemeral_storage: u64,
    /// Memory of the guest in bytes.
    pub guest_memory: u64,
    /// Memory overhead of the pod in bytes, as `KubeVirt` calculates it.
    pub memory_overhead: u64,
    /// Number of vCPUs of the guest.
    pub vcpus: u32,
    /// True if the host's CPUs for the guest are exclusive (`dedicatedCpuPlacement`).
    pub is_dedicated: bool,
    /// True if the guest has a NUMA zone for each host zone that contains its CPUs (`guestMappingPassthrough`). The
    /// guest's memory is then split evenly over these host zones.
    pub numa_passthrough: bool,
    /// Namespace of the pod.
    pub namespace: String,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod that depend on the machine: the machine's own annotations, and the list of networks for
    /// Multus.
    pub annotations: BTreeMap<String, String>,
    /// Labels that a node must have (`spec.nodeSelector` of the pod).
    pub node_selector: BTreeMap<String, String>,
    /// Node and pod affinity of the pod.
    pub affinity: Option<Affinity>,
    /// Tolerations of the pod.
    pub tolerations: Vec<Toleration>,
    /// Topology spread constraints of the pod.
    pub spread: Vec<TopologySpreadConstraint>,
    /// Name of the pod's scheduler (`spec.schedulerName`).
    pub scheduler_name: String,
    /// Name of the pod's priority class; `None` if the pod has none.
    pub priority_class: Option<String>,
    /// Names, in the pod, of its claims of dynamic resource allocation. The devices of these claims are not known.
    pub resource_claims: Vec<String>,
}

impl Launcher {
    /// Returns the pod as a placement must count it: the container `compute` also requests one unit of each of the
    /// [`unrequested_resources`](Self::unrequested_resources), as if network-resources-injector had changed the pod.
    #[must_use]
    pub fn placement_pod(&self) -> Cow<'_, Pod> {
        with_resources(&self.pod, self.unrequested_resources.iter().map(String::as_str))
    }
}

/// Predicts the launcher pod of a machine.
///
/// # Errors
///
/// Returns an error with the object, the field and the problem if `KubeVirt` would reject the machine.
pub fn predict(
    machine: &Machine,
    configuration: &Configuration,
    objects: &ClusterObjects,
) -> Result<Launcher, Invalid> {
    let mut machine = machine.clone();
    let version = configuration.version;
    let (instancetype, preference) = instancetype::find(&machine, objects)?;
    if let Some(preference) = preference {
        preference::apply_autoattach(preference, &mut machine.spec);
    }
    if machine.spec_path != "spec" {
        // The controller adds the default network to a VirtualMachine before it applies the instance type.
        defaults::add_default_network(&mut machine.spec);
    }
    if let Some(instancetype) = instancetype {
        instancetype::apply(&mut machine, instancetype, preference, version)?;
    }
    if let Some(preference) = preference {
        preference::apply(&mut machine, preference, version);
    }
    defaults::apply(&mut machine, configuration);
    requirements::check(&machine, instancetype, preference, version)?;
    check::check(&machine)?;
    render(&machine, configuration, objects)
}

/// Renders the launcher pod of a machine whose defaults have been set.
pub(super) fn render(
    machine: &Machine,
    configuration: &Configuration,
    objects: &ClusterObjects,
) -> Result<Launcher, Invalid> {
    let spec = &machine.spec;
    let version = configuration.version;
    let policy = spec.domain.io_threads_policy.as_deref();
    let has_supplemental_pool = policy == Some("supplementalPool") || spec.pool_threads() > 0;
    if has_supplemental_pool && version.is_at_least(5, 0) && !version.is_at_least(5, 2) {
        let message = format!(
            "KubeVirt {version} miscounts the CPUs of the supplemental I/O thread pool, so the pod cannot be predicted"
        );
        return Err(machine.invalid("domain.ioThreads", message));
    }
    let overhead = overhead::memory_overhead(spec, configuration);
    let compute = compute::render(machine, configuration, objects, overhead)?;
    let others = containers::other_containers(machine, configuration)?;

    let invalid = |error: amounts::AmountError| {
        machine.invalid(&format!("domain.resources.{}", error.field), error.problem.to_string())
    };
    let (compute, mut storage) =
        amounts::convert_container("compute", compute.requests, &compute.limits)
            .map_err(invalid)?;
    let mut pod = Pod { containers: vec![compute], ..Pod::default() };
    let mut init_storage = 0;
    for (list, target, is_init) in [
        (others.init, &mut pod.init_containers, true),
        (others.concurrent, &mut pod.containers, false),
    ] {
        // A plan keeps the pods of all VMs in memory, and a growing vector allocates four containers at first.
        target.reserve_exact(list.len());
        for spec in list {
            let name = spec.name;
            let (mut container, disk) =
                amounts::convert_container(&name, spec.requests, &spec.limits).map_err(
                    |error| {
                        let field =
                            format!("spec.configuration.supportContainerResources.{}", error.field);
                        Invalid::new("KubeVirt", field, error.problem.to_string())
                    },
                )?;
            container.is_sidecar = spec.is_sidecar;
            target.push(container);
            // Init containers that are not sidecars run one after the other, before the other containers, so the sum of
            // their storage requests does not matter.
            if is_init {
                init_storage = disk.max(init_storage)
            } else {
                storage = storage.saturating_add(disk)
            }
        }
    }
    pod.overhead = runtime_overhead(configuration, objects)?;
    let bytes = |quantity: Option<berth_api::Quantity>| {
        u64::try_from(quantity.unwrap_or_default().whole_units_rounded_up()).unwrap_or(0)
    };
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    let default_scheduler = || "default-scheduler".to_owned();
    Ok(Launcher {
        pod,
        unrequested_resources: compute::unrequested_network_resources(
            machine,
            configuration,
            objects,
        ),
        ephemeral_storage: storage.max(init_storage),
        guest_memory: bytes(spec.domain.memory.guest),
        memory_overhead: bytes(Some(overhead)),
        vcpus: u32::try_from(cpu.vcpus()).unwrap_or(u32::MAX).max(1),
        is_dedicated: cpu.dedicated_cpu_placement,
        numa_passthrough: cpu.numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some()),
        namespace: machine.namespace.clone(),
        labels: labels::pod_labels(machine, version),
        annotations: annotations::pod_annotations(machine, configuration),
        node_selector: selector::required_labels(machine, configuration, objects),
        affinity: selector::affinity(machine, configuration),
        tolerations: spec.tolerations.clone(),
        spread: spec.topology_spread_constraints.clone(),
        scheduler_name: text(&spec.scheduler_name).unwrap_or_else(default_scheduler),
        priority_class: text(&spec.priority_class_name),
        resource_claims: spec.resource_claims.iter().map(|claim| claim.name.clone()).collect(),
    })
}

/// Returns the pod overhead of the runtime class that the `KubeVirt` object configures for launcher pods.
fn runtime_overhead(
    configuration: &Configuration,
    objects: &ClusterObjects,
) -> Result<Resources, Invalid> {
    let Some(class) = &configuration.runtime_class else { return Ok(Resources::default()) };
    objects.runtime_classes.get(class).cloned().ok_or_else(|| {
        let field = "spec.configuration.defaultRuntimeClass";
        Invalid::new("KubeVirt", field, format!("RuntimeClass `{class}` not found"))
    })
}
