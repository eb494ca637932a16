//! Records of reservations, indexed by pod, by VM and by host.
//!
//! The placement engine stores the amounts of resources; a record stores the stage and the expiry. Each pod has at most
//! one record, so no amount is released twice.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::reservation::{Reservation, Stage, VmKey};
use super::state_transitions::ReservationState;

/// The records of all reservations, with indexes by VM and by host.
#[derive(Debug, Default)]
pub(super) struct ReservationRecords {
    reservations_by_pod: HashMap<Arc<str>, Reservation>,
    /// For each VM that has a reservation, the UID of the pod with this reservation.
    pods_by_vm: HashMap<VmKey, Arc<str>>,
    /// UIDs of the pods that are not bound, whose reservations may expire.
    unbound_pods: BTreeSet<Arc<str>>,
    /// Pods on hosts that the engine does not know: the name of the host, and the UIDs of its pods.
    pods_on_unknown_hosts: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    host_names: HashSet<Arc<str>>,
}

impl ReservationRecords {
    /// Returns the stored copy of a host name, which all reservations on the host share to save memory.
    pub(super) fn intern_host(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.host_names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.host_names.insert(Arc::clone(&name));
        name
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Reservation> {
        self.reservations_by_pod.get(uid)
    }

    pub(super) fn len(&self) -> usize {
        self.reservations_by_pod.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Reservation)> {
        self.reservations_by_pod.iter()
    }

    /// Returns the reservations of pods that are not bound, with the UIDs of the pods.
    pub(super) fn unbound_reservations(&self) -> impl Iterator<Item = (&Arc<str>, &Reservation)> {
        self.unbound_pods.iter().filter_map(|uid| Some((uid, self.reservations_by_pod.get(uid)?)))
    }

    /// Returns the UID of the pod that has the reservation of a VM.
    pub(super) fn reservation_holder(&self, vm: &VmKey) -> Option<&Arc<str>> {
        self.pods_by_vm.get(vm)
    }

    fn debug_assert_transition(&self, uid: &str, next: ReservationState) {
        let state = self
            .reservations_by_pod
            .get(uid)
            .map_or(ReservationState::None, |reservation| reservation.stage.state());
        debug_assert!(
            state.can_transition_to(next),
            "invalid transition of reservation {uid} from {state:?} to {next:?}"
        );
    }

    /// Inserts or replaces the reservation of a pod. If the pod belongs to a VM, this is also the reservation of the
    /// VM.
    pub(super) fn insert(&mut self, uid: &str, reservation: Reservation) {
        self.debug_assert_transition(uid, reservation.stage.state());
        let uid: Arc<str> = uid.into();
        if let Some(vm) = &reservation.vm {
            self.pods_by_vm.insert(vm.clone(), Arc::clone(&uid));
        }
        self.index_stage(&uid, reservation.stage);
        self.reservations_by_pod.insert(uid, reservation);
    }

    /// Changes the stage of a reservation.
    pub(super) fn set_stage(&mut self, uid: &str, stage: Stage) {
        self.debug_assert_transition(uid, stage.state());
        let Some((uid, _)) = self.reservations_by_pod.get_key_value(uid) else { return };
        let uid = Arc::clone(uid);
        if let Some(reservation) = self.reservations_by_pod.get_mut(&uid) {
            reservation.stage = stage;
        }
        self.index_stage(&uid, stage);
    }

    /// Records that the watch has shown the pod on its host, and whether the pod is terminating.
    pub(super) fn mark_observed_on_host(&mut self, uid: &str, is_terminating: bool) {
        if let Some(reservation) = self.reservations_by_pod.get_mut(uid) {
            (reservation.is_observed_on_host, reservation.is_terminating) = (true, is_terminating);
        }
    }

    /// Records that an agent report has listed the pod.
    pub(super) fn mark_in_report(&mut self, uid: &str) {
        if let Some(reservation) = self.reservations_by_pod.get_mut(uid) {
            reservation.is_in_report = true;
        }
    }

    fn index_stage(&mut self, uid: &Arc<str>, stage: Stage) {
        if matches!(stage, Stage::Bound { .. } | Stage::Released) {
            self.unbound_pods.remove(uid);
        } else {
            self.unbound_pods.insert(Arc::clone(uid));
        }
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Reservation> {
        let reservation = self.reservations_by_pod.remove(uid)?;
        debug_assert!(reservation.stage.state().can_transition_to(ReservationState::None));
        if let Some(vm) = &reservation.vm
            && self.pods_by_vm.get(vm).is_some_and(|holder| &**holder == uid)
        {
            self.pods_by_vm.remove(vm);
        }
        self.unbound_pods.remove(uid);
        if let Some(pods) = self.pods_on_unknown_hosts.get_mut(&reservation.host) {
            pods.remove(uid);
        }
        Some(reservation)
    }

    /// Returns the UIDs of the pods whose reservations have expired.
    pub(super) fn expired_reservations(&self, now: Instant) -> Vec<Arc<str>> {
        let is_expired =
            |reservation: &Reservation| reservation.stage.expiry().is_some_and(|end| end <= now);
        let expired =
            self.unbound_reservations().filter(|(_, reservation)| is_expired(reservation));
        expired.map(|(uid, _)| Arc::clone(uid)).collect()
    }

    /// Records that the engine does not know the pod's host.
    pub(super) fn mark_on_unknown_host(&mut self, uid: &str) {
        if let Some((uid, reservation)) = self.reservations_by_pod.get_key_value(uid) {
            let host = Arc::clone(&reservation.host);
            self.pods_on_unknown_hosts.entry(host).or_default().insert(Arc::clone(uid));
        }
    }

    /// Returns the UIDs of the pods on a Node whose agent has not reported yet.
    pub(super) fn pods_without_report(&self, node: &str) -> impl Iterator<Item = &Arc<str>> {
        self.pods_on_unknown_hosts.get(node).into_iter().flatten()
    }

    /// Removes and returns the UIDs of the pods on this host that were marked by [`Self::mark_on_unknown_host`].
    pub(super) fn take_pods_on_host(&mut self, host: &str) -> BTreeSet<Arc<str>> {
        self.pods_on_unknown_hosts.remove(host).unwrap_or_default()
    }
}
