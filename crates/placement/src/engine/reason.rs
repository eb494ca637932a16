//! Reasons why a pod cannot be placed on a host, each with a short summary for kube-scheduler and a detailed message.

use std::borrow::Cow;
use std::fmt;

use berth_api::infra_node::KvmState;

use crate::inventory::MissingInformation;
use crate::rules;
use berth_kubelet_admission::Refusal;

/// A reason why a pod cannot be placed on a host. `Display` formats the detailed message. [`Reason::summary`] returns
/// the same string for every host, because kube-scheduler counts the hosts with equal strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule of kube-scheduler excludes the host.
    Rule(rules::Reason),
    /// The host cannot run VMs.
    NoKvm(KvmState),
    /// The agent's report is stale, so the free resources are unknown.
    StaleReport(String),
    /// KSM on the host merges pages of VMs, which costs latency and opens a side channel between tenants.
    MergesPages,
    /// The VM requests exclusive CPUs, but the kubelet's CPU Manager does not have the policy `static`, or its policy
    /// is unknown.
    NoStaticCpuPolicy,
    /// The kubelet would reject the pod.
    Kubelet(Refusal),
    /// The kubelet would admit the pod, and allocate CPUs that another pod uses: on hosts whose sockets or cores have
    /// different sizes, the kubelet calculates with average sizes (cpumanager/topology.go).
    CpusInUse,
    /// The agent's report lacks information on which the kubelet's decision depends.
    Unpredictable(MissingInformation),
    /// The zones of the VM's CPUs have too few free huge pages for the guest's memory.
    InsufficientZoneMemory(String),
}

impl Reason {
    /// Returns a short summary without numbers and without names of hosts.
    #[must_use]
    pub fn summary(&self) -> Cow<'static, str> {
        match self {
            Self::Rule(reason) => reason.summary(),
            Self::NoKvm(_) => "node(s) had no usable KVM".into(),
            Self::StaleReport(_) => "node(s) had a stale agent report".into(),
            Self::MergesPages => "node(s) had KSM enabled".into(),
            Self::NoStaticCpuPolicy => "node(s) had no static CPU Manager policy".into(),
            Self::Kubelet(refusal) => refusal.summary().into(),
            Self::CpusInUse => "node(s) had a kubelet that would allocate CPUs in use".into(),
            Self::Unpredictable(MissingInformation::MemoryZones(_)) => {
                "node(s) had an agent report without NUMA zones of memory".into()
            }
            Self::Unpredictable(MissingInformation::DeviceZones(_)) => {
                "node(s) had an agent report without NUMA zones of devices".into()
            }
            Self::InsufficientZoneMemory(_) => {
                "node(s) had too few free huge pages in the NUMA zones of the CPUs".into()
            }
        }
    }

    /// Returns a rank: a host whose reason has a lower rank is closer to accepting the pod, so a remedy is suggested
    /// for this host first. The lowest ranks are those of resources that are in use. The ranks of rules about other
    /// pods and about storage, of properties of the host, of other scheduling rules, and of missing KVM follow in this
    /// order.
    #[must_use]
    pub fn report_rank(&self) -> u8 {
        match self {
            Self::Kubelet(_) | Self::InsufficientZoneMemory(_) | Self::CpusInUse => 0,
            Self::Rule(
                rules::Reason::InsufficientResource { .. } | rules::Reason::PodsLimit { .. },
            ) => 1,
            Self::Rule(
                rules::Reason::TopologySpread { .. }
                | rules::Reason::PodAntiAffinity { .. }
                | rules::Reason::PodAffinity { .. }
                | rules::Reason::ExistingAntiAffinity { .. }
                | rules::Reason::InsufficientStorage { .. },
            ) => 2,
            Self::MergesPages
            | Self::NoStaticCpuPolicy
            | Self::StaleReport(_)
            | Self::Unpredictable(_) => 3,
            Self::Rule(_) => 4,
            Self::NoKvm(_) => 5,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(reason) => reason.fmt(f),
            Self::NoKvm(state) => {
                write!(f, "the host cannot run VMs: {}", describe_kvm_state(*state))
            }
            Self::StaleReport(why) => f.write_str(why),
            Self::MergesPages => f.write_str(
                "KSM is enabled on the host, and a Performance VM must not share merged pages",
            ),
            Self::NoStaticCpuPolicy => {
                f.write_str("the kubelet allocates no exclusive CPUs (cpuManagerPolicy: none)")
            }
            Self::Kubelet(refusal) => write!(f, "{}: {}", refusal.reason, refusal.explanation),
            Self::CpusInUse => f.write_str(
                "the kubelet would allocate CPUs that another pod uses: it calculates with average sizes, and the host's \
                 sockets or cores have different sizes",
            ),
            Self::Unpredictable(MissingInformation::MemoryZones(pod)) => write!(
                f,
                "the agent reports the memory of pod {pod} without the NUMA zones of each container: upgrade the agent, or wait until the pod is deleted",
            ),
            Self::Unpredictable(MissingInformation::DeviceZones(resource)) => write!(
                f,
                "the NUMA zones of the {resource} devices are unknown, and the kubelet rejects pods whose devices and CPUs are in different zones: see status.unknown of the InfraNode for the reason",
            ),
            Self::InsufficientZoneMemory(shortage) => f.write_str(shortage),
        }
    }
}

const fn describe_kvm_state(state: KvmState) -> &'static str {
    match state {
        KvmState::Ready => "KVM is ready",
        KvmState::NoCpuSupport => "the CPU does not support virtualisation",
        KvmState::DisabledInFirmware => "virtualisation is disabled in the firmware",
        KvmState::ModuleNotLoaded => "no KVM module is loaded",
        KvmState::NoPermission => "the agent has no permission to open /dev/kvm",
        KvmState::SmokeTestFailed => {
            "/dev/kvm can be opened, but no VM can be created; or the agent is newer than the controller and reports another failure"
        }
    }
}
