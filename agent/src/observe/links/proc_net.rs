//! Routes and VLANs of a captured tree, from `/proc/net`.

use std::collections::BTreeSet;

use berth_api::LinkName;

use super::{Link, LinkKind};
use crate::root::Root;

/// Flags of `/proc/net/route` (`linux/route.h`).
const RTF_UP: u32 = 0x1;
const RTF_REJECT: u32 = 0x200;

/// Links that IPv4 and IPv6 default routes use; `None` if the tree has no routing table.
pub(super) fn default_routes(root: &Root) -> Option<BTreeSet<LinkName>> {
    let four = root.read_large("proc/net/route").ok();
    let six = root.read_large("proc/net/ipv6_route").ok();
    if four.is_none() && six.is_none() {
        return None;
    }
    let four = four.as_deref().map(routes_v4).unwrap_or_default();
    Some(&four | &six.as_deref().map(routes_v6).unwrap_or_default())
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`, numbers in hexadecimal.
#[must_use]
pub fn routes_v4(table: &str) -> BTreeSet<LinkName> {
    let default = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, "00000000", _, flags, _, _, _, "00000000", ..] = words.as_slice() else {
            return None;
        };
        usable(flags).then(|| name.parse().ok()).flatten()
    };
    table.lines().filter_map(default).collect()
}

/// `destination length source length next-hop metric refcnt use flags name`.
#[must_use]
pub fn routes_v6(table: &str) -> BTreeSet<LinkName> {
    let default = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "00", _, _, _, _, _, _, flags, name] = words.as_slice() else { return None };
        (usable(flags) && *name != "lo").then(|| name.parse().ok()).flatten()
    };
    table.lines().filter_map(default).collect()
}

/// UDP ports that are taken, by anybody and in any family.
pub(super) fn udp_ports(root: &Root) -> BTreeSet<u16> {
    let tables = ["proc/net/udp", "proc/net/udp6"];
    let tables = tables.iter().filter_map(|path| root.read_large(path).ok());
    tables.flat_map(|table| ports(&table)).collect()
}

/// `sl local_address rem_address ...` with the port in hexadecimal after the last colon of the local address.
#[must_use]
pub fn ports(table: &str) -> BTreeSet<u16> {
    let port = |line: &str| {
        let local = line.split_whitespace().nth(1)?;
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    table.lines().filter_map(port).collect()
}

fn usable(flags: &str) -> bool {
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & (RTF_UP | RTF_REJECT) == RTF_UP)
}

/// Tells VLAN links their id and parent.
pub(super) fn add_vlans(root: &Root, links: &mut [Link]) {
    let table = root.read_large("proc/net/vlan/config").unwrap_or_default();
    for (name, id, parent) in vlans(&table) {
        if let Some(link) = links.iter_mut().find(|link| link.name == name) {
            link.kind = LinkKind::Vlan;
            link.vlan = Some(id);
            link.parent = Some(parent);
        }
    }
}

/// `/proc/net/vlan/config`: `eth0.120 | 120 | eth0` after two lines of heading.
#[must_use]
pub fn vlans(table: &str) -> Vec<(LinkName, u16, LinkName)> {
    let entry = |line: &str| {
        let mut words = line.split('|').map(str::trim);
        let (name, id, parent) = (words.next()?, words.next()?, words.next()?);
        Some((name.parse().ok()?, id.parse().ok()?, parent.parse().ok()?))
    };
    table.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(found: BTreeSet<LinkName>) -> Vec<String> {
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_usable_default_routes_count() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            eth2\t00000000\t0101A8C0\t0203\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(names(routes_v4(table)), ["eth0"]);
        let zero = "00000000000000000000000000000000";
        let table = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth3\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        assert_eq!(names(routes_v6(&table)), ["eth3"]);
    }

    #[test]
    fn vlans_come_with_their_parent() {
        let table = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
            bond0.100      | 100  | bond0\n";
        let found = vlans(table);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].1, found[0].2.as_str()), (100, "bond0"));
    }

    #[test]
    fn ports_are_of_the_local_end() {
        let table = "  sl  local_address rem_address   st\n  117: 00000000:12B5 00000000:0000 07 00000000:00000000\n";
        assert_eq!(ports(table), BTreeSet::from([4789]));
    }

    proptest! {
        #[test]
        fn never_panics(text in "([0-9a-f]{0,8}[ \t|]?){0,12}|.*") {
            drop((routes_v4(&text), routes_v6(&text), vlans(&text), ports(&text)));
        }
    }
}
