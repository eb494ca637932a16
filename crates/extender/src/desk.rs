//! Where all is known: which host a pod gets, booked at the moment in which it is said.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{self, NodeSelector};

use super::awaited::Awaited;
use super::binding::takes_nothing_of_zones;
use super::book::{Book, Entry, Key, OF_GROUP, RESERVED, Stage, WITH_VOLUMES, has_own};
use super::instance::Instance;
use super::pending::Pending;
use super::refusals::Refusals;
use super::seen::Seen;
use super::unknown::Unknown;
use super::waiting::Waiting;
use berth_kubevirt_render::launcher::Existing;
use berth_placement::engine::{Engine, Needs, Request};
use berth_placement::rules::{HostId, PodSpecParts};

/// What is known, and who was told what.
#[derive(Debug, Default)]
pub struct Desk {
    pub(super) engine: Engine,
    pub(super) book: Book,
    pub(super) waiting: Waiting,
    refusals: Refusals,
    /// Hosts that nothing is placed on for now, in few words.
    pub(super) out: HashMap<HostId, &'static str>,
    /// The version of each host's report.
    pub(super) versions: HashMap<HostId, u64>,
    /// VMs by uid; `None` where their kind is not installed.
    pub(super) instances: Option<HashMap<String, Instance>>,
    /// Pods whose VMs are not among them.
    pub(super) unknown: Unknown,
    /// Claims that have no volume yet, and the nodes that were selected for them.
    pub(super) claims: BTreeMap<(String, String), Option<String>>,
    /// Before pods are listed: VMs that are on no host yet, and where their claims' volumes are.
    pub(super) awaited: (Vec<Awaited>, BTreeMap<(String, String), NodeSelector>),
    /// Pods of ours that have no host yet.
    pub(super) pending: Pending,
    /// Pods that have gone, as the scheduler may ask about them a moment later.
    pub(super) gone: HashMap<String, Instant>,
    /// Hosts whose kubelets were sent several pods before this desk began, in an order that nobody knows, until when.
    pub(super) unsure: HashMap<HostId, Instant>,
    /// Pods with CPUs or pages of their own that have left, or that a report no longer lists: whether their kubelets have
    /// taken that back nobody knows, and with it which zones a new pod would be given.
    pub(super) unclear: HashMap<HostId, BTreeSet<Arc<str>>>,
    /// Pods are not listed yet: nothing is known of what is taken.
    pub(super) is_unlisted: bool,
}

/// What `filter` is answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'n> {
    /// This host; it is the pod's from now on.
    Host(&'n str),
    /// None of them, each with the reason in few words.
    Refused(Vec<(&'n str, Cow<'static, str>)>),
    /// What it depends on is not known yet.
    NotYet(String),
    /// It cannot be answered, and asking again will not help soon.
    Wrong(String),
}

/// Before anything can be said.
pub(super) const UNLISTED: &str = "pods are not listed yet";
/// On all hosts, for a pod that names a VM that is not known in its namespace.
const NO_INSTANCE: &str = "node(s) wait for the pod's VirtualMachineInstance";
/// Where nothing is known of a host.
const UNKNOWN: &str = "node(s) had no agent report";
/// Where zones were given to pods in an order that nobody knows.
pub(super) const UNSURE: &str = "node(s) had new pods that no agent report lists yet";
/// Where pods have left, and their agents have not said so.
const UNCLEAR: &str = "node(s) had pods that are just leaving";

impl Desk {
    /// Without hosts and pods.
    #[must_use]
    pub fn new() -> Self {
        Self { engine: Engine::new(), ..Self::default() }
    }

    /// The same, which answers nothing before pods were listed.
    #[must_use]
    pub fn unlisted() -> Self {
        Self { is_unlisted: true, ..Self::new() }
    }

    /// Whether nothing is promised that is not in the cluster, so that all could be begun anew.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.book.loose().next().is_none() && !self.is_unlisted
    }

    /// The engine, to look at.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The best of these hosts, reserved for the pod. Asked again, it is the same one as long as it is among them and
    /// takes the pod.
    pub fn filter<'n>(&mut self, now: Instant, pod: &v1::Pod, names: &[&'n str]) -> Answer<'n> {
        self.answer(now, pod, names, false)
    }

    /// The same for a pod of a PodGroup, whose reservation may be one of many that are only simulated.
    pub fn filter_of_group<'n>(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        names: &[&'n str],
    ) -> Answer<'n> {
        self.answer(now, pod, names, true)
    }

    fn answer<'n>(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        names: &[&'n str],
        is_of_group: bool,
    ) -> Answer<'n> {
        if self.is_unlisted {
            return Answer::NotYet(UNLISTED.to_owned());
        }
        let seen = match Seen::read(pod) {
            Ok(seen) => seen,
            Err(invalid) => return Answer::Wrong(invalid.to_string()),
        };
        if seen.uid().is_empty() {
            return Answer::Wrong(format!("{}: metadata.uid: is empty", seen.called()));
        }
        if self.gone.contains_key(seen.uid()) {
            return Answer::Wrong(format!("{} has been deleted, or has ended", seen.called()));
        }
        match self.book.get(seen.uid()).map(|entry| (entry.stage, Arc::clone(&entry.host))) {
            Some((Stage::Bound { .. }, host)) => {
                return match names.iter().find(|name| **name == &*host) {
                    Some(name) => Answer::Host(name),
                    None => Answer::Wrong(format!("{} is on {host} already", seen.called())),
                };
            }
            Some((Stage::Binding { .. }, host)) => {
                let called = seen.called();
                return Answer::NotYet(format!("{called} is being bound to {host}"));
            }
            _ => {}
        }
        let request = match self.request(pod, &seen) {
            Ok(request) => request,
            Err(Answer::NotYet(why)) => {
                let Existing { namespace, vmi_uid, .. } = &seen.existing;
                let instance = vmi_uid.as_deref().unwrap_or_default();
                if self.unknown.hold(now, seen.uid(), namespace, instance) {
                    return Answer::NotYet(why);
                }
                return Answer::Refused(
                    names.iter().map(|name| (*name, NO_INSTANCE.into())).collect(),
                );
            }
            Err(answer) => return answer,
        };
        let known: Vec<(&'n str, Result<HostId, &'static str>)> =
            names.iter().map(|name| (*name, self.usable(name, has_own(&request)))).collect();
        let mut among: Vec<HostId> = known.iter().filter_map(|(_, host)| host.ok()).collect();
        let before = self.lift(&seen);
        let place = before.as_ref().and_then(|(_, before)| self.engine.host(&before.host));
        let same = place.filter(|host| among.contains(host));
        let same = same.and_then(|host| self.engine.place(&request, Some(&[host])));
        let mut chosen = same.or_else(|| self.engine.place(&request, Some(&among)));
        let mut unordered = HashSet::new();
        while let Some(host) = chosen {
            if !takes_nothing_of_zones(&request) && !self.fits_in_all_orders(now, &request, host) {
                unordered.insert(host);
            } else if self.leaves_room(&request, host) {
                break;
            }
            among.retain(|other| *other != host);
            chosen = self.engine.place(&request, Some(&among));
        }
        let Some(host) = chosen else {
            let mut reasons = self.refusals.take(&self.engine, &request);
            let of = |(name, host): (&'n str, Result<HostId, &'static str>)| {
                let why = |host| match unordered.contains(&host) {
                    true => Cow::Borrowed(UNSURE),
                    false => reasons.why(&self.engine, &request, host),
                };
                (name, host.map_or_else(Cow::Borrowed, why))
            };
            let refused = known.into_iter().map(of).collect();
            self.refusals.keep(&self.engine, &request, reasons);
            let held = self.put_back(before, &seen);
            self.waiting.refused(&request, held);
            return Answer::Refused(refused);
        };
        if let Some(left) = place.filter(|place| *place != host) {
            self.waiting.stir(left);
        }
        let until = now.checked_add(self.patience(&seen, is_of_group)).unwrap_or(now);
        self.write(&seen, request, host, Stage::Reserved { until });
        let found = known.iter().find(|(_, one)| *one == Ok(host));
        found.map_or_else(
            || Answer::Wrong(format!("{}: the host is not among those asked about", seen.called())),
            |(name, _)| Answer::Host(name),
        )
    }

    /// The pod could not be answered: it is to be woken when it can be.
    pub fn unanswered(&mut self, pod: &v1::Pod) {
        let Ok(seen) = Seen::read(pod) else { return };
        if self.book.get(seen.uid()).is_none()
            && let Ok(request) = self.request(pod, &seen)
        {
            self.waiting.unlooked(&request);
        }
    }

    /// What a pod asks of hosts.
    pub(super) fn request(
        &mut self,
        pod: &v1::Pod,
        seen: &Seen,
    ) -> Result<Request, Answer<'static>> {
        let existing = &seen.existing;
        let is_pinned = existing.pod.has_own_cpus();
        let by_shape = || Needs {
            is_vm: existing.vmi_uid.is_some(),
            is_emulated: existing.pod.is_emulated(),
            is_pinned,
            class: if is_pinned {
                berth_api::Class::Performance
            } else {
                berth_api::Class::default()
            },
            numa: None,
        };
        let needs = match (&existing.vmi_uid, &self.instances) {
            (Some(uid), Some(_)) => {
                match Key::of(existing).and_then(|key| self.instance_of(&key)) {
                    Some(instance) => instance.needs(&existing.pod),
                    None => {
                        let why = format!(
                            "{}: no VirtualMachineInstance {uid} is known in its namespace",
                            seen.called()
                        );
                        return Err(Answer::NotYet(why));
                    }
                }
            }
            _ => by_shape(),
        };
        self.compiled(pod, seen, needs).map_err(Answer::Wrong)
    }

    /// The VM whose pod it is: in the pod's namespace, as no other namespace's VM is its own.
    pub(super) fn instance_of(&self, key: &Key) -> Option<&Instance> {
        let instance = self.instances.as_ref()?.get(&key.instance)?;
        (*instance.namespace == *key.namespace).then_some(instance)
    }

    pub(super) fn compiled(
        &mut self,
        pod: &v1::Pod,
        seen: &Seen,
        needs: Needs,
    ) -> Result<Request, String> {
        let parts = PodSpecParts::from_pod(pod, &seen.existing.pod);
        let request = self.engine.request(&parts, needs);
        request.map_err(|invalid| {
            let (field, value) = (invalid.field, invalid.value);
            format!("{}: {field}: `{value}`: {}", seen.called(), invalid.problem)
        })
    }

    /// The host of a name, or why nothing is placed there. What has nothing of its own goes also where it is not clear
    /// what zones have left.
    pub(super) fn usable(&self, name: &str, has_own: bool) -> Result<HostId, &'static str> {
        let host = self.engine.host(name).ok_or(UNKNOWN)?;
        match self.out.get(&host) {
            Some(why) => Err(why),
            None if has_own && self.unsure.contains_key(&host) => Err(UNSURE),
            None if has_own && self.unclear.contains_key(&host) => Err(UNCLEAR),
            None => Ok(host),
        }
    }

    /// Takes away what the pod has, or what is held for it, so that it can be placed anew.
    fn lift(&mut self, seen: &Seen) -> Option<(Arc<str>, Entry)> {
        let own = self.book.get(seen.uid()).map(|_| Arc::from(seen.uid()));
        let uid = own.or_else(|| {
            let holder = self.book.holder(&Key::of(&seen.existing)?)?;
            self.book.get(holder)?.stage.is_movable().then(|| Arc::clone(holder))
        })?;
        let entry = self.book.get(&uid).filter(|entry| entry.stage.is_movable())?.clone();
        self.engine.remove(&uid);
        self.book.remove(&uid);
        Some((uid, entry))
    }

    /// It was not placed: what is held for a VM stays held, on the host that is answered. What the pod itself had was
    /// no good any more.
    fn put_back(&mut self, before: Option<(Arc<str>, Entry)>, seen: &Seen) -> Option<Arc<str>> {
        let (uid, entry) = before?;
        let (name, host) = (Arc::clone(&entry.host), self.engine.host(&entry.host));
        if &*uid == seen.uid() || !matches!(entry.stage, Stage::Kept { .. }) {
            host.into_iter().for_each(|host| self.waiting.stir(host));
            return None;
        }
        let Some(host) = host else {
            // Its Node may come back.
            self.book.put(&uid, entry);
            self.book.unhouse(&uid);
            return None;
        };
        // Whether the kubelet would take it now is asked when its pod comes again.
        drop(self.engine.bound(&entry.request, host));
        self.book.put(&uid, entry);
        Some(name)
    }

    /// For how long a reservation holds without a word.
    fn patience(&self, seen: &Seen, is_of_group: bool) -> Duration {
        let existing = &seen.existing;
        let is_open =
            |claim: &String| self.claims.contains_key(&(existing.namespace.clone(), claim.clone()));
        let waits = seen.claims.iter().any(is_open) || existing.nominated_node_name.is_some();
        match (waits, is_of_group) {
            (true, _) => WITH_VOLUMES,
            (false, true) => OF_GROUP,
            (false, false) => RESERVED,
        }
    }

    pub(super) fn write(&mut self, seen: &Seen, request: Request, host: HostId, stage: Stage) {
        let name = self.engine.facts(host).map(|facts| facts.name.clone()).unwrap_or_default();
        let entry = Entry {
            host: self.book.host(&name),
            stage,
            request,
            key: Key::of(&seen.existing),
            is_stand_in: seen.existing.is_stand_in,
            stamp: seen.stamp,
            is_seen: false,
            is_listed: false,
            is_terminating: false,
        };
        self.book.put(seen.uid(), entry);
        self.waiting.remove(seen.uid());
        self.unknown.remove(seen.uid());
    }

    /// It is clear again what a pod has, or that it has nothing.
    pub(super) fn clear(&mut self, host: HostId, uid: &str) {
        if let Some(pods) = self.unclear.get_mut(&host)
            && pods.remove(uid)
        {
            if pods.is_empty() {
                self.unclear.remove(&host);
            }
            self.waiting.stir(host);
        }
    }

    /// Gives back what a pod has.
    pub(super) fn release(&mut self, uid: &str) {
        let Some(entry) = self.book.remove(uid) else { return };
        self.engine.remove(uid);
        if let Some(host) = self.engine.host(&entry.host) {
            self.waiting.stir(host);
        }
    }

    /// Whether any pod waits for room.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.waiting.len() > 0
    }

    /// Hosts by whose names waiting pods are to be woken, as they fit there now.
    pub fn wake(&mut self) -> Vec<String> {
        if !self.waiting.is_stirred() {
            return Vec::new();
        }
        let Self { waiting, engine, out, unsure, unclear, .. } = self;
        let is_out = |host| {
            out.contains_key(&host) || unsure.contains_key(&host) || unclear.contains_key(&host)
        };
        let any_out = !(out.is_empty() && unsure.is_empty() && unclear.is_empty());
        let hosts = waiting.wake(engine, is_out, any_out);
        let name = |host| self.engine.facts(host).map(|facts| facts.name.clone());
        hosts.into_iter().filter_map(name).collect()
    }
}
