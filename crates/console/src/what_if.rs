//! Simulated changes: additional hosts, another HostProfile, a MachineDeployment. Nothing is changed.

use berth_api::infra_node::Zone;

use crate::refusal::Refusal;

/// Maximum number of additional hosts.
pub const MAX_ADDED_HOSTS: u32 = 100;
/// Maximum number of hosts that a user lists for a profile.
pub(crate) const MAX_LISTED_HOSTS: usize = 100;

/// A change whose effects are simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Additional hosts like `host`, without VMs.
    AddHosts {
        /// Name of the host.
        host: String,
        /// Number of additional hosts, at most [`MAX_ADDED_HOSTS`].
        count: u32,
    },
    /// A HostProfile.
    Profile {
        /// The HostProfile.
        profile: ProfileSource,
        /// Hosts whose Nodes get the labels that the profile selects. If empty, the Nodes keep their labels.
        hosts: Vec<String>,
    },
    /// A MachineDeployment.
    Machines {
        /// Namespace of the tenant, in which the MachineDeployment must be.
        namespace: String,
        /// The MachineDeployment, as YAML or JSON.
        yaml: String,
    },
}

/// Source of a HostProfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileSource {
    /// Name of a HostProfile of the cluster.
    Existing(String),
    /// The HostProfile, as YAML or JSON.
    Yaml(String),
}

/// Result of a simulated change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIfReport {
    /// Sums without the change.
    pub before: Totals,
    /// Sums with the change.
    pub after: Totals,
    /// VMs that get a host only with the change.
    pub placed: Vec<NewPlacement>,
    /// VMs without a host after the change.
    pub unplaced: Vec<VmWithoutHost>,
    /// VMs that the change interrupts or moves.
    pub interruptions: Vec<Interruption>,
    /// Changes of hosts.
    pub changes: Vec<HostChange>,
    /// CPUs of the hosts that differ, the first of them.
    pub maps: Vec<HostMap>,
    /// Number of further hosts that differ.
    pub more_maps: usize,
    /// Numbers of machines of the MachineDeployment.
    pub machines: Option<MachineNumbers>,
    /// Further consequences.
    pub notes: Vec<String>,
    /// Problems of objects, which may make the result wrong.
    pub problems: Vec<String>,
}

/// Sums over all hosts, after the placement of the VMs that wait for a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of hosts.
    pub hosts: usize,
    /// Number of VMs without a host.
    pub waiting: usize,
    /// CPUs that can be allocated exclusively.
    pub cpus: FreeAmount,
    /// Huge pages in bytes.
    pub hugepages: FreeAmount,
    /// Memory without huge pages in bytes.
    pub memory: FreeAmount,
}

/// Free and total amount of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeAmount {
    /// Free amount.
    pub free: u64,
    /// Total amount.
    pub total: u64,
}

/// A VM that gets a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPlacement {
    /// Namespace and name of the VM.
    pub vm: String,
    /// The host.
    pub host: String,
    /// Zones of its exclusive CPUs.
    pub zones: Vec<u32>,
    /// Its exclusive CPUs, as a CPU list; empty if it has none.
    pub cpus: String,
}

/// A VM without a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmWithoutHost {
    /// Namespace and name of the VM.
    pub vm: String,
    /// True if the VM has a host without the change, or exists only with the change.
    pub is_new: bool,
    /// Reasons of the hosts.
    pub refusals: Vec<Refusal>,
    /// Suggested remedy.
    pub remedy: String,
}

/// Way in which a change concerns a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptionKind {
    /// The VM continues to run on its host.
    Stays,
    /// Live migration: the VM continues to run.
    Migrated,
    /// The machine is replaced: its programs end.
    Replaced,
    /// The VM must leave its host, but Berth does not move it.
    NotManaged,
}

/// Host of a VM after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAfterChange {
    /// The VM fits on its host.
    Same,
    /// The VM fits only on another host.
    Other(String),
    /// The VM fits on no host.
    None,
    /// The host of the VM would not accept it again.
    NotAccepted(String),
    /// The VM stays, and may lose its network for a time.
    NetworkInterrupted,
    /// The simulation does not place the VM again.
    NotSimulated,
}

/// A VM that a change concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interruption {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Its host; empty if it has none.
    pub host: String,
    /// The way in which the change concerns the VM.
    pub kind: InterruptionKind,
    /// Reason for a replacement; may be empty.
    pub reason: String,
    /// Its host after the change.
    pub after: HostAfterChange,
}

/// Time at which the change of a host becomes effective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEffect {
    /// While VMs run.
    Immediate,
    /// After a drain of the host and a restart of its kubelet.
    AfterDrain,
    /// After the last VM has left the host.
    AfterLastVm,
    /// While VMs run, which lose their network for a time.
    InterruptsNetwork,
    /// The simulation does not know the effect.
    Unknown,
}

/// A field of the spec of a host that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostChange {
    /// Name of the host.
    pub host: String,
    /// Name of the field.
    pub field: String,
    /// Value before the change; empty if the field is absent.
    pub before: String,
    /// Value after the change; empty if the field is absent.
    pub after: String,
    /// Time at which the change becomes effective.
    pub effect: HostEffect,
    /// Consequence or obstacle; may be empty.
    pub note: String,
}

/// CPUs of a host before and after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMap {
    /// Name of the host.
    pub host: String,
    /// Zones before the change; `None` if the host exists only with the change.
    pub before: Option<Vec<Zone>>,
    /// Zones after the change.
    pub after: Vec<Zone>,
}

/// Numbers of machines of a MachineDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNumbers {
    /// Namespace and name of the MachineDeployment.
    pub deployment: String,
    /// Number of desired machines.
    pub desired: u32,
    /// Number of existing machines.
    pub existing: u32,
}
