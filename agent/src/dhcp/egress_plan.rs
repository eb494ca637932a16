//! Selects the link through which the address probes of each network leave the host.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{LinkName, MacAddress, VlanId};
use berth_host_facts::ledger::NetworkRecord;
use berth_host_facts::links::{Link, LinkKind, Links};

use super::port_plan::HostNetworks;
use super::served_network::ServedNetwork;
use crate::plan::network::link_owner;

/// A link through which the frames of a tenant's network leave the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EgressLink {
    pub(super) name: LinkName,
    pub(super) index: u32,
    pub(super) mac: MacAddress,
    /// VLAN with which frames are tagged on the link; `None` if the link belongs to the tenant.
    pub(super) vlan: Option<VlanId>,
}

/// Returns the egress links of the networks with leases, by the name of the network.
pub(super) fn plan_egress_links(
    links: &Links,
    host_networks: &HostNetworks,
    served: &BTreeMap<String, Arc<ServedNetwork>>,
) -> BTreeMap<String, EgressLink> {
    let is_egress_link = |link: &&Link| matches!(link.kind, LinkKind::Vlan | LinkKind::Vxlan);
    let own_links: BTreeMap<(&str, &str), &Link> = links
        .all
        .iter()
        .filter(is_egress_link)
        .filter_map(|link| {
            let (network, tenant) = link_owner(link)?;
            Some(((network, tenant?), link))
        })
        .collect();
    let mut egress_links = BTreeMap::new();
    for (host_network, record) in host_networks {
        for (segment, tenant) in &record.tenants {
            let expected = served.get(tenant).map(|network| network.segment());
            if expected.is_none_or(|expected| expected.is_some_and(|other| other != *segment)) {
                continue;
            }
            let own = own_links.get(&(host_network.as_str(), tenant.as_str())).copied();
            let egress = own
                .and_then(|link| egress_link(link, None))
                .or_else(|| shared_egress_link(links, (host_network, record), *segment));
            egress_links.extend(egress.map(|egress| (tenant.clone(), egress)));
        }
    }
    egress_links
}

/// Returns the uplink of a shared bridge, with the VLAN of one tenant. The uplink must be a port of this bridge: the
/// segment of a tenant with separate links may be a VNI, and a frame with this number as VLAN would reach machines of
/// other tenants.
fn shared_egress_link(
    links: &Links,
    (host_network, record): (&str, &NetworkRecord),
    segment: u32,
) -> Option<EgressLink> {
    let uplink = links.find_by_name(record.uplink.as_ref()?)?;
    let bridge = links.find_by_name(uplink.master.as_ref()?)?;
    if link_owner(bridge) != Some((host_network, None)) {
        return None;
    }
    let vlan = VlanId::try_from(u16::try_from(segment).ok()?).ok()?;
    egress_link(uplink, Some(vlan))
}

fn egress_link(link: &Link, vlan: Option<VlanId>) -> Option<EgressLink> {
    let mac = link.mac.as_ref()?.parse().ok()?;
    Some(EgressLink { name: link.name.clone(), index: link.index?, mac, vlan })
}

#[cfg(test)]
mod tests {
    use berth_api::LeaseNetwork;

    use super::*;

    fn link(name: &str, index: u32, kind: LinkKind, alias: Option<&str>) -> Link {
        let mut link = Link::new(name.parse().unwrap(), kind);
        link.index = Some(index);
        link.mac = Some(format!("02:00:00:00:00:{index:02x}"));
        link.alias = alias.map(str::to_owned);
        link
    }

    fn record(uplink: Option<&str>, segment: u32, tenant: &str) -> NetworkRecord {
        NetworkRecord {
            uplink: uplink.map(|uplink| uplink.parse().unwrap()),
            tenants: [(segment, tenant.to_owned())].into(),
            ..NetworkRecord::default()
        }
    }

    #[test]
    fn probes_leave_by_the_link_of_the_tenant_or_tagged_by_the_uplink() {
        let mut all = vec![
            Link {
                master: Some("br-tenant".parse().unwrap()),
                ..link("bond0", 1, LinkKind::Bond, None)
            },
            link("br-tenant", 2, LinkKind::Bridge, Some("berth:shared")),
            link("tn200", 3, LinkKind::Bridge, Some("berth:own/cluster-b")),
            link("tn200-v", 4, LinkKind::Vlan, Some("berth:own/cluster-b")),
            link("tn5001-x", 5, LinkKind::Vxlan, Some("berth:tunnels/cluster-c")),
            link("eth7.200", 6, LinkKind::Vlan, None),
        ];
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let links = Links { all, ..Links::default() };
        let host_networks: HostNetworks = [
            ("shared", record(Some("bond0"), 100, "cluster-a")),
            ("own", record(None, 200, "cluster-b")),
            ("tunnels", record(None, 5001, "cluster-c")),
            ("cards", record(None, 400, "cluster-d")),
            ("other", record(Some("bond0"), 500, "cluster-e")),
            // The scenario of the network was changed to Vxlan, and its record still names the uplink of its former
            // bridge.
            ("tunnels2", record(Some("bond0"), 600, "cluster-f")),
        ]
        .map(|(name, record)| (name.to_owned(), record))
        .into();
        let served = ["cluster-a", "cluster-b", "cluster-c", "cluster-d", "cluster-e", "cluster-f"]
            .map(|name| {
                let vlan = (name == "cluster-e").then(|| VlanId::try_from(501).unwrap());
                let network =
                    LeaseNetwork { name: name.to_owned(), vlan, ..LeaseNetwork::default() };
                (name.to_owned(), Arc::new(ServedNetwork::new(network)))
            });
        let egress_links = plan_egress_links(&links, &host_networks, &served.into());
        let texts: Vec<String> = egress_links
            .iter()
            .map(|(network, egress)| {
                let vlan = egress.vlan.map(u16::from);
                format!("{network} {} {} {vlan:?}", egress.name, egress.index)
            })
            .collect();
        assert_eq!(
            texts,
            [
                "cluster-a bond0 1 Some(100)",
                "cluster-b tn200-v 4 None",
                "cluster-c tn5001-x 5 None"
            ]
        );
    }
}
