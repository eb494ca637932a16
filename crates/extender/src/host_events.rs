//! Watch events of hosts: Nodes and their InfraNodes.

use std::sync::Arc;
use std::time::Instant;

use berth_api::Class;
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::{HostId, NodeFields};

use super::error::InvalidField;
use super::extender::Extender;
use super::reservation::{LIST_TIMEOUT, Stage, has_exclusive_resources};

impl Extender {
    /// Updates a host from its Node and its agent's report. If `reported_host` is `None`, one of them is missing or
    /// invalid, and the host accepts no pods. Ignores a report whose `version` is lower than that of the last report.
    ///
    /// # Errors
    /// Returns an error if the Node has a taint that the API server would refuse. The host then accepts no pods.
    pub fn update_host(
        &mut self,
        now: Instant,
        name: &str,
        reported_host: Option<(ReportedHost, Class)>,
        version: Option<u64>,
    ) -> Result<(), InvalidField> {
        let known = self.reservations.engine.host(name);
        if known.is_some_and(|host| self.availability.is_outdated(host, version)) {
            return Ok(());
        }
        let Some((mut facts, class)) = reported_host else {
            // The resources of the host's pods remain allocated, because no watch event has shown that the pods have
            // ended.
            if let Some(host) = known {
                self.availability.set_unusable(host);
                self.availability.remove_report_version(host);
            }
            return Ok(());
        };
        self.remove_stale_allocations(name, &mut facts);
        let result = self.reservations.engine.set_host(facts, class);
        let host = result.map_err(|invalid| {
            if let Some(host) = known {
                self.availability.set_unusable(host);
            }
            InvalidField::new(format!("Node {name}"), invalid)
        })?;
        self.availability.set_usable(host);
        if let Some(version) = version {
            self.availability.set_report_version(host, version);
        }
        self.place_pods_of_new_host(name, host);
        self.compare_report(name, host);
        // If the host becomes known after the pods were listed, its kubelet may have allocated resources that neither
        // the pods nor the report show yet.
        let is_new = known.is_none() && !self.awaits_pod_list;
        if !self.reservations.differs_from_report(host) {
            self.availability.end_report_wait(host);
        } else if is_new {
            let until = now.checked_add(LIST_TIMEOUT).unwrap_or(now);
            self.availability.await_report(host, until);
        }
        self.update_stale_allocations(now, name);
        self.queue.refused_pods.mark_host_changed(host);
        Ok(())
    }

    /// Places pods in the engine that were bound to a host before the host was known.
    fn place_pods_of_new_host(&mut self, name: &str, host: HostId) {
        for uid in self.reservations.records.take_pods_on_host(name) {
            let Some(reservation) = self.reservations.get(&uid) else { continue };
            let request = reservation.request.clone();
            let is_leaving = matches!(reservation.stage, Stage::Leaving { .. });
            if (reservation.is_terminating || is_leaving) && has_exclusive_resources(&request) {
                self.availability.mark_awaiting_removal(host, &uid);
            }
            // The pod is placed even if the engine predicts that the kubelet would not admit it, because the pod is
            // already on the host.
            drop(self.reservations.engine.add_bound_pod(&request, host));
        }
    }

    /// Updates a Node whose host has no valid report. The host accepts no pods. However, affinity and spread rules take
    /// the Node and its pods into account, because kube-scheduler does so, too.
    ///
    /// # Errors
    /// Returns an error if the Node has a taint that the API server would refuse.
    pub fn update_node(&mut self, fields: &NodeFields<'_>) -> Result<(), InvalidField> {
        let name = fields.name;
        if self.reservations.engine.host(name).is_some() {
            return Ok(());
        }
        let is_new = self.reservations.engine.node(name).is_none();
        let result = self.reservations.engine.set_node(fields);
        result.map_err(|invalid| InvalidField::new(format!("Node {name}"), invalid))?;
        if is_new {
            let pods: Vec<Arc<str>> =
                self.reservations.records.pods_without_report(name).cloned().collect();
            for uid in pods {
                let request =
                    self.reservations.get(&uid).map(|reservation| reservation.request.clone());
                if let Some(request) = request {
                    self.reservations.count_pod_on_unreported_node(&request, name);
                }
            }
        }
        self.queue.refused_pods.schedule_full_scan();
        Ok(())
    }

    /// Removes a deleted Node, so that affinity and spread rules no longer take the Node and its pods into account. If
    /// the Node is created again, its pods are counted again.
    pub fn delete_node(&mut self, name: &str) {
        // A host can have stale candidates even if the engine has accepted none of its reports.
        self.stale_candidates.remove_host(name);
        let Some(host) = self.reservations.engine.node(name) else { return };
        let unreported: Vec<Arc<str>> =
            self.reservations.records.pods_without_report(name).cloned().collect();
        for uid in unreported {
            self.reservations.engine.remove_pod(&uid);
        }
        for uid in self.reservations.engine.remove_host(host) {
            self.reservations.records.mark_on_unknown_host(&uid);
        }
        self.availability.remove_host(host);
        self.queue.refused_pods.schedule_full_scan();
    }

    /// Handles a relist of the hosts. The next report of each host is then accepted with any version, because versions
    /// may be lower after the API server's store was restored from a backup.
    pub fn handle_host_relist(&mut self) {
        self.availability.clear_report_versions();
    }

    /// Compares a host's pods with exclusive CPUs or huge pages with the host's new report. Marks the pods that the
    /// report lists. If the report no longer lists a pod that it listed before, releases the resources of the pod, or
    /// awaits its removal. Ends the waits for removals of pods that the report does not list.
    pub(super) fn compare_report(&mut self, name: &str, host: HostId) {
        let pods_on_host = self
            .reservations
            .engine
            .pods_on_host(host)
            .filter(|request| has_exclusive_resources(request));
        let pods_on_host = pods_on_host.map(|request| {
            (Arc::from(request.uid()), self.reservations.is_in_report(host, request.uid()))
        });
        let pods_on_host: Vec<(Arc<str>, bool)> = pods_on_host.collect();
        let removed = self.availability.awaited_removals(host).filter(|uid| {
            let reservation = self.reservations.get(uid);
            let is_on_host = reservation
                .is_some_and(|reservation| !matches!(reservation.stage, Stage::Kept { .. }));
            !is_on_host && !self.reservations.is_in_report(host, uid)
        });
        let removed: Vec<Arc<str>> = removed.cloned().collect();
        for uid in removed {
            self.end_removal_wait(host, &uid);
        }
        for (uid, is_listed) in pods_on_host {
            let Some(reservation) = self.reservations.get(&uid) else { continue };
            let (stage, was_listed) = (reservation.stage, reservation.is_in_report);
            let is_terminating = reservation.is_terminating;
            match stage {
                Stage::Kept { .. } if is_listed => {
                    self.availability.mark_awaiting_removal(host, &uid)
                }
                // The allocation in the report replaces the reservation. As long as the report lists the pod, the host
                // awaits its removal.
                Stage::Leaving { .. } if is_listed => self.release(&uid),
                Stage::Bound { .. } if is_listed => {
                    self.reservations.records.mark_in_report(&uid);
                    if !is_terminating {
                        self.end_removal_wait(host, &uid);
                    }
                }
                Stage::Bound { .. }
                    if was_listed && !self.release_if_unlisted(&uid, name, is_terminating) =>
                {
                    self.availability.mark_awaiting_removal(host, &uid);
                }
                _ => {}
            }
        }
    }
}
