//! Pods that a kubelet was sent and that its agent's report does not list: in which order it admits them is not known.

use std::time::{Duration, Instant};

use super::book::Stage;
use super::desk::Desk;
use berth_kubelet_admission::CpuPolicy;
use berth_placement::engine::Request;
use berth_placement::rules::HostId;

/// A kubelet admits a pod, and its agent reports it, within so long; one that has not may admit all that it was sent in
/// another order.
const REPORTED: Duration = Duration::from_secs(5);

impl Desk {
    /// Whether a host takes a pod in whatever order its kubelet admits what it was sent. As long as reports keep up with
    /// bindings the order is that of the bindings, and nothing is asked here.
    pub(super) fn fits_in_all_orders(&self, now: Instant, request: &Request, host: HostId) -> bool {
        let sent = self.sent(now, host, request.uid());
        let is_late = |since: &Instant| now.saturating_duration_since(*since) > REPORTED;
        if !sent.iter().any(|(_, since)| is_late(since)) {
            return true;
        }
        let sent: Vec<&Request> = sent.into_iter().map(|(sent, _)| sent).collect();
        let is_movable = |other: &&Request| {
            self.book.get(other.uid()).is_some_and(|entry| entry.stage.is_movable())
        };
        let movable = self.engine.on(host).filter(is_movable).map(Request::uid);
        self.engine.fits_in_all_orders(host, request, &sent, &movable.collect::<Vec<_>>())
    }

    /// Pods with exclusive CPUs that are bound, or being bound, and that the report of their host does not list; and since
    /// when they are bound.
    fn sent(&self, now: Instant, host: HostId, but: &str) -> Vec<(&Request, Instant)> {
        let Some(facts) = self.engine.facts(host) else { return Vec::new() };
        if facts.admission.kubelet().cpu_policy != CpuPolicy::Static {
            return Vec::new();
        }
        let on = self.engine.on(host).filter(|one| one.uid() != but && one.pinned_cpus() > 0);
        let sent = on.filter_map(|one| {
            if facts.allocation(one.uid()).is_some() {
                return None;
            }
            match self.book.get(one.uid())?.stage {
                Stage::Bound { since } => Some((one, since)),
                Stage::Binding { .. } => Some((one, now)),
                _ => None,
            }
        });
        sent.collect()
    }
}
