//! Names of Kubernetes objects, labels, annotations, conditions and field managers of Berth, and of links on hosts.

/// API group and version (`apiVersion`) of Berth's objects.
pub const API_VERSION: &str = "berth.dev/v1alpha1";
/// Prefix of the alias (`ip link set alias`) of every link that Berth created. Berth never changes links without this
/// prefix.
pub const LINK_ALIAS_PREFIX: &str = "berth:";
/// Scheduler name (`spec.schedulerName`) of the pods for which Berth selects a host.
pub const SCHEDULER_NAME: &str = "berth-scheduler";
/// Field manager of the agent.
pub const AGENT_FIELD_MANAGER: &str = "berth-agent";
/// Field manager of the controller.
pub const CONTROLLER_FIELD_MANAGER: &str = "berth-controller";
/// Field manager of the fields in the status of a TenantCluster about the network, the hosts and the objects.
/// Server-side apply removes fields that a manager no longer sends, so each part of the controller that writes the
/// status has its own field manager.
pub const TENANTS_FIELD_MANAGER: &str = "berth-controller-tenants";
/// Field manager of the conditions of a TenantCluster about the connection to the tenant's API server.
pub const TENANT_ACCESS_FIELD_MANAGER: &str = "berth-controller-access";
/// Field manager of the condition of a TenantCluster about the StorageClasses in the tenant's cluster.
pub const TENANT_STORAGE_FIELD_MANAGER: &str = "berth-controller-storage";
/// Field manager of the condition of an InfraNode about the VMs that must leave the host.
pub const DRAIN_FIELD_MANAGER: &str = "berth-controller-drain";
/// Field manager of the conditions about lost hosts, on InfraNodes and TenantClusters.
pub const HOST_LOSS_FIELD_MANAGER: &str = "berth-controller-host-loss";
/// Field manager of the entries in the KubeVirt object for PCI devices, and of the condition HostDevicesReady of the
/// InfraConfig.
pub const HOST_DEVICES_FIELD_MANAGER: &str = "berth-controller-devices";
/// Annotation of the KubeVirt object: the entries of `permittedHostDevices.pciHostDevices` that the controller has added, as
/// `ID=RESOURCE`, separated by commas. The controller removes no other entries.
pub const PERMITTED_DEVICES_ANNOTATION: &str = "berth.dev/permitted-devices";
/// Field manager of the condition that reports a malformed object, so that an apply of this condition does not remove
/// other fields of the object's status.
pub const MALFORMED_FIELD_MANAGER: &str = "berth-controller-malformed";
/// Finalizer of objects whose deletion requires the cleanup of other resources.
pub const FINALIZER: &str = "berth.dev/cleanup";
/// Name of the InfraConfig.
pub const INFRA_CONFIG: &str = "default";
/// Key and value of the label of every object that Berth creates for tenants. Berth never deletes objects without this
/// label.
pub const MANAGED_BY_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "berth");
/// Label of a tenant's namespace and of the objects in this namespace: the tenant's ID. Also an annotation of
/// MachineDeployments in other namespaces.
pub const TENANT_LABEL: &str = "berth.dev/tenant";
/// Label of a NetworkPolicy from a list of custom policies: the source, `infra-config` (InfraConfig) or `tenant`
/// (TenantCluster).
pub const CUSTOM_POLICY_LABEL: &str = "berth.dev/custom-network-policy";
/// Field manager of the status of objects that the controller also applies. API servers before 1.22 do not separate the
/// managed fields of spec and status, so with a single manager an apply of the spec would remove the fields of the
/// status, and vice versa.
pub const CONTROLLER_STATUS_FIELD_MANAGER: &str = "berth-controller-status";
/// Prefix of the names of a tenant's namespace and network, which consist of this prefix and the tenant's ID.
pub const TENANT_PREFIX: &str = "cluster-";
/// Label of a Node, set by the controller: the class of VMs that the host runs. Agents cannot write this label, so that
/// an attacker with an agent's credential cannot attract VMs to a host.
pub const CLASS_LABEL: &str = "berth.dev/class";
/// Label of a Node, set by the controller: the HostProfile that applies to the host.
pub const PROFILE_LABEL: &str = "berth.dev/profile";
/// Key of a taint that an administrator may add to hosts that are reserved for VMs. VMs whose hosts Berth selects
/// tolerate this taint.
pub const VM_NODE_TAINT: &str = "berth.dev/vms";
/// Annotation of a Node, or a label on API servers before 1.21. The controller changes its value when a pending pod
/// fits on the host again, because kube-scheduler retries pending pods when a Node changes.
pub const CAPACITY_GENERATION_ANNOTATION: &str = "berth.dev/capacity-generation";
/// Prefix of the name of a virtual resource, followed by the name of a tenant network (`cluster-<id>`). Only the
/// placement engine knows these resources: a host has the resource if the tenant network is ready on the host.
pub const READY_NETWORK_PREFIX: &str = "network.berth.dev/";
/// Annotation of a NetworkAttachmentDefinition: the virtual resource (see [`READY_NETWORK_PREFIX`]) that VMs in the
/// network require.
pub const READY_NETWORK_ANNOTATION: &str = "berth.dev/ready-network";
/// Annotation of an InfraNode that the agent created because the host had none. As long as no user has written the
/// spec, the empty spec does not mean that the agent should restore original values.
pub const CREATED_BY_ANNOTATION: &str = "berth.dev/created-by";
/// Annotation of a tenant's Node: the taints that the controller has copied from the infra Node of the machine's host,
/// as comma-separated `KEY=VALUE:EFFECT`. The controller does not change other taints.
pub const REPLICATED_TAINTS_ANNOTATION: &str = "berth.dev/replicated-taints";
/// Prefix of the types of the Node conditions that the agent writes, followed by the type of the condition in the
/// InfraNode.
pub const NODE_CONDITION_PREFIX: &str = "berth.dev/";

/// Annotation of a MachineDeployment: the Secret that contains the user data of its machines.
pub const USER_DATA_SECRET_ANNOTATION: &str = "berth.dev/user-data-secret";
/// Annotation of the template of a MachineDeployment: IP addresses for its machines, separated by commas. Also an
/// annotation of each AddressClaim whose address comes from this list.
pub const ADDRESSES_ANNOTATION: &str = "berth.dev/addresses";
/// Prefix of annotations of the template of a MachineDeployment, followed by the name of an interface in the network of
/// another tenant, such as `additional-1`: IP addresses for this interface, as in [`ADDRESSES_ANNOTATION`].
pub const ADDRESSES_PREFIX: &str = "berth.dev/addresses-";
/// Annotation of a VirtualMachine: the IP addresses of its interface in the tenant's network when it was created,
/// separated by commas. If a user deletes the AddressClaims, the controller recreates them from this annotation.
pub const CLAIMED_ADDRESSES_ANNOTATION: &str = "berth.dev/claimed-addresses";
/// Prefix of annotations of a VirtualMachine, followed by the name of an interface in the network of another tenant: the
/// name of the other TenantCluster, a colon, and the IP addresses as in [`CLAIMED_ADDRESSES_ANNOTATION`].
pub const ADDITIONAL_ADDRESSES_PREFIX: &str = "berth.dev/claimed-addresses-";
/// Label of a VirtualMachine and of its pods: the role of the machine in the tenant's cluster, [`CONTROL_PLANE_ROLE`]
/// or [`WORKER_ROLE`]. Other controllers (machine-controller, Cluster API Provider KubeVirt) also set this label.
pub const ROLE_LABEL: &str = "cluster.x-k8s.io/role";
/// Value of [`ROLE_LABEL`] of a machine that runs the control plane of a tenant's cluster.
pub const CONTROL_PLANE_ROLE: &str = "control-plane";
/// Value of [`ROLE_LABEL`] of a machine that does not run a control plane.
pub const WORKER_ROLE: &str = "worker";
/// Annotation of a VirtualMachine: the hash of the MachineDeployment's template from which it was created.
pub const REVISION_ANNOTATION: &str = "berth.dev/revision";
/// Annotation of a VirtualMachine: the UID of its MachineDeployment, which may be in another namespace, so that an
/// owner reference is not possible.
pub const MACHINE_DEPLOYMENT_UID_ANNOTATION: &str = "berth.dev/machine-deployment-uid";
/// Annotation of a VirtualMachine that Berth removes (removal mark): the reason of the removal. A machine with this
/// mark is drained in the tenant's cluster before it is deleted.
pub const REMOVAL_ANNOTATION: &str = "berth.dev/removal";
/// Value of [`REMOVAL_ANNOTATION`] for a machine whose host is lost.
pub const HOST_LOST_REMOVAL: &str = "HostLost";
/// Annotation of a VirtualMachine that Berth removes: the time at which [`REMOVAL_ANNOTATION`] was set, in RFC 3339.
/// The time limit of the drain starts at this time.
pub const REMOVAL_SINCE_ANNOTATION: &str = "berth.dev/removal-since";
/// Annotation of a VirtualMachine that Berth removes because its host was lost: the time, in RFC 3339, at which the
/// host was back. The time limit of the drain starts again at this time.
pub const HOST_RETURNED_ANNOTATION: &str = "berth.dev/host-returned";
/// Annotation of a VirtualMachine that Berth removes because its host was lost: the time, in RFC 3339, at which the
/// host was lost again after it was back. The time limit of the drain is suspended from this time until the host is
/// back.
pub const HOST_LOST_AGAIN_ANNOTATION: &str = "berth.dev/host-lost-again";
/// Annotation of a VirtualMachine that Berth removes: the name of its Node in the tenant's cluster, if it differs from
/// the name of the machine. The VolumeAttachments of the Node are found by this name, even after another controller has
/// deleted the Node.
pub const REMOVAL_NODE_ANNOTATION: &str = "berth.dev/removal-node";
/// Annotation of a VirtualMachine that Berth removes: the reason of the removal. It is set before Berth deletes the
/// Node of the machine; from then on, the removal cannot be cancelled.
pub const NODE_DELETION_ANNOTATION: &str = "berth.dev/node-deletion";
/// Annotation of a MachineDeployment or of a VirtualMachine: time limit of the drain, instead of
/// `spec.nodeDrainTimeout` of the TenantCluster.
pub const NODE_DRAIN_TIMEOUT_ANNOTATION: &str = "berth.dev/node-drain-timeout";
/// Annotation of a MachineDeployment: which machines are removed first, `Newest` or `Oldest`.
pub const DELETE_POLICY_ANNOTATION: &str = "berth.dev/delete-policy";
/// Annotation of a VirtualMachine that is to be removed before other machines of its MachineDeployment. Its value is
/// ignored. machine-controller and Cluster API use this annotation on Machines.
pub const DELETE_MACHINE_ANNOTATION: &str = "cluster.k8s.io/delete-machine";
/// Annotation of a tenant's Node that Berth has cordoned. Berth never uncordons a Node without this annotation.
pub const CORDONED_ANNOTATION: &str = "berth.dev/cordoned";
/// Annotation of a VirtualMachine whose host is being drained: the time, in RFC 3339, at which Berth requested a
/// replacement. The MachineDeployment creates the replacement first, and then deletes the machine like a machine with
/// an outdated template.
pub const REPLACEMENT_ANNOTATION: &str = "berth.dev/replacement-requested";
/// Label of a VirtualMachine that must leave its host because its pod was evicted. The value is `true`.
pub const EVACUATING_LABEL: &str = "berth.dev/evacuating";
/// Annotation of a VirtualMachine with the label [`EVACUATING_LABEL`]: JSON with the host that the machine leaves, and
/// the event that the evacuation waits for.
pub const EVACUATION_ANNOTATION: &str = "berth.dev/evacuation";
/// Annotation of a TenantCluster that the controller created for a TenantRequest: namespace and name of the request,
/// separated by a slash.
pub const TENANT_REQUEST_ANNOTATION: &str = "berth.dev/tenant-request";
/// Annotation of a TenantCluster: the UID of the TenantRequest for which the controller created it. The controller never
/// changes or deletes a TenantCluster for a request with another UID. An administrator may set the UID of a later request with the
/// same namespace and name, for example after a restore.
pub const TENANT_REQUEST_UID_ANNOTATION: &str = "berth.dev/tenant-request-uid";
/// Annotation of a TenantCluster: the grant of its TenantRequest as JSON, and the name of the TenantQuota. The controller
/// restores the status of a TenantQuota from these annotations.
pub const TENANT_GRANT_ANNOTATION: &str = "berth.dev/tenant-grant";
/// Label of a VirtualMachineInstancetype or VirtualMachinePreference in a tenant's namespace that the controller copied: the
/// namespace of the original.
pub const SHARED_FROM_LABEL: &str = "berth.dev/shared-from";
/// Annotation of a TenantCluster whose TenantRequest is being deleted: the time at which the controller deleted the permissions
/// of the requester and of the tenant's CSI driver, in RFC 3339. While it exists, the CSI driver gets no permissions.
pub const ACCESS_REVOKED_ANNOTATION: &str = "berth.dev/access-revoked";
/// Annotation of a TenantCluster whose TenantRequest does not exist: the time since which it is missing, in RFC 3339.
pub const REQUEST_MISSING_ANNOTATION: &str = "berth.dev/request-missing-since";
/// Name of the ServiceAccount in a tenant's namespace whose token is in the kubeconfig of the requester, of its RoleBinding,
/// and of the ClusterRole with its permissions.
pub const TENANT_USER: &str = "berth-tenant-user";
/// Name of the RoleBinding and of the ClusterRole with which requesters write DataVolumes, and of the
/// ValidatingAdmissionPolicy, with its binding, that restricts these DataVolumes.
pub const TENANT_USER_VOLUMES: &str = "berth-tenant-user-volumes";
/// Name of the RoleBinding and of the ClusterRole with which requesters delete Secrets, and of the ValidatingAdmissionPolicy,
/// with its binding, that excepts tokens of ServiceAccounts and Secrets of Berth.
pub const TENANT_USER_SECRETS: &str = "berth-tenant-user-secrets";
/// Name of the Secret in the namespace of TenantRequests with their kubeconfigs.
pub const KUBECONFIGS_SECRET: &str = "berth-kubeconfigs";
/// Prefix of the names of the VirtualMachineInstanceMigrations that the controller creates.
pub const MIGRATION_NAME_PREFIX: &str = "berth-drain-";
/// Namespace of Berth's pods and of their Leases in the manifests of `deploy/`.
pub const NAMESPACE: &str = "berth-system";
/// Namespace and name of the controller's ServiceAccount in the manifests of `deploy/`.
pub const CONTROLLER_SERVICE_ACCOUNT: (&str, &str) = (NAMESPACE, "berth-controller");
/// Name of the Lease for the leader election of the controller.
pub const CONTROLLER_LEASE: &str = "berth-controller";
/// Lease for the leader election of the kube-schedulers that use the controller as their extender, as NAMESPACE/NAME.
pub const SCHEDULER_LEASE: &str = "kube-system/berth-scheduler";
/// ClusterRole that permits the controller to access the Secrets of a namespace. RoleBindings to it exist only in
/// tenants' namespaces.
pub const CONTROLLER_TENANT_CLUSTER_ROLE: &str = "berth-controller-tenant";
/// Label of a DataVolume, DataSource or DataImportCron of a golden image: the name of the golden image.
pub const GOLDEN_IMAGE_LABEL: &str = "berth.dev/golden-image";
/// Annotation of an object with [`GOLDEN_IMAGE_LABEL`]: the image, without credentials in its URL.
pub const IMAGE_SOURCE_ANNOTATION: &str = "berth.dev/image-source";
/// Label of the DataVolume of a disk, and of its PersistentVolumeClaim, to which CDI copies the labels of a DataVolume: the
/// name of the golden image of which the disk is a clone.
pub const CLONED_FROM_LABEL: &str = "berth.dev/cloned-from";
/// Prefix of the labels of a VirtualMachine for the golden images of which its disks are clones. The name of the golden
/// image follows; the value is `true`. A VirtualMachine has the label before KubeVirt creates the DataVolumes of its disks.
pub const CLONED_FROM_LABEL_PREFIX: &str = "cloned-from.berth.dev/";
/// Label of the DataVolume of a disk that is attached to running machines (`hotpluggable: true`), and of its
/// PersistentVolumeClaim: the name of the disk.
pub const HOTPLUG_DISK_LABEL: &str = "berth.dev/hotplug-disk";
/// Annotation of a VirtualMachine: the hash of the hotpluggable disks in the template of its MachineDeployment to which its
/// disks were updated. Absent if there are none.
pub const HOTPLUG_REVISION_ANNOTATION: &str = "berth.dev/hotplug-revision";
/// Annotation of a VirtualMachine: names of the DataVolumes that were removed from its template, separated by commas. The
/// controller deletes them when the VirtualMachineInstance no longer uses them.
pub const DETACHED_DISKS_ANNOTATION: &str = "berth.dev/detached-disks";
/// Annotation of a VirtualMachine: names of the DataVolumes of removed disks that are retained, separated by commas.
pub const RETAINED_DISKS_ANNOTATION: &str = "berth.dev/retained-disks";
/// Annotation of an element of `spec.dataVolumeTemplates`, and of its DataVolume: `Delete` if the DataVolume is deleted when
/// its disk is removed from the template (`removalPolicy`). Absent if the DataVolume is retained.
pub const REMOVAL_POLICY_ANNOTATION: &str = "berth.dev/removal-policy";
/// Label of the RoleBindings of tenants to [`IMAGE_CLONE_CLUSTER_ROLE`]. Its value is `true`.
pub const IMAGE_GRANT_LABEL: &str = "berth.dev/image-grant";
/// ClusterRole that permits to clone volumes. A RoleBinding for each tenant is in the namespace of golden images
/// (`images.namespace` of the InfraConfig).
pub const IMAGE_CLONE_CLUSTER_ROLE: &str = "berth-image-clone";
/// Label of a Secret with the user data of a machine: the name of this machine.
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
    /// CPU vendor: `intel`, `amd`, `hygon`, or the vendor name that other CPUs report.
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
    /// Number of CPUs that the kubelet may allocate exclusively, including those that are already allocated.
    pub const PINNABLE_CPUS: &str = "berth.dev/pinnable-cpus";
    /// Prefix of the name of a resource, followed by the name of a bridge, as in KubeVirt's project bridge-marker.
    pub const BRIDGE_PREFIX: &str = "bridge.network.kubevirt.io/";
    /// Maximum number of single-tenant bridges of a host network that an agent reports as resources of its Node. If the
    /// network has more bridges, the agent reports none of them, because the Node would become too large; then only
    /// Berth's scheduler extender checks whether a host has a bridge.
    pub const MAX_PUBLISHED_BRIDGES: usize = 16;
}

/// Condition types that more than one part of Berth reads.
pub mod condition {
    /// Condition of an InfraNode: `True` while another field manager owns fields of the spec, and their values differ
    /// from the HostProfile; otherwise absent.
    pub const PROFILE_OVERRIDDEN: &str = "ProfileOverridden";
    /// Condition of an InfraNode: `True` while several HostProfiles of the same priority select its Node, otherwise
    /// absent.
    pub const PROFILE_CONFLICT: &str = "ProfileConflict";
    /// Condition of an InfraNode: `True` while a part of its HostProfile cannot be applied, otherwise absent.
    pub const PROFILE_INCOMPLETE: &str = "ProfileIncomplete";
    /// Condition of an InfraNode: `True` while VMs whose launcher pods were evicted are still on the host, otherwise
    /// absent.
    pub const DRAINING: &str = "Draining";
    /// Condition of the InfraConfig: `True` if all golden images are imported; absent without golden images.
    pub const GOLDEN_IMAGES_READY: &str = "GoldenImagesReady";
    /// Condition of the InfraConfig: `True` if the KubeVirt object permits all devices of `hostDevices.allowed`; absent
    /// without `hostDevices.manage`.
    pub const HOST_DEVICES_READY: &str = "HostDevicesReady";
    /// Condition of a TenantRequest: `True` if a TenantQuota counts the request, and the controller creates its tenant.
    pub const GRANTED: &str = "Granted";
    /// Condition of a TenantRequest: `True` if its latest spec is granted.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// Condition of a TenantRequest: `True` if the Secret has a kubeconfig for the tenant's namespace.
    pub const KUBECONFIG_READY: &str = "KubeconfigReady";
    /// Condition of most objects: `True` if the actual state is the desired state.
    pub const READY: &str = "Ready";
    /// Condition of an InfraNode: `True` if the host can run VMs.
    pub const VIRTUALIZATION_READY: &str = "VirtualizationReady";
    /// Condition of an InfraNode: `True` if probes arrive from other hosts in every VLAN; absent if the uplinks of the
    /// host carry no VLANs of tenants.
    pub const TRUNK_VERIFIED: &str = "TrunkVerified";
    /// Condition of an InfraNode: `True` while another machine uses an IP address that is leased to a VM on the host,
    /// otherwise absent.
    pub const ADDRESS_CONFLICT: &str = "AddressConflict";
    /// Condition of an InfraNode: `True` while the host is lost. Condition of a TenantCluster: `True` while machines of the
    /// tenant are on lost hosts. Otherwise absent.
    pub const HOST_LOST: &str = "HostLost";
    /// Condition of an InfraNode: `True` if the agent's client certificate is valid; absent without a certificate.
    pub const CREDENTIAL_VALID: &str = "CredentialValid";
}
