//! Computes the desired links of the spec, with names, addresses and sizes, and finds faults of the
//! spec on this host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::infra_node::{NetworkScenario, NetworkSpec, TenantNetworkSpec, VxlanSpec};
use berth_api::{LinkName, MacAddress, VlanId};

use super::names::{NO_LABEL, alias, bridge_mac, bridge_name, hardware_below, is_label};
use super::uplink;
use crate::manifest::Fault;
use crate::plan::input::Input;
use berth_host_facts::links::{Link, LinkKind, Links};

/// A host network without a fault on this host.
#[derive(Debug, Clone)]
pub(super) struct Network<'a> {
    pub(super) name: &'a str,
    pub(super) scenario: NetworkScenario,
    /// The link by which frames leave the host; for Vxlan the link with the local address of the
    /// tunnels.
    pub(super) uplink: &'a Link,
    /// Settings that the links of this network are made from. A difference counts as drift only if
    /// the settings have not changed.
    pub(super) settings: String,
    /// Maximum transmission unit in bytes.
    mtu: u32,
    /// Hardware addresses of the uplink and of the ports of a bond, from which the addresses of
    /// bridges are computed.
    seed: String,
    peers: Arc<BTreeSet<IpAddr>>,
    /// The bridge that all tenants share.
    pub(super) bridge: Option<DesiredLink>,
    pub(super) tenants: Vec<Tenant<'a>>,
    /// True if the uplink may become a port although it carries the host's own traffic.
    pub(super) allow_management: bool,
    /// The UDP port of the network's tunnels, for Vxlan.
    pub(super) tunnels_port: Option<u16>,
    /// True if links may be removed and created again while VMs are attached.
    pub(super) allow_disruption: bool,
}

/// The layer 2 segment of a tenant on a network.
#[derive(Debug, Clone)]
pub(super) struct Tenant<'a> {
    pub(super) name: &'a str,
    /// VLAN id or VNI.
    pub(super) id: u32,
    pub(super) vlan: Option<VlanId>,
    /// The links of this tenant only, in the order in which they are created.
    pub(super) links: Vec<DesiredLink>,
}

/// A desired link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredLink {
    /// Name of the link.
    pub name: LinkName,
    /// Alias, which names the owner of the link.
    pub alias: String,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// The bridge that the link is a port of.
    pub master: Option<LinkName>,
    /// Kind of the link, with its properties.
    pub kind: DesiredKind,
}

/// Desired kind of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesiredKind {
    /// A bridge without an IP address and without multicast snooping; with the spanning tree
    /// protocol only if the spec requests it.
    Bridge {
        /// Fixed hardware address. Otherwise the address would follow the addresses of the ports,
        /// and each change would cause an outage.
        mac: MacAddress,
        /// True if the bridge filters VLANs.
        vlan_aware: bool,
        /// True if the bridge uses the spanning tree protocol.
        stp: bool,
    },
    /// A VLAN link.
    Vlan {
        /// The link below the VLAN link.
        parent: LinkName,
        /// 802.1Q id.
        id: VlanId,
    },
    /// A VXLAN tunnel.
    Vxlan {
        /// VXLAN network identifier.
        vni: u32,
        /// UDP port.
        port: u16,
        /// Local address of the tunnel.
        local: IpAddr,
        /// Addresses of the peers.
        peers: Arc<BTreeSet<IpAddr>>,
    },
}

/// Networks of the spec.
#[derive(Debug, Default)]
pub(super) struct DesiredNetworks<'a> {
    pub(super) networks: Vec<Network<'a>>,
    pub(super) faults: Vec<Fault>,
    /// Networks that are not changed, with the reason.
    pub(super) frozen: BTreeMap<String, String>,
}

/// Returns the bytes that VXLAN adds to a frame: headers of Ethernet, VXLAN, UDP and IP.
const fn overhead(local: IpAddr) -> u32 {
    if local.is_ipv4() { 50 } else { 70 }
}

/// Smallest MTU with which Ethernet can carry IPv4 (RFC 791); also the minimum of the schema.
const LEAST_MTU: u32 = 576;

/// Reads the networks and their tenants from the spec.
pub(super) fn read<'a>(input: Input<'a>) -> DesiredNetworks<'a> {
    let mut desired = DesiredNetworks::default();
    let mut names = BTreeSet::new();
    for spec in &input.spec.networks {
        let place = format!("spec.networks[{}]", spec.name);
        if !names.insert(&spec.name) {
            desired.refuse(&spec.name, format!("{place}.name"), &spec.name, "is there twice");
            desired.networks.retain(|network| network.name != spec.name);
            continue;
        }
        match network(input, spec, &place, &desired.networks) {
            Ok(network) => desired.networks.push(network),
            Err(fault) => desired.refuse_by(&spec.name, fault),
        }
    }
    let mut tenants = BTreeSet::new();
    for spec in &input.spec.tenant_networks {
        let twice = !tenants.insert(&spec.name);
        if let Err(fault) = add_tenant(input, &mut desired, &names, spec, twice) {
            desired.refuse_by(&spec.network, fault);
        }
    }
    let frozen = &desired.frozen;
    desired.networks.retain(|network| !frozen.contains_key(network.name));
    desired.refuse_shared_links();
    desired.refuse_shared_ids(input);
    desired
}

impl DesiredNetworks<'_> {
    /// Returns true if this network must not be changed.
    pub(super) fn is_frozen(&self, input: Input, network: &str) -> bool {
        self.frozen.contains_key(network) || input.unclear.networks.contains(network)
    }

    fn refuse(&mut self, network: &str, field: String, value: &str, message: &str) {
        self.refuse_by(network, Fault::new(field, value, message));
    }

    pub(super) fn refuse_by(&mut self, network: &str, fault: Fault) {
        self.frozen.entry(network.to_owned()).or_insert_with(|| fault.to_string());
        self.faults.push(fault);
    }

    /// Refuses two networks whose links would have the same name.
    fn refuse_shared_links(&mut self) {
        let mut owners: BTreeMap<LinkName, &str> = BTreeMap::new();
        let mut refused = Vec::new();
        for network in &self.networks {
            let tenants = network.tenants.iter().flat_map(|tenant| &tenant.links);
            for link in network.bridge.iter().chain(tenants) {
                let owner = owners.entry(link.name.clone()).or_insert(network.name);
                if *owner != network.name {
                    let message = format!(
                        "network {owner} needs link {} too; give one another bridge",
                        link.name
                    );
                    refused.push((network.name.to_owned(), link.name.to_string(), message));
                    break;
                }
            }
        }
        for (network, link, message) in refused {
            self.networks.retain(|other| other.name != network);
            self.refuse(&network, format!("spec.networks[{network}].bridge"), &link, &message);
        }
    }
}

fn network<'a>(
    input: Input<'a>,
    spec: &'a NetworkSpec,
    place: &str,
    others: &[Network],
) -> Result<Network<'a>, Fault> {
    let links = &input.facts.links;
    let fault = |field: &str, value: &dyn std::fmt::Display, message: String| {
        Fault::new(format!("{place}.{field}"), value, message)
    };
    if !is_label(&spec.name) {
        return Err(fault("name", &spec.name, NO_LABEL.to_owned()));
    }
    let by_vxlan = spec.scenario == NetworkScenario::Vxlan;
    let vxlan = spec.tunnels();
    let uplink = match (vxlan, &spec.uplink) {
        (None, _) if by_vxlan => {
            let message = "is missing; scenario Vxlan needs localAddress and peers".to_owned();
            return Err(fault("vxlan", &"", message));
        }
        (Some(vxlan), _) => tunnel_end(links, vxlan, place)?,
        (None, Some(selector)) => uplink::find(links, selector, place)?,
        (None, None) => {
            let message = "is missing; say by which link tenants leave the host".to_owned();
            return Err(fault("uplink", &"", message));
        }
    };
    if spec.scenario == NetworkScenario::SriovVf && uplink.sriov.is_none() {
        let message =
            "has no virtual functions; enable SR-IOV in the firmware and set sriov_numvfs";
        return Err(fault("uplink", &uplink.name, message.to_owned()));
    }
    let most = match vxlan {
        Some(vxlan) => {
            // If the tunnels' address is on the loopback link, routing selects the uplink, so the
            // smallest MTU of all uplinks counts.
            let least = links
                .uplinks()
                .filter(|link| link.up == Some(true))
                .filter_map(|link| link.mtu)
                .min();
            let mtu =
                if uplink.kind == LinkKind::Loopback { least.or(Some(1500)) } else { uplink.mtu };
            mtu.map(|mtu| mtu.saturating_sub(overhead(vxlan.local_address)))
        }
        None => uplink.mtu,
    };
    let mtu = spec.mtu.or(most).unwrap_or(1500);
    if let Some(most) = most.filter(|most| mtu > *most) {
        let of = if by_vxlan { "leaves its tunnels" } else { "takes" };
        let message = format!(
            "{} {of} {most} bytes at most; raise its MTU and the switch's first",
            uplink.name
        );
        return Err(fault("mtu", &mtu, message));
    }
    if mtu < LEAST_MTU {
        return Err(fault("mtu", &mtu, format!("is less than {LEAST_MTU} bytes")));
    }
    let stp = spec.stp == Some(true);
    let seed = hardware_below(links, uplink);
    let shared = NetworkScenario::VlanAwareBridge;
    // A port of a bridge cannot be another network's uplink: VLAN links on it would take the frames
    // of the bridge.
    let taken = others.iter().find(|other| {
        let either = spec.scenario == shared || other.scenario == shared;
        either
            && !by_vxlan
            && other.scenario != NetworkScenario::Vxlan
            && other.uplink.name == uplink.name
    });
    if let Some(other) = taken {
        let message =
            format!("is already the uplink of network {}, and a bridge has it alone", other.name);
        return Err(fault("uplink", &uplink.name, message));
    }
    let mut bridge = None;
    if spec.scenario == shared {
        let name = bridge_name(spec, place)?;
        if name == uplink.name {
            return Err(fault("bridge", &name, "is the uplink's own name".to_owned()));
        }
        let mac = bridge_mac(&seed, &name);
        bridge = Some(DesiredLink {
            alias: alias(&spec.name, None),
            mtu,
            master: None,
            kind: DesiredKind::Bridge { mac, vlan_aware: true, stp },
            name,
        });
    }
    let end = vxlan.map(|vxlan| format!(" {} {}", vxlan.port, vxlan.local_address));
    let prefix = spec.bridge_prefix();
    Ok(Network {
        name: &spec.name,
        scenario: spec.scenario,
        uplink,
        settings: format!(
            "{:?} {} {prefix} {mtu} {stp}{}",
            spec.scenario,
            uplink.name,
            end.unwrap_or_default()
        ),
        mtu,
        seed,
        peers: Arc::new(vxlan.iter().flat_map(|vxlan| vxlan.peers.iter().copied()).collect()),
        bridge,
        tenants: Vec::new(),
        allow_management: spec.uplink.as_ref().and_then(|uplink| uplink.allow_management)
            == Some(true),
        tunnels_port: vxlan.map(|vxlan| vxlan.port),
        allow_disruption: spec.allow_disruption == Some(true),
    })
}

/// Returns the link that has the local address of the tunnels, or a fault if this host cannot have
/// the tunnels.
fn tunnel_end<'a>(links: &'a Links, vxlan: &VxlanSpec, place: &str) -> Result<&'a Link, Fault> {
    let fault = |field: &str, value: &dyn std::fmt::Display, message: String| {
        Fault::new(format!("{place}.vxlan.{field}"), value, message)
    };
    let local = vxlan.local_address;
    let has = |link: &&Link, address: IpAddr| {
        let mut addresses = link.addresses.iter().filter_map(|text| text.split('/').next());
        addresses.any(|text| text.parse() == Ok(address))
    };
    let Some(end) = links.all.iter().find(|link| has(link, local)) else {
        return Err(fault("localAddress", &local, "no link of this host has it".to_owned()));
    };
    for (index, peer) in vxlan.peers.iter().enumerate() {
        let field = format!("peers[{index}]");
        if peer.is_ipv4() != local.is_ipv4() {
            let message = format!("is not of the same family as localAddress {local}");
            return Err(fault(&field, peer, message));
        }
        if *peer == local || links.all.iter().any(|link| has(&link, *peer)) {
            let message = "is this host; peers are the other hosts".to_owned();
            return Err(fault(&field, peer, message));
        }
    }
    let of_port =
        |link: &&Link| link.tunnel.as_ref().is_some_and(|tunnel| tunnel.port == Some(vxlan.port));
    let tunnels: Vec<&Link> = links.all.iter().filter(of_port).collect();
    if let Some(foreign) = tunnels.iter().find(|link| !link.is_ours()) {
        let message = format!(
            "is the port of VXLAN link {}, which Berth did not make; take another",
            foreign.name
        );
        return Err(fault("port", &vxlan.port, message));
    }
    let ours_is_up = tunnels.iter().any(|link| link.up == Some(true));
    if !ours_is_up && links.udp_ports.contains(&vxlan.port) {
        let message = "is in use by another program (ss -lunp shows it); take another".to_owned();
        return Err(fault("port", &vxlan.port, message));
    }
    Ok(end)
}

fn add_tenant<'a>(
    input: Input<'a>,
    desired: &mut DesiredNetworks<'a>,
    networks: &BTreeSet<&String>,
    spec: &'a TenantNetworkSpec,
    twice: bool,
) -> Result<(), Fault> {
    let place = format!("spec.tenantNetworks[{}]", spec.name);
    let fault = |field: &str, value: &dyn std::fmt::Display, message: String| {
        Fault::new(format!("{place}.{field}"), value, message)
    };
    let Some(network) = desired.networks.iter_mut().find(|network| network.name == spec.network)
    else {
        // The fault of the network was reported already.
        let reported = networks.contains(&spec.network)
            || desired.frozen.contains_key(&spec.network)
            || input.unclear.networks.contains(&spec.network);
        let message = "spec.networks has no network of this name".to_owned();
        if reported {
            return Ok(());
        }
        let fault = fault("network", &spec.network, message);
        // A misspelt network name must not remove the tenant's network.
        for (network, made) in &input.facts.ledger.networks {
            if made.tenants.values().any(|tenant| *tenant == spec.name) {
                desired.frozen.entry(network.clone()).or_insert_with(|| fault.to_string());
            }
        }
        return Err(fault);
    };
    if twice {
        return Err(fault("name", &spec.name, "is there twice".to_owned()));
    }
    if !is_label(&spec.name) {
        return Err(fault("name", &spec.name, NO_LABEL.to_owned()));
    }
    let by_vni = network.scenario == NetworkScenario::Vxlan;
    let (field, id) = match (by_vni, spec.vlan, spec.vni) {
        (true, None, Some(vni)) => ("vni", vni),
        (false, Some(vlan), None) => ("vlan", u32::from(u16::from(vlan))),
        (true, _, _) => {
            return Err(fault(
                "vni",
                &"",
                format!(
                    "network {} is of scenario Vxlan, which needs a vni and no vlan",
                    spec.network
                ),
            ));
        }
        (false, _, _) => {
            return Err(fault(
                "vlan",
                &"",
                format!("network {} needs a vlan and no vni", spec.network),
            ));
        }
    };
    if spec.vlan.is_some_and(|vlan| !vlan.for_tenants()) {
        let message =
            "is every switch's and bridge's default VLAN; no tenant may have it".to_owned();
        return Err(fault(field, &id, message));
    }
    if spec.vni.is_some_and(|vni| !(1..1 << 24).contains(&vni)) {
        return Err(fault(field, &id, "must be from 1 to 16777215".to_owned()));
    }
    if let Some(other) = network.tenants.iter().find(|tenant| tenant.id == id) {
        let message = format!("is already that of {} on network {}", other.name, network.name);
        return Err(fault(field, &id, message));
    }
    let links = match network.scenario {
        NetworkScenario::VlanAwareBridge | NetworkScenario::SriovVf => Vec::new(),
        NetworkScenario::BridgePerTenant | NetworkScenario::Vxlan => {
            own_links(input, network, spec, id).map_err(|(value, message)| {
                Fault::new(format!("spec.networks[{}].bridge", spec.network), value, message)
            })?
        }
    };
    network.tenants.push(Tenant { name: &spec.name, id, vlan: spec.vlan, links });
    Ok(())
}

/// Returns the links of a tenant: a bridge, and the VLAN link or the tunnel that connects it to
/// other hosts: `tn120` and `tn120-v`.
fn own_links(
    input: Input,
    network: &Network,
    tenant: &TenantNetworkSpec,
    id: u32,
) -> Result<Vec<DesiredLink>, (String, String)> {
    let spec = input.spec.networks.iter().find(|spec| spec.name == network.name);
    let Some(spec) = spec else { return Ok(Vec::new()) };
    let prefix = spec.bridge_prefix();
    let name = |end: &str| {
        let name = format!("{prefix}{id}{end}");
        name.parse::<LinkName>().map_err(|_| {
            let message = format!(
                "a link's name has at most 15 bytes, and `{name}` has {}; take a shorter one",
                name.len()
            );
            (prefix.to_owned(), message)
        })
    };
    let (bridge, mtu) = (name("")?, network.mtu);
    let alias = alias(network.name, Some(&tenant.name));
    let lower = match (tenant.vlan, spec.tunnels()) {
        (Some(vlan), _) => DesiredLink {
            name: name("-v")?,
            alias: alias.clone(),
            mtu,
            master: Some(bridge.clone()),
            kind: DesiredKind::Vlan { parent: network.uplink.name.clone(), id: vlan },
        },
        (None, Some(vxlan)) => DesiredLink {
            name: name("-x")?,
            alias: alias.clone(),
            mtu,
            master: Some(bridge.clone()),
            kind: DesiredKind::Vxlan {
                vni: id,
                port: vxlan.port,
                local: vxlan.local_address,
                peers: Arc::clone(&network.peers),
            },
        },
        (None, None) => return Ok(Vec::new()),
    };
    let mac = bridge_mac(&network.seed, &bridge);
    let stp = spec.stp == Some(true);
    let kind = DesiredKind::Bridge { mac, vlan_aware: false, stp };
    Ok(vec![DesiredLink { name: bridge, alias, mtu, master: None, kind }, lower])
}
