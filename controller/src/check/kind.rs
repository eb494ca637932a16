//! Kinds of objects that the checks list.

use berth_api::names::NAMESPACE;

/// A kind of objects that the checks list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ValidatingAdmissionPolicy, which Kubernetes 1.30 and later serve.
    AdmissionPolicy,
    /// ValidatingAdmissionPolicyBinding.
    AdmissionPolicyBinding,
    /// CDI: the object that configures CDI's operator.
    Cdi,
    /// VirtualMachineClusterInstancetype.
    ClusterInstancetype,
    ClusterRole,
    ClusterRoleBinding,
    /// Pod; only those of Berth's controller are listed.
    ControllerPod,
    DaemonSet,
    InfraConfig,
    /// VirtualMachineInstancetype.
    Instancetype,
    /// KubeVirt: the object that configures KubeVirt's operator.
    KubeVirt,
    MachineDeployment,
    /// MutatingWebhookConfiguration.
    MutatingWebhook,
    Role,
    RoleBinding,
    StorageClass,
    TenantCluster,
    /// ValidatingWebhookConfiguration.
    ValidatingWebhook,
    VolumeSnapshotClass,
}

/// Lists to read: the kind and the namespace. An empty namespace means all namespaces.
pub const LISTS: [(Kind, &str); 23] = [
    (Kind::AdmissionPolicy, ""),
    (Kind::AdmissionPolicyBinding, ""),
    (Kind::Cdi, ""),
    (Kind::ClusterInstancetype, ""),
    (Kind::ClusterRole, ""),
    (Kind::ClusterRoleBinding, ""),
    (Kind::ControllerPod, NAMESPACE),
    (Kind::DaemonSet, ""),
    (Kind::InfraConfig, ""),
    (Kind::Instancetype, ""),
    (Kind::KubeVirt, ""),
    (Kind::MachineDeployment, ""),
    (Kind::MutatingWebhook, ""),
    (Kind::Role, NAMESPACE),
    (Kind::Role, "default"),
    (Kind::Role, "kube-system"),
    (Kind::RoleBinding, NAMESPACE),
    (Kind::RoleBinding, "default"),
    (Kind::RoleBinding, "kube-system"),
    (Kind::StorageClass, ""),
    (Kind::TenantCluster, ""),
    (Kind::ValidatingWebhook, ""),
    (Kind::VolumeSnapshotClass, ""),
];

impl Kind {
    /// Returns the API group, the version, the kind, and the plural name of the resource.
    #[must_use]
    pub const fn resource(self) -> [&'static str; 4] {
        const ADMISSION: &str = "admissionregistration.k8s.io";
        const INSTANCETYPE: &str = "instancetype.kubevirt.io";
        const RBAC: &str = "rbac.authorization.k8s.io";
        match self {
            Self::AdmissionPolicy => {
                [ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies"]
            }
            Self::AdmissionPolicyBinding => [
                ADMISSION,
                "v1",
                "ValidatingAdmissionPolicyBinding",
                "validatingadmissionpolicybindings",
            ],
            Self::Cdi => ["cdi.kubevirt.io", "v1beta1", "CDI", "cdis"],
            Self::ClusterInstancetype => [
                INSTANCETYPE,
                "v1beta1",
                "VirtualMachineClusterInstancetype",
                "virtualmachineclusterinstancetypes",
            ],
            Self::ClusterRole => [RBAC, "v1", "ClusterRole", "clusterroles"],
            Self::ClusterRoleBinding => [RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings"],
            Self::ControllerPod => ["", "v1", "Pod", "pods"],
            Self::DaemonSet => ["apps", "v1", "DaemonSet", "daemonsets"],
            Self::InfraConfig => ["berth.dev", "v1alpha1", "InfraConfig", "infraconfigs"],
            Self::Instancetype => [
                INSTANCETYPE,
                "v1beta1",
                "VirtualMachineInstancetype",
                "virtualmachineinstancetypes",
            ],
            Self::KubeVirt => ["kubevirt.io", "v1", "KubeVirt", "kubevirts"],
            Self::MachineDeployment => {
                ["cluster.k8s.io", "v1alpha1", "MachineDeployment", "machinedeployments"]
            }
            Self::MutatingWebhook => {
                [ADMISSION, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"]
            }
            Self::Role => [RBAC, "v1", "Role", "roles"],
            Self::RoleBinding => [RBAC, "v1", "RoleBinding", "rolebindings"],
            Self::StorageClass => ["storage.k8s.io", "v1", "StorageClass", "storageclasses"],
            Self::TenantCluster => ["berth.dev", "v1alpha1", "TenantCluster", "tenantclusters"],
            Self::ValidatingWebhook => [
                ADMISSION,
                "v1",
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ],
            Self::VolumeSnapshotClass => {
                ["snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses"]
            }
        }
    }

    /// Returns the label selector for the list; `None` to list all objects of the kind.
    #[must_use]
    pub const fn label_selector(self) -> Option<&'static str> {
        match self {
            Self::ControllerPod => Some("app.kubernetes.io/name=berth-controller"),
            _ => None,
        }
    }
}
