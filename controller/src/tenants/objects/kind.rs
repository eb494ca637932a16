//! Kinds of the objects that Berth creates for tenants.

use kube::api::ApiResource;

use crate::api_resource::api_resource;

/// Kind of an object that Berth creates for tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// Namespace of the tenant.
    Namespace,
    /// ServiceAccount of the tenant's CSI driver.
    ServiceAccount,
    /// Role with the permissions of the CSI driver, or of the cloud controller manager.
    Role,
    /// RoleBinding of a ServiceAccount to its Role.
    RoleBinding,
    /// NetworkPolicy in the tenant's namespace.
    NetworkPolicy,
    /// NetworkAttachmentDefinition of Multus.
    NetworkAttachmentDefinition,
    /// VirtualMachineInstancetype of KubeVirt.
    Instancetype,
    /// VirtualMachinePreference of KubeVirt.
    Preference,
    /// Deployment of the tenant's cloud controller manager.
    Deployment,
    /// IPAddressPool of MetalLB, in the namespace of MetalLB.
    IpAddressPool,
    /// L2Advertisement of MetalLB, in the namespace of MetalLB.
    L2Advertisement,
    /// Service of a machine. The reconciler of MachineDeployments creates the Service, and the VirtualMachine owns it.
    Service,
}

impl ObjectKind {
    /// All kinds whose objects the reconciler of tenants creates, in the order of creation.
    pub const ALL: [Self; 11] = [
        Self::Namespace,
        Self::NetworkPolicy,
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::NetworkAttachmentDefinition,
        Self::Instancetype,
        Self::Preference,
        Self::Deployment,
        Self::IpAddressPool,
        Self::L2Advertisement,
    ];

    /// Returns API group, version, kind and plural name of the kind.
    const fn group_version_kind_plural(
        self,
    ) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Namespace => ("", "v1", "Namespace", "namespaces"),
            Self::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            Self::Role => ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
            Self::NetworkPolicy => ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
            Self::NetworkAttachmentDefinition => (
                "k8s.cni.cncf.io",
                "v1",
                "NetworkAttachmentDefinition",
                "network-attachment-definitions",
            ),
            Self::Instancetype => (
                "instancetype.kubevirt.io",
                "v1beta1",
                "VirtualMachineInstancetype",
                "virtualmachineinstancetypes",
            ),
            Self::Preference => (
                "instancetype.kubevirt.io",
                "v1beta1",
                "VirtualMachinePreference",
                "virtualmachinepreferences",
            ),
            Self::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Self::IpAddressPool => ("metallb.io", "v1beta1", "IPAddressPool", "ipaddresspools"),
            Self::L2Advertisement => {
                ("metallb.io", "v1beta1", "L2Advertisement", "l2advertisements")
            }
            Self::Service => ("", "v1", "Service", "services"),
        }
    }

    /// Returns the name of the kind in manifests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.group_version_kind_plural().2
    }

    /// Returns the `apiVersion` of the kind: `group/version`, or `version` for the core API group.
    #[must_use]
    pub fn api_version(self) -> String {
        let (group, version, ..) = self.group_version_kind_plural();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }

    /// Returns the name of the CustomResourceDefinition of the kind; `None` for a built-in kind.
    #[must_use]
    pub fn crd_name(self) -> Option<String> {
        let (group, _, _, plural) = self.group_version_kind_plural();
        let is_custom = matches!(
            self,
            Self::NetworkAttachmentDefinition
                | Self::Instancetype
                | Self::Preference
                | Self::IpAddressPool
                | Self::L2Advertisement
        );
        is_custom.then(|| format!("{plural}.{group}"))
    }

    /// Returns true if objects of the kind are in the namespace of MetalLB instead of the tenant's namespace.
    #[must_use]
    pub const fn is_in_metallb_namespace(self) -> bool {
        matches!(self, Self::IpAddressPool | Self::L2Advertisement)
    }

    /// Returns the resource description of the kind for an untyped client.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.group_version_kind_plural();
        api_resource(group, version, kind, plural)
    }
}
