//! Finds host networks whose frames leave the host on the same wire. A VLAN on a wire is one network, even if two host
//! networks have it.

use std::collections::BTreeMap;

use super::desired::DesiredNetworks;
use super::scenario::Scenario;
use crate::plan::field_path::FieldPath;
use crate::plan::input::Input;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Place where frames of an uplink leave the host: the lowest link, or the UDP port of the tunnels, and the VLAN
/// tags of the frames except the tag of a tenant.
type FramePath = (String, Vec<u16>);

impl DesiredNetworks<'_> {
    /// Refuses two networks on one wire whose tenants have the same VLAN or VNI. The tenant that the rollback ledger
    /// records keeps the id; the network of the other tenant is not changed.
    pub(super) fn freeze_networks_with_duplicate_ids(&mut self, input: Input) {
        let mut owners: BTreeMap<(FramePath, u32), (&str, &str)> = BTreeMap::new();
        let mut faults = Vec::new();
        for in_place in [true, false] {
            for network in &self.networks {
                let wire = match &network.scenario {
                    Scenario::Vxlan { tunnels, .. } => {
                        (format!("UDP port {}", tunnels.port), Vec::new())
                    }
                    _ => frame_path(&input.facts.links, network.uplink),
                };
                for tenant in &network.tenants {
                    let record = input.facts.ledger.networks.get(network.name);
                    let recorded_tenant =
                        record.and_then(|made| made.tenants.get(&tenant.segment_number()));
                    if recorded_tenant.is_some_and(|has| has == tenant.name) != in_place {
                        continue;
                    }
                    let key = (wire.clone(), tenant.segment_number());
                    let (owner, owner_network) =
                        *owners.entry(key).or_insert((tenant.name, network.name));
                    if owner_network != network.name {
                        let id = tenant.segment.field();
                        let message = format!(
                            "is already used by {owner} on network {owner_network}, and both networks leave the host through {}: they \
                             would be one network; give one of them another {id}, or its network another uplink",
                            wire.0
                        );
                        let path = FieldPath::spec("tenantNetworks").item(tenant.name).child(id);
                        faults.push((
                            network.name.to_owned(),
                            path.fault(tenant.segment_number(), message),
                        ));
                    }
                }
            }
        }
        for (network, fault) in faults {
            self.networks.retain(|other| other.name != network);
            self.freeze_network(&network, fault);
        }
    }
}

/// Returns the path of the frames of an uplink. A VLAN link adds its tag to the frames of the link below; frames of a
/// virtual function leave by its physical function.
fn frame_path(links: &Links, uplink: &Link) -> FramePath {
    let (mut link, mut tags) = (uplink, Vec::new());
    // In a kernel no link is stacked on itself, but a damaged capture may have such a link.
    for _ in 0..links.all.len() {
        let below = match link.kind {
            LinkKind::Vlan => link.parent.as_ref(),
            LinkKind::VirtualFunction => link.physical_function.as_ref(),
            _ => None,
        };
        let Some(below) = below.and_then(|name| links.find_by_name(name)) else { break };
        if link.kind == LinkKind::Vlan {
            tags.extend(link.vlan);
        }
        link = below;
    }
    (link.name.to_string(), tags)
}
