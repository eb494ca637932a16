//! VXLAN tunnels of a host network: their endpoint on this host, and the faults in their spec.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::infra_node::{NetworkSpec, VxlanSpec};
use berth_api::mtu::{ETHERNET_MTU, vxlan_mtu};

use crate::manifest::Fault;
use crate::plan::field_path::FieldPath;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Tunnels of a host network.
#[derive(Debug, Clone)]
pub(super) struct Tunnels {
    /// UDP port of the tunnels.
    pub(super) port: u16,
    /// IP address of this host that is the local endpoint of the tunnels.
    pub(super) local: IpAddr,
    /// IP addresses of the other hosts' endpoints.
    pub(super) peers: Arc<BTreeSet<IpAddr>>,
}

impl Tunnels {
    pub(super) fn new(spec: &VxlanSpec) -> Self {
        Self {
            port: spec.port,
            local: spec.local_address,
            peers: Arc::new(spec.peers.iter().copied().collect()),
        }
    }
}

/// Returns the specification of the tunnels of a network of scenario Vxlan.
///
/// # Errors
/// If the network has no field `vxlan`.
pub(super) fn vxlan_spec<'a>(
    spec: &'a NetworkSpec,
    path: &FieldPath,
) -> Result<&'a VxlanSpec, Fault> {
    spec.vxlan_settings().ok_or_else(|| {
        let message = "is missing; scenario Vxlan needs localAddress and peers";
        path.child("vxlan").fault("", message)
    })
}

/// Returns the link that has the local address of the tunnels.
///
/// # Errors
/// If no link has the address, or if the spec of a peer or of the UDP port has a fault on this host.
pub(super) fn find_local_link<'a>(
    links: &'a Links,
    vxlan: &VxlanSpec,
    path: &FieldPath,
) -> Result<&'a Link, Fault> {
    let local = vxlan.local_address;
    let Some(endpoint) = links.all.iter().find(|link| has_address(link, local)) else {
        return Err(path.child("localAddress").fault(
            local,
            "is not an address of a link of this host; set an address of this host",
        ));
    };
    check_peers(links, vxlan, path)?;
    check_port(links, vxlan, &path.child("port"))?;
    Ok(endpoint)
}

fn has_address(link: &Link, address: IpAddr) -> bool {
    let mut addresses = link.addresses.iter().filter_map(|text| text.split('/').next());
    addresses.any(|text| text.parse() == Ok(address))
}

fn check_peers(links: &Links, vxlan: &VxlanSpec, path: &FieldPath) -> Result<(), Fault> {
    let local = vxlan.local_address;
    for (index, peer) in vxlan.peers.iter().enumerate() {
        let path = path.child("peers").item(index);
        if peer.is_ipv4() != local.is_ipv4() {
            let message = format!("is not of the same address family as localAddress {local}");
            return Err(path.fault(peer, message));
        }
        if *peer == local || links.all.iter().any(|link| has_address(link, *peer)) {
            return Err(path.fault(peer, "is an address of this host; peers are the other hosts"));
        }
    }
    Ok(())
}

/// Checks that the UDP port is free for the tunnels.
fn check_port(links: &Links, vxlan: &VxlanSpec, path: &FieldPath) -> Result<(), Fault> {
    let uses_port =
        |link: &&Link| link.tunnel.as_ref().is_some_and(|tunnel| tunnel.port == Some(vxlan.port));
    let tunnels: Vec<&Link> = links.all.iter().filter(uses_port).collect();
    if let Some(foreign) = tunnels.iter().find(|link| !link.is_created_by_berth()) {
        let message = format!(
            "is the port of VXLAN link {}, which Berth did not create; use another port",
            foreign.name
        );
        return Err(path.fault(vxlan.port, message));
    }
    let ours_is_up = tunnels.iter().any(|link| link.is_up == Some(true));
    if !ours_is_up && links.udp_ports.contains(&vxlan.port) {
        let message = "is in use by another program (see ss -lunp); use another port";
        return Err(path.fault(vxlan.port, message));
    }
    Ok(())
}

/// Returns the MTU of the largest frames that fit into the tunnels; `None` if the MTU of the link that carries the
/// tunnels is unknown.
pub(super) fn max_tunnel_mtu(links: &Links, endpoint: &Link, local: IpAddr) -> Option<u32> {
    let mtu = if endpoint.kind == LinkKind::Loopback {
        // If the local address is on the loopback link, routing selects the link of each packet, so the smallest
        // MTU of all uplinks that are up applies.
        let up = links.uplinks().filter(|link| link.is_up == Some(true));
        up.filter_map(|link| link.mtu).min().or(Some(ETHERNET_MTU))
    } else {
        endpoint.mtu
    };
    mtu.map(|mtu| vxlan_mtu(mtu, local))
}
