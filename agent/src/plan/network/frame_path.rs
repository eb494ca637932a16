//! Finds host networks whose frames leave the host through the same link, or through tunnels with the same UDP
//! port. A VLAN or VNI there is one layer 2 segment, even if two host networks use it.

use std::collections::BTreeMap;

use super::desired::DesiredNetworks;
use super::scenario::Scenario;
use crate::plan::field_path::FieldPath;
use crate::plan::input::Input;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Path of an uplink's frames out of the host: the name of the lowest link, or the UDP port of the tunnels; and the
/// VLAN tags that the frames have in addition to the tag of the tenant.
type FramePath = (String, Vec<u16>);

impl DesiredNetworks<'_> {
    /// Refuses two networks with the same [`FramePath`] if a tenant of each has the same VLAN or VNI. The tenant
    /// that the rollback ledger records keeps its VLAN or VNI; the network of the other tenant is frozen: its links
    /// are not changed.
    pub(super) fn freeze_networks_with_duplicate_ids(&mut self, input: Input) {
        let mut owners: BTreeMap<(FramePath, u32), (&str, &str)> = BTreeMap::new();
        let mut faults = Vec::new();
        for in_place in [true, false] {
            for network in &self.networks {
                let lower_path = match &network.scenario {
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
                    let key = (lower_path.clone(), tenant.segment_number());
                    let (owner, owner_network) =
                        *owners.entry(key).or_insert((tenant.name, network.name));
                    if owner_network != network.name {
                        let id = tenant.segment.field();
                        let message = format!(
                            "is already used by {owner} on network {owner_network}, and both networks leave the host through {}: they \
                             would be one network; give one of them another {id}, or its network another uplink",
                            lower_path.0
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

/// Returns the path of the frames that are sent through an uplink. A VLAN link adds its tag and sends the frames
/// through its parent; a virtual function sends frames through its physical function.
fn frame_path(links: &Links, uplink: &Link) -> FramePath {
    let (mut link, mut tags) = (uplink, Vec::new());
    // The kernel never has a cycle of stacked links, but a damaged capture may. The number of links limits the
    // loop.
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
