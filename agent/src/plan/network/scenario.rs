//! Scenario of a host network, with the properties that only this scenario has.

use super::desired_link::DesiredLink;
use super::tunnels::Tunnels;

/// Scenario of a host network.
#[derive(Debug, Clone)]
pub(super) enum Scenario<'a> {
    /// All tenants share one VLAN-aware bridge, which has the uplink as a port.
    VlanAwareBridge(SharedBridge),
    /// Every tenant has a separate bridge, whose port is a VLAN link that is stacked on the uplink.
    BridgePerTenant(TenantBridges<'a>),
    /// Every tenant has a separate bridge, whose port is a VXLAN tunnel.
    Vxlan { bridges: TenantBridges<'a>, tunnels: Tunnels },
    /// VMs use virtual functions of the uplink, and Berth creates no links for tenants.
    SriovVf,
}

/// The bridge that all tenants share.
#[derive(Debug, Clone)]
pub(super) struct SharedBridge {
    pub(super) link: DesiredLink,
    /// True if the uplink may become a port although it carries the host's own traffic.
    pub(super) allow_management: bool,
}

/// Properties of the separate bridges of tenants.
#[derive(Debug, Clone, Copy)]
pub(super) struct TenantBridges<'a> {
    /// Prefix of the bridges' names, before the VLAN ID or VNI: `tn` in `tn120`.
    pub(super) prefix: &'a str,
    /// True if the Spanning Tree Protocol is on.
    pub(super) stp: bool,
}

impl Scenario<'_> {
    /// Returns true if tenants have VNIs instead of VLAN ids.
    pub(super) const fn is_vxlan(&self) -> bool {
        matches!(self, Self::Vxlan { .. })
    }

    /// Returns true if the uplink carries the frames of tenants with VLAN tags. In scenario Vxlan, tunnels carry
    /// these frames; in scenario SriovVf, the virtual functions add and remove the tags, so the uplink itself
    /// receives only the VLANs of the host.
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
