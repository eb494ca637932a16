//! What keeps tenants' frames from each other, or from leaving.

use super::{Check, Input, Outcome};
use crate::ledger::MadeFilter;
use crate::nftables::TABLE;
use crate::observe::links::{BridgeFilter, Link, LinkKind};
use crate::plan::network::filter;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "network.isolation",
        title: "tenants are kept apart",
        explanation: "A shared bridge must look at VLANs, no port may be in VLAN 1 or in none, and no link of a tenant may \
            have an address of the host: else tenants reach each other, or the host.",
        run: isolation,
    },
    Check {
        id: "network.uplink",
        title: "tenants' frames leave",
        explanation: "The uplink of tenants' links must be up and take their size, and every VLAN that a VM is in must be \
            carried by it.",
        run: uplink,
    },
    Check {
        id: "network.stolen",
        title: "no VLAN is taken by a link",
        explanation: "A VLAN link on a port of a VLAN-aware bridge gets all frames of that VLAN before the bridge does, so \
            that VMs in it lose their network without a word.",
        run: stolen,
    },
    Check {
        id: "network.manager",
        title: "nobody else manages tenants' links",
        explanation: "NetworkManager and systemd-networkd take away VLANs, ports and addresses they do not know when they \
            are restarted. They must leave tenants' links and their uplink alone.",
        run: manager,
    },
    Check {
        id: "network.guest-frames",
        title: "no guest speaks to the switch",
        explanation: "A switch port with BPDU guard goes down when a guest's BPDU reaches it, and all tenants of the host \
            with it. nftables table `bridge berth` drops BPDUs, discovery and other frames that only switches may send.",
        run: guest_frames,
    },
    Check {
        id: "network.netfilter",
        title: "bridged frames pass",
        explanation: "With br_netfilter, iptables' FORWARD rules see frames between VMs of one bridge too, and a policy of \
            DROP drops them. A bridge's own setting does not override the host's.",
        run: netfilter,
    },
];

fn ours<'a>(input: &'a Input) -> Vec<&'a Link> {
    input.facts.links.all.iter().filter(|link| link.is_ours()).collect()
}

const NONE: &str = "this host carries no tenant networks";

/// Bridges that tenants share; a tenant's own has the tenant in its alias.
fn shared<'a>(links: &[&'a Link]) -> Vec<&'a Link> {
    let is_shared = |link: &&&Link| {
        let alias = link.alias.as_deref().unwrap_or_default();
        link.kind == LinkKind::Bridge && !alias.contains('/')
    };
    links.iter().filter(is_shared).copied().collect()
}

fn isolation(input: &Input) -> Outcome {
    let ours = ours(input);
    if ours.is_empty() {
        return Outcome::skip(NONE);
    }
    for bridge in shared(&ours) {
        if bridge.vlan_filtering == Some(false) {
            return Outcome::fail(format!(
                "{} does not look at VLANs: all tenants on it are one network",
                bridge.name
            ))
            .because(format!("/sys/class/net/{}/bridge/vlan_filtering", bridge.name), 0)
            .remedy("berth-agent apply sets it again; find out who changed it");
        }
        for port in input.facts.links.ports(&bridge.name).filter(|port| !port.is_uplink()) {
            let Some(vlans) = &port.vlans else { continue };
            let default = vlans.all.iter().any(|id| !id.for_tenants());
            if default || vlans.pvid.is_none() {
                let what = if default { "is in VLAN 1" } else { "has no VLAN of its own" };
                return Outcome::warn(format!("{} on {} {what}", port.name, bridge.name))
                    .because(format!("bridge vlan show dev {}", port.name), &vlans.all)
                    .remedy(
                        "its NetworkAttachmentDefinition needs `vlan` and `preserveDefaultVlan: false`; start the VM anew",
                    );
            }
        }
    }
    let addressed =
        ours.iter().find(|link| !link.addresses.is_empty() || !link.link_local.is_empty());
    if let Some(link) = addressed {
        let addresses: Vec<&str> =
            link.addresses.iter().chain(&link.link_local).map(String::as_str).collect();
        return Outcome::warn(format!(
            "{} has an address, so its tenant reaches the host",
            link.name
        ))
        .because(format!("ip address show {}", link.name), addresses.join(", "))
        .remedy(format!("ip address flush dev {}; find out who gave it", link.name));
    }
    Outcome::pass(format!("{} links of tenants", ours.len()))
}

/// The link through which a bridge of ours leaves the host.
fn way_out<'a>(input: &'a Input, bridge: &'a Link) -> Option<&'a Link> {
    let links = &input.facts.links;
    let direct = links.ports(&bridge.name).find(|port| port.is_uplink());
    direct.or_else(|| {
        let lower = links.ports(&bridge.name).find(|port| port.is_ours())?;
        links.named(lower.parent.as_ref()?)
    })
}

fn uplink(input: &Input) -> Outcome {
    let ours = ours(input);
    let bridges: Vec<&&Link> = ours.iter().filter(|link| link.kind == LinkKind::Bridge).collect();
    if bridges.is_empty() {
        return Outcome::skip(NONE);
    }
    for bridge in bridges {
        let Some(uplink) = way_out(input, bridge) else { continue };
        let name = &uplink.name;
        if uplink.has_no_carrier() {
            return Outcome::fail(format!(
                "{name}, by which {} leaves the host, is down",
                bridge.name
            ))
            .because(format!("/sys/class/net/{name}/operstate"), "down")
            .remedy(format!("ip link set {name} up; check cable and switch port"));
        }
        if let (Some(most), Some(mtu)) = (uplink.mtu, bridge.mtu)
            && mtu > most
        {
            return Outcome::fail(format!(
                "{name} takes {most} bytes, and {} sends {mtu}",
                bridge.name
            ))
            .because(format!("/sys/class/net/{name}/mtu"), most)
            .because(format!("/sys/class/net/{}/mtu", bridge.name), mtu)
            .remedy(format!("ip link set {name} mtu {mtu}, if the network carries it"));
        }
        let carried = uplink.vlans.clone().unwrap_or_default().all;
        for port in input.facts.links.ports(&bridge.name).filter(|port| port.name != *name) {
            let Some(vlans) = port.vlans.as_ref().filter(|_| bridge.vlan_filtering == Some(true))
            else {
                continue;
            };
            let missing = vlans.all.difference(&carried);
            if !missing.is_empty() {
                return Outcome::warn(format!("{} is in VLAN {missing}, which {name} does not carry", port.name))
                    .because(format!("bridge vlan show dev {}", port.name), &vlans.all)
                    .because(format!("bridge vlan show dev {name}"), &carried)
                    .remedy("add the tenant to spec.tenantNetworks, or start the VM on a host that carries it");
            }
        }
    }
    Outcome::pass("up, and of the right size")
}

fn stolen(input: &Input) -> Outcome {
    let links = &input.facts.links;
    let ours = ours(input);
    let shared = shared(&ours);
    if shared.is_empty() {
        return Outcome::skip("no VLAN-aware bridge of Berth's is here");
    }
    for bridge in shared {
        for port in links.ports(&bridge.name).filter(|port| port.is_uplink()) {
            for thief in links.stacked_on(&port.name) {
                let id = thief.vlan.and_then(|id| berth_api::VlanId::try_from(id).ok());
                let carried = |id| port.vlans.as_ref().is_some_and(|vlans| vlans.all.contains(id));
                if let Some(id) = id.filter(|id| carried(*id)) {
                    return Outcome::fail(format!(
                        "{} gets all frames of VLAN {id}, which {} should have",
                        thief.name, bridge.name
                    ))
                    .because(
                        format!("ip -d link show {}", thief.name),
                        format!("VLAN {id} of {}", port.name),
                    )
                    .because(format!("bridge vlan show dev {}", port.name), id)
                    .remedy(format!(
                        "ip link delete {}, or give the tenant another VLAN",
                        thief.name
                    ));
                }
            }
        }
    }
    Outcome::pass("none")
}

fn manager(input: &Input) -> Outcome {
    let links = &input.facts.links;
    let ours = ours(input);
    if ours.is_empty() {
        return Outcome::skip(NONE);
    }
    // An uplink that the other has taken out of its bridge is still a network's.
    let networks = &input.facts.ledger.networks;
    let uplink =
        |link: &Link| networks.values().any(|made| made.uplink.as_ref() == Some(&link.name));
    let on_ours = |link: &Link| {
        link.is_ours()
            || uplink(link)
            || link.master.as_ref().and_then(|m| links.named(m)).is_some_and(Link::is_ours)
    };
    let managed = links.all.iter().filter(|link| on_ours(link));
    let mut managed =
        managed.filter_map(|link| Some((link, links.trouble.managers.get(&link.name)?)));
    let Some((link, manager)) = managed.next() else {
        return Outcome::pass("nobody does");
    };
    use crate::observe::links::Manager;
    let index = link.index.unwrap_or_default();
    let (path, remedy) = match manager {
        Manager::Networkd => (
            format!("/run/systemd/netif/links/{index}"),
            format!(
                "write `[Match]` `Name={}` `[Link]` `Unmanaged=yes` to /etc/systemd/network/05-berth.network; then \
                 networkctl reload",
                link.name
            ),
        ),
        Manager::NetworkManager => (
            format!("/run/NetworkManager/devices/{index}"),
            format!(
                "write `[keyfile]` `unmanaged-devices+=interface-name:{}` to /etc/NetworkManager/conf.d/90-berth.conf; \
                 then nmcli general reload conf",
                link.name
            ),
        ),
    };
    Outcome::warn(format!("{} manages {} too", manager.name(), link.name))
        .because(path, "managed")
        .remedy(remedy)
}

fn guest_frames(input: &Input) -> Outcome {
    let links = &input.facts.links;
    let bridges: Vec<&Link> =
        ours(input).into_iter().filter(|link| link.kind == LinkKind::Bridge).collect();
    if bridges.is_empty() {
        return Outcome::skip(NONE);
    }
    let path = format!("nft list table bridge {TABLE}");
    let remedy = "berth-agent apply puts it back, and the daemon at once; find out who flushes nftables \
                  (`nft monitor`)";
    let table = match &links.filter {
        BridgeFilter::Unknown => {
            return Outcome::skip(
                "the kernel shows nf_tables to root only, and a captured tree does not have it",
            );
        }
        BridgeFilter::Absent => {
            return Outcome::warn("guests' BPDUs and discovery frames reach the switch")
                .because(path, "not there")
                .remedy(remedy);
        }
        BridgeFilter::There(table) => table,
    };
    let uplinks = filter::uplinks(links, &input.facts.ledger);
    if *table != filter::table(&MadeFilter::of(uplinks)) {
        return Outcome::warn(
            "the rules that drop guests' BPDUs and discovery frames were changed",
        )
        .because(path, "changed")
        .remedy(remedy);
    }
    // Such a bridge takes part: its port's BPDUs end in it, before any rule sees them (`br_handle_frame`).
    let speaks = |bridge: &&&Link| bridge.bridge.is_some_and(|options| options.stp == Some(true));
    if let Some(bridge) = bridges.iter().find(speaks) {
        return Outcome::warn(format!(
            "{} speaks STP, so a guest can become its root bridge",
            bridge.name
        ))
        .because(format!("/sys/class/net/{}/bridge/stp_state", bridge.name), 1)
        .remedy("take `stp: true` out of the network; a bridge with one uplink has no loop");
    }
    Outcome::pass("BPDUs, discovery and the like are dropped").because(path, "in place")
}

fn netfilter(input: &Input) -> Outcome {
    if ours(input).is_empty() {
        return Outcome::skip(NONE);
    }
    let path = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    match input.facts.links.trouble.bridge_calls_iptables {
        Some(true) => Outcome::warn("iptables' FORWARD rules see frames between VMs")
            .because(path, 1)
            .remedy(
                "iptables -I FORWARD -m physdev --physdev-is-bridged -j ACCEPT (and ip6tables), or sysctl \
                 net.bridge.bridge-nf-call-iptables=0 if nothing on this host needs it",
            ),
        Some(false) => Outcome::pass("not seen by iptables").because(path, 0),
        None => Outcome::pass("br_netfilter is not loaded").because(path, "not there"),
    }
}
