//! Reads routes, VLANs and UDP ports of a captured tree from `/proc/net`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use berth_api::LinkName;

use super::link::{Link, LinkKind};
use super::routes::Routes;
use crate::root::Root;

/// Flag of a route that is in use (`linux/route.h`).
const RTF_UP: u32 = 0x1;
/// Flag of a route that rejects packets (`linux/route.h`).
const RTF_REJECT: u32 = 0x200;
/// Flag of a route for an address of the host, which only `/proc/net/ipv6_route` shows (`linux/ipv6_route.h`).
const RTF_LOCAL: u32 = 0x8000_0000;

/// Returns the links that IPv4 and IPv6 routes use; `None` if the tree has no routing table.
///
/// The routing tables do not show which routes the kernel has derived from addresses, and a captured tree does not
/// contain the addresses. Therefore all routes are treated as configured routes.
pub(super) fn read_routes(root: &Root) -> Option<Routes> {
    let ipv4_table = root.read_large("proc/net/route").ok();
    let ipv6_table = root.read_large("proc/net/ipv6_route").ok();
    if ipv4_table.is_none() && ipv6_table.is_none() {
        return None;
    }
    let mut routes = ipv4_table.as_deref().map(parse_routes_v4).unwrap_or_default();
    let ipv6_routes = ipv6_table.as_deref().map(parse_routes_v6).unwrap_or_default();
    routes.default_links.extend(ipv6_routes.default_links);
    for (link, destination) in ipv6_routes.destinations {
        routes.destinations.entry(link).or_insert(destination);
    }
    routes.is_complete = true;
    Some(routes)
}

/// Parses the table of IPv4 routes: `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`, with hexadecimal
/// numbers.
#[must_use]
pub fn parse_routes_v4(table: &str) -> Routes {
    let mut routes = Routes::default();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, _, flags, _, _, _, mask, ..] = words.as_slice() else { continue };
        let (Ok(name), Some(destination), Some(mask)) =
            (name.parse(), parse_ipv4_address(destination), parse_ipv4_address(mask))
        else {
            continue;
        };
        if !is_usable_route(flags) || destination.is_link_local() || destination.is_multicast() {
            continue;
        }
        match mask.to_bits().count_ones() {
            0 => drop(routes.default_links.insert(name)),
            length => routes.add_destination(&name, &format!("{destination}/{length}")),
        }
    }
    routes
}

/// Parses an IPv4 address, which the kernel prints as a hexadecimal number in the byte order of the machine.
fn parse_ipv4_address(text: &str) -> Option<Ipv4Addr> {
    let number = u32::from_str_radix(text, 16).ok()?;
    (text.len() == 8).then(|| Ipv4Addr::from(number.to_ne_bytes()))
}

/// Parses the table of IPv6 routes: `destination length source length next-hop metric refcnt use flags name`.
#[must_use]
pub fn parse_routes_v6(table: &str) -> Routes {
    let mut routes = Routes::default();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, _, _, _, _, flags, name] = words.as_slice() else {
            continue;
        };
        let (Ok(destination), Ok(length)) =
            (u128::from_str_radix(destination, 16), u8::from_str_radix(length, 16))
        else {
            continue;
        };
        let destination = Ipv6Addr::from_bits(destination);
        let leaves_host = !destination.is_unicast_link_local() && !destination.is_multicast();
        // Routes for the host's own addresses, which use `lo` or have the flag `RTF_LOCAL`, do not leave the host.
        if !is_usable_route(flags) || *name == "lo" || is_local_route(flags) || !leaves_host {
            continue;
        }
        let Ok(name) = name.parse() else { continue };
        match length {
            0 => drop(routes.default_links.insert(name)),
            _ => routes.add_destination(&name, &format!("{destination}/{length}")),
        }
    }
    routes
}

/// Returns the local UDP ports of all IPv4 and IPv6 sockets of the host.
pub(super) fn read_udp_ports(root: &Root) -> BTreeSet<u16> {
    let tables = ["proc/net/udp", "proc/net/udp6"];
    let tables = tables.iter().filter_map(|path| root.read_large(path).ok());
    tables.flat_map(|table| parse_udp_ports(&table)).collect()
}

/// Parses the table of UDP sockets, whose columns are `sl local_address rem_address ...`. In the local address, the
/// hexadecimal port is behind the last colon.
#[must_use]
pub fn parse_udp_ports(table: &str) -> BTreeSet<u16> {
    let port = |line: &str| {
        let local = line.split_whitespace().nth(1)?;
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    table.lines().filter_map(port).collect()
}

fn is_usable_route(flags: &str) -> bool {
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & (RTF_UP | RTF_REJECT) == RTF_UP)
}

fn is_local_route(flags: &str) -> bool {
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_LOCAL != 0)
}

/// Adds the VLAN id and the parent to each VLAN link.
pub(super) fn add_vlans(root: &Root, links: &mut [Link]) {
    let table = root.read_large("proc/net/vlan/config").unwrap_or_default();
    for (name, id, parent) in parse_vlans(&table) {
        if let Some(link) = links.iter_mut().find(|link| link.name == name) {
            link.kind = LinkKind::Vlan;
            link.vlan = Some(id);
            link.parent = Some(parent);
        }
    }
}

/// Parses `/proc/net/vlan/config`, which has lines such as `eth0.120 | 120 | eth0` after two heading lines.
#[must_use]
pub fn parse_vlans(table: &str) -> Vec<(LinkName, u16, LinkName)> {
    let entry = |line: &str| {
        let mut words = line.split('|').map(str::trim);
        let (name, id, parent) = (words.next()?, words.next()?, words.next()?);
        Some((name.parse().ok()?, id.parse().ok()?, parent.parse().ok()?))
    };
    table.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn names(found: BTreeSet<LinkName>) -> Vec<String> {
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unusable_default_routes_are_ignored() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            eth2\t00000000\t0101A8C0\t0203\t0\t0\t0\t00000000\t0\t0\t0\n";
        let found = parse_routes_v4(table);
        assert_eq!(names(found.default_links), ["eth0"]);
        assert_eq!(
            found.destinations,
            BTreeMap::from([("eth1".parse().unwrap(), "192.168.1.0/24".to_owned())])
        );
        let zero = "00000000000000000000000000000000";
        let table = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth3\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        let found = parse_routes_v6(&table);
        assert_eq!(names(found.default_links), ["eth3"]);
        let table = "20010db8000100000000000000000000 30 00000000000000000000000000000000 00 \
            fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth3\n\
            fe800000000000000000000000000000 40 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth4\n\
            20010db8000000000000000000000005 80 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 00000000 00000001 00000000 80200001 eth5\n";
        let others = parse_routes_v6(table).destinations;
        assert_eq!(
            others,
            BTreeMap::from([("eth3".parse().unwrap(), "2001:db8:1::/48".to_owned())])
        );
    }

    #[test]
    fn vlan_has_its_parent_link() {
        let table = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
            bond0.100      | 100  | bond0\n";
        let found = parse_vlans(table);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].1, found[0].2.as_str()), (100, "bond0"));
    }

    #[test]
    fn udp_port_is_the_local_port() {
        let table = "  sl  local_address rem_address   st\n  117: 00000000:12B5 00000000:0000 07 00000000:00000000\n";
        assert_eq!(parse_udp_ports(table), BTreeSet::from([4789]));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "([0-9a-f]{0,8}[ \t|]?){0,12}|.*") {
            drop((parse_routes_v4(&text), parse_routes_v6(&text), parse_vlans(&text), parse_udp_ports(&text)));
        }
    }
}
