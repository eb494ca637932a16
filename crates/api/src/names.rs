//! The words Berth uses on hosts and in the cluster.

/// Prefix of the alias on every link Berth made; links without it are never touched.
pub const LINK_ALIAS_PREFIX: &str = "berth:";
/// Scheduler (`spec.schedulerName`) of the pods that Berth places on hosts.
pub const SCHEDULER: &str = "berth-scheduler";
/// Field manager of what the agent applies.
pub const AGENT: &str = "berth-agent";
/// Field manager of what the controller applies.
pub const CONTROLLER: &str = "berth-controller";
/// Field manager of the part of a TenantCluster's status that is about its network, its hosts and its objects. Machines
/// are counted by another part of the controller: what one manager no longer sends goes, so each has a name of its own.
pub const CONTROLLER_TENANTS: &str = "berth-controller-tenants";
/// Field manager of the condition that an object cannot be understood, so that the rest of its status stays.
pub const CONTROLLER_MALFORMED: &str = "berth-controller-malformed";
/// Finalizer of objects for which something outside has to be undone.
pub const FINALIZER: &str = "berth.dev/cleanup";
/// Label, and its value, of every object that Berth makes for tenants. What does not have it is never deleted.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "berth");
/// Label of a tenant's namespace and of what is in it: the tenant's id. Also an annotation, of a MachineDeployment outside
/// that namespace.
pub const TENANT: &str = "berth.dev/tenant";
/// Label of a NetworkPolicy that comes from a list: `infra-config` or `tenant`.
pub const CUSTOM_POLICY: &str = "berth.dev/custom-network-policy";
/// Field manager of what the controller says in the status of objects that it also applies itself: servers before 1.22
/// take both for one set of fields, so that each apply would drop what the other one holds.
pub const CONTROLLER_STATUS: &str = "berth-controller-status";
/// What the namespace of a tenant, and its network, begin with; the rest is the tenant's id.
pub const TENANT_PREFIX: &str = "cluster-";
/// Label of a Node by the controller: which VMs the host is for. Agents cannot write it, so a stolen one lures no VM.
pub const CLASS_LABEL: &str = "berth.dev/class";
/// Label of a Node by the controller: the HostProfile that its shape comes from.
pub const PROFILE_LABEL: &str = "berth.dev/profile";
/// Key of a taint that an administrator may give to hosts for VMs alone; VMs that Berth assigns tolerate it.
pub const VMS_TAINT: &str = "berth.dev/vms";
/// Annotation of a Node, or a label on servers before 1.21: another value whenever it has room again for a pod that waits, as
/// the scheduler looks at waiting pods again when a Node changes.
pub const CAPACITY_GENERATION: &str = "berth.dev/capacity-generation";
/// Annotation of an InfraNode that an agent made because there was none. As long as no user has written a spec
/// into it, it has no desired state, so nothing is restored either.
pub const CREATED_BY: &str = "berth.dev/created-by";
/// Prefix of the Node's conditions that the agent writes; the rest is the condition's name in the InfraNode.
pub const NODE_CONDITION_PREFIX: &str = "berth.dev/";

/// Annotation of a MachineDeployment: the Secret with its machines' user data.
pub const USER_DATA_SECRET: &str = "berth.dev/user-data-secret";
/// Annotation of a VirtualMachine: the hash of the template that it was made of.
pub const REVISION: &str = "berth.dev/revision";
/// Annotation of a VirtualMachine: whose it is, as an owner cannot be in another namespace.
pub const MACHINE_DEPLOYMENT_UID: &str = "berth.dev/machine-deployment-uid";
/// Namespace and name of the controller's ServiceAccount, as `deploy/` has it.
pub const CONTROLLER_ACCOUNT: (&str, &str) = ("berth-system", "berth-controller");
/// ClusterRole with what the controller may do with Secrets of a namespace. It is bound in tenants' namespaces alone.
pub const CONTROLLER_TENANT_ROLE: &str = "berth-controller-tenant";
/// Label of a Secret with a machine's user data: the machine.
pub const MACHINE: &str = "berth.dev/machine";

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
    /// CPUs that the kubelet can allocate exclusively, in use or not.
    pub const PINNABLE_CPUS: &str = "berth.dev/pinnable-cpus";
    /// Before a bridge's name, as the project bridge-marker has it.
    pub const BRIDGE_PREFIX: &str = "bridge.network.kubevirt.io/";
    /// Bridges of single tenants that an agent tells; with more the Node would grow, and only Berth's scheduler judges.
    pub const BRIDGES_TOLD: usize = 16;
}

/// Types of conditions that more than one part of Berth reads.
pub mod condition {
    /// Of an InfraNode: `True` while another manager owns fields that its HostProfile says otherwise. Absent else.
    pub const PROFILE_OVERRIDDEN: &str = "ProfileOverridden";
    /// Of an InfraNode: `True` while several HostProfiles of the same priority select its Node. Absent else.
    pub const PROFILE_CONFLICT: &str = "ProfileConflict";
    /// Of an InfraNode: `True` while a part of its HostProfile cannot be followed. Absent else.
    pub const PROFILE_INCOMPLETE: &str = "ProfileIncomplete";
    /// Of most objects: `True` if everything matches the spec.
    pub const READY: &str = "Ready";
}
