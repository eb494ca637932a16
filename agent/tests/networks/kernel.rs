//! A small model of the kernel's links: the effect of each step, and the steps that the kernel refuses.

use std::collections::BTreeSet;
use std::io;

use berth_agent::apply::Kernel;
use berth_agent::apply::links::error::{FilterError, StepError, TrialError, TrialNotStarted};
use berth_agent::netlink::KernelRefusal;
use berth_agent::plan::network::{
    DesiredKind, DesiredLink, FilterAction, LINK_GROUP, LinkAction, LinkOp, filter,
};
use berth_api::LinkName;
use berth_api::infra_node::LinkState;
use berth_host_facts::links::{
    BridgeFilter, BridgeOptions, IpOptions, Link, LinkKind, Links, PortVlans, VxlanTunnel,
};
use nix::errno::Errno;

/// Links of the modeled kernel, and the events that a test injects while the agent changes the links.
#[derive(Debug, Default)]
pub(crate) struct KernelModel {
    pub(crate) links: Links,
    /// Events to inject, one for each of the next steps. After the last event every step succeeds.
    pub(crate) events: Vec<StepEvent>,
    /// Number of steps that the kernel refused.
    pub(crate) refused_count: usize,
    /// Ports of VMs to attach while a plan is applied, each with its bridge and its VLANs.
    pub(crate) pending_vms: Vec<Link>,
    /// True if the kernel lacks `CONFIG_NFT_BRIDGE_META`, so that no rule can compare the bridge of a frame.
    pub(crate) has_no_bridge_meta: bool,
    /// Violations of the invariants that each step must preserve: [`Self::check_invariants`].
    pub(crate) violations: Vec<String>,
}

/// Event that a test injects at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepEvent {
    /// The step succeeds.
    Success,
    /// The kernel refuses the step.
    StepRefused,
    /// The agent is killed before the step.
    AgentKilled,
    AgentKilledAfterStep,
    /// A VM is attached after the step.
    VmAttached,
}

/// Panic value that ends the agent at this point, as SIGKILL does.
#[derive(Debug)]
pub(crate) struct AgentKill;

fn end_as_killed() -> ! {
    std::panic::resume_unwind(Box::new(AgentKill))
}

impl Kernel for KernelModel {
    fn apply_steps(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>> {
        let mut answers = Vec::new();
        for op in ops {
            let event =
                if self.events.is_empty() { StepEvent::Success } else { self.events.remove(0) };
            match event {
                StepEvent::AgentKilled => end_as_killed(),
                StepEvent::StepRefused => {
                    self.refused_count += 1;
                    apply_refused_join(&mut self.links, op);
                    answers.push(Err(refusal_error(
                        op.link(),
                        Errno::EINVAL,
                        Some("refused by the test"),
                    )));
                    continue;
                }
                StepEvent::VmAttached | StepEvent::Success | StepEvent::AgentKilledAfterStep => {}
            }
            answers.push(apply_step(&mut self.links, op));
            self.check_invariants(op);
            if event == StepEvent::AgentKilledAfterStep {
                end_as_killed();
            }
            if event == StepEvent::VmAttached {
                self.attach_pending_vm();
            }
        }
        Ok(answers)
    }

    fn set_links_up(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>> {
        let up = |op: &&LinkOp| apply_step(&mut self.links, &LinkOp::Up(op.link().clone()));
        Ok(ops.iter().map(up).collect())
    }

    fn apply_filter(&mut self, action: &FilterAction) -> Result<(), FilterError> {
        if self.has_no_bridge_meta
            && matches!(action, FilterAction::Replace(filter) if filter.guard.matches_bridges())
        {
            let errno = Errno::EOPNOTSUPP;
            return Err(FilterError::Refused(KernelRefusal { errno, extended_ack: None }));
        }
        self.links.filter = match action {
            FilterAction::Replace(desired) => BridgeFilter::Present(filter::table(desired)),
            FilterAction::Delete => BridgeFilter::Absent,
        };
        let remaining = self.links.all.iter().filter(|link| link.is_created_by_berth()).count();
        if *action == FilterAction::Delete && remaining > 0 {
            self.violations
                .push(format!("{remaining} links of tenants exist without the filter rules"));
        }
        Ok(())
    }

    fn links(&mut self) -> io::Result<Links> {
        Ok(self.links.clone())
    }

    fn stacked_links(&mut self, _: &LinkName) -> io::Result<Links> {
        self.links()
    }

    fn run_trial(&mut self, action: &LinkAction) -> Result<Option<String>, TrialError> {
        for op in &action.ops {
            let answers = self.apply_steps(&[op]).map_err(TrialNotStarted::Netlink)?;
            answers.into_iter().collect::<Result<Vec<()>, _>>().map_err(TrialNotStarted::Step)?;
        }
        Ok(None)
    }
}

impl KernelModel {
    fn attach_pending_vm(&mut self) {
        let can_attach = |links: &Links, port: &Link| {
            port.master.as_ref().is_some_and(|bridge| links.find_by_name(bridge).is_some())
                && links.find_by_name(&port.name).is_none()
        };
        if let Some(index) = self.pending_vms.iter().position(|port| can_attach(&self.links, port))
        {
            let port = self.pending_vms.remove(index);
            self.links.all.push(port);
            sort_links(&mut self.links);
        }
    }

    /// Records violations: a step that was applied without the nftables rules, and a bridge with a loop. If a
    /// bridge has two uplinks with the same VLAN, the switch receives its own frames again.
    fn check_invariants(&mut self, after: &LinkOp) {
        if !is_filtered(&self.links, after) {
            self.violations.push(format!("{after:?} was applied without the filter rules"));
        }
        for bridge in self
            .links
            .all
            .iter()
            .filter(|link| link.kind == LinkKind::Bridge && link.is_created_by_berth())
        {
            let uplinks: Vec<&Link> =
                self.links.ports_of(&bridge.name).filter(|port| is_uplink(port)).collect();
            for (place, one) in uplinks.iter().enumerate() {
                for other in &uplinks[place + 1..] {
                    let vlans = |link: &Link| link.vlans.clone().unwrap_or_default().all;
                    let common_vlans = vlans(one).intersection(&vlans(other));
                    if bridge.vlan_filtering != Some(true) || !common_vlans.is_empty() {
                        self.violations.push(format!(
                            "loop: {} and {} are uplinks of {} ({common_vlans}) after {after:?}",
                            one.name, other.name, bridge.name
                        ));
                    }
                }
            }
        }
    }
}

/// Returns true if the step opens no path for frames of guests out of the host, or if the nftables rules filter
/// this path.
fn is_filtered(links: &Links, op: &LinkOp) -> bool {
    let table = match &links.filter {
        BridgeFilter::Unknown => return true,
        BridgeFilter::Absent => {
            return !matches!(
                op,
                LinkOp::Create(_) | LinkOp::Join { .. } | LinkOp::AddVlans { .. }
            );
        }
        BridgeFilter::Present(table) => table,
    };
    let LinkOp::Join { port, .. } = op else { return true };
    let names = |key: &Vec<u8>| key.starts_with(format!("{port}\0").as_bytes());
    ["forward", "leaving"].iter().all(|chain| table.chains.contains_key(*chain))
        && table.sets["uplinks"].iter().any(names)
}

fn is_uplink(port: &Link) -> bool {
    matches!(port.kind, LinkKind::Physical | LinkKind::Bond | LinkKind::Vlan | LinkKind::Vxlan)
}

/// Returns the ports through which frames of a VM's port leave the host.
pub(crate) fn uplinks_of_port(links: &Links, port: &LinkName) -> BTreeSet<String> {
    let Some(port) = links.find_by_name(port) else { return BTreeSet::new() };
    let Some(bridge) = port.master.as_ref().and_then(|bridge| links.find_by_name(bridge)) else {
        return BTreeSet::new();
    };
    let uplinks = links.ports_of(&bridge.name).filter(|port| is_uplink(port));
    let shares_vlan = |out: &&Link| {
        let vlans = |link: &Link| link.vlans.clone().unwrap_or_default().all;
        bridge.vlan_filtering != Some(true) || !vlans(out).intersection(&vlans(port)).is_empty()
    };
    uplinks.filter(shares_vlan).map(|out| out.name.to_string()).collect()
}

fn sort_links(links: &mut Links) {
    links.all.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Returns the error that the agent reports for a step that the kernel refuses.
fn refusal_error(link: &LinkName, errno: Errno, words: Option<&str>) -> StepError {
    let refused = KernelRefusal { errno, extended_ack: words.map(str::to_owned) };
    StepError::Refused { link: link.clone(), refused, hint: "" }
}

fn find_link_index(links: &Links, name: &LinkName) -> Result<usize, StepError> {
    let index = links.all.iter().position(|link| link.name == *name);
    index.ok_or_else(|| refusal_error(name, Errno::ENODEV, None))
}

/// Applies the side effect that a refused [`LinkOp::Join`] has: the kernel has already removed the port from its
/// previous bridge (`do_set_master`).
fn apply_refused_join(links: &mut Links, op: &LinkOp) {
    if let LinkOp::Join { port, bridge } = op
        && let Ok(place) = find_link_index(links, port)
        && links.all[place].master.as_ref() != Some(bridge)
    {
        (links.all[place].master, links.all[place].vlans) = (None, None);
    }
}

/// Applies a step to the links as the kernel would.
pub(crate) fn apply_step(links: &mut Links, op: &LinkOp) -> Result<(), StepError> {
    match op {
        LinkOp::Create(desired) => {
            if find_link_index(links, &desired.name).is_ok() {
                return Err(refusal_error(&desired.name, Errno::EEXIST, None));
            }
            let is_duplicate = |link: &Link| match &desired.kind {
                DesiredKind::Bridge { .. } => false,
                DesiredKind::Vlan { parent, id } => {
                    link.parent.as_ref() == Some(parent) && link.vlan == Some((*id).into())
                }
                DesiredKind::Vxlan { vni, port, .. } => link
                    .tunnel
                    .as_ref()
                    .is_some_and(|tunnel| (tunnel.vni, tunnel.port) == (Some(*vni), Some(*port))),
            };
            if links.all.iter().any(is_duplicate) {
                return Err(refusal_error(
                    &desired.name,
                    Errno::EEXIST,
                    Some("a link with this VLAN or VNI exists"),
                ));
            }
            let mut created = Link::new(desired.name.clone(), LinkKind::Other);
            set_properties(&mut created, desired);
            created.is_up = Some(false);
            links.all.push(created);
            sort_links(links);
            return Ok(());
        }
        LinkOp::Remove(name) => {
            links.all.remove(find_link_index(links, name)?);
            links.all.retain(|link| link.parent.as_ref() != Some(name));
            for port in &mut links.all {
                if port.master.as_ref() == Some(name) {
                    (port.master, port.vlans) = (None, None);
                }
            }
            return Ok(());
        }
        LinkOp::Join { bridge, .. } => _ = find_link_index(links, bridge)?,
        _ => {}
    }
    let index = find_link_index(links, op.link())?;
    let link = &mut links.all[index];
    match op {
        LinkOp::SetProperties(desired) => set_properties(link, desired),
        LinkOp::DisableVlanFiltering(_) => link.vlan_filtering = Some(false),
        LinkOp::RemoveAddresses { .. } => {
            (link.addresses, link.link_local_addresses) = (Vec::new(), Vec::new());
        }
        LinkOp::Up(_) => link.is_up = Some(true),
        LinkOp::Down(_) => link.is_up = Some(false),
        LinkOp::Join { bridge, .. } if link.master.as_ref() != Some(bridge) => {
            link.master = Some(bridge.clone());
            link.vlans = Some(PortVlans::default());
        }
        LinkOp::Leave { .. } => (link.master, link.vlans) = (None, None),
        LinkOp::AddVlans { vlans, .. } => {
            if link.master.is_none() {
                return Err(refusal_error(
                    &link.name,
                    Errno::EOPNOTSUPP,
                    Some("the link is not a port"),
                ));
            }
            link.vlans.get_or_insert_default().all.extend(vlans.iter());
        }
        LinkOp::RemoveVlans { vlans, .. } => {
            let current_vlans = link.vlans.get_or_insert_default();
            current_vlans.all = current_vlans.all.difference(vlans);
        }
        LinkOp::UpdatePeers { add, remove, .. } => {
            let peers = &mut link.tunnel.get_or_insert_default().peers;
            peers.retain(|peer| !remove.contains(peer));
            peers.extend(add);
        }
        LinkOp::Join { .. } | LinkOp::Create(_) | LinkOp::Remove(_) => {}
    }
    Ok(())
}

fn set_properties(link: &mut Link, desired: &DesiredLink) {
    link.alias = Some(desired.alias.clone());
    link.group = Some(LINK_GROUP);
    link.mtu = Some(desired.mtu);
    link.is_up = Some(true);
    link.state = Some(LinkState::Up);
    link.master.clone_from(&desired.master);
    link.ip_options = IpOptions {
        generates_ipv6_addresses: Some(false),
        is_ipv6_disabled: Some(true),
        arp_ignore: Some(8),
        rp_filter: Some(1),
    };
    match &desired.kind {
        DesiredKind::Bridge { mac, vlan_aware, stp } => {
            link.kind = LinkKind::Bridge;
            link.mac = Some(mac.to_string());
            link.vlan_filtering = Some(*vlan_aware);
            link.bridge = Some(BridgeOptions {
                default_pvid: Some(0),
                is_stp_enabled: Some(*stp),
                forward_delay: None,
                is_mcast_snooping_enabled: Some(false),
            });
            link.vlans = Some(PortVlans::default());
        }
        DesiredKind::Vlan { parent, id } => {
            link.kind = LinkKind::Vlan;
            link.parent = Some(parent.clone());
            link.vlan = Some((*id).into());
        }
        DesiredKind::Vxlan { vni, port, local, .. } => {
            link.kind = LinkKind::Vxlan;
            let peers = link.tunnel.clone().unwrap_or_default().peers;
            link.tunnel = Some(VxlanTunnel {
                vni: Some(*vni),
                port: Some(*port),
                local_address: Some(*local),
                peers,
            });
        }
    }
}
