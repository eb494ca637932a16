//! State of the scheduler extender, and functions that several calls and watch events use.

use std::sync::Arc;
use std::time::Instant;

use berth_api::ControlPlaneSpread;
use berth_kubevirt_render::launcher::ExistingPod;
use berth_placement::engine::{Engine, Request, VmRequirements};
use berth_placement::rules::{HostId, PodFields};
use k8s_openapi::api::core::v1;

use super::availability::HostAvailability;
use super::error::{InvalidField, NotReadyReason, RequestError};
use super::observed_pod::ObservedPod;
use super::pod_queue::PodQueue;
use super::refusal_cache::RefusalCache;
use super::reservation::{Stage, VOLUMES_TIMEOUT, VmKey};
use super::reservation_table::ReservationTable;
use super::stale_candidates::StaleCandidates;
use super::state_transitions::Availability;
use super::virtual_machines::VirtualMachines;

/// Reason for a host whose agent has not reported.
const NO_REPORT_REASON: &str = "node(s) had no agent report";

/// State of the scheduler extender. Watch events update the state. The answers to kube-scheduler's calls are derived
/// from the state.
#[derive(Debug, Default)]
pub struct Extender {
    pub(super) reservations: ReservationTable,
    pub(super) availability: HostAvailability,
    pub(super) stale_candidates: StaleCandidates,
    pub(super) queue: PodQueue,
    pub(super) virtual_machines: VirtualMachines,
    pub(super) refusal_cache: RefusalCache,
    /// True until pods are listed for the first time.
    pub(super) awaits_pod_list: bool,
}

impl Extender {
    /// Creates an extender without hosts and pods that answers calls immediately.
    #[must_use]
    pub fn new() -> Self {
        Self { reservations: ReservationTable::new(), ..Self::default() }
    }

    /// Creates an extender without hosts and pods that answers calls only after pods were listed.
    #[must_use]
    pub fn new_awaiting_pod_list() -> Self {
        Self { awaits_pod_list: true, ..Self::new() }
    }

    /// Returns true if the extender has no state that cannot be derived from objects of the cluster. The caller may
    /// then replace it by a new extender.
    #[must_use]
    pub fn can_be_rebuilt(&self) -> bool {
        self.reservations.records.unbound_reservations().next().is_none() && !self.awaits_pod_list
    }

    /// Returns the placement engine.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.reservations.engine
    }

    /// Sets the spread of control-plane VMs. It applies to pods for which a host is chosen later.
    pub fn set_control_plane_spread(&mut self, config: &ControlPlaneSpread) {
        self.reservations.engine.set_control_plane_spread(config);
    }

    /// Compiles the request of a pod: its resources, its rules, and the requirements of its VM.
    pub(super) fn compile_request(
        &mut self,
        pod: &v1::Pod,
        observed: &ObservedPod,
    ) -> Result<Request, RequestError> {
        let existing = &observed.existing;
        let needs = match (&existing.vmi_uid, &self.virtual_machines.instances) {
            (Some(uid), Some(_)) => {
                let vm = VmKey::from_pod(existing);
                match vm.and_then(|vm| self.virtual_machines.instance(&vm)) {
                    Some(instance) => instance.pod_requirements(&existing.pod),
                    None => {
                        return Err(RequestError::NotReady(NotReadyReason::UnknownInstance {
                            pod: observed.qualified_name(),
                            instance: uid.clone(),
                        }));
                    }
                }
            }
            _ => pod_requirements(existing),
        };
        Ok(self.compile(pod, observed, needs)?)
    }

    /// Compiles the request of a pod from the pod's resources and rules, and from the given requirements of its VM.
    pub(super) fn compile(
        &mut self,
        pod: &v1::Pod,
        observed: &ObservedPod,
        requirements: VmRequirements,
    ) -> Result<Request, InvalidField> {
        let counted = self.virtual_machines.placement_pod(&observed.existing);
        // The volumes of a pod that has a host are already provisioned.
        let is_on_host = observed.existing.node_name.is_some();
        let claims: &[String] = if is_on_host { &[] } else { &observed.claims };
        let parts = PodFields { claims, ..PodFields::from_pod(pod, &counted) };
        let request = self.reservations.engine.compile_request(&parts, requirements);
        request.map_err(|invalid| InvalidField::new(observed.qualified_name(), invalid))
    }

    /// Returns the host with this name, or the reason why the host does not accept the pod. If it is unknown which
    /// zones of the host are free, the host accepts only pods without exclusive CPUs and huge pages.
    pub(super) fn find_usable_host(
        &self,
        name: &str,
        has_exclusive_resources: bool,
    ) -> Result<HostId, &'static str> {
        let host = self.reservations.engine.host(name).ok_or(NO_REPORT_REASON)?;
        match self.availability.get(host).refusal_reason(has_exclusive_resources) {
            Some(reason) => Err(reason),
            None => Ok(host),
        }
    }

    /// Records a reservation for a pod that the engine has already placed on a host.
    pub(super) fn reserve(
        &mut self,
        pod: &ObservedPod,
        request: Request,
        host: HostId,
        until: Instant,
    ) {
        self.reservations.record(pod, request, host, Stage::Reserved { until });
        self.queue.mark_reserved(pod.uid());
    }

    /// Releases the reservation of a pod. Refused pods are then checked again for this host.
    pub(super) fn release(&mut self, uid: &str) {
        if let Some(host) = self.reservations.release(uid) {
            self.queue.refused_pods.mark_host_changed(host);
        }
    }

    /// Ends the wait of a host for the removal of a pod. If the host awaited the removal, refused pods are checked
    /// again for it.
    pub(super) fn end_removal_wait(&mut self, host: HostId, uid: &str) {
        if self.availability.end_removal_wait(host, uid) {
            self.queue.refused_pods.mark_host_changed(host);
        }
    }

    /// Returns true if a pod that `filter` has refused waits for resources.
    #[must_use]
    pub fn has_refused_pods(&self) -> bool {
        self.queue.refused_pods.len() > 0
    }

    /// Returns the hosts on which pods that `filter` has refused now fit. The caller patches the Nodes of these hosts,
    /// so that kube-scheduler retries the pods.
    pub fn take_hosts_to_patch(&mut self) -> Vec<String> {
        if !self.queue.refused_pods.may_find_host() {
            return Vec::new();
        }
        let Self { queue, reservations, availability, .. } = self;
        let is_available = |host| availability.get(host) == Availability::Available;
        let all_available = availability.are_all_available();
        let hosts = queue.refused_pods.take_hosts_with_resources(
            &mut reservations.engine,
            is_available,
            all_available,
        );
        let name =
            |host| self.reservations.engine.reported_host(host).map(|facts| facts.name.clone());
        hosts.into_iter().filter_map(name).collect()
    }

    /// Releases expired reservations and stale allocations, and ends waits that have timed out.
    pub fn expire_timeouts(&mut self, now: Instant) {
        for uid in self.reservations.records.expired_reservations(now) {
            if self.extend_for_volumes(now, &uid) {
                continue;
            }
            let reservation = self.reservations.get(&uid);
            let host = reservation
                .and_then(|reservation| self.reservations.engine.host(&reservation.host));
            self.release(&uid);
            host.into_iter().for_each(|host| self.end_removal_wait(host, &uid));
        }
        for name in self.stale_candidates.host_names() {
            self.update_stale_allocations(now, &name);
        }
        for host in self.availability.expire_report_waits(now) {
            self.queue.refused_pods.mark_host_changed(host);
        }
        self.queue.expire(now);
    }

    /// Extends the reservation of a pod whose volume is being provisioned for the reserved host; returns false if there
    /// is no such volume, or if kube-scheduler cannot place the pod on the host. kube-scheduler waits ten minutes for a
    /// volume, and calls `filter` again only if its own rules then permit the host: while a populator fills the volume,
    /// the storage that the driver reports is already without this volume, so that kube-scheduler may refuse the host
    /// until the volume is bound.
    fn extend_for_volumes(&mut self, now: Instant, uid: &str) -> bool {
        let Some(reservation) = self.reservations.get(uid) else { return false };
        let is_reserved = matches!(reservation.stage, Stage::Reserved { .. })
            && self.reservations.engine.host(&reservation.host).is_some();
        let pod = self.queue.unassigned_pods.get(uid).filter(|_| is_reserved);
        let observed = pod.and_then(|pod| ObservedPod::read(pod).ok());
        let Some(observed) = observed.filter(ObservedPod::may_be_scheduled) else { return false };
        let namespace = &observed.existing.namespace;
        let node = self.virtual_machines.selected_node(namespace, &observed.claims);
        let is_selected = node.is_some_and(|node| *node == *reservation.host);
        let until = now.checked_add(VOLUMES_TIMEOUT).filter(|_| is_selected);
        if let Some(until) = until {
            self.reservations.records.set_stage(uid, Stage::Reserved { until });
        }
        until.is_some()
    }

    /// Releases the reservations in the stage [`Stage::Kept`] of VMs that have ended. `has_ended` gets the UID of a
    /// VirtualMachineInstance.
    pub(super) fn release_kept_reservations(&mut self, has_ended: impl Fn(&str) -> bool) {
        let kept = self.reservations.records.unbound_reservations().filter(|(_, reservation)| {
            let vm = reservation.vm.as_ref();
            matches!(reservation.stage, Stage::Kept { .. })
                && vm.is_some_and(|vm| has_ended(&vm.instance_uid))
        });
        let kept: Vec<Arc<str>> = kept.map(|(uid, _)| Arc::clone(uid)).collect();
        for uid in kept {
            self.release(&uid);
        }
    }
}

/// Returns the requirements of a pod without a VirtualMachineInstance, derived from its containers: a pod that is no
/// VM, or any pod if KubeVirt is not installed.
fn pod_requirements(existing: &ExistingPod) -> VmRequirements {
    let is_pinned = existing.pod.has_exclusive_cpus();
    let class = if is_pinned { berth_api::Class::Performance } else { berth_api::Class::default() };
    VmRequirements {
        is_vm: existing.vmi_uid.is_some(),
        is_emulated: existing.pod.is_emulated(),
        is_pinned,
        class,
        numa_guest_memory: None,
    }
}
