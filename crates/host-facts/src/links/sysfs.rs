//! Reads the links of a captured tree from `/sys/class/net`.

use berth_api::LinkName;
use berth_api::infra_node::LinkState;

use super::bridge_options::BridgeOptions;
use super::link::{Link, LinkKind};
use super::table::names_by_index;
use crate::notes::Notes;
use crate::root::Root;

const NET_FOLDER: &str = "sys/class/net";

/// Reads every link from sysfs. A link whose folder is missing in the capture has only a name.
pub(super) fn read_links(root: &Root, notes: &mut Notes) -> Vec<Link> {
    let names = root.list(NET_FOLDER).unwrap_or_default();
    // `/sys/class/net` contains links and the file `bonding_masters`.
    let names = names.iter().filter(|name| {
        root.read_link(&format!("{NET_FOLDER}/{name}")).is_some()
            || root.list(&format!("{NET_FOLDER}/{name}")).is_ok()
    });
    let mut links = Vec::new();
    for name in names {
        match name.parse::<LinkName>() {
            Ok(parsed) => links.push(read_network_link(root, parsed)),
            Err(error) => notes.warn(format!("/{NET_FOLDER}"), error.to_string()),
        }
    }
    let names = names_by_index(&links);
    for link in &mut links {
        let lower: Option<u32> =
            root.read_value(&format!("{NET_FOLDER}/{}/iflink", link.name)).ok();
        if link.kind == LinkKind::Vlan && lower != link.index {
            link.parent = lower.and_then(|index| names.get(&index).cloned());
        }
    }
    links
}

fn read_network_link(root: &Root, name: LinkName) -> Link {
    let file = |attribute: &str| format!("{NET_FOLDER}/{name}/{attribute}");
    let text = |attribute: &str| root.read(&file(attribute)).ok().filter(|t| !t.is_empty());
    let kind = read_link_kind(root, &name);
    Link {
        index: root.read_value(&file("ifindex")).ok(),
        mac: text("address").map(|mac| mac.to_lowercase()),
        mtu: root.read_value(&file("mtu")).ok(),
        state: text("operstate").and_then(|word| parse_operstate(&word)),
        master: root.read_link_name(&file("master")).and_then(|master| master.parse().ok()),
        vlan_filtering: (kind == LinkKind::Bridge)
            .then(|| crate::kernel_files::read_bool(root, &file("bridge/vlan_filtering")))
            .flatten(),
        alias: text("ifalias"),
        is_up: text("flags")
            .and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok())
            .map(|flags| flags & 1 == 1),
        group: root.read_value(&file("netdev_group")).ok(),
        bridge: (kind == LinkKind::Bridge).then(|| BridgeOptions {
            default_pvid: root.read_value(&file("bridge/default_pvid")).ok(),
            is_stp_enabled: crate::kernel_files::read_bool(root, &file("bridge/stp_state")),
            forward_delay: root.read_value(&file("bridge/forward_delay")).ok(),
            is_mcast_snooping_enabled: crate::kernel_files::read_bool(
                root,
                &file("bridge/multicast_snooping"),
            ),
        }),
        ..Link::new(name, kind)
    }
}

fn read_link_kind(root: &Root, name: &LinkName) -> LinkKind {
    let exists = |attribute: &str| root.exists(&format!("{NET_FOLDER}/{name}/{attribute}"));
    let uevent = root.read(&format!("{NET_FOLDER}/{name}/uevent")).unwrap_or_default();
    let device_type = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    let target = root.read_link(&format!("{NET_FOLDER}/{name}")).unwrap_or_default();
    let is_virtual = target.contains("/virtual/");
    match device_type {
        Some("vlan") => LinkKind::Vlan,
        Some("bridge") => LinkKind::Bridge,
        Some("bond") => LinkKind::Bond,
        Some("vxlan") => LinkKind::Vxlan,
        _ if name.as_str() == "lo" => LinkKind::Loopback,
        _ if name.as_str() == "ovs-system" => LinkKind::OpenVSwitch,
        _ if exists("bonding") => LinkKind::Bond,
        _ if exists("bridge") => LinkKind::Bridge,
        _ if exists("tun_flags") => LinkKind::Tun,
        _ if is_virtual => LinkKind::Other,
        _ if exists("device") || !target.is_empty() => LinkKind::Physical,
        _ => LinkKind::Other,
    }
}

/// Parses the kernel's word for an operational state (`/sys/class/net/*/operstate`).
fn parse_operstate(word: &str) -> Option<LinkState> {
    Some(match word {
        "up" => LinkState::Up,
        "down" => LinkState::Down,
        "lowerlayerdown" => LinkState::LowerLayerDown,
        "dormant" => LinkState::Dormant,
        "testing" => LinkState::Testing,
        "notpresent" => LinkState::NotPresent,
        "unknown" => LinkState::Unknown,
        _ => return None,
    })
}
