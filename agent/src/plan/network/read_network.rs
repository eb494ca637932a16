//! Reads one host network from the spec, and finds its faults on this host.

use berth_api::infra_node::{NetworkScenario, NetworkSpec};
use berth_api::mtu::{ETHERNET_MTU, MIN_MTU};

use super::desired_link::{DesiredKind, DesiredLink};
use super::desired_network::DesiredNetwork;
use super::names::{
    DNS_LABEL_RULE, bridge_mac, bridge_name, hardware_addresses, is_dns_label, link_alias,
};
use super::scenario::{Scenario, SharedBridge, TenantBridges};
use super::tunnels::{self, Tunnels};
use super::uplink;
use crate::manifest::Fault;
use crate::plan::field_path::FieldPath;
use berth_host_facts::links::{Link, Links};

/// Returns the network of the spec, without its tenants. `preceding_networks` are the networks that precede this
/// one in the spec.
///
/// # Errors
/// If the spec of the network has a fault on this host.
pub(super) fn read_network<'a>(
    links: &'a Links,
    spec: &'a NetworkSpec,
    path: &FieldPath,
    preceding_networks: &[DesiredNetwork],
) -> Result<DesiredNetwork<'a>, Fault> {
    if !is_dns_label(&spec.name) {
        return Err(path.child("name").fault(&spec.name, DNS_LABEL_RULE));
    }
    let uplink = find_uplink(links, spec, path)?;
    let mtu = network_mtu(links, spec, uplink, path)?;
    check_uplink_is_free(spec, uplink, path, preceding_networks)?;
    let stp = spec.stp == Some(true);
    let seed = hardware_addresses(links, uplink);
    let bridges = TenantBridges { prefix: spec.bridge_prefix(), stp };
    let scenario = match spec.scenario {
        NetworkScenario::VlanAwareBridge => {
            Scenario::VlanAwareBridge(shared_bridge(spec, uplink, &seed, mtu, path)?)
        }
        NetworkScenario::BridgePerTenant => Scenario::BridgePerTenant(bridges),
        NetworkScenario::Vxlan => {
            let tunnels = Tunnels::new(tunnels::vxlan_spec(spec, path)?);
            Scenario::Vxlan { bridges, tunnels }
        }
        NetworkScenario::SriovVf => Scenario::SriovVf,
    };
    let suffix = match &scenario {
        Scenario::Vxlan { tunnels, .. } => format!(" {} {}", tunnels.port, tunnels.local),
        _ => String::new(),
    };
    let prefix = bridges.prefix;
    Ok(DesiredNetwork {
        name: &spec.name,
        scenario,
        uplink,
        settings: format!("{:?} {} {prefix} {mtu} {stp}{suffix}", spec.scenario, uplink.name),
        mtu,
        mac_seed: seed,
        tenants: Vec::new(),
        allow_disruption: spec.allow_disruption == Some(true),
    })
}

/// Returns the link through which frames leave the host. For scenario Vxlan, this is the link with the tunnels'
/// local address.
fn find_uplink<'a>(
    links: &'a Links,
    spec: &NetworkSpec,
    path: &FieldPath,
) -> Result<&'a Link, Fault> {
    if spec.scenario == NetworkScenario::Vxlan {
        let vxlan = tunnels::vxlan_spec(spec, path)?;
        return tunnels::find_local_link(links, vxlan, &path.child("vxlan"));
    }
    let path = path.child("uplink");
    let Some(selector) = &spec.uplink else {
        let message = "is missing; specify the link through which tenants' frames leave the host";
        return Err(path.fault("", message));
    };
    let uplink = uplink::find_uplink(links, selector, &path)?;
    if spec.scenario == NetworkScenario::SriovVf && uplink.sriov.is_none() {
        let message =
            "has no virtual functions; enable SR-IOV in the firmware and set sriov_numvfs";
        return Err(path.fault(&uplink.name, message));
    }
    Ok(uplink)
}

/// Returns the MTU of the spec, or the largest MTU that the uplink allows.
fn network_mtu(
    links: &Links,
    spec: &NetworkSpec,
    uplink: &Link,
    path: &FieldPath,
) -> Result<u32, Fault> {
    let path = path.child("mtu");
    let (max_mtu, verb) = match spec.vxlan_settings() {
        Some(vxlan) => {
            (tunnels::max_tunnel_mtu(links, uplink, vxlan.local_address), "allows for its tunnels")
        }
        None => (uplink.mtu, "allows"),
    };
    let mtu = spec.mtu.or(max_mtu).unwrap_or(ETHERNET_MTU);
    if let Some(max_mtu) = max_mtu.filter(|most| mtu > *most) {
        let message = format!(
            "{} {verb} {max_mtu} bytes at most; increase the MTU of this link and the MTU of the switch first",
            uplink.name
        );
        return Err(path.fault(mtu, message));
    }
    if mtu < MIN_MTU {
        return Err(path.fault(mtu, format!("is less than the minimum of {MIN_MTU} bytes")));
    }
    Ok(mtu)
}

/// Checks that no preceding network has the same uplink if one of the two networks has a shared bridge. A shared
/// bridge makes the uplink its port, and VLAN links on that uplink would receive frames that are for the bridge.
/// Networks of scenario Vxlan are ignored, because they have no VLAN links on the uplink.
fn check_uplink_is_free(
    spec: &NetworkSpec,
    uplink: &Link,
    path: &FieldPath,
    preceding_networks: &[DesiredNetwork],
) -> Result<(), Fault> {
    let by_vxlan = spec.scenario == NetworkScenario::Vxlan;
    let is_shared = spec.scenario == NetworkScenario::VlanAwareBridge;
    let taken = preceding_networks.iter().find(|other| {
        (is_shared || other.scenario.shared_bridge().is_some())
            && !by_vxlan
            && !other.scenario.is_vxlan()
            && other.uplink.name == uplink.name
    });
    let Some(other) = taken else { return Ok(()) };
    let message = format!(
        "is already the uplink of network {}; only one network can use the uplink of a shared bridge",
        other.name
    );
    Err(path.child("uplink").fault(&uplink.name, message))
}

fn shared_bridge(
    spec: &NetworkSpec,
    uplink: &Link,
    seed: &str,
    mtu: u32,
    path: &FieldPath,
) -> Result<SharedBridge, Fault> {
    let path = path.child("bridge");
    let name = bridge_name(spec, &path)?;
    if name == uplink.name {
        return Err(path.fault(&name, "is the name of the uplink; set another name"));
    }
    let mac = bridge_mac(seed, &name);
    let stp = spec.stp == Some(true);
    let selector = spec.uplink.as_ref();
    Ok(SharedBridge {
        link: DesiredLink {
            alias: link_alias(&spec.name, None),
            mtu,
            master: None,
            kind: DesiredKind::Bridge { mac, vlan_aware: true, stp },
            name,
        },
        allow_management: selector.and_then(|uplink| uplink.allow_management) == Some(true),
    })
}
