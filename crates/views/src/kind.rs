//! Kinds of objects that the views read.

/// A kind of objects that the views read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    AddressClaim,
    InfraConfig,
    InfraNode,
    /// Pod; only launcher pods of VMs are listed.
    LauncherPod,
    MachineDeployment,
    Node,
    /// Service; only those for the access to machines are listed.
    MachineService,
    StorageClass,
    TenantCluster,
    VirtualMachine,
    VirtualMachineInstance,
    VlanClaim,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::AddressClaim,
        Self::InfraConfig,
        Self::InfraNode,
        Self::LauncherPod,
        Self::MachineDeployment,
        Self::Node,
        Self::MachineService,
        Self::StorageClass,
        Self::TenantCluster,
        Self::VirtualMachine,
        Self::VirtualMachineInstance,
        Self::VlanClaim,
    ];

    /// Returns the API group, the version, the kind, and the plural name of the resource.
    #[must_use]
    pub const fn resource(self) -> [&'static str; 4] {
        const BERTH: &str = "berth.dev";
        const KUBEVIRT: &str = "kubevirt.io";
        match self {
            Self::AddressClaim => [BERTH, "v1alpha1", "AddressClaim", "addressclaims"],
            Self::InfraConfig => [BERTH, "v1alpha1", "InfraConfig", "infraconfigs"],
            Self::InfraNode => [BERTH, "v1alpha1", "InfraNode", "infranodes"],
            Self::LauncherPod => ["", "v1", "Pod", "pods"],
            Self::MachineDeployment => {
                ["cluster.k8s.io", "v1alpha1", "MachineDeployment", "machinedeployments"]
            }
            Self::Node => ["", "v1", "Node", "nodes"],
            Self::MachineService => ["", "v1", "Service", "services"],
            Self::StorageClass => ["storage.k8s.io", "v1", "StorageClass", "storageclasses"],
            Self::TenantCluster => [BERTH, "v1alpha1", "TenantCluster", "tenantclusters"],
            Self::VirtualMachine => [KUBEVIRT, "v1", "VirtualMachine", "virtualmachines"],
            Self::VirtualMachineInstance => {
                [KUBEVIRT, "v1", "VirtualMachineInstance", "virtualmachineinstances"]
            }
            Self::VlanClaim => [BERTH, "v1alpha1", "VlanClaim", "vlanclaims"],
        }
    }

    /// Returns true if the objects are in namespaces.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        match self {
            Self::LauncherPod
            | Self::MachineDeployment
            | Self::MachineService
            | Self::VirtualMachine
            | Self::VirtualMachineInstance => true,
            Self::AddressClaim
            | Self::InfraConfig
            | Self::InfraNode
            | Self::Node
            | Self::StorageClass
            | Self::TenantCluster
            | Self::VlanClaim => false,
        }
    }

    /// Returns the label selector for the list; `None` to list all objects of the kind.
    #[must_use]
    pub const fn label_selector(self) -> Option<&'static str> {
        match self {
            Self::LauncherPod => Some("kubevirt.io=virt-launcher"),
            Self::MachineService => Some("berth.dev/machine"),
            _ => None,
        }
    }
}
