//! A pod is bound: what was reserved is looked at again, as its kubelet will, in the order in which pods are sent to it.
//!
//! A kubelet gives zones to pods as they come. Were one bound that was reserved later than another, it would have what
//! the other was promised; so it is placed again as if it came first, and only bound if the others keep a place.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1;

use super::book::{BINDING, Entry, RESERVED, Stage, has_own};
use super::desk::{Answer, Desk, UNLISTED, UNSURE};
use super::seen::Seen;
use berth_placement::engine::Request;
use berth_placement::rules::HostId;

/// What `bind` is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// The binding may be sent; [`Desk::bound`] or [`Desk::not_bound`] is to be told what became of it.
    Send,
    /// It is there already.
    Done,
    /// The pod itself is needed to say.
    Unknown,
    /// What it depends on is not known yet.
    NotYet(String),
    /// It may not go there.
    Refused(String),
}

impl Desk {
    /// Whether a pod may be bound to a host. `pod` is for one whose reservation is lost, and that was never seen.
    pub fn bind(&mut self, now: Instant, uid: &str, node: &str, pod: Option<&v1::Pod>) -> Bind {
        if self.is_unlisted {
            return Bind::NotYet(UNLISTED.to_owned());
        }
        if self.gone.contains_key(uid) {
            return Bind::Refused(format!("the pod {uid} has been deleted, or has ended"));
        }
        let entry = match self.book.get(uid) {
            Some(entry) if &*entry.host != node => {
                let other = &entry.host;
                return Bind::Refused(format!("{other} is reserved for it, and not {node}"));
            }
            Some(entry) => entry,
            None => return self.bind_anew(now, uid, node, pod),
        };
        match entry.stage {
            Stage::Bound { .. } => Bind::Done,
            Stage::Binding { .. } => Bind::NotYet(format!("it is being bound to {node}")),
            Stage::Reserved { .. } => {
                let request = entry.request.clone();
                match self.usable(node, has_own(&request)) {
                    Ok(host) => self.send(now, &request, host),
                    Err(why) => Bind::Refused(format!("{node}: {why}")),
                }
            }
            Stage::Kept { .. } | Stage::Leaving { .. } | Stage::Ended => {
                Bind::Refused("it has gone".to_owned())
            }
        }
    }

    /// Its reservation is lost: with a restart, or as it came too late.
    fn bind_anew(&mut self, now: Instant, uid: &str, node: &str, pod: Option<&v1::Pod>) -> Bind {
        let known = self.pending.get(uid).cloned();
        let Some(pod) = known.as_deref().or(pod) else { return Bind::Unknown };
        let seen = match Seen::read(pod) {
            Ok(seen) => seen,
            Err(invalid) => return Bind::Refused(invalid.to_string()),
        };
        if seen.uid() != uid {
            let called = seen.called();
            return Bind::Refused(format!("{called} has the uid {} now, not {uid}", seen.uid()));
        }
        let request = match self.request(pod, &seen) {
            Ok(request) => request,
            Err(Answer::NotYet(why)) => return Bind::NotYet(why),
            Err(Answer::Wrong(why)) => return Bind::Refused(why),
            Err(_) => return Bind::Unknown,
        };
        let host = match self.usable(node, has_own(&request)) {
            Ok(host) => host,
            Err(why) => return Bind::Refused(format!("{node}: {why}")),
        };
        if self.engine.place(&request, Some(&[host])).is_none() {
            return self.refusal(&request, host);
        }
        let until = now.checked_add(RESERVED).unwrap_or(now);
        self.write(&seen, request.clone(), host, Stage::Reserved { until });
        self.send(now, &request, host)
    }

    /// It is placed again as the first of those that are not bound yet.
    fn send(&mut self, now: Instant, request: &Request, host: HostId) -> Bind {
        if !takes_nothing_of_zones(request) && !self.fits_in_all_orders(now, request, host) {
            self.release(request.uid());
            return Bind::Refused(UNSURE.to_owned());
        }
        let others = self.movable(host, request.uid());
        match self.put_first(request, host, &others) {
            Ok(()) => {
                let until = now.checked_add(BINDING).unwrap_or(now);
                self.book.set(request.uid(), Stage::Binding { until });
                Bind::Send
            }
            Err(refusal) => {
                self.release(request.uid());
                refusal
            }
        }
    }

    /// Whether those of a host that are promised and not sent keep a place there if this one is sent first. It is placed
    /// there already, after them, and stays so if they do.
    pub(super) fn leaves_room(&mut self, request: &Request, host: HostId) -> bool {
        let others = self.movable(host, request.uid());
        let mut all = others.iter().map(|(_, entry)| &entry.request);
        // Of pods that are alike all orders are one.
        if takes_nothing_of_zones(request)
            || all.all(|other| takes_nothing_of_zones(other) || request.is_equal_for_kubelet(other))
        {
            return true;
        }
        let leaves = self.put_first(request, host, &others).is_ok();
        if leaves {
            self.engine.remove(request.uid());
            self.put_again(host, &others);
        }
        leaves && self.engine.place(request, Some(&[host])).is_some()
    }

    /// Places a pod before the others. If one of them has no place then, all is as before, without it.
    fn put_first(
        &mut self,
        request: &Request,
        host: HostId,
        others: &[(Arc<str>, Entry)],
    ) -> Result<(), Bind> {
        self.engine.remove(request.uid());
        for (other, _) in others {
            self.engine.remove(other);
        }
        let refusal = if self.engine.place(request, Some(&[host])).is_none() {
            self.refusal(request, host)
        } else {
            let mut all = others.iter();
            if all.all(|(_, other)| self.engine.place(&other.request, Some(&[host])).is_some()) {
                return Ok(());
            }
            Bind::Refused("another pod's place, reserved before, would be lost".to_owned())
        };
        self.engine.remove(request.uid());
        self.put_again(host, others);
        Err(refusal)
    }

    /// Places them in this order again.
    fn put_again(&mut self, host: HostId, others: &[(Arc<str>, Entry)]) {
        for (other, _) in others {
            self.engine.remove(other);
        }
        for (_, other) in others {
            // They had a place; one that a report has taken meanwhile is found out when it is bound.
            drop(self.engine.bound(&other.request, host));
        }
    }

    /// Those of a host that are promised and not sent, in the order of the promises.
    fn movable(&self, host: HostId, but: &str) -> Vec<(Arc<str>, Entry)> {
        let on = self.engine.on(host).filter(|request| request.uid() != but);
        let entries = on.filter_map(|request| {
            let entry = self.book.get(request.uid())?;
            Some((Arc::from(request.uid()), entry.stage.is_movable().then(|| entry.clone())?))
        });
        entries.collect()
    }

    fn refusal(&self, request: &Request, host: HostId) -> Bind {
        let why = self.engine.why_not(request, host);
        let why = why.first().map_or_else(|| "there is no room".to_owned(), ToString::to_string);
        Bind::Refused(format!("it does not fit there any more: {why}"))
    }

    /// The binding was made.
    pub fn bound(&mut self, now: Instant, uid: &str) {
        if self.book.get(uid).is_some_and(|entry| matches!(entry.stage, Stage::Binding { .. })) {
            self.book.set(uid, Stage::Bound { since: now });
        }
        self.pending.remove(uid);
    }

    /// The server refused the binding. Where it is not known whether it was made, neither is told.
    pub fn not_bound(&mut self, now: Instant, uid: &str) {
        if self.book.get(uid).is_some_and(|entry| matches!(entry.stage, Stage::Binding { .. })) {
            let until = now.checked_add(RESERVED).unwrap_or(now);
            self.book.set(uid, Stage::Reserved { until });
        }
    }
}

/// Whether a kubelet gives it no CPUs, memory or devices of a zone, so that it makes no difference to others when it comes:
/// those of its managers that know zones look at Guaranteed pods alone, and KubeVirt's own devices are of no zone.
pub(super) fn takes_nothing_of_zones(request: &Request) -> bool {
    let pod = request.pod();
    let mut containers = pod.init_containers.iter().chain(&pod.containers);
    !pod.is_guaranteed()
        && containers.all(|one| {
            one.requests.extended.keys().all(|name| name.starts_with("devices.kubevirt.io/"))
        })
}
