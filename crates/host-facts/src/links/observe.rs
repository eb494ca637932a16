//! Reads the links of the host with netlink, or from a captured tree.

use berth_api::infra_node::UnknownReason;

use super::bridge_filter::BridgeFilter;
use super::table::Links;
use super::{conflicting_settings, netlink, physical, proc_net, sysfs};
use crate::notes::Notes;
use crate::pci::PciDevice;
use crate::root::Root;

/// Reads only the links of the running kernel, to verify a change.
///
/// # Errors
/// Returns an error if the kernel does not answer.
pub fn live() -> std::io::Result<Links> {
    let dump = netlink::dump()?;
    let mut links = Links { all: dump.links, routes_known: true, ..Links::default() };
    links.all.sort_by(|a, b| a.name.cmp(&b.name));
    links.set_routes(dump.routes);
    Ok(links)
}

/// Reads all links and the facts about routes, other programs and Berth's filter.
pub fn observe(root: &Root, pci: &[PciDevice], notes: &mut Notes) -> Links {
    let live = root.is_live().then(netlink::dump);
    let incomplete = matches!(live, Some(Err(_)));
    let (mut all, routes) = match live {
        Some(Ok(dump)) => (dump.links, Some(dump.routes)),
        other => {
            if let Some(Err(error)) = other {
                let what =
                    "links are read from /sys instead, and tenant networks are left as they are";
                notes.warn("netlink", format!("{error}; {what}"));
            }
            let mut all = sysfs::links(root, notes);
            proc_net::add_vlans(root, &mut all);
            (all, proc_net::routes(root))
        }
    };
    all.sort_by(|a, b| a.name.cmp(&b.name));
    for link in &mut all {
        physical::add_device(root, pci, link);
    }
    let (udp_ports, conflicting_settings) =
        (proc_net::udp_ports(root), conflicting_settings::observe(root, &all));
    let mut links = Links {
        all,
        routes_known: routes.is_some(),
        incomplete,
        udp_ports,
        conflicting_settings,
        filter: BridgeFilter::Unknown,
    };
    if let Some(routes) = routes {
        links.set_routes(routes);
    }
    note_unknown(root, &links, notes);
    links
}

fn note_unknown(root: &Root, links: &Links, notes: &mut Notes) {
    if links.all.is_empty() && !root.is_live() && !root.exists("sys/class/net") {
        let why = "/sys/class/net: not there";
        notes.unknown("capabilities.uplinks", UnknownReason::NotFound, why);
        return;
    }
    if !links.routes_known {
        let why = "neither netlink nor /proc/net/route has the uplinks of default routes";
        notes.unknown("capabilities.uplinks[].defaultRoute", UnknownReason::NotFound, why);
    }
    if !root.is_live() {
        let why = "addresses come from netlink, which only a running kernel has";
        notes.unknown("capabilities.uplinks[].addresses", UnknownReason::CapturedTree, why);
    }
}
