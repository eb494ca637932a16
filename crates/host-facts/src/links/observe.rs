//! Reads the links of the host with netlink, or from a captured tree.

use berth_api::infra_node::UnknownReason;

use super::bridge_filter::BridgeFilter;
use super::table::Links;
use super::{conflicting_settings, netlink, physical, proc_net, sysfs};
use crate::netlink::NetlinkReader;
use crate::notes::Notes;
use crate::pci::PciDevice;
use crate::root::Root;

/// Reads the links and routes of the running kernel, without facts from sysfs and about other programs, to verify a
/// change.
///
/// # Errors
/// Returns an error if the kernel does not answer.
pub fn observe_live() -> std::io::Result<Links> {
    let dump = netlink::dump_links_and_routes()?;
    let mut links = Links { all: dump.links, are_routes_known: true, ..Links::default() };
    links.all.sort_by(|a, b| a.name.cmp(&b.name));
    links.set_routes(dump.routes);
    Ok(links)
}

/// Reads the links of the running kernel and their VLANs, without addresses and routes.
///
/// # Errors
/// Returns an error if the kernel does not answer.
pub fn observe_ports() -> std::io::Result<Links> {
    let mut all = netlink::dump_links_with_vlans(&mut NetlinkReader::open()?)?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Links { all, ..Links::default() })
}

/// Reads all links, and the facts about routes and about other programs. The state of the nf_tables table is not read.
pub fn observe(root: &Root, pci: &[PciDevice], notes: &mut Notes) -> Links {
    let live = root.is_live().then(netlink::dump_links_and_routes);
    let incomplete = matches!(live, Some(Err(_)));
    let (mut all, routes) = match live {
        Some(Ok(dump)) => (dump.links, Some(dump.routes)),
        other => {
            if let Some(Err(error)) = other {
                let consequence =
                    "links are read from /sys instead, and tenant networks are not changed";
                notes.warn("netlink", format!("{error}; {consequence}"));
            }
            let mut all = sysfs::read_links(root, notes);
            proc_net::add_vlans(root, &mut all);
            (all, proc_net::read_routes(root))
        }
    };
    all.sort_by(|a, b| a.name.cmp(&b.name));
    for link in &mut all {
        physical::add_device(root, pci, link);
    }
    let (udp_ports, conflicting_settings) =
        (proc_net::read_udp_ports(root), conflicting_settings::observe(root, &all));
    let mut links = Links {
        all,
        are_routes_known: routes.is_some(),
        is_incomplete: incomplete,
        udp_ports,
        conflicting_settings,
        filter: BridgeFilter::Unknown,
    };
    if let Some(routes) = routes {
        links.set_routes(routes);
    }
    note_unknown_facts(root, &links, notes);
    links
}

fn note_unknown_facts(root: &Root, links: &Links, notes: &mut Notes) {
    if links.all.is_empty() && !root.is_live() && !root.exists("sys/class/net") {
        let message = "/sys/class/net does not exist";
        notes.add_unknown("capabilities.uplinks", UnknownReason::NotFound, message);
        return;
    }
    if !links.are_routes_known {
        let message = "neither netlink nor /proc/net/route shows the uplinks of default routes";
        notes.add_unknown("capabilities.uplinks[].defaultRoute", UnknownReason::NotFound, message);
    }
    if !root.is_live() {
        let message = "addresses are read with netlink, which requires a running kernel";
        notes.add_unknown("capabilities.uplinks[].addresses", UnknownReason::CapturedTree, message);
    }
}
