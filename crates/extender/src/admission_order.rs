//! Order in which a kubelet admits the pods of its host.
//!
//! A kubelet allocates zones to pods in the order in which the pods arrive. If a pod is bound before a pod with an
//! earlier reservation, the kubelet may allocate to it the zone that the pod with the earlier reservation needs.
//! Therefore, before a binding, the extender places the pod again as if the pod arrived first, and permits the binding
//! only if all other reservations on the host still fit. If agent reports lag behind bindings, the order of admission
//! is unknown, and the pods must fit in every order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_kubelet_admission::CpuPolicy;
use berth_placement::engine::Request;
use berth_placement::rules::HostId;

use super::reservation::{Reservation, Stage, has_no_zone_resources};
use super::reservation_table::ReservationTable;

/// Time within which a kubelet admits a pod and the host's agent reports the pod. If the report takes longer, the
/// order in which the kubelet admits the pods that were bound to its host is unknown.
const REPORT_DELAY: Duration = Duration::from_secs(5);

/// Result of [`ReservationTable::choose_host`].
pub(super) struct HostChoice {
    /// Host on which the engine has placed the pod; `None` if no host accepts the pod.
    pub(super) host: Option<HostId>,
    /// Hosts on which the pod fits, but not in every order of admission.
    pub(super) order_dependent_hosts: HashSet<HostId>,
}

/// Reason why a pod cannot be placed before the pods that already have a reservation on the host.
pub(super) enum OrderConflict {
    /// The pod itself does not fit. `reason` is the engine's first reason.
    DoesNotFit { reason: String },
    /// Another pod's reservation would no longer fit.
    DisplacesReservation,
}

impl ReservationTable {
    /// Places a pod on the best host of `candidates` on which all other reservations still fit. Tries `preferred_host`
    /// first.
    pub(super) fn choose_host(
        &mut self,
        now: Instant,
        request: &Request,
        mut candidates: Vec<HostId>,
        preferred_host: Option<HostId>,
    ) -> HostChoice {
        let preferred = preferred_host.filter(|host| candidates.contains(host));
        let preferred = preferred.and_then(|host| self.engine.place_pod(request, Some(&[host])));
        let mut host = preferred.or_else(|| self.engine.place_pod(request, Some(&candidates)));
        let mut unordered = HashSet::new();
        while let Some(candidate) = host {
            if !self.fits_in_every_order(now, request, candidate) {
                unordered.insert(candidate);
            } else if self.preserves_reservations(request, candidate) {
                break;
            }
            candidates.retain(|other| *other != candidate);
            host = self.engine.place_pod(request, Some(&candidates));
        }
        HostChoice { host, order_dependent_hosts: unordered }
    }

    /// Returns true if the pod fits on a host in every order in which the kubelet may admit the pods that are bound to
    /// the host. If every unreported pod was bound less than [`REPORT_DELAY`] ago, the kubelet admits the pods in the
    /// order of binding, so the result is true without a computation.
    pub(super) fn fits_in_every_order(
        &self,
        now: Instant,
        request: &Request,
        host: HostId,
    ) -> bool {
        if has_no_zone_resources(request) {
            return true;
        }
        let unreported = self.unreported_pods(now, host, request.uid());
        let is_late = |since: &Instant| now.saturating_duration_since(*since) > REPORT_DELAY;
        if !unreported.iter().any(|(_, since)| is_late(since)) {
            return true;
        }
        let unreported: Vec<&Request> = unreported.into_iter().map(|(sent, _)| sent).collect();
        let is_movable = |other: &&Request| {
            self.records.get(other.uid()).is_some_and(|reservation| reservation.stage.is_movable())
        };
        let movable = self.engine.pods_on_host(host).filter(is_movable).map(Request::uid);
        self.engine.fits_in_all_orders(host, request, &unreported, &movable.collect::<Vec<_>>())
    }

    /// Returns the pods with exclusive CPUs that are bound or being bound to a host and that the host's report does not
    /// list, each with the time of its binding. Omits the pod with the UID `excluded_uid`.
    fn unreported_pods(
        &self,
        now: Instant,
        host: HostId,
        excluded_uid: &str,
    ) -> Vec<(&Request, Instant)> {
        let Some(facts) = self.engine.reported_host(host) else { return Vec::new() };
        if facts.admission.kubelet().cpu_policy != CpuPolicy::Static {
            return Vec::new();
        }
        let pods_on_host = self.engine.pods_on_host(host);
        let pods_on_host = pods_on_host
            .filter(|request| request.uid() != excluded_uid && request.pinned_cpus() > 0);
        let unreported = pods_on_host.filter_map(|request| {
            if facts.allocation(request.uid()).is_some() {
                return None;
            }
            match self.records.get(request.uid())?.stage {
                Stage::Bound { since } => Some((request, since)),
                Stage::Binding { .. } => Some((request, now)),
                _ => None,
            }
        });
        unreported.collect()
    }

    /// Returns true if the other reservations of a host still fit when the kubelet admits this pod first. The engine
    /// has already placed the pod after the other reservations; the pod stays placed if the result is true.
    fn preserves_reservations(&mut self, request: &Request, host: HostId) -> bool {
        let others = self.movable_reservations(host, request.uid());
        let mut requests = others.iter().map(|(_, reservation)| &reservation.request);
        // The order matters only between pods that need resources of zones and whose requests differ for the kubelet.
        if has_no_zone_resources(request)
            || requests
                .all(|other| has_no_zone_resources(other) || request.is_equal_for_kubelet(other))
        {
            return true;
        }
        let all_fit = self.place_ahead_of(request, host, &others).is_ok();
        if all_fit {
            self.engine.remove_pod(request.uid());
            self.replace_reservations(host, &others);
        }
        all_fit && self.engine.place_pod(request, Some(&[host])).is_some()
    }

    /// Places a pod before all pods that have a reservation on the host and are not bound yet. If the pod or another
    /// pod does not fit in this order, the pod is not placed, and the other pods are placed as before.
    ///
    /// # Errors
    /// Returns the reason why the pod or another pod does not fit.
    pub(super) fn place_ahead_of_all(
        &mut self,
        request: &Request,
        host: HostId,
    ) -> Result<(), OrderConflict> {
        let others = self.movable_reservations(host, request.uid());
        self.place_ahead_of(request, host, &others)
    }

    fn place_ahead_of(
        &mut self,
        request: &Request,
        host: HostId,
        others: &[(Arc<str>, Reservation)],
    ) -> Result<(), OrderConflict> {
        self.engine.remove_pod(request.uid());
        for (other, _) in others {
            self.engine.remove_pod(other);
        }
        let conflict = if self.engine.place_pod(request, Some(&[host])).is_none() {
            OrderConflict::DoesNotFit { reason: self.rejection_message(request, host) }
        } else {
            let mut all = others.iter();
            if all.all(|(_, other)| self.engine.place_pod(&other.request, Some(&[host])).is_some())
            {
                return Ok(());
            }
            OrderConflict::DisplacesReservation
        };
        self.engine.remove_pod(request.uid());
        self.replace_reservations(host, others);
        Err(conflict)
    }

    /// Returns the engine's first reason why a host does not accept the pod, or a general reason if
    /// the engine has none.
    pub(super) fn rejection_message(&self, request: &Request, host: HostId) -> String {
        let reasons = self.engine.rejection_reasons(request, host);
        reasons
            .first()
            .map_or_else(|| "insufficient free resources".to_owned(), ToString::to_string)
    }

    /// Places reservations of a host again, in the order of `others`.
    fn replace_reservations(&mut self, host: HostId, others: &[(Arc<str>, Reservation)]) {
        for (other, _) in others {
            self.engine.remove_pod(other);
        }
        for (_, other) in others {
            // These pods fitted before. If they no longer fit because of a report that has arrived since, `bind`
            // detects it.
            drop(self.engine.add_bound_pod(&other.request, host));
        }
    }

    /// Returns the reservations of a host whose pods are not bound, in the order in which they were made, except the
    /// reservation of the pod with the UID `excluded_uid`.
    fn movable_reservations(
        &self,
        host: HostId,
        excluded_uid: &str,
    ) -> Vec<(Arc<str>, Reservation)> {
        let pods_on_host =
            self.engine.pods_on_host(host).filter(|request| request.uid() != excluded_uid);
        let movable = pods_on_host.filter_map(|request| {
            let reservation = self.records.get(request.uid())?;
            let is_movable = reservation.stage.is_movable();
            Some((Arc::from(request.uid()), is_movable.then(|| reservation.clone())?))
        });
        movable.collect()
    }
}
