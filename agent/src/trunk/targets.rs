//! Networks to probe and links that receive LLDP frames, computed from the plan and the links of a cycle.

use std::collections::BTreeMap;

use berth_api::{LinkName, MacAddress, VlanSet};
use berth_host_facts::links::{Link, Links};
use berth_trunk_probe::ProbeKeys;

use super::key_file::NoKeys;
use crate::plan::network::state::{NetworkState, PlannedTrunk};

/// Networks to probe, and links that receive LLDP frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Targets {
    /// Name of this Node.
    pub(super) node: String,
    pub(super) keys: Result<ProbeKeys, NoKeys>,
    /// Host networks whose uplink carries tagged VLANs, by name.
    pub(super) networks: BTreeMap<String, NetworkTarget>,
    /// Uplinks, or the ports of an uplink that is a bond, with the kernel's index of each link.
    pub(super) lldp_links: BTreeMap<LinkName, u32>,
}

/// The uplink of a network, and its VLANs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NetworkTarget {
    pub(super) uplink: UplinkTarget,
    pub(super) vlans: VlanSet,
}

/// Link on which probes are sent and received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UplinkTarget {
    pub(super) name: LinkName,
    pub(super) index: u32,
    pub(super) mac: MacAddress,
}

impl Targets {
    /// Returns the targets for the networks and links of a host.
    pub(super) fn new(
        node: &str,
        keys: Result<ProbeKeys, NoKeys>,
        networks: &[NetworkState],
        links: &Links,
    ) -> Self {
        let mut targets = Self {
            node: node.to_owned(),
            keys,
            networks: BTreeMap::new(),
            lldp_links: BTreeMap::new(),
        };
        for network in networks {
            let Some(PlannedTrunk { uplink, vlans }) = &network.trunk else { continue };
            let Some(link) = links.find_by_name(uplink) else { continue };
            targets.lldp_links.extend(lldp_links(links, link));
            if let (Some(index), Some(mac)) = (link.index, mac_of(link)) {
                let uplink = UplinkTarget { name: uplink.clone(), index, mac };
                let target = NetworkTarget { uplink, vlans: vlans.clone() };
                targets.networks.insert(network.name.clone(), target);
            }
        }
        targets
    }
}

/// Returns the links on which a switch sends LLDP frames: the ports of a bond, or the link itself.
fn lldp_links<'a>(
    links: &'a Links,
    uplink: &'a Link,
) -> impl Iterator<Item = (LinkName, u32)> + 'a {
    let ports: Vec<&Link> =
        links.all.iter().filter(|link| link.master.as_ref() == Some(&uplink.name)).collect();
    let ports = if ports.is_empty() { vec![uplink] } else { ports };
    ports.into_iter().filter_map(|link| Some((link.name.clone(), link.index?)))
}

fn mac_of(link: &Link) -> Option<MacAddress> {
    link.mac.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use berth_host_facts::links::LinkKind;

    use super::*;

    fn link(name: &str, index: u32, kind: LinkKind, master: Option<&str>) -> Link {
        Link {
            index: Some(index),
            mac: Some(format!("02:00:00:00:00:{index:02x}")),
            master: master.map(|master| master.parse().unwrap()),
            ..Link::new(name.parse().unwrap(), kind)
        }
    }

    #[test]
    fn probes_use_the_bond_and_lldp_its_ports() {
        let links = Links {
            all: vec![
                link("bond0", 4, LinkKind::Bond, Some("br-tenant")),
                link("eth0", 2, LinkKind::Physical, Some("bond0")),
                link("eth1", 3, LinkKind::Physical, Some("bond0")),
                link("br-tenant", 5, LinkKind::Bridge, None),
            ],
            ..Links::default()
        };
        let trunk =
            PlannedTrunk { uplink: "bond0".parse().unwrap(), vlans: "100-102".parse().unwrap() };
        let networks = [
            NetworkState { name: "tenants".to_owned(), trunk: Some(trunk), ..Default::default() },
            NetworkState { name: "overlay".to_owned(), ..Default::default() },
        ];
        let no_keys = Err(NoKeys::Absent { path: "/etc/berth/trunk.key".to_owned() });
        let targets = Targets::new("rack1-a", no_keys, &networks, &links);
        assert_eq!(targets.networks.keys().collect::<Vec<_>>(), ["tenants"]);
        assert_eq!(targets.networks["tenants"].uplink.index, 4);
        let ports: Vec<String> = targets.lldp_links.keys().map(ToString::to_string).collect();
        assert_eq!(ports, ["eth0", "eth1"]);
    }
}
