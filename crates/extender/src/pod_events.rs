//! Handles watch events of pods. A bound pod uses resources of its host until the kubelet has released them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use berth_placement::engine::{Request, VmRequirements};
use berth_placement::rules::{HostId, PodFields};
use k8s_openapi::api::core::v1;

use super::error::{InvalidField, PodError};
use super::extender::Extender;
use super::observed_pod::ObservedPod;
use super::reservation::{
    LEAVING_TIMEOUT, LIST_TIMEOUT, Reservation, Stage, VOLUMES_TIMEOUT, VmKey,
    has_exclusive_resources,
};

impl Extender {
    /// Updates the state with a pod from the watch.
    ///
    /// # Errors
    /// Returns an error if the pod is on a host and one of its rules cannot be compiled.
    pub fn update_pod(
        &mut self,
        now: Instant,
        pod: v1::Pod,
        observed: &ObservedPod,
    ) -> Result<(), PodError> {
        let existing = &observed.existing;
        if existing.is_terminal {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            self.handle_pod_end(now, observed.uid(), phase == Some("Failed"));
            return Ok(());
        }
        match existing.node_name.as_deref() {
            Some(host) => {
                self.queue.mark_assigned(observed.uid());
                self.count_pod_on_host(now, &pod, observed, host)
            }
            None => {
                if observed.uses_berth_scheduler {
                    self.queue_pod(now, pod, observed);
                }
                Ok(())
            }
        }
    }

    /// Returns true if a pod with exclusive CPUs or huge pages is bound to a host whose report does not list the pod
    /// yet. The resources of such a pod are computed from those of the other pods. Therefore a caller that adds many
    /// pods must add the unreported pods last.
    #[must_use]
    pub fn is_unreported(&self, observed: &ObservedPod) -> bool {
        let existing = &observed.existing;
        let engine = &self.reservations.engine;
        let host = existing.node_name.as_deref().and_then(|host| engine.host(host));
        let Some(facts) = host.and_then(|host| engine.reported_host(host)) else { return false };
        facts.allocation(observed.uid()).is_none() && requests_exclusive_resources(observed)
    }

    /// Updates the state after a complete list of pods: known pods that are not listed were deleted. After the first
    /// list, also reserves resources for pending VMs.
    pub fn handle_pod_list(&mut self, now: Instant, listed: &HashSet<String>) {
        let is_missing = |(uid, reservation): &(&Arc<str>, &Reservation)| {
            let is_late = |since: Instant| now.saturating_duration_since(since) > LIST_TIMEOUT;
            let is_listing_due = match reservation.stage {
                Stage::Bound { since } => reservation.is_observed_on_host || is_late(since),
                Stage::Released => true,
                _ => false,
            };
            is_listing_due && !listed.contains(&***uid)
        };
        let all = self.reservations.records.iter();
        let missing = all.filter(is_missing).map(|(uid, _)| Arc::clone(uid));
        let unassigned = self.queue.unassigned_pods.uids().filter(|uid| !listed.contains(*uid));
        let unassigned = unassigned.map(|uid| uid.as_str().into());
        let missing: Vec<Arc<str>> = missing.chain(unassigned).collect();
        for uid in missing {
            self.handle_pod_end(now, &uid, false);
        }
        if std::mem::take(&mut self.awaits_pod_list) {
            self.reserve_pending_vms();
            let until = now.checked_add(LIST_TIMEOUT).unwrap_or(now);
            let hosts: Vec<HostId> =
                self.reservations.engine.hosts().map(|(host, _)| host).collect();
            for host in hosts {
                if self.reservations.differs_from_report(host) {
                    self.availability.await_report(host, until);
                }
            }
        }
    }

    /// Updates the state after the deletion of a pod.
    pub fn delete_pod(&mut self, now: Instant, uid: &str) {
        self.handle_pod_end(now, uid, false);
    }

    /// Counts a pod on its host, regardless of which scheduler has bound the pod.
    fn count_pod_on_host(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        observed: &ObservedPod,
        host: &str,
    ) -> Result<(), PodError> {
        let uid = observed.uid();
        if self.release_if_unlisted(uid, host, observed.existing.is_terminating) {
            return Ok(());
        }
        self.mark_removal_if_terminating(uid, host, observed);
        if let Some(reservation) = self.reservations.get(uid)
            && &*reservation.host == host
            && reservation.content_hash == observed.content_hash
        {
            if !matches!(reservation.stage, Stage::Bound { .. } | Stage::Released) {
                self.reservations.records.set_stage(uid, Stage::Bound { since: now });
            }
            self.reservations.records.mark_observed_on_host(uid, observed.existing.is_terminating);
            return Ok(());
        }
        let (request, result) = self.compile_bound_pod(pod, observed)?;
        let vm = VmKey::from_pod(&observed.existing);
        self.release_other_reservation(uid, host, vm.as_ref());
        let id = self.reservations.engine.host(host);
        let was_listed =
            self.reservations.get(uid).is_some_and(|reservation| reservation.is_in_report);
        let is_listed = was_listed || id.is_some_and(|id| self.reservations.is_in_report(id, uid));
        let reservation = Reservation {
            host: self.reservations.records.intern_host(host),
            stage: Stage::Bound { since: now },
            request: request.clone(),
            vm,
            is_first_consumer: observed.existing.is_first_consumer,
            content_hash: observed.content_hash,
            is_observed_on_host: true,
            is_in_report: is_listed,
            is_terminating: observed.existing.is_terminating,
        };
        self.reservations.records.insert(uid, reservation);
        match id {
            // The pod is placed even if the prediction is that the kubelet would not admit it, because the pod is on
            // the host.
            Some(id) => drop(self.reservations.engine.add_bound_pod(&request, id)),
            None => {
                self.reservations.records.mark_on_unknown_host(uid);
                self.reservations.count_pod_on_unreported_node(&request, host);
            }
        }
        result
    }

    /// Compiles a pod that is on a host. If its rules cannot be compiled, compiles the pod without rules, because its
    /// resources are in use in any case.
    fn compile_bound_pod(
        &mut self,
        pod: &v1::Pod,
        observed: &ObservedPod,
    ) -> Result<(Request, Result<(), PodError>), PodError> {
        let needs = VmRequirements {
            is_vm: observed.existing.vmi_uid.is_some(),
            is_pinned: observed.existing.pod.has_exclusive_cpus(),
            ..VmRequirements::default()
        };
        let invalid: InvalidField = match self.compile(pod, observed, needs.clone()) {
            Ok(request) => return Ok((request, Ok(()))),
            Err(invalid) => invalid,
        };
        let counted = self.virtual_machines.placement_pod(&observed.existing);
        let parts_without_rules = PodFields::from_pod(pod, &counted).without_rules();
        match self.reservations.engine.compile_request(&parts_without_rules, needs) {
            Ok(request) => Ok((request, Err(PodError::CountedWithoutRules(invalid)))),
            Err(_) => Err(PodError::NotCounted(invalid)),
        }
    }

    /// Releases reservations that a pod on `host` makes obsolete: the reservation that another pod has for the same VM,
    /// and the reservation that this pod has on another host.
    fn release_other_reservation(&mut self, uid: &str, host: &str, vm: Option<&VmKey>) {
        let holder = vm.and_then(|vm| self.reservations.records.reservation_holder(vm)).cloned();
        if let Some(holder) = holder.filter(|holder| &**holder != uid)
            && self
                .reservations
                .get(&holder)
                .is_some_and(|reservation| reservation.stage.is_movable())
        {
            self.release(&holder);
        }
        if self.reservations.get(uid).is_some_and(|reservation| &*reservation.host != host) {
            self.release(uid);
        }
    }

    /// If the pod is terminating, marks its host as awaiting the removal of the pod: the kubelet may release the
    /// resources before the watch shows that the pod has ended.
    fn mark_removal_if_terminating(&mut self, uid: &str, host: &str, observed: &ObservedPod) {
        let host = self.reservations.engine.host(host);
        if let Some(host) = host.filter(|_| observed.existing.is_terminating)
            && requests_exclusive_resources(observed)
        {
            self.availability.mark_awaiting_removal(host, uid);
        }
    }

    /// Releases the resources of a terminating pod that the report of its host no longer lists; returns true if the
    /// resources are released.
    pub(super) fn release_if_unlisted(
        &mut self,
        uid: &str,
        host: &str,
        is_terminating: bool,
    ) -> bool {
        let reservation =
            self.reservations.get(uid).filter(|reservation| &*reservation.host == host);
        let Some(reservation) = reservation else { return false };
        match reservation.stage {
            Stage::Released => true,
            Stage::Bound { .. } if is_terminating && reservation.is_in_report => {
                let Some(host) = self.reservations.engine.host(host) else { return false };
                if self.reservations.is_in_report(host, uid) {
                    return false;
                }
                self.reservations.engine.remove_pod(uid);
                self.reservations.records.set_stage(uid, Stage::Released);
                self.end_removal_wait(host, uid);
                self.queue.refused_pods.mark_host_changed(host);
                true
            }
            _ => false,
        }
    }

    /// Inserts a pod without a host into the queue. After a restart, also reserves resources on the host that the
    /// scheduler chose for the pod before the restart.
    fn queue_pod(&mut self, now: Instant, pod: v1::Pod, observed: &ObservedPod) {
        let pod = Arc::new(pod);
        if !self.queue.insert(Arc::clone(&pod), observed) {
            return;
        }
        self.reserve_selected_node(now, &pod, observed);
        let uid = observed.uid();
        if self.reservations.get(uid).is_none()
            && observed.is_unschedulable
            && !self.queue.refused_pods.contains(uid)
            && let Ok(request) = self.compile_request(&pod, observed)
        {
            self.queue.refused_pods.insert_unscanned(&request);
        }
    }

    /// Reserves resources for a pod on the node that was selected for its volumes or, without such a node, on the pod's
    /// nominated node.
    pub(super) fn reserve_selected_node(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        observed: &ObservedPod,
    ) {
        if !observed.may_be_scheduled() {
            return;
        }
        let existing = &observed.existing;
        let selected = self.virtual_machines.selected_node(&existing.namespace, &observed.claims);
        let Some(node) = selected.or_else(|| existing.nominated_node_name.clone()) else { return };
        let until = now.checked_add(VOLUMES_TIMEOUT).unwrap_or(now);
        match self.reservations.get(observed.uid()) {
            Some(reservation) if *reservation.host == *node => {
                if matches!(reservation.stage, Stage::Reserved { .. }) {
                    let stage = Stage::Reserved { until };
                    self.reservations.records.set_stage(observed.uid(), stage);
                }
            }
            Some(_) => {}
            None => {
                let Ok(request) = self.compile_request(pod, observed) else { return };
                let Ok(host) = self.find_usable_host(&node, has_exclusive_resources(&request))
                else {
                    return;
                };
                let vm = VmKey::from_pod(existing);
                let is_kept = vm
                    .is_some_and(|vm| self.reservations.records.reservation_holder(&vm).is_some());
                // If a reservation is kept for the VM, `filter` uses that reservation instead.
                if !is_kept && self.reservations.engine.place_pod(&request, Some(&[host])).is_some()
                {
                    self.reserve(observed, request, host, until);
                }
            }
        }
    }

    /// Handles the end of a pod. If the VM of a first-consumer pod still needs the host, the pod's reservation is kept
    /// for the VM's launcher pod. Otherwise the reservation ends as soon as the kubelet has released the resources.
    fn handle_pod_end(&mut self, now: Instant, uid: &str, has_failed: bool) {
        self.queue.mark_deleted(now, uid);
        let Some(reservation) = self.reservations.get(uid) else { return };
        if matches!(reservation.stage, Stage::Kept { .. } | Stage::Leaving { .. }) {
            return;
        }
        let holds_reservation = |vm: &VmKey| {
            self.reservations.records.reservation_holder(vm).is_some_and(|holder| &**holder == uid)
        };
        let vm_needs_host = reservation
            .vm
            .as_ref()
            .is_some_and(|vm| holds_reservation(vm) && self.virtual_machines.is_alive(vm));
        // If the first-consumer pod of a VM has failed on its host and the volumes are provisioned there, the VM
        // continues: KubeVirt fails the VirtualMachineInstance only while a DataVolume waits for its first consumer
        // (pkg/virt-controller/watch/vmi/lifecycle.go). The end of the VirtualMachineInstance releases the reservation.
        let was_on_host = !matches!(reservation.stage, Stage::Reserved { .. });
        let may_continue =
            !has_failed || (was_on_host && self.virtual_machines.instances.is_some());
        if reservation.is_first_consumer && vm_needs_host && may_continue {
            return self.keep_reservation_for_vm(now, uid);
        }
        let was_sent = matches!(reservation.stage, Stage::Bound { .. } | Stage::Binding { .. });
        if !was_sent || !has_exclusive_resources(&reservation.request) {
            return self.release(uid);
        }
        self.release_or_await_kubelet(now, uid);
    }

    /// After the end of a first-consumer pod, keeps the pod's reservation for the launcher pod of the same VM.
    fn keep_reservation_for_vm(&mut self, now: Instant, uid: &str) {
        let Some(reservation) = self.reservations.get(uid) else { return };
        let (request, was_released) =
            (reservation.request.clone(), reservation.stage == Stage::Released);
        let host = self.reservations.engine.host(&reservation.host);
        let until = match self.virtual_machines.instances {
            Some(_) => None,
            None => now.checked_add(VOLUMES_TIMEOUT),
        };
        self.reservations.records.set_stage(uid, Stage::Kept { until });
        let Some(host) = host else { return };
        if was_released {
            // The kubelet released the resources before the extender observed the end of the pod. From now on, the
            // engine counts the resources as reserved for the VM.
            drop(self.reservations.engine.add_bound_pod(&request, host));
        }
        if self.reservations.is_in_report(host, uid) {
            self.availability.mark_awaiting_removal(host, uid);
        } else {
            self.end_removal_wait(host, uid);
        }
        // The launcher pod can use this reservation, and may have been refused while the first-consumer pod still
        // existed.
        self.queue.refused_pods.mark_host_changed(host);
    }

    /// Releases the resources of a pod that has ended on a host. If the kubelet may still use the resources, waits
    /// until the kubelet has released them.
    fn release_or_await_kubelet(&mut self, now: Instant, uid: &str) {
        let Some(reservation) = self.reservations.get(uid) else { return };
        let was_listed = reservation.is_in_report;
        let until = now.checked_add(LEAVING_TIMEOUT);
        let Some(host) = self.reservations.engine.host(&reservation.host) else {
            // The Node is deleted, but the kubelet may continue to run the pod for a moment.
            return match until {
                Some(until) => {
                    self.reservations.records.set_stage(uid, Stage::Leaving { until });
                }
                None => self.release(uid),
            };
        };
        match until {
            // As long as the host's report lists the pod, the engine counts the allocation in the report.
            _ if self.reservations.is_in_report(host, uid) => {
                self.availability.mark_awaiting_removal(host, uid);
                self.release(uid);
            }
            // No report has listed the pod, so it is unknown which CPUs the kubelet allocated.
            Some(until) if !was_listed => {
                self.availability.mark_awaiting_removal(host, uid);
                self.reservations.records.set_stage(uid, Stage::Leaving { until });
            }
            _ => {
                self.release(uid);
                self.end_removal_wait(host, uid);
            }
        }
    }
}

/// Returns true if the pod requests exclusive CPUs or huge pages.
fn requests_exclusive_resources(observed: &ObservedPod) -> bool {
    let pod = &observed.existing.pod;
    let mut containers = pod.containers.iter();
    containers.any(|container| !container.requests.hugepages.is_empty()) || pod.has_exclusive_cpus()
}
