//! Reads one tenant of a host network from the spec, and finds its faults on this host.

use std::sync::Arc;

use berth_api::LinkName;
use berth_api::infra_node::TenantNetworkSpec;

use super::desired_link::{DesiredKind, DesiredLink};
use super::desired_network::{DesiredNetwork, DesiredTenant, SegmentId};
use super::names::{DNS_LABEL_RULE, bridge_mac, is_dns_label, link_alias};
use super::scenario::{Scenario, TenantBridges};
use crate::manifest::Fault;
use crate::plan::field_path::FieldPath;

/// Returns the tenant of the spec on its host network.
///
/// # Errors
/// If the spec of the tenant has a fault.
pub(super) fn read_tenant<'a>(
    network: &DesiredNetwork,
    spec: &'a TenantNetworkSpec,
    path: &FieldPath,
) -> Result<DesiredTenant<'a>, Fault> {
    if !is_dns_label(&spec.name) {
        return Err(path.child("name").fault(&spec.name, DNS_LABEL_RULE));
    }
    let segment = read_segment(network, spec, path)?;
    let (path, id) = (path.child(segment.field()), segment.number());
    if let Some(other) = network.tenants.iter().find(|tenant| tenant.segment_number() == id) {
        let message = format!("is already used by {} on network {}", other.name, network.name);
        return Err(path.fault(id, message));
    }
    Ok(DesiredTenant { name: &spec.name, segment, links: tenant_links(network, spec, segment)? })
}

/// Returns the VLAN id or VNI of a tenant, depending on the scenario of its network.
fn read_segment(
    network: &DesiredNetwork,
    spec: &TenantNetworkSpec,
    path: &FieldPath,
) -> Result<SegmentId, Fault> {
    let segment = match (network.scenario.is_vxlan(), spec.vlan, spec.vni) {
        (true, None, Some(vni)) => SegmentId::Vni(vni),
        (false, Some(vlan), None) => SegmentId::Vlan(vlan),
        (true, _, _) => {
            let message = format!(
                "network {} has scenario Vxlan, which requires vni instead of vlan",
                spec.network
            );
            return Err(path.child("vni").fault("", message));
        }
        (false, _, _) => {
            let message = format!("network {} requires vlan instead of vni", spec.network);
            return Err(path.child("vlan").fault("", message));
        }
    };
    let fault = |message: &str| Err(path.child(segment.field()).fault(segment.number(), message));
    match segment {
        SegmentId::Vlan(vlan) if !vlan.is_allowed_for_tenants() => {
            fault("is the default VLAN of switches and bridges; use another VLAN")
        }
        SegmentId::Vni(vni) if !(1..1 << 24).contains(&vni) => fault("must be from 1 to 16777215"),
        SegmentId::Vlan(_) | SegmentId::Vni(_) => Ok(segment),
    }
}

/// Returns the links that only this tenant uses: a bridge, and the VLAN link or the VXLAN tunnel that connects the
/// bridge to other hosts, such as `tn120` and `tn120-v`.
fn tenant_links(
    network: &DesiredNetwork,
    tenant: &TenantNetworkSpec,
    segment: SegmentId,
) -> Result<Vec<DesiredLink>, Fault> {
    let (bridges, suffix, kind) = match (&network.scenario, segment) {
        (Scenario::BridgePerTenant(bridges), SegmentId::Vlan(id)) => {
            let parent = network.uplink.name.clone();
            (bridges, "-v", DesiredKind::Vlan { parent, id })
        }
        (Scenario::Vxlan { bridges, tunnels }, SegmentId::Vni(vni)) => {
            let kind = DesiredKind::Vxlan {
                vni,
                port: tunnels.port,
                local: tunnels.local,
                peers: Arc::clone(&tunnels.peers),
            };
            (bridges, "-x", kind)
        }
        _ => return Ok(Vec::new()),
    };
    let name = |end: &str| link_name(network, *bridges, segment, end);
    let bridge = name("")?;
    let alias = link_alias(network.name, Some(&tenant.name));
    let lower = DesiredLink {
        name: name(suffix)?,
        alias: alias.clone(),
        mtu: network.mtu,
        master: Some(bridge.clone()),
        kind,
    };
    let mac = bridge_mac(&network.mac_seed, &bridge);
    let kind = DesiredKind::Bridge { mac, vlan_aware: false, stp: bridges.stp };
    Ok(vec![DesiredLink { name: bridge, alias, mtu: network.mtu, master: None, kind }, lower])
}

/// Returns the name of a tenant's link, or a fault if the name is too long.
fn link_name(
    network: &DesiredNetwork,
    bridges: TenantBridges,
    segment: SegmentId,
    suffix: &str,
) -> Result<LinkName, Fault> {
    let name = format!("{}{}{suffix}", bridges.prefix, segment.number());
    name.parse().map_err(|_| {
        let message = format!(
            "a link's name has at most 15 bytes, and `{name}` has {}; set a shorter name",
            name.len()
        );
        let path = FieldPath::spec("networks").item(network.name).child("bridge");
        path.fault(bridges.prefix, message)
    })
}
