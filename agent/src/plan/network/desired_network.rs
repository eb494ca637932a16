//! Desired host networks and their tenants.

use berth_api::VlanId;

use super::desired_link::DesiredLink;
use super::scenario::Scenario;
use berth_host_facts::links::Link;

/// A host network without a fault on this host.
#[derive(Debug, Clone)]
pub(super) struct DesiredNetwork<'a> {
    pub(super) name: &'a str,
    pub(super) scenario: Scenario<'a>,
    /// The link through which frames leave the host; for Vxlan the link with the local address of the tunnels.
    pub(super) uplink: &'a Link,
    /// Settings from which the links of this network are created. The rollback ledger stores them: a link that differs
    /// counts as drift only if these settings are still the stored ones.
    pub(super) settings: String,
    /// Maximum transmission unit in bytes.
    pub(super) mtu: u32,
    /// Hardware addresses of the uplink and of the ports of a bond, from which the addresses of
    /// bridges are computed.
    pub(super) mac_seed: String,
    pub(super) tenants: Vec<DesiredTenant<'a>>,
    /// True if links may be removed and created again while VMs are attached.
    pub(super) allow_disruption: bool,
}

impl DesiredNetwork<'_> {
    /// Returns all links of the network: the shared bridge, and the links of the tenants.
    pub(super) fn links(&self) -> impl Iterator<Item = &DesiredLink> {
        let shared = self.scenario.shared_bridge().map(|bridge| &bridge.link);
        shared.into_iter().chain(self.tenants.iter().flat_map(|tenant| &tenant.links))
    }
}

/// The layer 2 segment of a tenant on a network.
#[derive(Debug, Clone)]
pub(super) struct DesiredTenant<'a> {
    pub(super) name: &'a str,
    pub(super) segment: SegmentId,
    /// The links of this tenant only, in the order in which they are created.
    pub(super) links: Vec<DesiredLink>,
}

impl DesiredTenant<'_> {
    /// Returns the VLAN id or the VNI.
    pub(super) fn segment_number(&self) -> u32 {
        self.segment.number()
    }
}

/// Id of a layer 2 segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentId {
    /// 802.1Q id.
    Vlan(VlanId),
    /// VXLAN network identifier.
    Vni(u32),
}

impl SegmentId {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Vlan(vlan) => u32::from(u16::from(vlan)),
            Self::Vni(vni) => vni,
        }
    }

    pub(super) const fn vlan(self) -> Option<VlanId> {
        match self {
            Self::Vlan(vlan) => Some(vlan),
            Self::Vni(_) => None,
        }
    }

    /// Returns the name of the field in the spec.
    pub(super) const fn field(self) -> &'static str {
        match self {
            Self::Vlan(_) => "vlan",
            Self::Vni(_) => "vni",
        }
    }
}
