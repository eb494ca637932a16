//! Check of the MTU of tenant networks, from the ports of VMs to the links through which frames leave the host.

use berth_api::mtu::{vxlan_mtu, vxlan_overhead};

use super::definition::Check;
use super::input::Input;
use crate::plan::network::link_owner;
use crate::state_folder::LEASES_FILE;
use berth_host_facts::links::{Link, LinkKind, Links};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "network.mtu",
    title: "bridges carry the packets of their VMs",
    explanation: "Packets that are larger than the MTU of a link are lost without an error. No link below the bridge \
        of a tenant may have a smaller MTU than the bridge, and no VM may have a larger MTU than the bridge, neither \
        on its port nor from DHCP. For the uplink itself see network.uplink, for switches docs/networks.md.",
    run: check_mtu,
}];

/// Number of bridges that the evidence names.
const SHOWN_BRIDGES: usize = 8;

/// A link through which frames of a bridge leave the host.
struct LowerLink<'a> {
    link: &'a Link,
    /// Largest MTU of the bridge whose frames fit through this link, in bytes.
    mtu: u32,
    /// Step that makes the link suitable for a bridge with a larger MTU.
    remedy: String,
}

fn mtu_path(link: &Link) -> String {
    format!("/sys/class/net/{}/mtu", link.name)
}

fn check_mtu(input: &Input) -> Outcome {
    let links = &input.facts.links;
    let is_bridge = |link: &&Link| link.kind == LinkKind::Bridge && link.is_created_by_berth();
    let bridges = links.all.iter().filter(is_bridge);
    let bridges: Vec<(&Link, u32)> = bridges.filter_map(|link| Some((link, link.mtu?))).collect();
    if bridges.is_empty() {
        return Outcome::skip("this host has no bridge of a tenant network");
    }
    let mut outcome = Outcome::pass("bridges carry the packets of their VMs");
    for (index, (bridge, bridge_mtu)) in bridges.into_iter().enumerate() {
        let lower = lower_links(links, bridge, bridge_mtu);
        // The check `network.uplink` examines an uplink that is a port of the bridge.
        let is_port = |link: &Link| link.is_uplink() && link.master.as_ref() == Some(&bridge.name);
        let is_narrow = |lower: &&LowerLink| lower.mtu < bridge_mtu && !is_port(lower.link);
        if let Some(narrow) = lower.iter().filter(is_narrow).min_by_key(|lower| lower.mtu) {
            return Outcome::fail(format!(
                "{} carries packets of at most {} bytes, and the MTU of {} is {bridge_mtu}: larger packets of VMs \
                 are lost",
                narrow.link.name, narrow.mtu, bridge.name
            ))
            .with_evidence(mtu_path(narrow.link), narrow.link.mtu.unwrap_or_default())
            .with_evidence(mtu_path(bridge), bridge_mtu)
            .remedy(narrow.remedy.as_str());
        }
        let limit = lower.iter().map(|lower| lower.mtu).fold(bridge_mtu, u32::min);
        let problem = find_large_port(links, bridge, limit)
            .or_else(|| find_large_lease(input, bridge, limit));
        if let Some(problem) = problem {
            return problem.with_evidence(mtu_path(bridge), bridge_mtu);
        }
        if index < SHOWN_BRIDGES {
            outcome = outcome.with_evidence(mtu_path(bridge), bridge_mtu);
        }
    }
    outcome
}

/// Returns the links through which frames of a bridge leave the host: its uplink, or the VLAN link or tunnel that Berth
/// created, and the link below a tunnel.
fn lower_links<'a>(links: &'a Links, bridge: &'a Link, bridge_mtu: u32) -> Vec<LowerLink<'a>> {
    let mut all = Vec::new();
    let is_lower = |port: &&Link| port.is_uplink() || port.is_created_by_berth();
    for port in links.ports_of(&bridge.name).filter(is_lower) {
        let remedy = "berth-agent apply restores the MTU; find the program that changed it";
        all.extend(port.mtu.map(|mtu| LowerLink { link: port, mtu, remedy: remedy.to_owned() }));
        let local = port.tunnel.as_ref().and_then(|tunnel| tunnel.local_address);
        let Some(local) = local else { continue };
        let has_local = |link: &&Link| {
            let mut addresses = link.addresses.iter().filter_map(|text| text.split('/').next());
            addresses.any(|address| address.parse() == Ok(local))
        };
        // The loopback link may have the local address of the tunnel. Its MTU is irrelevant: routing selects the uplink
        // for the tunnel's packets.
        let mut endpoints = links.all.iter().filter(|link| link.kind != LinkKind::Loopback);
        let Some(endpoint) = endpoints.find(has_local) else { continue };
        let Some(mtu) = endpoint.mtu.map(|mtu| vxlan_mtu(mtu, local)) else { continue };
        let needed = bridge_mtu.saturating_add(vxlan_overhead(local));
        let remedy = format!(
            "ip link set {} mtu {needed}, if the network supports it; or set spec.networks[].mtu to {mtu}",
            endpoint.name
        );
        all.push(LowerLink { link: endpoint, mtu, remedy });
    }
    all
}

/// Returns the outcome for a port of a VM whose MTU is larger than `limit`, the size of packets that the
/// bridge can carry.
fn find_large_port(links: &Links, bridge: &Link, limit: u32) -> Option<Outcome> {
    let is_guest = |port: &&Link| {
        matches!(port.kind, LinkKind::Veth | LinkKind::Tun) && !port.is_created_by_berth()
    };
    let mut ports = links.ports_of(&bridge.name).filter(is_guest);
    let port = ports.find(|port| port.mtu.is_some_and(|mtu| mtu > limit))?;
    let message = format!(
        "the MTU of {}, the port of a VM, is {}, and {} carries packets of at most {limit} bytes",
        port.name,
        port.mtu.unwrap_or_default(),
        bridge.name
    );
    Some(
        Outcome::warn(message).with_evidence(mtu_path(port), port.mtu.unwrap_or_default()).remedy(
            "restart the VM: its NetworkAttachmentDefinition then sets the MTU of the network",
        ),
    )
}

/// Returns the outcome for leases that announce an MTU above `limit`, the size of packets that the bridge can
/// carry.
fn find_large_lease(input: &Input, bridge: &Link, limit: u32) -> Option<Outcome> {
    let (host_network, tenant) = link_owner(bridge)?;
    let tenants = input.facts.ledger.networks.get(host_network).map(|record| &record.tenants);
    let is_on_bridge = |name: &String| match tenant {
        Some(tenant) => tenant == name,
        None => tenants.is_some_and(|tenants| tenants.values().any(|tenant| tenant == name)),
    };
    let mut networks = input.leases.iter().flat_map(|leases| &leases.networks);
    let (network, mtu) = networks.find_map(|network| {
        let mtu = network.mtu.filter(|mtu| u32::from(*mtu) > limit)?;
        is_on_bridge(&network.name).then_some((network, mtu))
    })?;
    let message = format!(
        "VMs of {} get the MTU {mtu} by DHCP, and {} carries packets of at most {limit} bytes",
        network.name, bridge.name
    );
    let evidence = format!("{}: mtu {mtu}", network.name);
    Some(Outcome::warn(message).with_evidence(format!("/{LEASES_FILE}"), evidence).remedy(format!(
        "set spec.network.ipv4.mtu and spec.network.ipv6.mtu of the TenantCluster to at most {limit}, \
         or increase the MTU of switch, uplink and spec.networks[].mtu"
    )))
}

#[cfg(test)]
mod tests {
    use berth_api::{HostLeasesSpec, LeaseNetwork};
    use berth_host_facts::HostFacts;
    use berth_host_facts::ledger::NetworkRecord;
    use berth_host_facts::links::VxlanTunnel;
    use berth_runtime::check::Status;
    use proptest::prelude::*;

    use super::super::test_helpers::run_check_with_input;
    use super::*;

    fn link(name: &str, kind: LinkKind, mtu: u32, master: Option<&str>) -> Link {
        let mut link = Link::new(name.parse().unwrap(), kind);
        link.mtu = Some(mtu);
        link.master = master.map(|master| master.parse().unwrap());
        link
    }

    fn created_by_berth(mut link: Link, owner: &str) -> Link {
        link.alias = Some(format!("berth:{owner}"));
        link
    }

    fn facts(mut all: Vec<Link>) -> HostFacts {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        HostFacts { links: Links { all, ..Links::default() }, ..HostFacts::default() }
    }

    /// Returns a shared bridge with an uplink, and a port of a VM.
    fn shared_bridge_facts(bridge: u32, port: u32) -> HostFacts {
        facts(vec![
            created_by_berth(link("br-tenant", LinkKind::Bridge, bridge, None), "trunk"),
            link("trunk0", LinkKind::Physical, 9000, Some("br-tenant")),
            link("vnet0", LinkKind::Tun, port, Some("br-tenant")),
        ])
    }

    /// Returns a tenant's bridge with a tunnel over a link with the MTU 1500.
    fn tunnel_facts(bridge: u32, tunnel: u32) -> HostFacts {
        let mut lower = created_by_berth(
            link("tn5-x", LinkKind::Vxlan, tunnel, Some("tn5")),
            "overlay/cluster-a",
        );
        let local_address = Some("10.0.0.1".parse().unwrap());
        lower.tunnel = Some(VxlanTunnel { local_address, ..VxlanTunnel::default() });
        let mut uplink = link("eth0", LinkKind::Physical, 1500, None);
        uplink.addresses = vec!["10.0.0.1/24".to_owned()];
        facts(vec![
            created_by_berth(link("tn5", LinkKind::Bridge, bridge, None), "overlay/cluster-a"),
            lower,
            uplink,
        ])
    }

    fn outcome(facts: &HostFacts, leases: Option<HostLeasesSpec>) -> Outcome {
        run_check_with_input("network.mtu", &Input { leases, ..Input::from_facts(facts) })
    }

    #[test]
    fn ports_of_vms_have_at_most_the_mtu_of_the_bridge() {
        assert_eq!(outcome(&shared_bridge_facts(1500, 1500), None).status, Status::Pass);
        // A port may have a smaller MTU than its bridge: the MTU of VMs is the smallest MTU of all hosts.
        assert_eq!(outcome(&shared_bridge_facts(9000, 1500), None).status, Status::Pass);
        let large = outcome(&shared_bridge_facts(1500, 9000), None);
        assert_eq!(large.status, Status::Warn);
        assert_eq!(
            large.message,
            "the MTU of vnet0, the port of a VM, is 9000, and br-tenant carries packets of at most 1500 bytes"
        );
    }

    #[test]
    fn tunnels_need_room_in_the_link_below() {
        assert_eq!(outcome(&tunnel_facts(1450, 1450), None).status, Status::Pass);
        let narrow = outcome(&tunnel_facts(1450, 1400), None);
        assert!(
            narrow.message.starts_with("tn5-x carries packets of at most 1400 bytes"),
            "{narrow:?}"
        );
        let large = outcome(&tunnel_facts(1500, 1500), None);
        assert_eq!(large.status, Status::Fail);
        assert!(
            large.message.starts_with("eth0 carries packets of at most 1450 bytes"),
            "{large:?}"
        );
        assert!(large.remedy.unwrap().starts_with("ip link set eth0 mtu 1550"));
    }

    #[test]
    fn leases_announce_at_most_the_mtu_of_the_bridge() {
        let leases = |name: &str, mtu| {
            let network =
                LeaseNetwork { name: name.to_owned(), mtu: Some(mtu), ..LeaseNetwork::default() };
            Some(HostLeasesSpec { networks: vec![network] })
        };
        assert_eq!(
            outcome(&tunnel_facts(1450, 1450), leases("cluster-a", 1450)).status,
            Status::Pass
        );
        assert_eq!(
            outcome(&tunnel_facts(1450, 1450), leases("cluster-b", 1500)).status,
            Status::Pass
        );
        let large = outcome(&tunnel_facts(1450, 1450), leases("cluster-a", 1500));
        assert_eq!(large.status, Status::Warn);
        let mut facts = shared_bridge_facts(1500, 1500);
        let tenants = [(120, "cluster-a".to_owned())].into();
        let record = NetworkRecord { tenants, ..NetworkRecord::default() };
        facts.ledger.networks.insert("trunk".to_owned(), record);
        let large = outcome(&facts, leases("cluster-a", 9000));
        assert_eq!(
            large.message,
            "VMs of cluster-a get the MTU 9000 by DHCP, and br-tenant carries packets of at most 1500 bytes"
        );
    }

    proptest! {
        #[test]
        fn a_path_passes_only_if_no_link_is_narrower(
            bridge in 1440_u32..1460,
            tunnel in 1440_u32..1460,
            port in 1440_u32..1460,
        ) {
            let mut host = tunnel_facts(bridge, tunnel);
            host.links.all.push(link("vnet0", LinkKind::Tun, port, Some("tn5")));
            let is_carried = bridge <= tunnel.min(1450) && port <= bridge;
            prop_assert_eq!(outcome(&host, None).status == Status::Pass, is_carried);
        }
    }
}
