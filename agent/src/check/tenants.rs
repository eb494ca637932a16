//! Checks of tenant networks: isolation, uplinks and interference from other programs.

use super::definition::Check;
use super::input::Input;
use crate::plan::network::filter;
use berth_host_facts::links::{BridgeFilter, Link, LinkKind};
use berth_host_facts::nftables::TABLE_NAME;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "network.isolation",
        title: "tenants are isolated from each other",
        explanation: "A shared bridge must filter VLANs, every port must be in a VLAN other than 1, and no link of a tenant \
            may have an IP address of the host. Otherwise tenants reach each other or the host.",
        run: check_isolation,
    },
    Check {
        id: "network.uplink",
        title: "uplinks carry the tenant networks",
        explanation: "The uplink of a tenant network must be up and have at least the network's MTU, and must \
            carry every VLAN that a VM uses.",
        run: check_uplink,
    },
    Check {
        id: "network.stolen",
        title: "no other link captures a tenant VLAN",
        explanation: "A VLAN link on a port of a VLAN-aware bridge receives all frames of that VLAN before the bridge, so that \
            VMs in this VLAN lose their network without any error.",
        run: check_captured_vlans,
    },
    Check {
        id: "network.manager",
        title: "no network manager controls tenant links",
        explanation: "When they restart, NetworkManager and systemd-networkd remove VLANs, ports and addresses that they do not \
            know. They must not manage the links of tenants and their uplinks.",
        run: check_network_managers,
    },
    Check {
        id: "network.guest-frames",
        title: "control frames of guests are dropped",
        explanation: "A switch port with BPDU guard shuts down when it receives a BPDU of a guest, and all tenants of the host \
            lose their network. The nftables table `bridge berth` drops BPDUs, discovery and other frames that only \
            switches may send. Where the agent answers DHCP requests, the table also drops the messages of DHCP servers \
            and routers among VMs, and with sourceGuard frames of VMs from foreign addresses.",
        run: check_bpdu_filter,
    },
    Check {
        id: "network.netfilter",
        title: "iptables does not filter bridged frames",
        explanation: "With br_netfilter, the FORWARD rules of iptables apply to frames between VMs of one bridge too, and a policy \
            of DROP drops them. The setting of a bridge does not override the setting of the host.",
        run: check_netfilter,
    },
];

fn links_created_by_berth<'a>(input: &'a Input) -> Vec<&'a Link> {
    input.facts.links.all.iter().filter(|link| link.is_created_by_berth()).collect()
}

const NO_NETWORKS_MESSAGE: &str = "this host has no tenant networks";

/// Returns the bridges that tenants share. The alias of a bridge that only one tenant uses contains a `/` and the name
/// of the tenant.
fn shared_bridges<'a>(links: &[&'a Link]) -> Vec<&'a Link> {
    let is_shared = |link: &&&Link| {
        let alias = link.alias.as_deref().unwrap_or_default();
        link.kind == LinkKind::Bridge && !alias.contains('/')
    };
    links.iter().filter(is_shared).copied().collect()
}

fn check_isolation(input: &Input) -> Outcome {
    let ours = links_created_by_berth(input);
    if ours.is_empty() {
        return Outcome::skip(NO_NETWORKS_MESSAGE);
    }
    for bridge in shared_bridges(&ours) {
        if bridge.vlan_filtering == Some(false) {
            return Outcome::fail(format!(
                "{} does not filter VLANs: all tenants on it are in one network",
                bridge.name
            ))
            .with_evidence(format!("/sys/class/net/{}/bridge/vlan_filtering", bridge.name), 0)
            .remedy("berth-agent apply turns VLAN filtering on again; find the program that turned it off");
        }
        for port in input.facts.links.ports_of(&bridge.name).filter(|port| !port.is_uplink()) {
            let Some(vlans) = &port.vlans else { continue };
            let default = vlans.all.iter().any(|id| !id.is_allowed_for_tenants());
            if default || vlans.pvid.is_none() {
                let problem = if default { "is in VLAN 1" } else { "is in no VLAN" };
                return Outcome::warn(format!("{} on {} {problem}", port.name, bridge.name))
                    .with_evidence(format!("bridge vlan show dev {}", port.name), &vlans.all)
                    .remedy(
                        "its NetworkAttachmentDefinition needs `vlan` and `preserveDefaultVlan: false`; restart the VM",
                    );
            }
        }
    }
    let addressed = ours
        .iter()
        .find(|link| !link.addresses.is_empty() || !link.link_local_addresses.is_empty());
    if let Some(link) = addressed {
        let addresses: Vec<&str> =
            link.addresses.iter().chain(&link.link_local_addresses).map(String::as_str).collect();
        return Outcome::warn(format!(
            "{} has an IP address, so its tenant can reach the host",
            link.name
        ))
        .with_evidence(format!("ip address show {}", link.name), addresses.join(", "))
        .remedy(format!("ip address flush dev {}; find the program that added it", link.name));
    }
    Outcome::pass(format!("{} links of tenant networks", ours.len()))
}

/// Returns the uplink of a bridge that Berth created: the port that leaves the host or, for the bridge of one tenant,
/// the link below its VLAN link.
fn uplink_of<'a>(input: &'a Input, bridge: &'a Link) -> Option<&'a Link> {
    let links = &input.facts.links;
    let direct = links.ports_of(&bridge.name).find(|port| port.is_uplink());
    direct.or_else(|| {
        let lower = links.ports_of(&bridge.name).find(|port| port.is_created_by_berth())?;
        links.find_by_name(lower.parent.as_ref()?)
    })
}

fn check_uplink(input: &Input) -> Outcome {
    let ours = links_created_by_berth(input);
    let bridges: Vec<&&Link> = ours.iter().filter(|link| link.kind == LinkKind::Bridge).collect();
    if bridges.is_empty() {
        return Outcome::skip(NO_NETWORKS_MESSAGE);
    }
    for bridge in bridges {
        let Some(uplink) = uplink_of(input, bridge) else { continue };
        let name = &uplink.name;
        if uplink.is_down() {
            return Outcome::fail(format!("{name}, the uplink of {}, is down", bridge.name))
                .with_evidence(format!("/sys/class/net/{name}/operstate"), "down")
                .remedy(format!("ip link set {name} up; check cable and switch port"));
        }
        if let (Some(uplink_mtu), Some(mtu)) = (uplink.mtu, bridge.mtu)
            && mtu > uplink_mtu
        {
            return Outcome::fail(format!(
                "the MTU of {name} is {uplink_mtu}, and the MTU of {} is {mtu}",
                bridge.name
            ))
            .with_evidence(format!("/sys/class/net/{name}/mtu"), uplink_mtu)
            .with_evidence(format!("/sys/class/net/{}/mtu", bridge.name), mtu)
            .remedy(format!("ip link set {name} mtu {mtu}, if the network supports it"));
        }
        let carried = uplink.vlans.clone().unwrap_or_default().all;
        for port in input.facts.links.ports_of(&bridge.name).filter(|port| port.name != *name) {
            let Some(vlans) = port.vlans.as_ref().filter(|_| bridge.vlan_filtering == Some(true))
            else {
                continue;
            };
            let missing = vlans.all.difference(&carried);
            if !missing.is_empty() {
                return Outcome::warn(format!("{} is in VLAN {missing}, which {name} does not carry", port.name))
                    .with_evidence(format!("bridge vlan show dev {}", port.name), &vlans.all)
                    .with_evidence(format!("bridge vlan show dev {name}"), &carried)
                    .remedy("add the tenant to spec.tenantNetworks, or start the VM on a host with this VLAN");
            }
        }
    }
    Outcome::pass("uplinks are up and have a sufficient MTU")
}

fn check_captured_vlans(input: &Input) -> Outcome {
    let links = &input.facts.links;
    let ours = links_created_by_berth(input);
    let shared = shared_bridges(&ours);
    if shared.is_empty() {
        return Outcome::skip("this host has no VLAN-aware bridge of Berth");
    }
    for bridge in shared {
        for port in links.ports_of(&bridge.name).filter(|port| port.is_uplink()) {
            for competing_link in links.links_stacked_on(&port.name) {
                let id = competing_link.vlan.and_then(|id| berth_api::VlanId::try_from(id).ok());
                let carried = |id| port.vlans.as_ref().is_some_and(|vlans| vlans.all.contains(id));
                if let Some(id) = id.filter(|id| carried(*id)) {
                    return Outcome::fail(format!(
                        "{} receives all frames of VLAN {id} in place of {}",
                        competing_link.name, bridge.name
                    ))
                    .with_evidence(
                        format!("ip -d link show {}", competing_link.name),
                        format!("VLAN {id} of {}", port.name),
                    )
                    .with_evidence(format!("bridge vlan show dev {}", port.name), id)
                    .remedy(format!(
                        "ip link delete {}, or give the tenant another VLAN",
                        competing_link.name
                    ));
                }
            }
        }
    }
    Outcome::pass("no other link receives the frames of a tenant's VLAN")
}

fn check_network_managers(input: &Input) -> Outcome {
    let links = &input.facts.links;
    let ours = links_created_by_berth(input);
    if ours.is_empty() {
        return Outcome::skip(NO_NETWORKS_MESSAGE);
    }
    // An uplink that another program removed from its bridge still belongs to a tenant network.
    let networks = &input.facts.ledger.networks;
    let is_uplink =
        |link: &Link| networks.values().any(|record| record.uplink.as_ref() == Some(&link.name));
    let belongs_to_network = |link: &Link| {
        link.is_created_by_berth()
            || is_uplink(link)
            || link
                .master
                .as_ref()
                .and_then(|m| links.find_by_name(m))
                .is_some_and(Link::is_created_by_berth)
    };
    let managed = links.all.iter().filter(|link| belongs_to_network(link));
    let mut managed = managed
        .filter_map(|link| Some((link, links.conflicting_settings.managers.get(&link.name)?)));
    let Some((link, manager)) = managed.next() else {
        return Outcome::pass("no network manager controls the links of tenants");
    };
    use berth_host_facts::links::LinkManager;
    let index = link.index.unwrap_or_default();
    let (path, remedy) = match manager {
        LinkManager::Networkd => (
            format!("/run/systemd/netif/links/{index}"),
            format!(
                "write `[Match]` `Name={}` `[Link]` `Unmanaged=yes` to /etc/systemd/network/05-berth.network; then \
                 networkctl reload",
                link.name
            ),
        ),
        LinkManager::NetworkManager => (
            format!("/run/NetworkManager/devices/{index}"),
            format!(
                "write `[keyfile]` `unmanaged-devices+=interface-name:{}` to /etc/NetworkManager/conf.d/90-berth.conf; \
                 then nmcli general reload conf",
                link.name
            ),
        ),
    };
    Outcome::warn(format!("{} manages {}", manager.daemon_name(), link.name))
        .with_evidence(path, "managed")
        .remedy(remedy)
}

fn check_bpdu_filter(input: &Input) -> Outcome {
    let links = &input.facts.links;
    let bridges: Vec<&Link> = links_created_by_berth(input)
        .into_iter()
        .filter(|link| link.kind == LinkKind::Bridge)
        .collect();
    if bridges.is_empty() {
        return Outcome::skip(NO_NETWORKS_MESSAGE);
    }
    let path = format!("nft list table bridge {TABLE_NAME}");
    let remedy = "berth-agent apply restores the rules, and a running daemon restores them at once; find the program that flushes nftables \
                  (`nft monitor`)";
    let table = match &links.filter {
        BridgeFilter::Unknown => {
            return Outcome::skip(
                "only root can read nf_tables, and a captured tree does not contain it",
            );
        }
        BridgeFilter::Absent => {
            return Outcome::warn("BPDUs and discovery frames of guests reach the switch")
                .with_evidence(path, "absent")
                .remedy(remedy);
        }
        BridgeFilter::Present(table) => table,
    };
    let uplinks = filter::bridge_uplinks(links, &input.facts.ledger);
    let record = input.facts.ledger.filter.as_ref();
    let guard = record.map(|record| record.guard.clone()).unwrap_or_default();
    let message = if guard.sources.is_empty() {
        "DHCP servers and routers among VMs are reported, but not dropped"
    } else {
        "foreign addresses of VMs, and DHCP servers and routers among VMs are not dropped"
    };
    let unsupported = guard.unsupported.then_some(message);
    if *table != filter::table(&filter::new_filter_record(uplinks, guard)) {
        return Outcome::warn(
            "the rules that drop BPDUs and discovery frames of guests were changed",
        )
        .with_evidence(path, "changed")
        .remedy(remedy);
    }
    if let Some(problem) = unsupported {
        return Outcome::warn(problem)
            .with_evidence(path, "the kernel has no CONFIG_NFT_BRIDGE_META")
            .remedy("use a kernel with CONFIG_NFT_BRIDGE_META (grep NFT_BRIDGE_META /boot/config-$(uname -r))");
    }
    // A bridge with STP handles BPDUs from its ports before any nftables rule applies
    // (`br_handle_frame`).
    let has_stp =
        |bridge: &&&Link| bridge.bridge.is_some_and(|options| options.is_stp_enabled == Some(true));
    if let Some(bridge) = bridges.iter().find(has_stp) {
        return Outcome::warn(format!(
            "STP is on for {}, so a guest can become the root bridge",
            bridge.name
        ))
        .with_evidence(format!("/sys/class/net/{}/bridge/stp_state", bridge.name), 1)
        .remedy("remove `stp: true` from the network; a bridge with one uplink has no loop");
    }
    Outcome::pass("BPDUs, discovery and similar frames are dropped").with_evidence(path, "in place")
}

fn check_netfilter(input: &Input) -> Outcome {
    if links_created_by_berth(input).is_empty() {
        return Outcome::skip(NO_NETWORKS_MESSAGE);
    }
    let path = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    match input.facts.links.conflicting_settings.does_bridge_call_iptables {
        Some(true) => Outcome::warn("FORWARD rules of iptables apply to frames between VMs")
            .with_evidence(path, 1)
            .remedy(
                "iptables -I FORWARD -m physdev --physdev-is-bridged -j ACCEPT (and ip6tables), or sysctl \
                 net.bridge.bridge-nf-call-iptables=0 if no program on this host needs it",
            ),
        Some(false) => Outcome::pass("iptables does not apply to bridged frames").with_evidence(path, 0),
        None => Outcome::pass("br_netfilter is not loaded").with_evidence(path, "absent"),
    }
}
