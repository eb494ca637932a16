//! Number that separates a tenant from others on a host network: a VLAN ID, or a VXLAN network identifier (VNI).

use std::fmt;

use berth_api::{TenantClusterStatus, TenantNetwork, VlanClaim, VlanClaimSpec, VlanId};

/// A VLAN or a VNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkId {
    /// VLAN ID (IEEE 802.1Q).
    Vlan(VlanId),
    /// VXLAN network identifier (RFC 7348).
    Vni(u32),
}

impl NetworkId {
    /// Returns the number of the VLAN or VNI.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Vlan(vlan) => u16::from(vlan).into(),
            Self::Vni(vni) => vni,
        }
    }

    /// Returns true for a VNI.
    #[must_use]
    pub const fn is_vni(self) -> bool {
        matches!(self, Self::Vni(_))
    }

    /// Returns the VLAN; `None` for a VNI.
    #[must_use]
    pub const fn vlan(self) -> Option<VlanId> {
        match self {
            Self::Vlan(vlan) => Some(vlan),
            Self::Vni(_) => None,
        }
    }

    /// Returns the name of the VlanClaim that locks this number on a network.
    #[must_use]
    pub fn claim_name(self, network: &str) -> String {
        match self {
            Self::Vlan(vlan) => VlanClaim::name_for_vlan(network, vlan),
            Self::Vni(vni) => VlanClaim::name_for_vni(network, vni),
        }
    }

    /// Returns the VlanClaim of a tenant that locks this number on a network.
    #[must_use]
    pub fn to_claim(self, network: &str, tenant: &str, uid: &str) -> VlanClaim {
        let (vlan, vni) = self.to_fields();
        let spec = VlanClaimSpec {
            network: network.to_owned(),
            vlan,
            vni,
            tenant: tenant.to_owned(),
            tenant_uid: uid.to_owned(),
        };
        VlanClaim::new(&self.claim_name(network), spec)
    }

    /// Returns the values for the two fields `vlan` and `vni` in Kubernetes objects, one of which is `None`.
    #[must_use]
    pub const fn to_fields(self) -> (Option<VlanId>, Option<u32>) {
        match self {
            Self::Vlan(vlan) => (Some(vlan), None),
            Self::Vni(vni) => (None, Some(vni)),
        }
    }

    /// Converts the two fields `vlan` and `vni` of a Kubernetes object. Returns `None` if neither is set, or both are
    /// set, which API servers without CEL validation accept.
    #[must_use]
    pub const fn from_fields(vlan: Option<VlanId>, vni: Option<u32>) -> Option<Self> {
        match (vlan, vni) {
            (Some(vlan), None) => Some(Self::Vlan(vlan)),
            (None, Some(vni)) => Some(Self::Vni(vni)),
            _ => None,
        }
    }

    /// Returns the VLAN or VNI of a VlanClaim.
    #[must_use]
    pub const fn from_claim(claim: &VlanClaim) -> Option<Self> {
        Self::from_fields(claim.spec.vlan, claim.spec.vni)
    }

    /// Returns the VLAN or VNI in a tenant's status.
    #[must_use]
    pub const fn from_status(status: &TenantClusterStatus) -> Option<Self> {
        Self::from_fields(status.vlan, status.vni)
    }

    /// Returns the VLAN or VNI that a tenant's spec requests, if any.
    #[must_use]
    pub const fn from_spec(network: &TenantNetwork) -> Option<Self> {
        Self::from_fields(network.vlan, network.vni)
    }
}

impl fmt::Display for NetworkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vlan(vlan) => write!(f, "VLAN {vlan}"),
            Self::Vni(vni) => write!(f, "VNI {vni}"),
        }
    }
}
