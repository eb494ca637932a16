//! Scenario of a host network, with the properties that only this scenario has.

use super::desired_link::DesiredLink;
use super::tunnels::Tunnels;

/// Scenario of a host network.
#[derive(Debug, Clone)]
pub(super) enum Scenario<'a> {
    /// All tenants share one VLAN-aware bridge, and the uplink is a port of it.
    VlanAwareBridge(SharedBridge),
    /// Every tenant has a bridge, with a VLAN link on the uplink as a port.
    BridgePerTenant(TenantBridges<'a>),
    /// Every tenant has a bridge, with a VXLAN tunnel as a port.
    Vxlan { bridges: TenantBridges<'a>, tunnels: Tunnels },
    /// VMs use virtual functions of the uplink, and tenants have no links.
    SriovVf,
}

/// The bridge that all tenants share.
#[derive(Debug, Clone)]
pub(super) struct SharedBridge {
    pub(super) link: DesiredLink,
    /// True if the uplink may become a port although it carries the host's own traffic.
    pub(super) allow_management: bool,
}

/// Properties of the bridges of single tenants.
#[derive(Debug, Clone, Copy)]
pub(super) struct TenantBridges<'a> {
    /// Beginning of the names of the bridges, before the VLAN id or VNI.
    pub(super) prefix: &'a str,
    /// True if the bridges use the spanning tree protocol.
    pub(super) stp: bool,
}

impl Scenario<'_> {
    /// Returns true if tenants have VNIs instead of VLAN ids.
    pub(super) const fn is_vxlan(&self) -> bool {
        matches!(self, Self::Vxlan { .. })
    }

    /// Returns true if the host sends and receives the frames of tenants with VLAN tags on the uplink. Virtual functions
    /// do so themselves, and the uplink then receives only the VLANs of the host.
    pub(super) const fn has_trunk(&self) -> bool {
        matches!(self, Self::VlanAwareBridge(_) | Self::BridgePerTenant(_))
    }

    /// Returns the bridge that all tenants share, if this scenario has one.
    pub(super) const fn shared_bridge(&self) -> Option<&SharedBridge> {
        match self {
            Self::VlanAwareBridge(bridge) => Some(bridge),
            Self::BridgePerTenant(_) | Self::Vxlan { .. } | Self::SriovVf => None,
        }
    }
}
