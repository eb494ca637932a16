//! Reasons why a kubelet rejects a pod: the kubelet's message, and an explanation of this message.

use std::fmt;

/// The kubelet's rejection of a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Refusal {
    /// The part of the kubelet that rejects the pod.
    pub refused_by: RefusingComponent,
    /// `status.reason` of the pod.
    pub reason: String,
    /// `status.message` of the pod. A prefix that only some versions of the kubelet add is omitted.
    pub message: String,
    /// Explanation of the kubelet's message for users.
    pub explanation: String,
    summary: &'static str,
}

/// The part of the kubelet that rejects a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusingComponent {
    /// The Topology, CPU, Memory and Device Managers (`GetAllocateResourcesPodAdmitHandler`).
    TopologyManager,
    /// The check of the node's total resources (lifecycle/predicate.go).
    NodeResourcesFit,
    /// The kubelet would crash or loop forever instead of rejecting the pod, so the pod must not be bound to this host.
    Crash,
}

impl fmt::Display for RefusingComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::TopologyManager => "topologyManager",
            Self::NodeResourcesFit => "nodeResourcesFit",
            Self::Crash => "crash",
        })
    }
}

/// Reason why the kubelet rejects a pod, with the values that its message contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// No combination of hints satisfies the Topology Manager's policy.
    TopologyAffinity,
    /// Fewer CPUs are free than requested. `counted` is true if the kubelet's message contains these numbers.
    InsufficientCpus { wanted: u64, free: u32, counted: bool },
    /// With `full-pcpus-only`, the number of requested CPUs is not a multiple of the number of CPUs of a core.
    NotMultipleOfCore { wanted: u64, per_core: u32 },
    /// With `full-pcpus-only`, too few CPUs are free on the cores that contain no reserved CPUs.
    InsufficientFreeCores { wanted: u64, per_core: u32, free: u32 },
    /// The CPU Manager's algorithm fails with this error message.
    CpuError(String),
    /// The Memory Manager fails with this error.
    Memory(MemoryReason),
    /// Fewer devices are free than requested.
    InsufficientDevices { name: String, wanted: u64, free: u64 },
    /// The device plugin of this resource has no healthy devices.
    NoHealthyDevices(String),
    /// The kubelet would crash or loop forever, for this reason.
    KubeletCrash(&'static str),
    /// The node's total resources are insufficient.
    InsufficientTotal { name: String, wanted: u64, used: u64, capacity: u64 },
}

/// The errors that `Allocate` in memorymanager/policy_static.go returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryReason {
    NoDefaultHint,
    DefaultHintNotPreferred,
    NoExtendedHint,
    ExtendedHintNotPreferred,
    AllocationViolation,
}

impl Refusal {
    /// Returns a short message without numbers, which is the same for all hosts that reject the pod for the same
    /// reason.
    #[must_use]
    pub const fn summary(&self) -> &'static str {
        self.summary
    }
}

impl Reason {
    pub(super) fn to_refusal(&self) -> Refusal {
        let unexpected = "UnexpectedAdmissionError";
        let (refused_by, reason, message, plain) = match self {
            Self::TopologyAffinity => (
                RefusingComponent::TopologyManager,
                "TopologyAffinityError",
                "Resources cannot be allocated with Topology locality".to_owned(),
                "no combination of zones that the Topology Manager's policy permits has all requested \
                 resources"
                    .to_owned(),
            ),
            Self::NotMultipleOfCore { wanted, per_core } => (
                RefusingComponent::TopologyManager,
                "SMTAlignmentError",
                format!(
                    "SMT Alignment Error: requested {wanted} cpus not multiple cpus per core = {per_core}"
                ),
                format!("{wanted} CPUs are not a multiple of the {per_core} CPUs of a core"),
            ),
            Self::InsufficientFreeCores { wanted, per_core, free } => (
                RefusingComponent::TopologyManager,
                "SMTAlignmentError",
                format!(
                    "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {free}, requested CPUs = {wanted}, CPUs per core = {per_core}"
                ),
                format!("{wanted} CPUs on whole free cores requested, {free} free"),
            ),
            Self::InsufficientTotal { name, wanted, used, capacity } => (
                RefusingComponent::NodeResourcesFit,
                "OutOf",
                format!(
                    "Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {capacity}"
                ),
                format!(
                    "{name}: {wanted} requested, {} of {capacity} free",
                    capacity.saturating_sub(*used)
                ),
            ),
            Self::KubeletCrash(why) => {
                (RefusingComponent::Crash, "KubeletCrash", (*why).to_owned(), (*why).to_owned())
            }
            _ => {
                let (error, plain) = self.error_and_explanation();
                let message = format!("Allocate failed due to {error}, which is unexpected");
                (RefusingComponent::TopologyManager, unexpected, message, plain)
            }
        };
        let mut reason = reason.to_owned();
        if let Self::InsufficientTotal { name, .. } = self {
            reason.push_str(name);
        }
        Refusal { refused_by, reason, message, explanation: plain, summary: self.summary() }
    }

    const fn summary(&self) -> &'static str {
        match self {
            Self::TopologyAffinity => "node(s) had no NUMA zones with all requested resources",
            Self::NotMultipleOfCore { .. } | Self::InsufficientFreeCores { .. } => {
                "node(s) had too few whole free cores"
            }
            Self::InsufficientTotal { .. } => "node(s) had insufficient free resources",
            Self::KubeletCrash(_) => "node(s) had a kubelet that would crash on the pod",
            _ => "node(s) had insufficient free resources in their NUMA zones",
        }
    }

    /// Returns the kubelet's error message and its explanation, for errors that the kubelet reports as unexpected.
    fn error_and_explanation(&self) -> (String, String) {
        match self {
            Self::InsufficientCpus { wanted, free, counted } => {
                let counts = format!(": requested={wanted}, available={free}");
                let counts = if *counted { counts.as_str() } else { "" };
                (
                    format!("not enough cpus available to satisfy request{counts}"),
                    format!("{wanted} exclusive CPUs requested, {free} free"),
                )
            }
            Self::InsufficientDevices { name, wanted, free } => (
                format!(
                    "requested number of devices unavailable for {name}. Requested: {wanted}, Available: {free}"
                ),
                format!("{name}: {wanted} devices requested, {free} free"),
            ),
            Self::NoHealthyDevices(name) => (
                format!("no healthy devices present; cannot allocate unhealthy devices {name}"),
                format!("{name}: no device is healthy"),
            ),
            Self::Memory(reason) => {
                let (error, plain) = match reason {
                    MemoryReason::NoDefaultHint => (
                        "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
                        "no combination of zones that can be allocated together has enough memory and huge pages",
                    ),
                    MemoryReason::DefaultHintNotPreferred => (
                        "failed to find the default preferred hint",
                        "enough memory and huge pages are free only on more zones than necessary on an empty host",
                    ),
                    MemoryReason::NoExtendedHint => (
                        "failed to find NUMA nodes to extend the current topology hint",
                        "the selected zones lack memory or huge pages, and no zones can be added",
                    ),
                    MemoryReason::ExtendedHintNotPreferred => (
                        "failed to find the extended preferred hint",
                        "the selected zones lack memory or huge pages, and with more zones \
                         the pod would use more than the minimum number of zones",
                    ),
                    MemoryReason::AllocationViolation => (
                        "preferred hint violates NUMA node allocation",
                        "the selected zones cannot form a group, because a pod has memory on one of \
                         them alone or on another group",
                    ),
                };
                (format!("[memorymanager] {error}"), plain.to_owned())
            }
            Self::CpuError(error) => (error.clone(), error.clone()),
            // The caller formats the messages of all other reasons, which have their own `status.reason`.
            _ => (String::new(), String::new()),
        }
    }
}
