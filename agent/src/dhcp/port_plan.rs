//! Selects the bridge ports that are served, and the network whose leases are used for each port.
//!
//! Only ports of bridges that Berth created are served, and of these only veth and TAP links that Berth did not
//! create: the ports of VMs. An uplink, a VLAN link and a VXLAN tunnel are never served, so no answer leaves the host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{LinkName, VlanId};
use berth_host_facts::ledger::NetworkRecord;
use berth_host_facts::links::{Link, LinkKind, Links};

use super::served_network::ServedNetwork;
use crate::plan::network::link_owner;

/// Host networks that exist on this host, by name, as the rollback ledger records them.
pub(super) type HostNetworks = BTreeMap<String, NetworkRecord>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServedPort {
    pub(super) name: LinkName,
    /// Name of the tenant's network.
    pub(super) network: String,
    /// VLAN of the guest's frames; `None` if the bridge does not separate VLANs.
    pub(super) vlan: Option<VlanId>,
}

/// Returns the ports to serve by their interface index. `served` are the networks with leases, by name.
pub(super) fn plan_ports(
    links: &Links,
    host_networks: &HostNetworks,
    served: &BTreeMap<String, Arc<ServedNetwork>>,
) -> BTreeMap<u32, ServedPort> {
    let uplinks: BTreeSet<&LinkName> = host_networks
        .values()
        .flat_map(|record| record.uplink.iter().chain(&record.joining_uplinks))
        .collect();
    let plan_port = |port: &Link| {
        let is_guest_port = matches!(port.kind, LinkKind::Veth | LinkKind::Tun)
            && !port.is_created_by_berth()
            && !uplinks.contains(&port.name);
        let bridge = links.find_by_name(port.master.as_ref()?).filter(|_| is_guest_port)?;
        let (tenant, segment) = tenant_of_port(port, bridge, host_networks)?;
        let is_same_segment =
            served.get(tenant)?.segment().is_none_or(|expected| expected == segment);
        let vlans = port.vlans.as_ref().filter(|_| bridge.vlan_filtering == Some(true));
        let vlan = vlans.and_then(|vlans| vlans.pvid);
        let port_plan = ServedPort { name: port.name.clone(), network: tenant.to_owned(), vlan };
        is_same_segment.then_some((port.index?, port_plan))
    };
    links.all.iter().filter_map(plan_port).collect()
}

/// Returns the tenant's network to which a port belongs, and its VLAN or VNI; `None` if the bridge is not one of Berth,
/// or the port is in no tenant's VLAN.
fn tenant_of_port<'a>(
    port: &Link,
    bridge: &'a Link,
    host_networks: &'a HostNetworks,
) -> Option<(&'a str, u32)> {
    if bridge.kind != LinkKind::Bridge {
        return None;
    }
    let (network, tenant) = link_owner(bridge)?;
    let record = host_networks.get(network)?;
    if let Some(tenant) = tenant {
        let (segment, _) = record.tenants.iter().find(|(_, name)| *name == tenant)?;
        return Some((tenant, *segment));
    }
    // Without VLAN filtering all tenants would be on one segment.
    let vlans = port.vlans.as_ref().filter(|_| bridge.vlan_filtering == Some(true))?;
    let vlan = vlans.pvid.filter(|pvid| vlans.untagged.contains(*pvid))?;
    let segment = u32::from(u16::from(vlan));
    Some((record.tenants.get(&segment)?, segment))
}

#[cfg(test)]
mod tests {
    use berth_api::{LeaseNetwork, VlanSet};
    use berth_host_facts::links::PortVlans;
    use proptest::prelude::*;

    use super::*;

    fn link(name: &str, index: u32, kind: LinkKind, master: Option<&str>) -> Link {
        let mut link = Link::new(name.parse().unwrap(), kind);
        link.index = Some(index);
        link.master = master.map(|master| master.parse().unwrap());
        link
    }

    fn bridge(name: &str, index: u32, alias: &str, vlan_filtering: bool) -> Link {
        let mut bridge = link(name, index, LinkKind::Bridge, None);
        bridge.alias = Some(alias.to_owned());
        bridge.vlan_filtering = Some(vlan_filtering);
        bridge
    }

    fn in_vlan(mut port: Link, vlan: u16) -> Link {
        let vlan = VlanId::try_from(vlan).unwrap();
        let set = VlanSet::from_iter([vlan]);
        port.vlans = Some(PortVlans { all: set.clone(), untagged: set, pvid: Some(vlan) });
        port
    }

    fn created_by_berth(mut link: Link) -> Link {
        link.alias = Some("berth:own/cluster-c".to_owned());
        link
    }

    fn sorted_links(mut all: Vec<Link>) -> Links {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Links { all, ..Links::default() }
    }

    fn record(uplink: Option<&str>, tenants: &[(u32, &str)]) -> NetworkRecord {
        NetworkRecord {
            uplink: uplink.map(|uplink| uplink.parse().unwrap()),
            tenants: tenants.iter().map(|(id, name)| (*id, (*name).to_owned())).collect(),
            ..NetworkRecord::default()
        }
    }

    fn host_networks() -> HostNetworks {
        [
            ("shared", record(Some("trunk0"), &[(100, "cluster-a"), (200, "cluster-b")])),
            ("own", record(None, &[(300, "cluster-c")])),
            ("tunnels", record(None, &[(5001, "cluster-d")])),
        ]
        .map(|(name, record)| (name.to_owned(), record))
        .into()
    }

    fn networks_with_leases(
        networks: &[(&str, Option<u16>, Option<u32>)],
    ) -> BTreeMap<String, Arc<ServedNetwork>> {
        let mac = "02:00:00:00:00:01".parse().unwrap();
        let lease = berth_api::Lease {
            mac,
            machine: "cluster-a/m".to_owned(),
            hostname: None,
            ipv4: None,
            ipv6: None,
            default_route: None,
        };
        let read = |(name, vlan, vni): &(&str, Option<u16>, Option<u32>)| {
            let network = LeaseNetwork {
                name: (*name).to_owned(),
                vlan: vlan.map(|vlan| VlanId::try_from(vlan).unwrap()),
                vni: *vni,
                leases: vec![lease.clone()],
                ..LeaseNetwork::default()
            };
            ((*name).to_owned(), Arc::new(ServedNetwork::new(network)))
        };
        networks.iter().map(read).collect()
    }

    fn hosts_links() -> Links {
        sorted_links(vec![
            bridge("br-tenant", 1, "berth:shared", true),
            in_vlan(link("vetha", 2, LinkKind::Veth, Some("br-tenant")), 100),
            in_vlan(link("vethb", 3, LinkKind::Veth, Some("br-tenant")), 200),
            in_vlan(link("vethx", 4, LinkKind::Veth, Some("br-tenant")), 400),
            link("vethless", 5, LinkKind::Veth, Some("br-tenant")),
            // An uplink of the tests is a virtual link.
            in_vlan(link("trunk0", 6, LinkKind::Veth, Some("br-tenant")), 100),
            bridge("tn300", 10, "berth:own/cluster-c", false),
            created_by_berth(link("tn300-v", 11, LinkKind::Vlan, Some("tn300"))),
            link("tapc", 12, LinkKind::Tun, Some("tn300")),
            link("eth5", 13, LinkKind::Physical, Some("tn300")),
            created_by_berth(link("vethown", 14, LinkKind::Veth, Some("tn300"))),
            bridge("tn5001", 20, "berth:tunnels/cluster-d", false),
            link("tn5001-x", 21, LinkKind::Vxlan, Some("tn5001")),
            link("vethd", 22, LinkKind::Veth, Some("tn5001")),
            link("docker0", 30, LinkKind::Bridge, None),
            in_vlan(link("vethpod", 31, LinkKind::Veth, Some("docker0")), 100),
        ])
    }

    #[test]
    fn a_port_of_a_shared_bridge_has_the_vlan_of_its_frames() {
        let networks = [("cluster-a", Some(100), None), ("cluster-c", Some(300), None)];
        let ports = plan_ports(&hosts_links(), &host_networks(), &networks_with_leases(&networks));
        let vlans: Vec<_> = ports.values().map(|port| port.vlan.map(u16::from)).collect();
        assert_eq!(vlans, [Some(100), None]);
    }

    fn planned_ports(links: &Links, networks: &[(&str, Option<u16>, Option<u32>)]) -> Vec<String> {
        let ports = plan_ports(links, &host_networks(), &networks_with_leases(networks));
        ports.values().map(|port| format!("{} {}", port.name, port.network)).collect()
    }

    #[test]
    fn ports_of_vms_are_served_from_the_network_of_their_bridge_or_vlan() {
        let all = [
            ("cluster-a", Some(100), None),
            ("cluster-b", Some(200), None),
            ("cluster-c", Some(300), None),
            ("cluster-d", None, Some(5001)),
        ];
        assert_eq!(
            planned_ports(&hosts_links(), &all),
            ["vetha cluster-a", "vethb cluster-b", "tapc cluster-c", "vethd cluster-d"]
        );
        assert_eq!(planned_ports(&hosts_links(), &all[1..2]), ["vethb cluster-b"]);
        assert!(planned_ports(&hosts_links(), &[]).is_empty());
    }

    #[test]
    fn a_network_on_another_vlan_is_not_served() {
        assert!(planned_ports(&hosts_links(), &[("cluster-a", Some(200), None)]).is_empty());
        assert!(planned_ports(&hosts_links(), &[("cluster-c", Some(301), None)]).is_empty());
        // The name of the network determines the VLAN, if the leases do not name it.
        assert_eq!(
            planned_ports(&hosts_links(), &[("cluster-a", None, None)]),
            ["vetha cluster-a"]
        );
    }

    #[test]
    fn a_bridge_that_does_not_separate_vlans_is_not_served() {
        let mut links = hosts_links();
        for link in links.all.iter_mut().filter(|link| link.name.as_str() == "br-tenant") {
            link.vlan_filtering = Some(false);
        }
        assert!(planned_ports(&links, &[("cluster-a", Some(100), None)]).is_empty());
    }

    proptest! {
        /// Random links never make a port of another bridge, an uplink or a link of Berth a served port.
        #[test]
        fn only_ports_of_vms_are_served(
            random in proptest::collection::vec((0..8_u8, 0..5_u8, any::<bool>(), 0..3_u16), 0..40)
        ) {
            let kinds = [
                LinkKind::Physical, LinkKind::VirtualFunction, LinkKind::Bond, LinkKind::Vlan,
                LinkKind::Veth, LinkKind::Tun, LinkKind::Vxlan, LinkKind::Other,
            ];
            let masters = [None, Some("br-tenant"), Some("tn300"), Some("docker0"), Some("missing")];
            let mut all = hosts_links().all;
            for (number, (kind, master, berth, vlan)) in random.into_iter().enumerate() {
                let index = u32::try_from(100 + number).unwrap();
                let kind = kinds[usize::from(kind)];
                let mut port =
                    link(&format!("x{number}"), index, kind, masters[usize::from(master)]);
                if vlan > 0 {
                    port = in_vlan(port, vlan * 100);
                }
                all.push(if berth { created_by_berth(port) } else { port });
            }
            let links = sorted_links(all);
            let networks = [("cluster-a", Some(100), None), ("cluster-c", Some(300), None)];
            for (index, port) in plan_ports(&links, &host_networks(), &networks_with_leases(&networks)) {
                let link = links.find_by_name(&port.name).unwrap();
                prop_assert_eq!(link.index, Some(index));
                prop_assert!(matches!(link.kind, LinkKind::Veth | LinkKind::Tun));
                prop_assert!(!link.is_created_by_berth() && link.name.as_str() != "trunk0");
                let master = link.master.as_ref().unwrap().as_str();
                let pvid = link.vlans.as_ref().and_then(|vlans| vlans.pvid).map(u16::from);
                match port.network.as_str() {
                    "cluster-a" => prop_assert!(master == "br-tenant" && pvid == Some(100)),
                    network => prop_assert!(network == "cluster-c" && master == "tn300"),
                }
            }
        }
    }
}
