//! Forecast of live migrations: which host `filter` would choose for the target pod of each VM, if it were called now.
//!
//! The forecast reserves nothing, because the target pod does not exist yet: KubeVirt creates the pod after the
//! VirtualMachineInstanceMigration, and kube-scheduler then calls `filter` for this pod. In one forecast for several
//! VMs, the target pods are placed one after another, so that no free resource is counted for two VMs.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use berth_placement::engine::Request;
use berth_placement::rules::HostId;

use super::extender::Extender;
use super::reservation::{Stage, has_exclusive_resources};

/// Reason for a host that the caller excludes, because its Node is cordoned.
const EXCLUDED_REASON: &str = "node(s) were unschedulable";

/// A VM that is to leave its host through a live migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationQuery {
    /// UID of the VirtualMachineInstance.
    pub instance_uid: String,
    /// Host that the VM leaves.
    pub source_host: String,
}

/// Forecast of the target host of a live migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationTarget {
    /// The VM fits on this host, or its target pod is already on this host.
    Host(String),
    /// The VM fits on no other host. Contains the reasons, each with the number of hosts that refuse the VM for this
    /// reason, in descending order of these numbers.
    NoHost(Vec<(String, usize)>),
    /// The extender does not know the VM's pod yet.
    UnknownVm,
}

#[derive(Default)]
struct VmPods {
    /// Request of the launcher pod on the source host.
    source_request: Option<Request>,
    /// Host of the migration's target pod, if it exists.
    target_host: Option<String>,
}

impl Extender {
    /// Returns the target of each VM, in the order of `queries`. `is_excluded` returns true for hosts that accept no
    /// pods.
    pub fn find_migration_targets(
        &mut self,
        now: Instant,
        queries: &[MigrationQuery],
        is_excluded: impl Fn(&str) -> bool,
    ) -> Vec<MigrationTarget> {
        if self.awaits_pod_list {
            return vec![MigrationTarget::UnknownVm; queries.len()];
        }
        let mut pods = self.pods_by_vm(queries);
        let mut placed = Vec::new();
        let mut targets = Vec::with_capacity(queries.len());
        for query in queries {
            let VmPods { source_request, target_host } =
                pods.remove(query.instance_uid.as_str()).unwrap_or_default();
            targets.push(match (target_host, source_request) {
                (Some(host), _) => MigrationTarget::Host(host),
                (None, None) => MigrationTarget::UnknownVm,
                (None, Some(source)) => {
                    let target = source.with_uid(&format!("{}/target", query.instance_uid));
                    let found = self.place_target(now, &target, &query.source_host, &is_excluded);
                    if matches!(found, MigrationTarget::Host(_)) {
                        placed.push(target);
                    }
                    found
                }
            });
        }
        for target in placed {
            self.reservations.engine.remove_pod(target.uid());
        }
        targets
    }

    /// Returns the launcher pods of the VMs, by the UID of the VirtualMachineInstance.
    fn pods_by_vm<'q>(&self, queries: &'q [MigrationQuery]) -> HashMap<&'q str, VmPods> {
        let wanted: BTreeMap<&str, &MigrationQuery> =
            queries.iter().map(|query| (query.instance_uid.as_str(), query)).collect();
        let mut pods: HashMap<&str, VmPods> = HashMap::new();
        for (_, reservation) in self.reservations.records.iter() {
            let uid = reservation.vm.as_ref().map(|vm| vm.instance_uid.as_str());
            let Some(query) = uid.and_then(|uid| wanted.get(uid)) else { continue };
            let pods = pods.entry(query.instance_uid.as_str()).or_default();
            let is_on_source = *reservation.host == *query.source_host;
            match reservation.stage {
                Stage::Leaving { .. } | Stage::Released => {}
                Stage::Bound { .. } if is_on_source => {
                    pods.source_request = Some(reservation.request.clone());
                }
                _ if is_on_source => {}
                _ => pods.target_host = Some(reservation.host.to_string()),
            }
        }
        pods
    }

    /// Places a target pod in the engine, without a reservation. The caller must remove the pod from the engine
    /// afterwards.
    fn place_target(
        &mut self,
        now: Instant,
        target: &Request,
        source: &str,
        is_excluded: impl Fn(&str) -> bool,
    ) -> MigrationTarget {
        let all: Vec<(HostId, String)> = self
            .engine()
            .hosts()
            .filter(|(_, report)| report.name != source)
            .map(|(id, report)| (id, report.name.clone()))
            .collect();
        let mut refused: BTreeMap<String, usize> = BTreeMap::new();
        let mut count = |reason: String| {
            let hosts = refused.entry(reason).or_default();
            *hosts = hosts.saturating_add(1);
        };
        let has_exclusive = has_exclusive_resources(target);
        let mut hosts = Vec::new();
        for (id, name) in &all {
            match self.find_usable_host(name, has_exclusive) {
                _ if is_excluded(name) => count(EXCLUDED_REASON.to_owned()),
                Err(reason) => count(reason.to_owned()),
                Ok(_) => hosts.push(*id),
            }
        }
        let choice = self.reservations.choose_host(now, target, hosts.clone(), None);
        if let Some(host) = choice.host {
            let report = self.engine().reported_host(host);
            return MigrationTarget::Host(report.map_or_else(String::new, |one| one.name.clone()));
        }
        for host in hosts {
            let reasons = self.engine().rejection_reasons(target, host);
            count(match reasons.first() {
                Some(reason) => reason.summary().into_owned(),
                None => super::availability::AWAITING_REPORT_REASON.to_owned(),
            });
        }
        let mut refused: Vec<(String, usize)> = refused.into_iter().collect();
        refused.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        MigrationTarget::NoHost(refused)
    }
}
