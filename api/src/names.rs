//! The words Berth uses on hosts and in the cluster.

/// Prefix of the alias on every link Berth made; links without it are never touched.
pub const LINK_ALIAS_PREFIX: &str = "berth:";
/// Field manager of what the agent applies.
pub const AGENT: &str = "berth-agent";
/// Annotation of an InfraNode that an agent made because there was none. As long as nobody has written a spec
/// into it, it asks for nothing, not even for what an earlier one asked to be put back.
pub const CREATED_BY: &str = "berth.dev/created-by";
/// Prefix of the Node's conditions that the agent writes; the rest is the condition's name in the InfraNode.
pub const NODE_CONDITION_PREFIX: &str = "berth.dev/";

/// Labels that the agent writes to its Node.
pub mod label {
    /// What all of them begin with.
    pub const PREFIX: &str = "host.berth.dev/";
    /// Whether VMs can be made.
    pub const KVM: &str = "host.berth.dev/kvm";
    /// Whether VMs can have VMs.
    pub const NESTED: &str = "host.berth.dev/nested";
    /// Whether cores have more than one thread online.
    pub const SMT: &str = "host.berth.dev/smt";
    /// Whether there are pages of 2 MiB.
    pub const HUGEPAGES_2MI: &str = "host.berth.dev/hugepages-2Mi";
    /// Whether there are pages of 1 GiB.
    pub const HUGEPAGES_1GI: &str = "host.berth.dev/hugepages-1Gi";
    /// Whether the kernel merges equal pages.
    pub const KSM: &str = "host.berth.dev/ksm";
    /// Whether devices can be given to VMs.
    pub const IOMMU: &str = "host.berth.dev/iommu";
    /// Whether a network card can have virtual functions.
    pub const SRIOV: &str = "host.berth.dev/sriov";
    /// Whether there is an NVMe drive.
    pub const NVME: &str = "host.berth.dev/nvme";
    /// Whether VMs' network traffic is carried in the kernel.
    pub const VHOST_NET: &str = "host.berth.dev/vhost-net";
    /// `intel`, `amd`, or what the CPU calls its maker.
    pub const CPU_VENDOR: &str = "host.berth.dev/cpu-vendor";
    /// Number of NUMA zones.
    pub const NUMA_ZONES: &str = "host.berth.dev/numa-zones";
    /// The kubelet's CPU manager policy.
    pub const CPU_MANAGER: &str = "host.berth.dev/cpu-manager";
    /// The kubelet's topology manager policy.
    pub const TOPOLOGY_POLICY: &str = "host.berth.dev/topology-policy";
}

/// Extended resources that the agent writes to its Node.
pub mod resource {
    /// CPUs that the kubelet can hand out exclusively, in use or not.
    pub const PINNABLE_CPUS: &str = "berth.dev/pinnable-cpus";
    /// Before a bridge's name, as the project bridge-marker has it.
    pub const BRIDGE_PREFIX: &str = "bridge.network.kubevirt.io/";
}
