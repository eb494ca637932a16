//! Names that Berth uses on hosts and in the cluster.

/// Group and version (`apiVersion`) of Berth's objects.
pub const API_VERSION: &str = "berth.dev/v1alpha1";
/// Prefix of the alias of every link that Berth created. Berth never changes links without it.
pub const LINK_ALIAS_PREFIX: &str = "berth:";
/// Scheduler (`spec.schedulerName`) of the pods that Berth places on hosts.
pub const SCHEDULER_NAME: &str = "berth-scheduler";
/// Field manager of the agent.
pub const AGENT_FIELD_MANAGER: &str = "berth-agent";
/// Field manager of the controller.
pub const CONTROLLER_FIELD_MANAGER: &str = "berth-controller";
/// Field manager of the network, the hosts and the objects in the status of a TenantCluster. The number of machines has
/// another field manager. Server-side apply removes fields that a manager no longer sends, so each writer of the status
/// has its own field manager.
pub const TENANTS_FIELD_MANAGER: &str = "berth-controller-tenants";
/// Field manager of the conditions of a TenantCluster about the connection to the tenant's API server.
pub const TENANT_ACCESS_FIELD_MANAGER: &str = "berth-controller-access";
/// Field manager of the condition of a TenantCluster about the StorageClasses in the tenant's cluster.
pub const TENANT_STORAGE_FIELD_MANAGER: &str = "berth-controller-storage";
/// Field manager of the condition of an InfraNode about the VMs that must leave the host.
pub const DRAIN_FIELD_MANAGER: &str = "berth-controller-drain";
/// Field manager of the conditions about lost hosts, on InfraNodes and TenantClusters.
pub const HOST_LOSS_FIELD_MANAGER: &str = "berth-controller-host-loss";
/// Field manager of the condition that reports a malformed object, so that an apply of this condition does not remove
/// other fields of the object's status.
pub const MALFORMED_FIELD_MANAGER: &str = "berth-controller-malformed";
/// Finalizer of objects whose deletion requires the cleanup of other resources.
pub const FINALIZER: &str = "berth.dev/cleanup";
/// Name of the InfraConfig.
pub const INFRA_CONFIG: &str = "default";
/// Label, and its value, of every object that Berth creates for tenants. Berth never deletes objects without it.
pub const MANAGED_BY_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "berth");
/// Label of a tenant's namespace and of the objects in it. Its value is the tenant's id. Also an annotation of a
/// MachineDeployment outside that namespace.
pub const TENANT_LABEL: &str = "berth.dev/tenant";
/// Label of a NetworkPolicy from a list of custom policies. Its value is the source: `infra-config` or `tenant`.
pub const CUSTOM_POLICY_LABEL: &str = "berth.dev/custom-network-policy";
/// Field manager of the status of objects that the controller also applies. API servers before 1.22 treat spec and
/// status as one set of fields, so with a single manager each apply of the spec would remove the fields of the status,
/// and each apply of the status the fields of the spec.
pub const CONTROLLER_STATUS_FIELD_MANAGER: &str = "berth-controller-status";
/// Prefix of the names of a tenant's namespace and network; the rest is the tenant's id.
pub const TENANT_PREFIX: &str = "cluster-";
/// Label of a Node, set by the controller: the class of VMs that the host is for. Agents cannot write it, so that a
/// stolen agent credential cannot attract VMs to a host.
pub const CLASS_LABEL: &str = "berth.dev/class";
/// Label of a Node, set by the controller: the HostProfile that defines its desired state.
pub const PROFILE_LABEL: &str = "berth.dev/profile";
/// Key of a taint that an administrator may add to hosts reserved for VMs. VMs that Berth assigns tolerate it.
pub const VM_NODE_TAINT: &str = "berth.dev/vms";
/// Annotation of a Node, or a label on API servers before 1.21. Its value changes whenever the Node has capacity again
/// for a pending pod, because kube-scheduler retries pending pods when a Node changes.
pub const CAPACITY_GENERATION_ANNOTATION: &str = "berth.dev/capacity-generation";
/// Prefix of a tenant network's name, `cluster-<id>`, in the name of a resource that only the assignment engine knows:
/// a host has it if the network is ready there.
pub const READY_NETWORK_PREFIX: &str = "network.berth.dev/";
/// Annotation of a NetworkAttachmentDefinition: the resource with [`READY_NETWORK_PREFIX`] that its VMs require.
pub const READY_NETWORK_ANNOTATION: &str = "berth.dev/ready-network";
/// Annotation of an InfraNode that an agent created because none existed. Until a user writes its spec, it has no
/// desired state, so Berth restores nothing.
pub const CREATED_BY_ANNOTATION: &str = "berth.dev/created-by";
/// Annotation of a tenant's Node: the taints that the controller has copied from the Node's host, as `KEY=VALUE:EFFECT`,
/// separated by commas. Other taints of the Node belong to other managers.
pub const REPLICATED_TAINTS_ANNOTATION: &str = "berth.dev/replicated-taints";
/// Prefix of the Node conditions that the agent writes; the rest is the condition's type in the InfraNode.
pub const NODE_CONDITION_PREFIX: &str = "berth.dev/";

/// Annotation of a MachineDeployment: the Secret with its machines' user data.
pub const USER_DATA_SECRET_ANNOTATION: &str = "berth.dev/user-data-secret";
/// Annotation of the template of a MachineDeployment: addresses of its machines, separated by commas. Also an
/// annotation of each AddressClaim that was chosen from such a list.
pub const ADDRESSES_ANNOTATION: &str = "berth.dev/addresses";
/// Annotation of a VirtualMachine: the addresses that its interface in the tenant's network had at its creation,
/// separated by commas. If a user deletes the AddressClaims, the controller recreates them from this annotation.
pub const CLAIMED_ADDRESSES_ANNOTATION: &str = "berth.dev/claimed-addresses";
/// Label of a VirtualMachine and of its pods: the role of the machine in the tenant's cluster, [`CONTROL_PLANE_ROLE`]
/// or [`WORKER_ROLE`]. machine-controller and Cluster API's provider for KubeVirt also set this label.
pub const ROLE_LABEL: &str = "cluster.x-k8s.io/role";
/// Value of [`ROLE_LABEL`] of a machine that runs the control plane of a tenant's cluster.
pub const CONTROL_PLANE_ROLE: &str = "control-plane";
/// Value of [`ROLE_LABEL`] of a machine that does not run a control plane.
pub const WORKER_ROLE: &str = "worker";
/// Annotation of a VirtualMachine: the hash of the template that it was created from.
pub const REVISION_ANNOTATION: &str = "berth.dev/revision";
/// Annotation of a VirtualMachine: the UID of its MachineDeployment. An owner reference cannot cross namespaces.
pub const MACHINE_DEPLOYMENT_UID_ANNOTATION: &str = "berth.dev/machine-deployment-uid";
/// Annotation of a VirtualMachine that Berth removes: the reason of the removal. A machine with this mark is drained in
/// the tenant's cluster before it is deleted.
pub const REMOVAL_ANNOTATION: &str = "berth.dev/removal";
/// Value of [`REMOVAL_ANNOTATION`] for a machine whose host is lost.
pub const HOST_LOST_REMOVAL: &str = "HostLost";
/// Annotation of a VirtualMachine that Berth removes: the time of the mark, in RFC 3339. The time limit of the drain
/// begins at this time.
pub const REMOVAL_SINCE_ANNOTATION: &str = "berth.dev/removal-since";
/// Annotation of a VirtualMachine that Berth removes because its host was lost: the time, in RFC 3339, at which the
/// time limit of the drain started again because the host was back.
pub const HOST_RETURNED_ANNOTATION: &str = "berth.dev/host-returned";
/// Annotation of a VirtualMachine that Berth removes because its host was lost: the time, in RFC 3339, at which the host
/// was lost again after a return. The time limit of the drain stops at this time, and continues when the host is back.
pub const HOST_LOST_AGAIN_ANNOTATION: &str = "berth.dev/host-lost-again";
/// Annotation of a VirtualMachine that Berth removes: the name of its Node in the tenant's cluster, if it differs from
/// the name of the machine. After another controller has deleted the Node, its VolumeAttachments are found by this
/// name.
pub const REMOVAL_NODE_ANNOTATION: &str = "berth.dev/removal-node";
/// Annotation of a VirtualMachine: the reason of the removal for which Berth has begun to delete the Node of the
/// machine. From then on, the removal cannot be cancelled.
pub const NODE_DELETION_ANNOTATION: &str = "berth.dev/node-deletion";
/// Annotation of a MachineDeployment or of a VirtualMachine: the time limit of the drain, in place of
/// `spec.nodeDrainTimeout` of the TenantCluster.
pub const NODE_DRAIN_TIMEOUT_ANNOTATION: &str = "berth.dev/node-drain-timeout";
/// Annotation of a MachineDeployment: `Newest` or `Oldest`, the machines that are removed first.
pub const DELETE_POLICY_ANNOTATION: &str = "berth.dev/delete-policy";
/// Annotation of a VirtualMachine that is removed before other machines of its MachineDeployment. Its value has no
/// meaning. machine-controller and Cluster API read it from Machines.
pub const DELETE_MACHINE_ANNOTATION: &str = "cluster.k8s.io/delete-machine";
/// Annotation of a tenant's Node that Berth has cordoned. Berth uncordons no other Node.
pub const CORDONED_ANNOTATION: &str = "berth.dev/cordoned";
/// Annotation of a VirtualMachine whose host is being drained: the time (RFC 3339) at which its MachineDeployment was
/// requested to create a replacement first. The machine counts as outdated.
pub const REPLACEMENT_ANNOTATION: &str = "berth.dev/replacement-requested";
/// Label, with the value `true`, of a VirtualMachine that must leave its host because its pod was evicted.
pub const EVACUATING_LABEL: &str = "berth.dev/evacuating";
/// Annotation of a VirtualMachine with the label [`EVACUATING_LABEL`]: the host, and what the machine waits for, as
/// JSON.
pub const EVACUATION_ANNOTATION: &str = "berth.dev/evacuation";
/// Prefix of the names of live migrations that the controller creates.
pub const MIGRATION_NAME_PREFIX: &str = "berth-drain-";
/// Namespace of Berth's programs and of their Leases in `deploy/`.
pub const NAMESPACE: &str = "berth-system";
/// Namespace and name of the controller's ServiceAccount in `deploy/`.
pub const CONTROLLER_SERVICE_ACCOUNT: (&str, &str) = (NAMESPACE, "berth-controller");
/// Name of the Lease for leader election of the controller.
pub const CONTROLLER_LEASE: &str = "berth-controller";
/// Lease for leader election of the kube-schedulers with the controller as their extender, as NAMESPACE/NAME.
pub const SCHEDULER_LEASE: &str = "kube-system/berth-scheduler";
/// ClusterRole with the controller's permissions for Secrets of a namespace. It is bound in tenants' namespaces only.
pub const CONTROLLER_TENANT_CLUSTER_ROLE: &str = "berth-controller-tenant";
/// Label of a Secret with a machine's user data: the name of the machine.
pub const MACHINE_LABEL: &str = "berth.dev/machine";

/// Labels that the agent writes to its Node.
pub mod label {
    /// Prefix of all labels in this module.
    pub const PREFIX: &str = "host.berth.dev/";
    /// `true` if KVM can run VMs.
    pub const KVM: &str = "host.berth.dev/kvm";
    /// `true` if guests can run VMs (nested virtualisation).
    pub const NESTED_VIRTUALIZATION: &str = "host.berth.dev/nested";
    /// `true` if cores have more than one online thread.
    pub const SMT: &str = "host.berth.dev/smt";
    /// `true` if the host has huge pages of 2 MiB.
    pub const HUGEPAGES_2MI: &str = "host.berth.dev/hugepages-2Mi";
    /// `true` if the host has huge pages of 1 GiB.
    pub const HUGEPAGES_1GI: &str = "host.berth.dev/hugepages-1Gi";
    /// `true` if the kernel merges equal pages (KSM).
    pub const KSM: &str = "host.berth.dev/ksm";
    /// `true` if devices can be passed through to VMs.
    pub const IOMMU: &str = "host.berth.dev/iommu";
    /// `true` if a device can have SR-IOV virtual functions.
    pub const SRIOV: &str = "host.berth.dev/sriov";
    /// `true` if the host has an NVMe drive.
    pub const NVME: &str = "host.berth.dev/nvme";
    /// `true` if the kernel handles the network traffic of VMs (vhost-net).
    pub const VHOST_NET: &str = "host.berth.dev/vhost-net";
    /// CPU vendor: `intel`, `amd`, or the CPU's own vendor name.
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
    /// Number of CPUs that the kubelet can allocate exclusively, in use or not.
    pub const PINNABLE_CPUS: &str = "berth.dev/pinnable-cpus";
    /// Prefix of a bridge's name, as in the project bridge-marker.
    pub const BRIDGE_PREFIX: &str = "bridge.network.kubevirt.io/";
    /// Maximum number of single-tenant bridges that an agent reports for a host network. With more of them the Node
    /// would become too large, and only Berth's scheduler checks for the bridges.
    pub const MAX_PUBLISHED_BRIDGES: usize = 16;
}

/// Condition types that more than one part of Berth reads.
pub mod condition {
    /// Condition of an InfraNode: `True` while another manager owns fields whose values differ from its HostProfile,
    /// otherwise absent.
    pub const PROFILE_OVERRIDDEN: &str = "ProfileOverridden";
    /// Condition of an InfraNode: `True` while several HostProfiles of the same priority select its Node, otherwise
    /// absent.
    pub const PROFILE_CONFLICT: &str = "ProfileConflict";
    /// Condition of an InfraNode: `True` while a part of its HostProfile cannot be applied, otherwise absent.
    pub const PROFILE_INCOMPLETE: &str = "ProfileIncomplete";
    /// Condition of an InfraNode: `True` while VMs whose pods were evicted are on the host, otherwise absent.
    pub const DRAINING: &str = "Draining";
    /// Condition of most objects: `True` if everything matches the spec.
    pub const READY: &str = "Ready";
    /// Condition of an InfraNode: `True` if VMs can run.
    pub const VIRTUALIZATION_READY: &str = "VirtualizationReady";
    /// Condition of an InfraNode: `True` if every VLAN is received from another host; absent without a
    /// network that has VLANs on the wire.
    pub const TRUNK_VERIFIED: &str = "TrunkVerified";
    /// Condition of an InfraNode: `True` while another machine uses the address of a VM on the host, otherwise absent.
    pub const ADDRESS_CONFLICT: &str = "AddressConflict";
    /// Condition of an InfraNode: `True` while the host is lost. Condition of a TenantCluster: `True` while machines of the
    /// tenant are on lost hosts. Otherwise absent.
    pub const HOST_LOST: &str = "HostLost";
    /// Condition of an InfraNode: `True` if the agent's client certificate is valid; absent without a certificate.
    pub const CREDENTIAL_VALID: &str = "CredentialValid";
}
