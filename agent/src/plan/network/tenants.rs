//! Each tenant's layer 2: a VLAN on the shared bridge, or links of its own.

use std::collections::BTreeMap;

use berth_api::infra_node::NetworkScenario;
use berth_api::{LinkName, VlanSet};

use super::diff;
use super::names::owner;
use super::planner::Planner;
use super::wanted::{Tenant, WantedKind};
use super::{LinkOp, Stage};
use crate::observe::links::{Link, PortVlans};

impl Planner<'_> {
    /// The uplink's VLANs on the shared bridge.
    pub(super) fn vlans(&mut self, bridge: &LinkName) {
        let uplink = self.network.uplink;
        let joined = uplink.master.as_ref() == Some(bridge);
        let now = if joined { uplink.vlans.clone() } else { None }.unwrap_or_default();
        // With a tag and without being the port's own VLAN: else tenants' frames would leave untagged.
        let sound = |now: &PortVlans, id| {
            now.all.contains(id) && !now.untagged.contains(id) && now.pvid != Some(id)
        };
        let others: Vec<&Link> =
            self.links.ports(bridge).filter(|port| port.name != uplink.name).collect();
        let mut wanted = VlanSet::default();
        let (mut new, mut again) = (Vec::new(), Vec::new());
        for tenant in &self.network.tenants {
            let Some(id) = tenant.vlan else { continue };
            if let Some(thief) = self.thieves.get(&id.into()).copied() {
                // What is carried stays so, for when the thief has gone.
                if now.all.contains(id) {
                    wanted.insert(id);
                }
                // One of ours, of another scenario or tenant, goes when nobody uses it any more.
                if thief.is_ours() {
                    self.waits.insert(tenant.id, format!("waits until {} is removed", thief.name));
                } else {
                    self.failed.insert(tenant.id, stolen(&thief.name, id.into()));
                }
                continue;
            }
            wanted.insert(id);
            let had = self.made().and_then(|made| made.tenants.get(&tenant.id));
            if let Some(other) = had.filter(|other| *other != tenant.name) {
                let users: Vec<&str> = others
                    .iter()
                    .filter(|port| port.vlans.as_ref().is_none_or(|vlans| vlans.all.contains(id)))
                    .map(|port| port.name.as_str())
                    .collect();
                if !users.is_empty() {
                    let why = format!(
                        "VLAN {id} still is that of {other}: {}",
                        super::removal::in_use(&users)
                    );
                    self.failed.insert(tenant.id, why);
                    continue;
                }
            }
            if !sound(&now, id) {
                let list = if self.had(tenant.id, tenant.name) { &mut again } else { &mut new };
                list.push(tenant);
                self.pending.insert(tenant.id);
            }
        }
        let stolen = self.failed.clone();
        for (id, why) in stolen {
            let what = format!("add VLAN {id} to {} on {bridge}", uplink.name);
            self.push_blocked(what, "absent", "carried", why);
        }
        for (tenants, drift) in [(new, false), (again, true)] {
            self.add_vlans(bridge, &tenants, drift);
        }
        let extra = now.all.difference(&wanted);
        if !extra.is_empty() {
            self.remove_vlans(bridge, &extra);
        }
    }

    fn add_vlans(&mut self, bridge: &LinkName, tenants: &[&Tenant], drift: bool) {
        let vlans: VlanSet = tenants.iter().filter_map(|tenant| tenant.vlan).collect();
        if vlans.is_empty() {
            return;
        }
        let port = self.network.uplink.name.clone();
        let whose = whose(tenants);
        let what = format!("add {} to {port} on {bridge}{whose}", counted(&vlans));
        let ops = vec![LinkOp::AddVlans { port, vlans }];
        self.push(Stage::Tenants, what, "absent", "carried", ops);
        self.makes(tenants);
        if drift {
            self.is_drift();
        }
    }

    /// VLANs nobody asks for any more. Those that a VM's port is in stay.
    fn remove_vlans(&mut self, bridge: &LinkName, extra: &VlanSet) {
        let uplink = &self.network.uplink.name;
        let mut users: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
        for port in self.links.ports(bridge).filter(|port| port.name != *uplink) {
            // A port of which nobody knows is in all of them.
            let used = port
                .vlans
                .as_ref()
                .map_or_else(|| extra.clone(), |vlans| vlans.all.intersection(extra));
            for id in used.iter() {
                users.entry(id.into()).or_default().push(port.name.as_str());
            }
        }
        let used: VlanSet = extra.iter().filter(|id| users.contains_key(&u16::from(*id))).collect();
        let free = extra.difference(&used);
        let made = self.made().map(|made| made.tenants.clone()).unwrap_or_default();
        if !free.is_empty() {
            let what = format!("remove {} from {uplink} on {bridge}", counted(&free));
            let ops = vec![LinkOp::RemoveVlans {
                port: uplink.clone(),
                vlans: free.clone(),
                itself: false,
            }];
            self.push(Stage::Tenants, what, "carried", "absent", ops);
            let stranger = free.iter().all(|id| !made.contains_key(&u32::from(u16::from(id))));
            if let Some(work) = self.last_work() {
                work.gone = free.iter().map(|id| u32::from(u16::from(id))).collect();
            }
            if stranger && self.was_made() {
                self.is_drift();
            }
        }
        for (id, ports) in users {
            let what = format!("remove VLAN {id} from {uplink} on {bridge}");
            self.push_blocked(what, "carried", "absent", super::removal::in_use(&ports));
        }
    }

    /// Every tenant's own links.
    pub(super) fn tenants(&mut self) {
        for tenant in &self.network.tenants {
            if let Err(why) = self.tenant(tenant) {
                let what = self.sentence(tenant);
                self.push_blocked(what, "absent", "in place", why.clone());
                self.failed.insert(tenant.id, why);
            }
        }
    }

    /// One tenant's links.
    ///
    /// # Errors
    /// Why they cannot be.
    fn tenant(&mut self, tenant: &Tenant) -> Result<(), String> {
        let mut ops = Vec::new();
        let mut otherwise = Vec::new();
        let mut absent = 0;
        for wanted in &tenant.links {
            let Some(link) = self.links.named(&wanted.name) else {
                if let WantedKind::Vlan { id, .. } = &wanted.kind
                    && let Some(thief) = self.thieves.get(&(*id).into()).copied()
                {
                    if thief.is_ours() {
                        let why = format!("waits until {} is removed", thief.name);
                        self.waits.insert(tenant.id, why);
                        return Ok(());
                    }
                    return Err(stolen(&thief.name, (*id).into()));
                }
                ops.extend(diff::make(wanted));
                absent += 1;
                continue;
            };
            if let Some(why) = diff::not_ours(link, wanted) {
                return Err(why);
            }
            let differences = diff::differences(wanted, link);
            let another = wanted.is_another_link_than(link);
            if differences.is_empty() && !another {
                continue;
            }
            self.is_free_for(tenant, link)?;
            ops.extend(diff::mend(wanted, link));
            let words = diff::words(&differences).unwrap_or_else(|| "made anew".to_owned());
            otherwise.push(format!("{}: {words}", wanted.name));
        }
        if ops.is_empty() {
            return Ok(());
        }
        let had = self.had(tenant.id, tenant.name);
        let what = if absent == tenant.links.len() {
            self.sentence(tenant)
        } else if otherwise.is_empty() {
            format!("{}, where part of it is missing", self.sentence(tenant))
        } else {
            format!("set {} for {}", otherwise.join("; "), tenant.name)
        };
        let was = if absent > 0 { "absent" } else { "otherwise" };
        self.push(Stage::Tenants, what, was, "in place", ops);
        self.makes(&[tenant]);
        self.pending.insert(tenant.id);
        if had {
            self.is_drift();
        }
        Ok(())
    }

    /// A bridge of another tenant is not taken over while VMs are on it.
    fn is_free_for(&self, tenant: &Tenant, link: &Link) -> Result<(), String> {
        let Some((_, Some(other))) = owner(link).filter(|(_, whose)| *whose != Some(tenant.name))
        else {
            return Ok(());
        };
        let ports: Vec<&str> = self
            .links
            .ports(&link.name)
            .filter(|port| !port.is_ours())
            .map(|port| port.name.as_str())
            .collect();
        if ports.is_empty() {
            return Ok(());
        }
        Err(format!("{} is still that of {other}: {}", link.name, super::removal::in_use(&ports)))
    }

    fn sentence(&self, tenant: &Tenant) -> String {
        let bridge = tenant.links.first().map(|link| link.name.to_string()).unwrap_or_default();
        let uplink = &self.network.uplink.name;
        match self.network.scenario {
            NetworkScenario::Vxlan => {
                format!("add VNI {} on bridge {bridge} for {}", tenant.id, tenant.name)
            }
            _ => {
                format!("add VLAN {} of {uplink} on bridge {bridge} for {}", tenant.id, tenant.name)
            }
        }
    }

    /// Says that the last change puts these tenants in place.
    fn makes(&mut self, tenants: &[&Tenant]) {
        if let Some(work) = self.last_work() {
            work.made = tenants.iter().map(|tenant| (tenant.id, tenant.name.to_owned())).collect();
        }
    }
}

fn stolen(thief: &LinkName, id: u16) -> String {
    format!(
        "{thief}, which Berth did not make, is VLAN {id} of the same uplink and would get its frames; remove it (ip \
         link delete {thief}), or give the tenant another VLAN"
    )
}

/// `VLAN 120`, or `VLANs 120-121`.
pub(super) fn counted(vlans: &VlanSet) -> String {
    format!("VLAN{} {vlans}", if vlans.len() == 1 { "" } else { "s" })
}

/// ` for cluster-abc`; nothing where there are many.
fn whose(tenants: &[&Tenant]) -> String {
    match tenants {
        [] => String::new(),
        [one] => format!(" for {}", one.name),
        [one, two] => format!(" for {} and {}", one.name, two.name),
        many => format!(" for {} tenants", many.len()),
    }
}
