//! Spread of control-plane VMs over topology domains, in the form that the plan shows.

use berth_placement::engine::{Engine, Request, SpreadIndex};
use berth_placement::rules::HostId;
use serde::Serialize;

/// Control-plane VMs of all tenants by topology domain, after placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlanes {
    /// Key of the label whose values are the domains.
    pub topology_key: String,
    /// Penalty in points for each VM by which a domain exceeds the domain with the fewest VMs; 0 if VMs are not spread.
    pub points_per_vm: u32,
    /// Domains by name.
    pub domains: Vec<ControlPlaneDomain>,
    /// Number of hosts without the label. They get control-plane VMs only if no other host fits.
    pub hosts_without_label: usize,
}

/// Control-plane VMs of one topology domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ControlPlaneDomain {
    /// Value of the label.
    #[serde(rename = "domain")]
    pub name: String,
    /// Number of control-plane VMs.
    pub vms: u32,
    /// Points of the domain's hosts for the next control-plane VM; the host with the lowest sum of points is chosen.
    pub points: u32,
}

/// Returns the control-plane VMs by domain; `None` if there are none.
pub(super) fn control_planes(engine: &Engine) -> Option<ControlPlanes> {
    let index = engine.control_plane_spread();
    let hosts_without_label =
        engine.hosts().filter(|(host, _)| index.domain_of(host.index()).is_none()).count();
    let mut domains: Vec<ControlPlaneDomain> = index
        .domains()
        .map(|domain| ControlPlaneDomain {
            name: domain.name.to_owned(),
            vms: domain.vms,
            points: domain.points,
        })
        .collect();
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    let all = ControlPlanes {
        topology_key: index.topology_key().to_owned(),
        points_per_vm: index.points_per_vm(),
        domains,
        hosts_without_label,
    };
    index.has_vms().then_some(all)
}

/// Returns the domain of a VM that was placed on a host: its name, the number of control-plane VMs before the
/// placement, and the points of the domain. `minimum` is the lowest number of control-plane VMs in a domain before
/// the placement. Returns `None` for a VM that is not a control-plane VM, and for a host without the label.
pub(super) fn placed_in_domain(
    index: &SpreadIndex,
    minimum: u32,
    request: &Request,
    host: HostId,
) -> Option<ControlPlaneDomain> {
    let domain = index.domain_of(host.index()).filter(|_| request.is_control_plane())?;
    let vms = domain.vms.saturating_sub(1);
    let points = index.points_above(vms, minimum);
    Some(ControlPlaneDomain { name: domain.name.to_owned(), vms, points })
}
