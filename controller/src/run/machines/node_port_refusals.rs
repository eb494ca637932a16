//! Node ports that the API server refused to the machines of a MachineDeployment, and the rate limit of these refused
//! attempts.
//!
//! The refusals of one reconcile change the status, which triggers the next reconcile at once. So the limit must be per
//! time, not per reconcile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::delays::RETRY_DELAY;

/// Number of refused node ports after which no further node port is tried for [`RETRY_DELAY`], because each attempt
/// costs a request.
const MAX_REFUSALS: usize = 16;
/// Time after the last refusal until all refused node ports are tried again, in case other Services were deleted.
const REFUSAL_TIME: Duration = Duration::from_secs(600);

/// Refused node ports. They expire together, so a MachineDeployment whose machines wait tries every node port of its
/// range before it tries a refused one again.
#[derive(Clone, Debug, Default)]
pub(super) struct NodePortRefusals {
    ports: BTreeSet<u16>,
    /// Time of the last refusal.
    last_refusal: Option<Instant>,
    /// Number of refusals since the end of the last wait.
    count: usize,
    /// Time since which no node port is tried, because there were [`MAX_REFUSALS`] refusals; `None` if node ports may
    /// be tried.
    waiting_since: Option<Instant>,
}

impl NodePortRefusals {
    /// Returns the refused node ports that have not expired.
    pub(super) fn ports(&mut self, now: Instant) -> &BTreeSet<u16> {
        if self.last_refusal.is_some_and(|time| has_passed(REFUSAL_TIME, time, now)) {
            self.ports.clear();
            self.last_refusal = None;
        }
        &self.ports
    }

    /// Returns true if no further node port may be tried now.
    pub(super) fn must_wait(&mut self, now: Instant) -> bool {
        if self.waiting_since.is_some_and(|since| has_passed(RETRY_DELAY, since, now)) {
            self.waiting_since = None;
            self.count = 0;
        }
        self.waiting_since.is_some()
    }

    /// Records a refused node port. Returns true if no further node port may be tried now.
    pub(super) fn record(&mut self, port: u16, now: Instant) -> bool {
        // A refused node port that is already in the set belongs to an existing Service. No other node port is tried
        // for this Service, so the refusal is not counted.
        if self.ports.insert(port) {
            self.last_refusal = Some(now);
            self.count = self.count.saturating_add(1);
            if self.count >= MAX_REFUSALS && self.waiting_since.is_none() {
                self.waiting_since = Some(now);
            }
        }
        self.waiting_since.is_some()
    }
}

fn has_passed(duration: Duration, since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= duration
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::node_ports::{NodePortRequest, NodePorts, allocate_node_ports};

    /// Tries node ports as one reconcile does, until the API server accepts one. Returns the refused node ports, and
    /// the accepted one.
    fn reconcile(
        refusals: &mut NodePortRefusals,
        range: &str,
        now: Instant,
        is_free: impl Fn(u16) -> bool,
    ) -> (Vec<u16>, Option<u16>) {
        let mut unavailable = refusals.ports(now).clone();
        let mut must_wait = refusals.must_wait(now);
        let mut refused = Vec::new();
        while !must_wait {
            let allocated = allocate_node_ports(NodePortRequest {
                range: range.parse().unwrap(),
                machine: "cluster-shop/web-1",
                ports: &BTreeSet::from([22]),
                existing: &NodePorts::new(),
                unavailable: &unavailable,
            });
            let Some(port) = allocated.map(|ports| ports[&22]) else { break };
            if is_free(port) {
                return (refused, Some(port));
            }
            refused.push(port);
            unavailable.insert(port);
            must_wait = refusals.record(port, now);
        }
        (refused, None)
    }

    #[test]
    fn a_free_node_port_after_400_refused_ones_is_found_at_a_limited_rate() {
        let start = Instant::now();
        let mut refusals = NodePortRefusals::default();
        let mut order: BTreeSet<u16> = BTreeSet::new();
        let mut times: Vec<Instant> = Vec::new();
        let mut found = None;
        // Events trigger a reconcile each second.
        for second in 0..2_000 {
            let now = start + Duration::from_secs(second);
            // Only the last of 400 node ports is free, and 400 is a multiple of `MAX_REFUSALS`.
            let is_free = |_| order.len() == 400;
            let (refused, port) = reconcile(&mut refusals, "30000-30400", now, is_free);
            times.extend(refused.iter().map(|_| now));
            for port in refused {
                assert!(order.insert(port), "{port} is tried again");
            }
            found = port;
            if found.is_some() {
                break;
            }
        }
        assert!(found.is_some_and(|port| !order.contains(&port)), "{found:?}");
        assert_eq!(times.len(), 400);
        for (first, next) in times.iter().zip(times.iter().skip(MAX_REFUSALS)) {
            assert!(has_passed(RETRY_DELAY, *first, *next), "more than {MAX_REFUSALS} attempts");
        }
    }

    #[test]
    fn all_refused_node_ports_are_tried_again_after_the_last_refusal() {
        let start = Instant::now();
        let mut refusals = NodePortRefusals::default();
        assert_eq!(reconcile(&mut refusals, "30100-30102", start, |_| false).0.len(), 3);
        let before = start + REFUSAL_TIME - Duration::from_secs(1);
        assert!(reconcile(&mut refusals, "30100-30102", before, |_| false).0.is_empty());
        assert!(!refusals.record(30_100, before), "it is already known");
        let after = start + REFUSAL_TIME;
        assert_eq!(reconcile(&mut refusals, "30100-30102", after, |_| false).0.len(), 3);
    }
}
