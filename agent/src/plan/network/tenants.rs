//! Plans the layer 2 segment of each tenant: a VLAN on the shared bridge, or separate links.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{LinkName, VlanId, VlanSet};

use super::desired_link::{DesiredKind, DesiredLink};
use super::desired_network::{SegmentId, Tenant};
use super::id::{LinkChangeId, Segment};
use super::names::owner;
use super::op::LinkOp;
use super::planner::Planner;
use super::refusal::TenantError;
use super::work::Stage;
use super::{diff, removal, users};
use berth_host_facts::links::{Link, PortVlans};

impl Planner<'_> {
    /// Plans the VLANs of the uplink on the shared bridge. `taken_over` are the VLANs that a handover adds to the
    /// uplink.
    pub(super) fn vlans(&mut self, bridge: &LinkName, taken_over: &VlanSet) {
        let uplink = self.network.uplink;
        let joined = uplink.master.as_ref() == Some(bridge);
        let mut now = if joined { uplink.vlans.clone() } else { None }.unwrap_or_default();
        now.all.extend(taken_over.iter());
        // The VLAN must be tagged, and must not be the port's own VLAN (PVID): otherwise tenants'
        // frames would leave untagged.
        let sound = |now: &PortVlans, id| {
            now.all.contains(id) && !now.untagged.contains(id) && now.pvid != Some(id)
        };
        let mut desired = VlanSet::default();
        let (mut new, mut again) = (Vec::new(), Vec::new());
        for tenant in &self.network.tenants {
            let Some(id) = tenant.segment.vlan() else { continue };
            if let Some(competitor) = self.competing_links.get(&id.into()).copied() {
                // A VLAN that the uplink carries stays, so that it works again when the competing_links
                // link is removed.
                if now.all.contains(id) {
                    desired.insert(id);
                }
                // A link that Berth made for another scenario or tenant is removed when it is no longer
                // in use.
                if competitor.is_ours() {
                    self.waits
                        .insert(tenant.id(), format!("waits until {} is removed", competitor.name));
                } else {
                    let refused = TenantError::ConflictingVlanLink {
                        link: competitor.name.clone(),
                        id: tenant.id(),
                    };
                    self.failed.insert(tenant.id(), refused.to_string());
                }
                continue;
            }
            desired.insert(id);
            let had = self.ledger_record().and_then(|made| made.tenants.get(&tenant.id()));
            if let Some(other) = had.filter(|other| *other != tenant.name) {
                let only = VlanSet::from_iter([id]);
                let users = self.users_of_vlans(bridge, &only).into_iter();
                let users: BTreeSet<String> = users.map(|(name, _)| name).collect();
                if !users.is_empty() {
                    let why =
                        format!("VLAN {id} still belongs to {other}: {}", removal::in_use(&users));
                    self.failed.insert(tenant.id(), why);
                    continue;
                }
            }
            if !sound(&now, id) {
                let list =
                    if self.had_tenant(tenant.id(), tenant.name) { &mut again } else { &mut new };
                list.push(tenant);
                self.pending.insert(tenant.id());
            }
        }
        let failed = self.failed.clone();
        for (id, why) in failed {
            let Some(vlan) = u16::try_from(id).ok().and_then(|id| VlanId::try_from(id).ok()) else {
                continue;
            };
            let id = LinkChangeId::AddVlans {
                vlans: VlanSet::from_iter([vlan]),
                port: uplink.name.clone(),
                bridge: bridge.clone(),
                tenants: Vec::new(),
            };
            self.add_blocked_change(id, "absent", "carried", why);
        }
        for (tenants, drift) in [(new, false), (again, true)] {
            self.add_vlans(bridge, &tenants, drift);
        }
        let extra = now.all.difference(&desired);
        if !extra.is_empty() {
            self.remove_vlans(bridge, &extra);
        }
    }

    fn add_vlans(&mut self, bridge: &LinkName, tenants: &[&Tenant], drift: bool) {
        let vlans: VlanSet = tenants.iter().filter_map(|tenant| tenant.segment.vlan()).collect();
        if vlans.is_empty() {
            return;
        }
        let port = self.network.uplink.name.clone();
        let id = LinkChangeId::AddVlans {
            vlans: vlans.clone(),
            port: port.clone(),
            bridge: bridge.clone(),
            tenants: tenants.iter().map(|tenant| tenant.name.to_owned()).collect(),
        };
        let ops = vec![LinkOp::AddVlans { port, vlans }];
        self.push(Stage::Tenants, id, "absent", "carried", ops);
        self.record_added_tenants(tenants);
        if drift {
            self.is_drift();
        }
    }

    /// Returns the links of the bridge, except its uplinks, that are in some of these VLANs, each
    /// with its VLANs.
    fn users_of_vlans(&self, bridge: &LinkName, vlans: &VlanSet) -> Vec<(String, VlanSet)> {
        let Some(bridge) = self.links.named(bridge) else { return Vec::new() };
        let mut users = users::links_on_vlans(self.links, bridge, vlans);
        let ports = self.links.ports(&bridge.name);
        let uplinks: Vec<&str> = ports
            .filter(|port| {
                port.name == self.network.uplink.name
                    || removal::is_uplink(self.ledger_record(), port)
            })
            .map(|port| port.name.as_str())
            .collect();
        users.retain(|(name, _)| !uplinks.contains(&name.as_str()));
        users
    }

    /// Plans the removal of VLANs that are not in the spec. The removal of a VLAN that another port uses is blocked.
    fn remove_vlans(&mut self, bridge: &LinkName, extra: &VlanSet) {
        let uplink = &self.network.uplink.name;
        let mut users: BTreeMap<VlanId, BTreeSet<String>> = BTreeMap::new();
        for (name, vlans) in self.users_of_vlans(bridge, extra) {
            for id in vlans.iter() {
                users.entry(id).or_default().insert(name.clone());
            }
        }
        let used: VlanSet = extra.iter().filter(|id| users.contains_key(id)).collect();
        let free = extra.difference(&used);
        let made = self.ledger_record().map(|made| made.tenants.clone()).unwrap_or_default();
        if !free.is_empty() {
            let id = LinkChangeId::RemoveVlans {
                vlans: free.clone(),
                port: uplink.clone(),
                bridge: bridge.clone(),
            };
            let ops = vec![LinkOp::RemoveVlans {
                port: uplink.clone(),
                vlans: free.clone(),
                itself: false,
            }];
            self.push(Stage::Tenants, id, "carried", "absent", ops);
            let stranger = free.iter().all(|id| !made.contains_key(&u32::from(u16::from(id))));
            if let Some(work) = self.last_work() {
                work.gone = free.iter().map(|id| u32::from(u16::from(id))).collect();
            }
            if stranger && self.matches_spec() {
                self.is_drift();
            }
        }
        for (id, ports) in users {
            let id = LinkChangeId::RemoveVlans {
                vlans: VlanSet::from_iter([id]),
                port: uplink.clone(),
                bridge: bridge.clone(),
            };
            self.add_blocked_change(id, "carried", "absent", removal::in_use(&ports));
        }
    }

    /// Plans the separate links of every tenant.
    pub(super) fn tenants(&mut self) {
        for tenant in &self.network.tenants {
            if let Err(why) = self.tenant(tenant) {
                let id = self.add_tenant(tenant, false);
                self.add_blocked_change(id, "absent", "in place", why.to_string());
                self.failed.insert(tenant.id(), why.to_string());
            }
        }
    }

    /// Plans the links of one tenant.
    ///
    /// # Errors
    /// If the links cannot be created.
    fn tenant(&mut self, tenant: &Tenant) -> Result<(), TenantError> {
        // A VLAN link or tunnel of another scenario that is still a port of the bridge is removed first, because a
        // second uplink would connect two networks.
        let bridge = tenant.links.first().map(|bridge| &bridge.name);
        let mut ports = bridge.into_iter().flat_map(|bridge| self.links.ports(bridge));
        let kept = |port: &&Link| tenant.links.iter().any(|link| link.name == port.name);
        if let Some(port) = ports.find(|port| port.is_ours() && !kept(port)) {
            self.waits.insert(tenant.id(), format!("waits until {} is removed", port.name));
            return Ok(());
        }
        let (mut ops, mut undo) = (Vec::new(), Vec::new());
        let mut otherwise = Vec::new();
        let mut absent = 0;
        for desired in &tenant.links {
            let link = self.links.named(&desired.name);
            let another = link.is_some_and(|link| desired.must_be_recreated(link));
            if (link.is_none() || another)
                && let Some(conflicting_link) = self.conflicting_link(desired)
            {
                if conflicting_link.is_ours() {
                    self.waits.insert(
                        tenant.id(),
                        format!("waits until {} is removed", conflicting_link.name),
                    );
                    return Ok(());
                }
                return Err(TenantError::ConflictingVlanLink {
                    link: conflicting_link.name.clone(),
                    id: tenant.id(),
                });
            }
            let Some(link) = link else {
                ops.extend(diff::create_link_ops(desired));
                absent += 1;
                continue;
            };
            if let Some(why) = diff::unusable_link(link, desired) {
                return Err(why.into());
            }
            let differences = diff::differences(desired, link);
            if differences.is_empty() && !another {
                continue;
            }
            self.is_free_for(tenant, link)?;
            ops.extend(diff::repair(desired, link));
            if another {
                undo.extend(diff::restore(link));
            }
            otherwise.push((desired.name.clone(), differences));
        }
        if ops.is_empty() {
            return Ok(());
        }
        let had = self.had_tenant(tenant.id(), tenant.name);
        let users: BTreeSet<String> =
            ops.iter().flat_map(|op| users::links_losing_frames(op, self.links, &ops)).collect();
        let again = ops.iter().filter_map(|op| match op {
            LinkOp::Remove(name) => Some(name.as_str()),
            _ => None,
        });
        let loses = format!("{} is recreated", again.collect::<Vec<_>>().join(" and "));
        // A tenant that was in place with the same spec is repaired although its VMs lose the network meanwhile,
        // because they are on the wrong network.
        if !had && let Some(why) = self.disruption_refusal(&users, &loses) {
            return Err(why.into());
        }
        let id = if absent == tenant.links.len() {
            self.add_tenant(tenant, false)
        } else if otherwise.is_empty() {
            self.add_tenant(tenant, true)
        } else {
            LinkChangeId::SetTenant { tenant: tenant.name.to_owned(), links: otherwise }
        };
        let was = if absent > 0 { "absent" } else { "otherwise" };
        self.push(Stage::Tenants, id, was, "in place", ops);
        self.record_added_tenants(&[tenant]);
        self.record_disruption(&users, &loses);
        if let Some(work) = self.last_work() {
            work.undo = undo;
        }
        self.pending.insert(tenant.id());
        if had {
            self.is_drift();
        }
        Ok(())
    }

    /// Returns an existing link with another name that has the VLAN, or the VNI and port, of the desired link: the
    /// kernel refuses two such links.
    fn conflicting_link(&self, desired: &DesiredLink) -> Option<&Link> {
        let conflicting_link = match &desired.kind {
            DesiredKind::Bridge { .. } => None,
            DesiredKind::Vlan { id, .. } => self.competing_links.get(&(*id).into()).copied(),
            DesiredKind::Vxlan { vni, port, .. } => self.links.all.iter().find(|link| {
                link.name != desired.name
                    && link.tunnel.as_ref().is_some_and(|tunnel| {
                        (tunnel.vni, tunnel.port) == (Some(*vni), Some(*port))
                    })
            }),
        };
        conflicting_link.filter(|conflicting_link| conflicting_link.name != desired.name)
    }

    /// Checks that the link is free for the tenant: a bridge of another tenant is not used while
    /// VMs are attached to it.
    fn is_free_for(&self, tenant: &Tenant, link: &Link) -> Result<(), TenantError> {
        let Some((_, Some(other))) = owner(link).filter(|(_, whose)| *whose != Some(tenant.name))
        else {
            return Ok(());
        };
        let mut users = users::attached(self.links, link);
        users.retain(|user| tenant.links.iter().all(|own| own.name.as_str() != user));
        if users.is_empty() {
            return Ok(());
        }
        let (link, tenant) = (link.name.clone(), other.to_owned());
        Err(TenantError::OwnedByOtherTenant { link, tenant, users })
    }

    fn add_tenant(&self, tenant: &Tenant, partly: bool) -> LinkChangeId {
        let segment = match tenant.segment {
            SegmentId::Vni(vni) => Segment::Vni(vni),
            SegmentId::Vlan(_) => {
                Segment::Vlan { id: tenant.id(), uplink: self.network.uplink.name.clone() }
            }
        };
        LinkChangeId::AddTenant {
            tenant: tenant.name.to_owned(),
            segment,
            bridge: tenant.links.first().map(|link| link.name.clone()),
            partly,
        }
    }

    /// Records that these tenants are in place after the last change.
    fn record_added_tenants(&mut self, tenants: &[&Tenant]) {
        if let Some(work) = self.last_work() {
            work.made =
                tenants.iter().map(|tenant| (tenant.id(), tenant.name.to_owned())).collect();
        }
    }
}
