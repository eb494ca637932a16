//! The reservation table: for each pod with a host, the amounts of its resources in the engine and a record.
//!
//! As long as a pod has a record and the engine knows the pod's host, the pod is placed in the engine. The exceptions
//! are the stage `released`, and the time in which `filter` or `bind` checks whether the kubelet could admit the pods
//! in another order.

use std::sync::Arc;

use berth_placement::engine::{Engine, Request};
use berth_placement::rules::{HostId, VolumeChecks};

use super::observed_pod::ObservedPod;
use super::reservation::{Reservation, Stage, VmKey, has_exclusive_resources};
use super::reservation_records::ReservationRecords;

/// The placement engine, and a record for each pod that has a reservation or is on a host.
#[derive(Debug, Default)]
pub(super) struct ReservationTable {
    pub(super) engine: Engine,
    pub(super) records: ReservationRecords,
}

/// Result of [`ReservationTable::restore`].
pub(super) enum RestoreResult {
    /// No reservation was removed, or the engine does not know the host of the removed reservation.
    NotRestored,
    /// The removed reservation is not restored; its host, which is given, may have more free resources than before.
    ReleasedHost(HostId),
    /// The VM's reservation is restored on the host with this name.
    RestoredHost(Arc<str>),
}

impl ReservationTable {
    pub(super) fn new() -> Self {
        let mut engine = Engine::new();
        engine.set_volume_checks(VolumeChecks::Reservations);
        Self { engine, records: ReservationRecords::default() }
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Reservation> {
        self.records.get(uid)
    }

    /// Returns true if the host's last agent report lists the pod.
    pub(super) fn is_in_report(&self, host: HostId, uid: &str) -> bool {
        self.engine.reported_host(host).is_some_and(|facts| facts.allocation(uid).is_some())
    }

    /// Inserts the record of a pod that the engine has placed on a host.
    pub(super) fn record(
        &mut self,
        pod: &ObservedPod,
        request: Request,
        host: HostId,
        stage: Stage,
    ) {
        let name = self.engine.reported_host(host).map_or("", |facts| facts.name.as_str());
        let reservation = Reservation {
            host: self.records.intern_host(name),
            stage,
            request,
            vm: VmKey::from_pod(&pod.existing),
            is_first_consumer: pod.existing.is_first_consumer,
            content_hash: pod.content_hash,
            is_observed_on_host: false,
            is_in_report: false,
            is_terminating: false,
        };
        self.records.insert(pod.uid(), reservation);
    }

    /// Removes the reservation of a pod and returns its host, which may now have more free resources. Returns `None`
    /// if there was no reservation, or if the engine does not know the host.
    pub(super) fn release(&mut self, uid: &str) -> Option<HostId> {
        let reservation = self.records.remove(uid)?;
        self.engine.remove_pod(uid);
        self.engine.host(&reservation.host)
    }

    /// Removes the reservation of the pod or, if the pod has none, the reservation of its VM, so that the pod can be
    /// placed again. Returns the removed reservation with the UID of its pod. A reservation whose binding was sent is
    /// not removed.
    pub(super) fn take_for_pod(&mut self, pod: &ObservedPod) -> Option<(Arc<str>, Reservation)> {
        let own = self.records.get(pod.uid()).map(|_| Arc::from(pod.uid()));
        let uid = own.or_else(|| {
            let holder = self.records.reservation_holder(&VmKey::from_pod(&pod.existing)?)?;
            self.records.get(holder)?.stage.is_movable().then(|| Arc::clone(holder))
        })?;
        let reservation =
            self.records.get(&uid).filter(|reservation| reservation.stage.is_movable())?.clone();
        self.engine.remove_pod(&uid);
        self.records.remove(&uid);
        Some((uid, reservation))
    }

    /// Restores the reservation that [`Self::take_for_pod`] has removed, if the pod could not be placed and the
    /// reservation is kept for the VM. The reservation of the pod itself is not restored, because the pod does not fit
    /// on that host.
    pub(super) fn restore(
        &mut self,
        removed: Option<(Arc<str>, Reservation)>,
        pod: &ObservedPod,
    ) -> RestoreResult {
        let Some((uid, reservation)) = removed else { return RestoreResult::NotRestored };
        let (name, host) = (Arc::clone(&reservation.host), self.engine.host(&reservation.host));
        if &*uid == pod.uid() || !matches!(reservation.stage, Stage::Kept { .. }) {
            return host.map_or(RestoreResult::NotRestored, RestoreResult::ReleasedHost);
        }
        let Some(host) = host else {
            // The engine does not know the host, but the host's Node may be created again.
            self.records.insert(&uid, reservation);
            self.records.mark_on_unknown_host(&uid);
            return RestoreResult::NotRestored;
        };
        // The reservation is restored even if the kubelet would not admit the pod, because the next `filter` call for
        // the pod checks the admission.
        drop(self.engine.add_bound_pod(&reservation.request, host));
        self.records.insert(&uid, reservation);
        RestoreResult::RestoredHost(name)
    }

    /// Counts a pod on a Node whose agent has not reported, so that other pods' affinity and spread rules take the pod
    /// into account.
    pub(super) fn count_pod_on_unreported_node(&mut self, request: &Request, node: &str) {
        if let Some(node) = self.engine.node(node) {
            drop(self.engine.add_bound_pod(request, node));
        }
    }

    /// Returns true if the host's report and the engine list different pods on the host. The resources of the pods are
    /// then not known exactly.
    pub(super) fn differs_from_report(&self, host: HostId) -> bool {
        let Some(facts) = self.engine.reported_host(host) else { return false };
        let is_listed = |request: &Request| facts.allocation(request.uid()).is_some();
        // A pod whose binding was not sent is omitted, because the kubelet has allocated nothing to it.
        let is_on_host = |request: &Request| {
            self.records
                .get(request.uid())
                .is_none_or(|reservation| !reservation.stage.is_movable())
        };
        let mut pods_on_host = self.engine.pods_on_host(host).filter(|request| is_on_host(request));
        let mut listed = facts.allocations.iter();
        pods_on_host.any(|request| has_exclusive_resources(request) && !is_listed(request))
            || listed.any(|allocation| self.records.get(&allocation.uid).is_none())
    }
}
