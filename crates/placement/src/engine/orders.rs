//! Whether pods fit on a host in whatever order its kubelet admits them.
//!
//! A kubelet that was away, or slow, gets the pods that were bound meanwhile as one list and admits them by their time of
//! creation (`HandlePodAdditions` of pkg/kubelet/kubelet.go sorts), and not as they were bound. Which pods are in one list
//! is not known from outside.

use super::{Engine, Place, Request};
use crate::rules::HostId;
use berth_kubelet_admission::State;

/// Orders that are tried: four pods that differ. Of more pods nothing is said, and the answer is no.
const ORDERS: u64 = 24;

/// Pods that a kubelet cannot tell from each other, whose order makes no difference.
struct Alike<'r> {
    first: &'r Request,
    /// Their uids, those that are not admitted yet.
    left: Vec<&'r str>,
}

impl Engine {
    /// Whether the kubelet of a host would admit a pod and all of `sent`, in every order. `sent` are booked there, and so
    /// are `others`, which come after all of these if they come.
    pub fn fits_in_all_orders(
        &self,
        host: HostId,
        request: &Request,
        sent: &[&Request],
        others: &[&str],
    ) -> bool {
        let Some(place) = self.at(host) else { return false };
        let mut state = place.state.clone();
        let sent_uids = sent.iter().map(|one| one.uid());
        for uid in sent_uids.chain(others.iter().copied()).chain([request.uid()]) {
            state.remove(uid);
        }
        let mut kinds: Vec<Alike<'_>> = Vec::new();
        for one in sent.iter().copied().chain([request]) {
            match kinds.iter_mut().find(|kind| kind.first.is_like(one)) {
                Some(kind) => kind.left.push(one.uid()),
                None => kinds.push(Alike { first: one, left: vec![one.uid()] }),
            }
        }
        orders(&kinds) <= ORDERS && place.admits_all(&state, &mut kinds)
    }
}

/// How many orders there are: `n! / (a! * b! * ...)`.
fn orders(kinds: &[Alike<'_>]) -> u64 {
    let (mut orders, mut placed) = (1_u64, 0_u64);
    for kind in kinds {
        for number in 1..=kind.left.len() as u64 {
            placed += 1;
            // Exact at each step, as this is a product of binomial coefficients.
            orders = orders.saturating_mul(placed) / number;
        }
    }
    orders
}

impl Place {
    /// Goes through all orders; those that begin alike share their beginning.
    fn admits_all(&self, state: &State, kinds: &mut [Alike<'_>]) -> bool {
        for at in 0..kinds.len() {
            let Some(uid) = kinds[at].left.pop() else { continue };
            let request = kinds[at].first;
            let fits =
                self.next(state, uid, request).is_some_and(|next| self.admits_all(&next, kinds));
            kinds[at].left.push(uid);
            if !fits {
                return false;
            }
        }
        true
    }

    /// The host after it has admitted a pod; `None` if it would not.
    fn next(&self, state: &State, uid: &str, request: &Request) -> Option<State> {
        let admission = self.judged(state, uid, request).ok()?;
        let mut next = state.clone();
        next.accept(uid, request.pod(), admission).ok()?;
        Some(next)
    }
}
