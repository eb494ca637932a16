//! Plans the layer 2 segment of each tenant: a VLAN on the shared bridge, or separate links of the tenant.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{LinkName, VlanId, VlanSet};

use super::action::Stage;
use super::desired_link::{DesiredKind, DesiredLink};
use super::desired_network::{DesiredTenant, SegmentId};
use super::id::{LinkChangeId, SegmentDescription};
use super::names::link_owner;
use super::op::LinkOp;
use super::planner::Planner;
use super::refusal::TenantError;
use super::{diff, removal, users};
use berth_host_facts::links::{Link, PortVlans};

impl Planner<'_> {
    /// Plans the VLANs of the uplink on the shared bridge. `taken_over` are the VLANs that a handover adds to the
    /// uplink.
    pub(super) fn plan_vlans(&mut self, bridge: &LinkName, taken_over: &VlanSet) {
        let uplink = self.network.uplink;
        let joined = uplink.master.as_ref() == Some(bridge);
        let mut port_vlans = if joined { uplink.vlans.clone() } else { None }.unwrap_or_default();
        port_vlans.all.extend(taken_over.iter());
        // The port must send the frames of the VLAN with a tag, and must not have the VLAN as its PVID: otherwise
        // tenants' frames would leave the host untagged.
        let is_correctly_tagged = |now: &PortVlans, id| {
            now.all.contains(id) && !now.untagged.contains(id) && now.pvid != Some(id)
        };
        let mut desired = VlanSet::default();
        let (mut new, mut drifted) = (Vec::new(), Vec::new());
        for tenant in &self.network.tenants {
            let Some(id) = tenant.segment.vlan() else { continue };
            if let Some(competitor) = self.competing_links.get(&id.into()).copied() {
                // A VLAN that the uplink already carries stays, so that the VLAN works again after the competing
                // link is removed.
                if port_vlans.all.contains(id) {
                    desired.insert(id);
                }
                // A VLAN link that Berth created for another scenario or tenant is removed when it is no longer in
                // use.
                if competitor.is_created_by_berth() {
                    self.waiting_tenants.insert(
                        tenant.segment_number(),
                        format!("waiting until {} has been removed", competitor.name),
                    );
                } else {
                    let refused = TenantError::ConflictingVlanLink {
                        link: competitor.name.clone(),
                        id: tenant.segment_number(),
                    };
                    self.failed_tenants.insert(tenant.segment_number(), refused.to_string());
                }
                continue;
            }
            desired.insert(id);
            let recorded_tenant = self
                .ledger_record()
                .and_then(|record| record.tenants.get(&tenant.segment_number()));
            if let Some(other) = recorded_tenant.filter(|other| *other != tenant.name) {
                let only = VlanSet::from_iter([id]);
                let users = self.users_of_vlans(bridge, &only).into_iter();
                let users: BTreeSet<String> = users.map(|(name, _)| name).collect();
                if !users.is_empty() {
                    let reason = format!(
                        "VLAN {id} still belongs to {other}: {}",
                        removal::in_use_message(&users)
                    );
                    self.failed_tenants.insert(tenant.segment_number(), reason);
                    continue;
                }
            }
            if !is_correctly_tagged(&port_vlans, id) {
                let list = if self.is_recorded_tenant(tenant.segment_number(), tenant.name) {
                    &mut drifted
                } else {
                    &mut new
                };
                list.push(tenant);
                self.pending_tenants.insert(tenant.segment_number());
            }
        }
        let failed = self.failed_tenants.clone();
        for (id, reason) in failed {
            let Some(vlan) = u16::try_from(id).ok().and_then(|id| VlanId::try_from(id).ok()) else {
                continue;
            };
            let id = LinkChangeId::AddVlans {
                vlans: VlanSet::from_iter([vlan]),
                port: uplink.name.clone(),
                bridge: bridge.clone(),
                tenants: Vec::new(),
            };
            self.add_blocked_change(id, "absent", "carried", reason);
        }
        for (tenants, drift) in [(new, false), (drifted, true)] {
            self.add_vlans(bridge, &tenants, drift);
        }
        let extra = port_vlans.all.difference(&desired);
        if !extra.is_empty() {
            self.remove_vlans(bridge, &extra);
        }
    }

    fn add_vlans(&mut self, bridge: &LinkName, tenants: &[&DesiredTenant], drift: bool) {
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
        self.add_change(Stage::Tenants, id, "absent", "carried", ops);
        self.record_added_tenants(tenants);
        if drift {
            self.mark_as_drift();
        }
    }

    /// Returns the links that are attached to the bridge, except uplinks, and are in some of these VLANs, each with
    /// these VLANs.
    fn users_of_vlans(&self, bridge: &LinkName, vlans: &VlanSet) -> Vec<(String, VlanSet)> {
        let Some(bridge) = self.links.find_by_name(bridge) else { return Vec::new() };
        let mut users = users::links_in_vlans(self.links, bridge, vlans);
        let ports = self.links.ports_of(&bridge.name);
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

    /// Plans the removal of VLANs that are not in the spec. If another port is in such a VLAN, the change is
    /// blocked.
    fn remove_vlans(&mut self, bridge: &LinkName, extra: &VlanSet) {
        let uplink = &self.network.uplink.name;
        let mut users: BTreeMap<VlanId, BTreeSet<String>> = BTreeMap::new();
        for (name, vlans) in self.users_of_vlans(bridge, extra) {
            for id in vlans.iter() {
                users.entry(id).or_default().insert(name.clone());
            }
        }
        let used: VlanSet = extra.iter().filter(|id| users.contains_key(id)).collect();
        let unused = extra.difference(&used);
        let recorded_tenants =
            self.ledger_record().map(|record| record.tenants.clone()).unwrap_or_default();
        if !unused.is_empty() {
            let id = LinkChangeId::RemoveVlans {
                vlans: unused.clone(),
                port: uplink.clone(),
                bridge: bridge.clone(),
            };
            let ops = vec![LinkOp::RemoveVlans {
                port: uplink.clone(),
                vlans: unused.clone(),
                bridge_self: false,
            }];
            self.add_change(Stage::Tenants, id, "carried", "absent", ops);
            let unrecorded =
                unused.iter().all(|id| !recorded_tenants.contains_key(&u32::from(u16::from(id))));
            if let Some(action) = self.last_action() {
                action.removed_tenants = unused.iter().map(|id| u32::from(u16::from(id))).collect();
            }
            if unrecorded && self.has_recorded_settings() {
                self.mark_as_drift();
            }
        }
        for (id, ports) in users {
            let id = LinkChangeId::RemoveVlans {
                vlans: VlanSet::from_iter([id]),
                port: uplink.clone(),
                bridge: bridge.clone(),
            };
            self.add_blocked_change(id, "carried", "absent", removal::in_use_message(&ports));
        }
    }

    /// Plans the links of every tenant of a network without a shared bridge.
    pub(super) fn plan_tenants(&mut self) {
        for tenant in &self.network.tenants {
            if let Err(error) = self.plan_tenant(tenant) {
                let id = self.add_tenant_change_id(tenant, false);
                self.add_blocked_change(id, "absent", "in place", error.to_string());
                self.failed_tenants.insert(tenant.segment_number(), error.to_string());
            }
        }
    }

    /// Plans the links of one tenant.
    ///
    /// # Errors
    /// If the links cannot be created.
    fn plan_tenant(&mut self, tenant: &DesiredTenant) -> Result<(), TenantError> {
        // If a VLAN link or tunnel of another scenario is still a port of the bridge, it is removed first: with two
        // such ports, the bridge would connect two layer 2 segments.
        let bridge = tenant.links.first().map(|bridge| &bridge.name);
        let mut ports = bridge.into_iter().flat_map(|bridge| self.links.ports_of(bridge));
        let is_desired_port = |port: &&Link| tenant.links.iter().any(|link| link.name == port.name);
        if let Some(port) = ports.find(|port| port.is_created_by_berth() && !is_desired_port(port))
        {
            self.waiting_tenants.insert(
                tenant.segment_number(),
                format!("waiting until {} has been removed", port.name),
            );
            return Ok(());
        }
        let (mut ops, mut undo) = (Vec::new(), Vec::new());
        let mut changed_links = Vec::new();
        let mut absent = 0;
        for desired in &tenant.links {
            let link = self.links.find_by_name(&desired.name);
            let needs_recreation = link.is_some_and(|link| desired.needs_recreation(link));
            if (link.is_none() || needs_recreation)
                && let Some(conflicting_link) = self.conflicting_link(desired)
            {
                if conflicting_link.is_created_by_berth() {
                    self.waiting_tenants.insert(
                        tenant.segment_number(),
                        format!("waiting until {} has been removed", conflicting_link.name),
                    );
                    return Ok(());
                }
                return Err(TenantError::ConflictingVlanLink {
                    link: conflicting_link.name.clone(),
                    id: tenant.segment_number(),
                });
            }
            let Some(link) = link else {
                ops.extend(diff::create_link_ops(desired));
                absent += 1;
                continue;
            };
            if let Some(error) = diff::unusable_link(link, desired) {
                return Err(error.into());
            }
            let differences = diff::find_differences(desired, link);
            if differences.is_empty() && !needs_recreation {
                continue;
            }
            self.check_not_owned_by_other_tenant(tenant, link)?;
            ops.extend(diff::repair_ops(desired, link));
            if needs_recreation {
                undo.extend(diff::restore_ops(link));
            }
            changed_links.push((desired.name.clone(), differences));
        }
        if ops.is_empty() {
            return Ok(());
        }
        let was_recorded = self.is_recorded_tenant(tenant.segment_number(), tenant.name);
        let users: BTreeSet<String> =
            ops.iter().flat_map(|op| users::disconnected_links(op, self.links, &ops)).collect();
        let recreated = ops.iter().filter_map(|op| match op {
            LinkOp::Remove(name) => Some(name.as_str()),
            _ => None,
        });
        let operation = format!("{} is recreated", recreated.collect::<Vec<_>>().join(" and "));
        // The recorded links of a tenant are repaired even if its VMs lose the network for a moment: with wrong
        // links, the VMs are connected to the wrong network.
        if !was_recorded && let Some(refusal) = self.disruption_refusal(&users, &operation) {
            return Err(refusal.into());
        }
        let id = if absent == tenant.links.len() {
            self.add_tenant_change_id(tenant, false)
        } else if changed_links.is_empty() {
            self.add_tenant_change_id(tenant, true)
        } else {
            LinkChangeId::SetTenant { tenant: tenant.name.to_owned(), links: changed_links }
        };
        let was = if absent > 0 { "absent" } else { "different" };
        self.add_change(Stage::Tenants, id, was, "in place", ops);
        self.record_added_tenants(&[tenant]);
        self.record_disruption(&users, &operation);
        if let Some(action) = self.last_action() {
            action.rollback_ops = undo;
        }
        self.pending_tenants.insert(tenant.segment_number());
        if was_recorded {
            self.mark_as_drift();
        }
        Ok(())
    }

    /// Returns an existing link that has the VLAN, or the VNI and UDP port, of the desired link, but another name.
    /// The kernel refuses two links with the same VLAN, or the same VNI and port.
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

    /// Returns an error if the link belongs to another tenant and VMs are attached to it.
    fn check_not_owned_by_other_tenant(
        &self,
        tenant: &DesiredTenant,
        link: &Link,
    ) -> Result<(), TenantError> {
        let Some((_, Some(other))) =
            link_owner(link).filter(|(_, owner_tenant)| *owner_tenant != Some(tenant.name))
        else {
            return Ok(());
        };
        let mut users = users::attached_links(self.links, link);
        users.retain(|user| tenant.links.iter().all(|own| own.name.as_str() != user));
        if users.is_empty() {
            return Ok(());
        }
        let (link, tenant) = (link.name.clone(), other.to_owned());
        Err(TenantError::OwnedByOtherTenant { link, tenant, ports: users })
    }

    fn add_tenant_change_id(&self, tenant: &DesiredTenant, partly: bool) -> LinkChangeId {
        let segment = match tenant.segment {
            SegmentId::Vni(vni) => SegmentDescription::Vni(vni),
            SegmentId::Vlan(_) => SegmentDescription::Vlan {
                id: tenant.segment_number(),
                uplink: self.network.uplink.name.clone(),
            },
        };
        LinkChangeId::AddTenant {
            tenant: tenant.name.to_owned(),
            segment,
            bridge: tenant.links.first().map(|link| link.name.clone()),
            is_incomplete: partly,
        }
    }

    /// Records in the last change that these tenants are in place after the change.
    fn record_added_tenants(&mut self, tenants: &[&DesiredTenant]) {
        if let Some(action) = self.last_action() {
            action.added_tenants = tenants
                .iter()
                .map(|tenant| (tenant.segment_number(), tenant.name.to_owned()))
                .collect();
        }
    }
}
