//! Uplinks: finds the link through which tenants' frames leave the host, and describes the host's own traffic on
//! that link.

use berth_api::infra_node::UplinkSelector;

use crate::manifest::Fault;
use crate::plan::field_path::FieldPath;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Returns the link that the spec names, if it can be an uplink. `path` is the path of the field `uplink`, for the
/// error message.
pub(super) fn find_uplink<'a>(
    links: &'a Links,
    selector: &UplinkSelector,
    path: &FieldPath,
) -> Result<&'a Link, Fault> {
    let mut physical = links.all.iter().filter(|link| link.kind == LinkKind::Physical);
    let (field, value, found) = match (&selector.name, selector.mac, selector.pci_address) {
        (Some(name), None, None) => ("name", name.to_string(), links.find_by_name(name)),
        (None, Some(mac), None) => {
            let text = mac.to_string();
            let found = physical
                .find(|link| link.permanent_mac == Some(mac) || link.mac.as_deref() == Some(&text));
            ("mac", text, found)
        }
        (None, None, Some(address)) => {
            let found = physical.find(|link| link.pci_address == Some(address));
            ("pciAddress", address.to_string(), found)
        }
        _ => {
            return Err(path.fault("", "must have exactly one of name, mac and pciAddress"));
        }
    };
    let fault = |message: String| path.child(field).fault(&value, message);
    let Some(link) = found else {
        let uplinks: Vec<&str> = links.uplinks().map(|link| link.name.as_str()).collect();
        let available = if uplinks.is_empty() { "none".to_owned() } else { uplinks.join(", ") };
        return Err(fault(format!("does not exist; uplinks of this host: {available}")));
    };
    if link.kind == LinkKind::Loopback || link.is_created_by_berth() {
        return Err(fault("is the loopback link or a link of Berth; specify an uplink".to_owned()));
    }
    if link.kind == LinkKind::Bridge {
        let message = "is a bridge; specify the link that is the uplink of this bridge".to_owned();
        return Err(fault(message));
    }
    if let Some(master) = link.master.as_ref().and_then(|master| links.find_by_name(master)) {
        if master.kind == LinkKind::Bond {
            return Err(fault(format!("is a port of the bond {0}; specify {0}", master.name)));
        }
        if !master.is_created_by_berth() {
            return Err(fault(format!(
                "is a port of {}, which Berth did not create; specify another link",
                master.name
            )));
        }
    }
    Ok(link)
}

/// Describes the host's own traffic on this link: routes through the link, and IP addresses on the link and on the
/// links above it; `None` if the host has no traffic on it. Routes are checked separately, because a host may have
/// routes without a default route, and the link of a route may have no address (unnumbered, RFC 5549).
pub(super) fn describe_host_traffic(links: &Links, uplink: &Link) -> Option<String> {
    let mut upper_links: Vec<&Link> = vec![uplink];
    let mut seen = 0;
    while let Some(link) = upper_links.get(seen).copied() {
        seen += 1;
        let upper = links.links_stacked_on(&link.name);
        let master = link.master.as_ref().and_then(|master| links.find_by_name(master));
        for next in upper.chain(master) {
            // Links that Berth created are skipped, because they have no IP address. Only links above the uplink
            // are followed, so other ports of its bridge are not included.
            if !next.is_created_by_berth()
                && !upper_links.iter().any(|known| known.name == next.name)
            {
                upper_links.push(next);
            }
        }
    }
    let addresses: Vec<String> = upper_links
        .iter()
        .flat_map(|link| link.addresses.iter().map(|address| format!("{address} on {}", link.name)))
        .collect();
    let destination = upper_links
        .iter()
        .find_map(|link| Some((link.route_destination.as_ref()?, link.name.as_str())));
    let route = if !links.are_routes_known {
        Some(format!("it is unknown whether the host's routes leave through {}", uplink.name))
    } else if uplink.has_default_route {
        Some(format!("the host's default route leaves through {}", uplink.name))
    } else {
        destination.map(|(to, link)| format!("the host's route to {to} leaves through {link}"))
    };
    let noun = if addresses.len() == 1 { "address" } else { "addresses" };
    let addresses = (!addresses.is_empty())
        .then(|| format!("the host has the {noun} {}", addresses.join(", ")));
    let carried: Vec<String> = route.into_iter().chain(addresses).collect();
    (!carried.is_empty()).then(|| carried.join(", and "))
}

/// Returns the reason why no frames can leave through this uplink at present; `None` if they can.
pub(super) fn carrier_fault(uplink: &Link) -> Option<String> {
    uplink.is_down().then(|| {
        format!("uplink {} has no carrier; check the cable and the switch port", uplink.name)
    })
}
