//! Kinds of objects that the views read.

use berth_api::names::MACHINE_LABEL;
use serde_json::Value;

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

    /// Returns the kind of an object; `None` for kinds and pods that no view reads.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let mut all = Self::ALL.into_iter();
        let kind = all.find(|kind| {
            let [kind_group, _, kind_name, _] = kind.resource();
            kind_group == group && kind_name == text("kind")
        })?;
        let has_label = |key: &str, value: Option<&str>| {
            let labels = object.get("metadata").and_then(|metadata| metadata.get("labels"));
            let found = labels.and_then(|labels| labels.get(key)?.as_str());
            found.is_some() && value.is_none_or(|value| found == Some(value))
        };
        let is_selected = match kind {
            Self::LauncherPod => has_label("kubevirt.io", Some("virt-launcher")),
            Self::MachineService => has_label(MACHINE_LABEL, None),
            _ => true,
        };
        is_selected.then_some(kind)
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
            Self::MachineService => Some(MACHINE_LABEL),
            _ => None,
        }
    }
}
