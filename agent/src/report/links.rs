//! Links in the status of the InfraNode: all uplinks and a limited number of other links. Links that Berth created
//! are omitted, because a host may have thousands of them, and the status must stay small.

use berth_api::infra_node::{Uplink, UplinkKind, VirtualLink, VirtualLinkKind};

use berth_host_facts::links::{Link, LinkKind, Links};

/// `maxItems` of `capabilities.uplinks` in the CRD.
const MAX_UPLINKS: usize = 128;
/// `maxItems` of `capabilities.links` in the CRD.
const MAX_LINKS: usize = 64;

pub(super) fn uplinks(links: &Links) -> Vec<Uplink> {
    links.uplinks().take(MAX_UPLINKS).map(|link| uplink(links, link)).collect()
}

fn uplink(links: &Links, link: &Link) -> Uplink {
    let master = |kind: LinkKind| {
        let master = link.master.as_ref()?;
        (links.find_by_name(master)?.kind == kind).then(|| master.clone())
    };
    let kind = if link.kind == LinkKind::Bond { UplinkKind::Bond } else { UplinkKind::Physical };
    Uplink {
        name: link.name.clone(),
        kind,
        mac: link.mac.clone(),
        addresses: link.addresses.clone(),
        driver: link.driver.clone(),
        pci_address: link.pci_address,
        zone: link.zone,
        speed_mbps: link.speed_mbps,
        mtu: link.mtu,
        state: link.state,
        iommu_group: link.iommu_group,
        bond: master(LinkKind::Bond),
        bridge: master(LinkKind::Bridge),
        default_route: links.are_routes_known.then_some(link.has_default_route),
        sriov: link.sriov,
    }
}

pub(super) fn virtual_links(links: &Links) -> Vec<VirtualLink> {
    let kind = |link: &Link| match link.kind {
        LinkKind::Bridge => Some(VirtualLinkKind::Bridge),
        LinkKind::Vlan => Some(VirtualLinkKind::Vlan),
        _ => None,
    };
    let others = links.all.iter().filter(|link| !link.is_created_by_berth());
    others
        .filter_map(|link| {
            Some(VirtualLink {
                name: link.name.clone(),
                kind: kind(link)?,
                mtu: link.mtu,
                state: link.state,
                master: link.master.clone(),
                parent: link.parent.clone(),
                vlan: link.vlan,
                vlan_filtering: link.vlan_filtering,
                default_route: links.are_routes_known.then_some(link.has_default_route),
            })
        })
        .take(MAX_LINKS)
        .collect()
}
