//! Host networks of one host that share a wire: a VLAN on it is one network, whatever names it has.

use std::collections::BTreeMap;

use super::desired::DesiredNetworks;
use crate::manifest::Fault;
use crate::plan::input::Input;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Where frames of an uplink leave the host: the lowest link, or the tunnels' port, and the tags that they have there
/// besides a tenant's.
type Wire = (String, Vec<u16>);

impl DesiredNetworks<'_> {
    /// Refuses two networks on one wire whose tenants have one VLAN, or one VNI. The tenant that has it keeps it; the network
    /// of the other one stays as it is.
    pub(super) fn refuse_shared_ids(&mut self, input: Input) {
        let mut owners: BTreeMap<(Wire, u32), (&str, &str)> = BTreeMap::new();
        let mut faults = Vec::new();
        for in_place in [true, false] {
            for network in &self.networks {
                let wire = match network.tunnels_port {
                    Some(port) => (format!("UDP port {port}"), Vec::new()),
                    None => wire(&input.facts.links, network.uplink),
                };
                for tenant in &network.tenants {
                    let made = input.facts.ledger.networks.get(network.name);
                    let has = made.and_then(|made| made.tenants.get(&tenant.id));
                    if has.is_some_and(|has| has == tenant.name) != in_place {
                        continue;
                    }
                    let place = (wire.clone(), tenant.id);
                    let (owner, of) = *owners.entry(place).or_insert((tenant.name, network.name));
                    if of != network.name {
                        let id = if tenant.vlan.is_some() { "vlan" } else { "vni" };
                        let message = format!(
                            "is already that of {owner} on network {of}, and both networks leave the host by {}: they \
                             would be one network; give one of them another {id}, or its network another way out",
                            wire.0
                        );
                        let field = format!("spec.tenantNetworks[{}].{id}", tenant.name);
                        let fault = Fault::new(field, tenant.id, message);
                        faults.push((network.name.to_owned(), fault));
                    }
                }
            }
        }
        for (network, fault) in faults {
            self.networks.retain(|other| other.name != network);
            self.refuse_by(&network, fault);
        }
    }
}

/// A VLAN link adds its tag to the frames of the link below; a port of a bond leaves by the bond.
fn wire(links: &Links, uplink: &Link) -> Wire {
    let (mut link, mut tags) = (uplink, Vec::new());
    // A link is never stacked on itself in a kernel, but may be in a damaged capture.
    for _ in 0..links.all.len() {
        let below = match link.kind {
            LinkKind::Vlan => link.parent.as_ref(),
            LinkKind::VirtualFunction => link.physical_function.as_ref(),
            _ => None,
        };
        let Some(below) = below.and_then(|name| links.named(name)) else { break };
        if link.kind == LinkKind::Vlan {
            tags.extend(link.vlan);
        }
        link = below;
    }
    (link.name.to_string(), tags)
}
