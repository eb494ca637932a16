//! Checks that pods fit on a host in every order in which its kubelet may admit them.
//!
//! A kubelet that was down or slow receives all pods that were bound meanwhile as one list. The kubelet admits the
//! pods of a list by creation time (`HandlePodAdditions` of pkg/kubelet/kubelet.go sorts), not in the order of
//! binding. Other components cannot know which pods are in the same list.

use super::hosts::HostEntry;
use super::request::Request;
use super::state::Engine;
use crate::rules::HostId;
use berth_kubelet_admission::HostState;

/// Maximum number of orders that are tried: 24, the number of orders of four different pods. If there are more orders,
/// the pods count as not fitting.
const MAX_ORDERS: u64 = 24;

/// Pods with equal requests, whose order among each other has no effect on the kubelet's decisions.
struct EqualPods<'r> {
    request: &'r Request,
    /// UIDs of the pods that the current trial has not admitted yet.
    remaining_uids: Vec<&'r str>,
}

impl Engine {
    /// Returns true if the host's kubelet would admit the pod of `request` and all pods of `bound_pods` in every order.
    /// The pods of `bound_pods` and `excluded_uids` are already assumed on the host. The pods of `excluded_uids` are
    /// ignored, because the kubelet admits them after all other pods, or not at all.
    pub fn fits_in_all_orders(
        &self,
        host: HostId,
        request: &Request,
        bound_pods: &[&Request],
        excluded_uids: &[&str],
    ) -> bool {
        let Some(entry) = self.host_entry(host) else { return false };
        let mut state = entry.state.clone();
        let sent_uids = bound_pods.iter().map(|one| one.uid());
        for uid in sent_uids.chain(excluded_uids.iter().copied()).chain([request.uid()]) {
            state.remove(uid);
        }
        let mut kinds: Vec<EqualPods<'_>> = Vec::new();
        for one in bound_pods.iter().copied().chain([request]) {
            match kinds.iter_mut().find(|kind| kind.request.is_equal_for_kubelet(one)) {
                Some(kind) => kind.remaining_uids.push(one.uid()),
                None => kinds.push(EqualPods { request: one, remaining_uids: vec![one.uid()] }),
            }
        }
        count_orders(&kinds) <= MAX_ORDERS && entry.admits_in_every_order(&state, &mut kinds)
    }
}

/// Returns the number of different orders of the pods, `n! / (a! * b! * ...)`, where `n` is the number of all pods and
/// `a`, `b`, ... are the numbers of equal pods.
fn count_orders(kinds: &[EqualPods<'_>]) -> u64 {
    let (mut orders, mut placed) = (1_u64, 0_u64);
    for kind in kinds {
        for number in 1..=kind.remaining_uids.len() as u64 {
            placed += 1;
            // The division is exact at each step, because the result is a product of binomial coefficients.
            orders = orders.saturating_mul(placed) / number;
        }
    }
    orders
}

impl HostEntry {
    /// Returns true if the kubelet would admit the remaining pods in every order. Orders with a common prefix share
    /// the evaluation of the prefix.
    fn admits_in_every_order(&self, state: &HostState, kinds: &mut [EqualPods<'_>]) -> bool {
        for at in 0..kinds.len() {
            let Some(uid) = kinds[at].remaining_uids.pop() else { continue };
            let request = kinds[at].request;
            let fits = self
                .state_after_admission(state, uid, request)
                .is_some_and(|next| self.admits_in_every_order(&next, kinds));
            kinds[at].remaining_uids.push(uid);
            if !fits {
                return false;
            }
        }
        true
    }

    /// Returns the state after the kubelet has admitted a pod; `None` if the pod does not fit.
    fn state_after_admission(
        &self,
        state: &HostState,
        uid: &str,
        request: &Request,
    ) -> Option<HostState> {
        let admission = self.evaluate_admission(state, uid, request).ok()?;
        let mut next = state.clone();
        next.commit_admission(uid, request.pod(), admission).ok()?;
        Some(next)
    }
}
