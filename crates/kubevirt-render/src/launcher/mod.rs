//! What the virt-launcher pod of a VM that does not run yet will ask for, by `KubeVirt`'s own rules.
//!
//! Three steps, as in a cluster: instance type and preference are applied (`instancetype`), the webhook fills in what is
//! open (`defaults`), and the controller renders the pod (`overhead`, `compute`, `containers`, `selector`). Rules are named
//! by the function of kubevirt/kubevirt in which they stand; those that changed ask for the [`Version`].
//!
//! Not known here, as it is nowhere before the pod is: what other webhooks add (injected sidecars, limit ranges), and pod
//! anti-affinity for persistent reservations, which needs the UIDs of claims.

mod amounts;
mod compute;
pub mod configuration;
mod containers;
mod defaults;
pub mod existing;
mod instancetype;
mod invalid;
mod machine;
mod overhead;
mod selector;
mod spec;
mod surroundings;
#[cfg(test)]
mod tests;
mod version;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};

use berth_kubelet_admission::pod::{Pod, Resources};
pub use configuration::Configuration;
pub use existing::{Existing, kubelet_uid};
pub use invalid::Invalid;
pub(crate) use invalid::without_nulls;
pub use machine::Machine;
pub use surroundings::RESOURCE_NAME;
pub use surroundings::Surroundings;
pub use version::{ParseVersionError, Version};

/// A launcher pod as it will be created.
#[derive(Clone, Debug, PartialEq)]
pub struct Launcher {
    /// What its containers ask for. It has no uid yet.
    pub pod: Pod,
    /// Bytes of a node's disk that it requests; on no zone, and so not in `pod`.
    pub ephemeral_storage: u64,
    /// Memory of the guest in bytes.
    pub guest_memory: u64,
    /// Memory beside it in bytes, as counted by `KubeVirt`.
    pub memory_overhead: u64,
    /// CPUs the guest sees.
    pub vcpus: u32,
    /// Whether the guest's CPUs are CPUs of the host.
    pub is_dedicated: bool,
    /// Whether the guest's zones follow the host's (`guestMappingPassthrough`): its memory is split evenly over them.
    pub numa_passthrough: bool,
    /// Namespace of the pod.
    pub namespace: String,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Labels a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Affinity to nodes and pods.
    pub affinity: Option<Affinity>,
    /// Taints it bears.
    pub tolerations: Vec<Toleration>,
    /// How pods like it are to be spread.
    pub spread: Vec<TopologySpreadConstraint>,
    /// The scheduler that is to place it.
    pub scheduler_name: String,
    /// Its priority class, if it names one.
    pub priority_class: Option<String>,
    /// Claims of dynamic resource allocation, by their name in the pod: what they take is not known here.
    pub resource_claims: Vec<String>,
}

/// Says what launcher pod a machine will get.
///
/// # Errors
///
/// Names the machine, the field and the value that no pod could be made of.
pub fn predict(
    machine: &Machine,
    configuration: &Configuration,
    around: &Surroundings,
) -> Result<Launcher, Invalid> {
    let mut machine = machine.clone();
    let (instancetype, preference) = instancetype::find(&machine, around)?;
    if let Some(preference) = preference {
        instancetype::prefer_attached(preference, &mut machine.spec);
    }
    if machine.at != "spec" {
        // The controller does so for a machine before the instance type is applied.
        defaults::network(&mut machine.spec);
    }
    if let Some(instancetype) = instancetype {
        instancetype::expand(&mut machine, instancetype, preference)?;
    }
    if let Some(preference) = preference {
        instancetype::prefer(&mut machine, preference);
    }
    defaults::fill_in(&mut machine, configuration);
    defaults::check(&machine)?;
    render(&machine, configuration, around)
}

/// Renders the pod of a machine in which everything is filled in.
fn render(
    machine: &Machine,
    configuration: &Configuration,
    around: &Surroundings,
) -> Result<Launcher, Invalid> {
    let spec = &machine.spec;
    let version = configuration.version;
    let policy = spec.domain.io_threads_policy.as_deref();
    let pools = policy == Some("supplementalPool") || spec.pool_threads() > 0;
    if pools && version.since(5, 0) && !version.since(5, 2) {
        let message = format!(
            "CPUs of the supplemental pool are counted wrongly in {version}, and that is not known here"
        );
        return Err(machine.invalid("domain.ioThreads", message));
    }
    let overhead = overhead::memory(spec, configuration);
    let compute = compute::render(machine, configuration, around, overhead)?;
    let others = containers::others(machine, configuration)?;

    let invalid = |error: amounts::AmountError| {
        machine.invalid(&format!("domain.resources.{}", error.field), error.problem.to_string())
    };
    let (compute, mut storage) =
        amounts::container("compute", compute.requests, &compute.limits).map_err(invalid)?;
    let mut pod = Pod { containers: vec![compute], ..Pod::default() };
    let mut storage_of_init = 0;
    for (list, into, is_init) in
        [(others.init, &mut pod.init_containers, true), (others.beside, &mut pod.containers, false)]
    {
        for written in list {
            let name = written.name;
            let (mut container, disk) =
                amounts::container(&name, written.requests, &written.limits).map_err(|error| {
                    let field =
                        format!("spec.configuration.supportContainerResources.{}", error.field);
                    Invalid::new("KubeVirt", field, error.problem.to_string())
                })?;
            container.is_sidecar = written.is_sidecar;
            into.push(container);
            // Init containers run one after the other, and before the rest.
            if is_init {
                storage_of_init = disk.max(storage_of_init)
            } else {
                storage = storage.saturating_add(disk)
            }
        }
    }
    pod.overhead = runtime_overhead(configuration, around)?;
    let bytes = |quantity: Option<berth_api::Quantity>| {
        u64::try_from(quantity.unwrap_or_default().units()).unwrap_or(0)
    };
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    let default_scheduler = || "default-scheduler".to_owned();
    Ok(Launcher {
        pod,
        ephemeral_storage: storage.max(storage_of_init),
        guest_memory: bytes(spec.domain.memory.guest),
        memory_overhead: bytes(Some(overhead)),
        vcpus: u32::try_from(cpu.vcpus()).unwrap_or(u32::MAX).max(1),
        is_dedicated: cpu.dedicated_cpu_placement,
        numa_passthrough: cpu.numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some()),
        namespace: machine.namespace.clone(),
        labels: labels(machine, version),
        node_selector: selector::labels(machine, configuration, around),
        affinity: selector::affinity(machine, configuration),
        tolerations: spec.tolerations.clone(),
        spread: spec.topology_spread_constraints.clone(),
        scheduler_name: text(&spec.scheduler_name).unwrap_or_else(default_scheduler),
        priority_class: text(&spec.priority_class_name),
        resource_claims: spec.resource_claims.iter().map(|claim| claim.name.clone()).collect(),
    })
}

/// What the pod's runtime class adds to it.
fn runtime_overhead(
    configuration: &Configuration,
    around: &Surroundings,
) -> Result<Resources, Invalid> {
    let Some(class) = &configuration.runtime_class else { return Ok(Resources::default()) };
    around.runtime_classes.get(class).cloned().ok_or_else(|| {
        let field = "spec.configuration.defaultRuntimeClass";
        Invalid::new("KubeVirt", field, format!("there is no RuntimeClass `{class}`"))
    })
}

/// The longest value of a label.
const LABEL: usize = 63;

/// `podLabels`.
fn labels(machine: &Machine, version: Version) -> BTreeMap<String, String> {
    let mut labels = machine.labels.clone();
    labels.insert("kubevirt.io".to_owned(), "virt-launcher".to_owned());
    labels.extend(machine.uid.clone().map(|uid| ("kubevirt.io/created-by".to_owned(), uid)));
    let first = machine.name.split('.').next().unwrap_or_default();
    let host = if machine.spec.hostname.is_empty() {
        first.chars().take(LABEL).collect()
    } else {
        machine.spec.hostname.clone()
    };
    labels.insert("vm.kubevirt.io/name".to_owned(), host);
    // Of a longer name it is a part and a hash, which nobody selects by.
    if version.since(7, 0) && machine.name.len() <= LABEL {
        labels.insert("vmi.kubevirt.io/id".to_owned(), machine.name.clone());
    }
    if version.since(7, 0)
        && let Some(inject) = machine.annotations.get("sidecar.istio.io/inject")
    {
        labels.insert("sidecar.istio.io/inject".to_owned(), inject.clone());
    }
    labels
}
