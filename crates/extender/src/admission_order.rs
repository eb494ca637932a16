//! Order in which a kubelet admits the pods of its host.
//!
//! A kubelet allocates zones to pods in the order in which it admits them. If a pod is bound before another pod with an
//! earlier reservation, the kubelet may allocate the zone that the other pod needs. Therefore, before a binding, the
//! extender places the pod as if the kubelet admitted it before all pods with reservations, and permits the binding
//! only if all reservations on the host still fit. If a host's report does not list pods that were bound some seconds
//! ago, the order of admission is unknown, and the pod must fit in every order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_kubelet_admission::CpuPolicy;
use berth_placement::engine::Request;
use berth_placement::rules::HostId;

use super::reservation::{Reservation, Stage, has_no_zone_resources};
use super::reservation_table::ReservationTable;

/// Usual maximum time from a binding until the kubelet admits the pod and the host's agent reports it. If the report
/// takes longer, the order in which the kubelet admits the pods that were bound to the host is unknown.
const REPORT_DELAY: Duration = Duration::from_secs(5);

/// Result of [`ReservationTable::choose_host`].
pub(super) struct HostChoice {
    /// Host on which the engine has placed the pod; `None` if the pod fits on no host.
    pub(super) host: Option<HostId>,
    /// Hosts on which the pod fits in the assumed order of admission, but not in every order.
    pub(super) order_dependent_hosts: HashSet<HostId>,
}

/// Reason why a pod cannot be placed before the pods with earlier reservations on the host.
pub(super) enum OrderConflict {
    /// The pod itself does not fit. `reason` is the first reason that the engine reports.
    DoesNotFit { reason: String },
    /// The pod fits, but the reservation of another pod would no longer fit.
    DisplacesReservation,
}

impl ReservationTable {
    /// Places a pod on the best host of `candidates` on which all reservations of other pods still fit. Tries
    /// `preferred_host` first.
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
    /// the host. Returns true without a computation if no unreported pod was bound longer than [`REPORT_DELAY`] ago,
    /// because the kubelet then admits the pods in the order of their bindings.
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

    /// Returns the pods with exclusive CPUs on a host that are bound or whose binding was sent, but that the host's
    /// report does not list. Each pod has the time of its binding, or `now` if the binding was only sent. Omits the pod
    /// with the UID `excluded_uid`.
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

    /// Returns true if the reservations of other pods on a host still fit when the kubelet admits `request` first. The
    /// caller has already placed the pod after the other reservations. If the result is true, the pod is placed there
    /// again.
    fn preserves_reservations(&mut self, request: &Request, host: HostId) -> bool {
        let others = self.movable_reservations(host, request.uid());
        let mut requests = others.iter().map(|(_, reservation)| &reservation.request);
        // The order is irrelevant if only one of two pods needs resources of zones, or if the kubelet treats both
        // requests alike.
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

    /// Places a pod on a host before all pods with reservations that are not bound yet. If the pod or one of these pods
    /// does not fit in this order, removes the pod, and restores the placement of the other pods.
    ///
    /// # Errors
    /// Returns the reason why the pod or one of the other pods does not fit.
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

    /// Returns the first reason of the engine why a host does not accept the pod. If the engine reports no reason,
    /// returns a general one.
    pub(super) fn rejection_message(&self, request: &Request, host: HostId) -> String {
        let reasons = self.engine.rejection_reasons(request, host);
        reasons
            .first()
            .map_or_else(|| "insufficient free resources".to_owned(), ToString::to_string)
    }

    /// Removes the pods of reservations on a host, and places them again in the order of `others`.
    fn replace_reservations(&mut self, host: HostId, others: &[(Arc<str>, Reservation)]) {
        for (other, _) in others {
            self.engine.remove_pod(other);
        }
        for (_, other) in others {
            // The pods fitted before. If a report that arrived since then has changed this, `bind` will detect it.
            drop(self.engine.add_bound_pod(&other.request, host));
        }
    }

    /// Returns the reservations on a host whose pods are not bound, in the order of their creation. Omits the
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
