//! What becomes of pods: those that are bound take room, those that have gone give it back when their kubelet does.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1;

use super::book::{Entry, Key, LEAVING, LISTED, Stage, WITH_VOLUMES, has_own};
use super::desk::Desk;
use super::seen::Seen;
use berth_placement::engine::{Needs, Request};
use berth_placement::rules::{HostId, PodSpecParts};

/// For so long it is remembered that a pod has gone.
const REMEMBERED: Duration = Duration::from_secs(60);

impl Desk {
    /// A pod is as it is seen.
    ///
    /// # Errors
    /// Names the field that cannot be understood, of a pod on a host: it is counted without its rules.
    pub fn pod(&mut self, now: Instant, pod: v1::Pod, seen: &Seen) -> Result<(), String> {
        let existing = &seen.existing;
        if existing.is_terminal {
            // What the kubelet has refused is no place to keep.
            let is_failed =
                pod.status.as_ref().and_then(|one| one.phase.as_deref()) == Some("Failed");
            self.left(now, seen.uid(), is_failed);
            return Ok(());
        }
        match existing.node_name.as_deref() {
            Some(host) => {
                self.pending.remove(seen.uid());
                self.waiting.remove(seen.uid());
                self.settle(now, &pod, seen, host)
            }
            None if seen.is_ours => self.open(now, pod, seen),
            None => Ok(()),
        }
    }

    /// Whether a pod is on its way to a host whose report does not list it yet, and has CPUs or pages of its own. Of many
    /// pods these come last: what they have is reckoned from what the others have.
    #[must_use]
    pub fn is_on_its_way(&self, seen: &Seen) -> bool {
        let existing = &seen.existing;
        let host = existing.node_name.as_deref().and_then(|host| self.engine.host(host));
        let Some(facts) = host.and_then(|host| self.engine.facts(host)) else { return false };
        let mut containers = existing.pod.containers.iter();
        let has_pages = containers.any(|one| !one.requests.hugepages.is_empty());
        facts.allocation(seen.uid()).is_none() && (has_pages || existing.pod.has_own_cpus())
    }

    /// All pods were listed, these: others have gone.
    pub fn pods_listed(&mut self, now: Instant, listed: &HashSet<String>) {
        let is_missing = |(uid, entry): &(&Arc<str>, &Entry)| {
            let is_late = |since: Instant| now.saturating_duration_since(since) > LISTED;
            let counts = match entry.stage {
                Stage::Bound { since } => entry.is_seen || is_late(since),
                Stage::Ended => true,
                _ => false,
            };
            counts && !listed.contains(&***uid)
        };
        let missing = self.book.all().filter(is_missing).map(|(uid, _)| Arc::clone(uid));
        let waited = self.pending.uids().filter(|uid| !listed.contains(*uid));
        let missing: Vec<Arc<str>> = missing.chain(waited.map(|uid| uid.as_str().into())).collect();
        for uid in missing {
            self.left(now, &uid, false);
        }
        if std::mem::take(&mut self.is_unlisted) {
            self.resume_awaited();
            let hosts: Vec<HostId> = self.engine.hosts().map(|(host, _)| host).collect();
            let unsure = hosts.into_iter().filter(|host| self.is_unsure(*host));
            let until = now.checked_add(LISTED).unwrap_or(now);
            self.unsure = unsure.map(|host| (host, until)).collect();
        }
    }

    /// Whether what the report lists is not what is there, so that nobody knows which pods have what.
    pub(super) fn is_unsure(&self, host: HostId) -> bool {
        let Some(facts) = self.engine.facts(host) else { return false };
        let is_listed = |request: &Request| facts.allocation(request.uid()).is_some();
        // Of what is only promised a kubelet has given out nothing.
        let is_there = |request: &Request| {
            self.book.get(request.uid()).is_none_or(|entry| !entry.stage.is_movable())
        };
        let mut on = self.engine.on(host).filter(|request| is_there(request));
        let mut listed = facts.allocations.iter();
        on.any(|request| has_own(request) && !is_listed(request))
            || listed.any(|allocation| self.book.get(&allocation.uid).is_none())
    }

    /// A pod is deleted.
    pub fn pod_is_gone(&mut self, now: Instant, uid: &str) {
        self.left(now, uid, false);
    }

    /// It is on a host, whoever has sent it there.
    fn settle(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        seen: &Seen,
        host: &str,
    ) -> Result<(), String> {
        let uid = seen.uid();
        if self.is_over(uid, host, seen.existing.is_deleted) {
            return Ok(());
        }
        self.doubt(uid, host, seen);
        if let Some(entry) = self.book.get(uid)
            && &*entry.host == host
            && entry.stamp == seen.stamp
        {
            if !matches!(entry.stage, Stage::Bound { .. } | Stage::Ended) {
                self.book.set(uid, Stage::Bound { since: now });
            }
            self.book.see(uid, seen.existing.is_deleted);
            return Ok(());
        }
        let needs = Needs {
            is_vm: seen.existing.vmi_uid.is_some(),
            is_pinned: seen.existing.pod.has_own_cpus(),
            ..Needs::default()
        };
        let (request, fault) = match self.compiled(pod, seen, needs.clone()) {
            Ok(request) => (request, Ok(())),
            Err(why) => {
                // What it takes of its host it takes all the same.
                let bare = PodSpecParts::from_pod(pod, &seen.existing.pod).without_rules();
                let request = self.engine.request(&bare, needs).map_err(|_| why.clone())?;
                (request, Err(format!("{why}; it is counted without its rules")))
            }
        };
        let key = Key::of(&seen.existing);
        let held = key.as_ref().and_then(|key| self.book.holder(key)).cloned();
        if let Some(held) = held.filter(|held| &**held != uid) {
            let is_movable = |entry: &Entry| entry.stage.is_movable();
            if self.book.get(&held).is_some_and(is_movable) {
                self.release(&held);
            }
        }
        if self.book.get(uid).is_some_and(|entry| &*entry.host != host) {
            self.release(uid);
        }
        let there = self.engine.host(host);
        let facts = there.and_then(|host| self.engine.facts(host));
        let was_listed = self.book.get(uid).is_some_and(|entry| entry.is_listed);
        let is_listed = was_listed || facts.is_some_and(|facts| facts.allocation(uid).is_some());
        let entry = Entry {
            host: self.book.host(host),
            stage: Stage::Bound { since: now },
            request,
            key,
            is_stand_in: seen.existing.is_stand_in,
            stamp: seen.stamp,
            is_seen: true,
            is_listed,
            is_terminating: seen.existing.is_deleted,
        };
        let request = entry.request.clone();
        self.book.put(uid, entry);
        match there {
            // It is there, whatever its kubelet was expected to say.
            Some(id) => drop(self.engine.bound(&request, id)),
            None => {
                self.book.unhouse(uid);
                self.count_unreported(&request, host);
            }
        }
        fault
    }

    /// Counts a pod for the rules of others on a Node without a report.
    pub(super) fn count_unreported(&mut self, request: &Request, node: &str) {
        if let Some(node) = self.engine.node(node) {
            drop(self.engine.bound(request, node));
        }
    }

    /// From the moment at which a pod is to end its kubelet may take back what it has, before anybody is told.
    fn doubt(&mut self, uid: &str, host: &str, seen: &Seen) {
        let pod = &seen.existing.pod;
        let has_pages = pod.containers.iter().any(|one| !one.requests.hugepages.is_empty());
        if let Some(host) = self.engine.host(host).filter(|_| seen.existing.is_deleted)
            && (has_pages || pod.has_own_cpus())
        {
            self.unclear.entry(host).or_default().insert(uid.into());
        }
    }

    /// A pod that is being deleted, and that its kubelet lists no more, has nothing any more.
    pub(super) fn is_over(&mut self, uid: &str, host: &str, is_terminating: bool) -> bool {
        let Some(entry) = self.book.get(uid).filter(|entry| &*entry.host == host) else {
            return false;
        };
        match entry.stage {
            Stage::Ended => true,
            Stage::Bound { .. } if is_terminating && entry.is_listed => {
                let Some(host) = self.engine.host(host) else { return false };
                let facts = self.engine.facts(host);
                if facts.is_some_and(|facts| facts.allocation(uid).is_some()) {
                    return false;
                }
                self.engine.remove(uid);
                self.book.set(uid, Stage::Ended);
                self.clear(host, uid);
                self.waiting.stir(host);
                true
            }
            _ => false,
        }
    }

    /// It has no host yet. What a scheduler had chosen before this desk began is reserved again.
    fn open(&mut self, now: Instant, pod: v1::Pod, seen: &Seen) -> Result<(), String> {
        let uid = seen.uid().to_owned();
        if self.gone.contains_key(&uid) {
            return Ok(());
        }
        let pod = Arc::new(pod);
        self.pending.put(Arc::clone(&pod), seen);
        self.resume(now, &pod, seen);
        if self.book.get(&uid).is_none()
            && seen.is_refused
            && !self.waiting.has(&uid)
            && let Ok(request) = self.request(&pod, seen)
        {
            self.waiting.unlooked(&request);
        }
        Ok(())
    }

    /// Reserves the node that was selected for a pod's volumes, or nominated.
    pub(super) fn resume(&mut self, now: Instant, pod: &v1::Pod, seen: &Seen) {
        let existing = &seen.existing;
        let selected = seen.claims.iter().find_map(|claim| {
            self.claims.get(&(existing.namespace.clone(), claim.clone())).cloned().flatten()
        });
        let Some(node) = selected.or_else(|| existing.nominated_node_name.clone()) else { return };
        let until = now.checked_add(WITH_VOLUMES).unwrap_or(now);
        match self.book.get(seen.uid()) {
            Some(entry) if *entry.host == *node => {
                if matches!(entry.stage, Stage::Reserved { .. }) {
                    self.book.set(seen.uid(), Stage::Reserved { until });
                }
            }
            Some(_) => {}
            None => {
                let Ok(request) = self.request(pod, seen) else { return };
                let Ok(host) = self.usable(&node, has_own(&request)) else { return };
                let is_held = Key::of(existing).is_some_and(|key| self.book.holder(&key).is_some());
                // What is held for its VM is found by `filter`.
                if !is_held && self.engine.place(&request, Some(&[host])).is_some() {
                    self.write(seen, request, host, Stage::Reserved { until });
                }
            }
        }
    }

    /// It holds nothing any more, as far as the API server knows.
    fn left(&mut self, now: Instant, uid: &str, is_failed: bool) {
        self.pending.remove(uid);
        self.waiting.remove(uid);
        self.gone.insert(uid.to_owned(), now);
        let Some(entry) = self.book.get(uid) else { return };
        if matches!(entry.stage, Stage::Kept { .. } | Stage::Leaving { .. }) {
            return;
        }
        let is_holder = |key: &Key| self.book.holder(key).is_some_and(|holder| &**holder == uid);
        let lives = |key: &Key| match &self.instances {
            Some(_) => self.instance_of(key).is_some_and(|instance| !instance.is_final),
            None => true,
        };
        let stays = entry.key.as_ref().is_some_and(|key| is_holder(key) && lives(key));
        let after = |time: Duration| now.checked_add(time);
        if entry.is_stand_in && stays && !is_failed {
            let until = if self.instances.is_some() { None } else { after(WITH_VOLUMES) };
            let host = self.engine.host(&entry.host);
            let (request, was_over) = (entry.request.clone(), entry.stage == Stage::Ended);
            self.book.set(uid, Stage::Kept { until });
            if let Some(host) = host {
                if was_over {
                    // Its kubelet had taken it back before it was known to go; its VM is to have it.
                    drop(self.engine.bound(&request, host));
                }
                let facts = self.engine.facts(host);
                if facts.is_some_and(|facts| facts.allocation(uid).is_some()) {
                    self.unclear.entry(host).or_default().insert(uid.into());
                } else {
                    self.clear(host, uid);
                }
                // Its own pod, which may have been refused for it, can have its place.
                self.waiting.stir(host);
            }
            return;
        }
        let was_sent = matches!(entry.stage, Stage::Bound { .. } | Stage::Binding { .. });
        let (was_listed, has_own) = (entry.is_listed, has_own(&entry.request));
        if !was_sent || !has_own {
            return self.release(uid);
        }
        let Some(host) = self.engine.host(&entry.host) else {
            // Its Node is deleted, and its kubelet may have it for a moment longer than that.
            return match after(LEAVING) {
                Some(until) => self.book.set(uid, Stage::Leaving { until }),
                None => self.release(uid),
            };
        };
        let facts = self.engine.facts(host);
        let is_listed = facts.is_some_and(|facts| facts.allocation(uid).is_some());
        match after(LEAVING) {
            // What is listed is taken until it no longer is.
            _ if is_listed => {
                self.unclear.entry(host).or_default().insert(uid.into());
                self.release(uid);
            }
            // Of a pod that no report has listed, nobody knows what it was given.
            Some(until) if !was_listed => {
                self.unclear.entry(host).or_default().insert(uid.into());
                self.book.set(uid, Stage::Leaving { until });
            }
            _ => {
                self.release(uid);
                self.clear(host, uid);
            }
        }
    }

    /// Time goes by: what was promised for too long is given back.
    pub fn tick(&mut self, now: Instant) {
        for uid in self.book.over(now) {
            let host = self.book.get(&uid).and_then(|entry| self.engine.host(&entry.host));
            self.release(&uid);
            host.into_iter().for_each(|host| self.clear(host, &uid));
        }
        let sure = self.unsure.iter().filter(|(_, until)| **until <= now).map(|(host, _)| *host);
        for host in sure.collect::<Vec<HostId>>() {
            self.unsure.remove(&host);
            self.waiting.stir(host);
        }
        self.unknown.tick(now, |uid| self.pending.get(uid).is_some());
        self.gone.retain(|_, since| now.saturating_duration_since(*since) < REMEMBERED);
    }
}
