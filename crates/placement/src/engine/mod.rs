//! The assignment engine: which host takes a pod, by all rules, and why.
//!
//! ```text
//! request ─► class (what it asks for, which hosts it may ever go to) ─► hosts by score, best first
//!                                                                         │ rules by pods: affinity, spread
//!                                                                         │ the kubelet's own admission
//!                                                                         ▼
//!                                                             booked: nobody else gets it
//! ```
//!
//! It is a pure state machine: no clock, no files, no randomness; the same calls give the same answers.

mod changes;
mod free;
mod needs;
mod orders;
mod reason;
mod score;
mod scores;
mod search;
mod shapes;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use needs::{Needs, Numa, class_named};
pub use reason::Reason;
pub use shapes::Key as Kind;

use berth_api::{Class, PageSize};

use crate::inventory::HostFacts;
use crate::rules::{Counts, HostId, HostParts, Invalid, PodId, PodSpecParts, Rules};
use berth_kubelet_admission::pod::Pod;
use berth_kubelet_admission::{Admission, Restored, State};
use changes::Changes;
use free::Free;
use scores::Scratch;
use shapes::{Key, Shapes};

/// A pod that wants a host.
#[derive(Clone, Debug)]
pub struct Request {
    uid: Arc<str>,
    rules: Arc<Rules>,
    needs: Needs,
    key: Arc<Key>,
    shape: usize,
}

impl Request {
    /// The same for a pod of another uid.
    #[must_use]
    pub fn renamed(&self, uid: &str) -> Self {
        Self { uid: uid.into(), ..self.clone() }
    }

    /// The pod's uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// What its containers ask for; its uid is not in there, as pods that ask for the same share it.
    #[must_use]
    pub fn pod(&self) -> &Pod {
        self.rules.containers()
    }

    /// CPUs that it would have for itself.
    #[must_use]
    pub fn pinned_cpus(&self) -> u32 {
        free::Wants::of(self.pod()).cpus
    }

    /// The size of its huge pages, if it has any.
    #[must_use]
    pub fn page_size(&self) -> Option<PageSize> {
        let pod = self.pod();
        let mut containers = pod.init_containers.iter().chain(&pod.containers);
        containers.find_map(|container| container.requests.hugepages.keys().next().copied())
    }

    /// Whether a kubelet cannot tell one from the other.
    pub fn is_like(&self, other: &Self) -> bool {
        std::ptr::eq(self.pod(), other.pod()) && self.needs == other.needs
    }

    /// What it needs beyond that.
    #[must_use]
    pub fn needs(&self) -> &Needs {
        &self.needs
    }
}

/// A pod on a host.
#[derive(Clone, Debug)]
struct Booking {
    host: HostId,
    counted: PodId,
    request: Request,
}

/// A host and what is on it.
#[derive(Debug)]
struct Place {
    facts: HostFacts,
    class: Class,
    state: State,
    /// Pods that are booked here, in the order in which they were: so they come to the kubelet.
    pods: BTreeMap<PodId, Arc<str>>,
}

impl Place {
    /// What the kubelet would give a pod on this host in a state, and what else the pod needs is there too.
    fn judged(&self, state: &State, uid: &str, request: &Request) -> Result<Admission, Reason> {
        let admission = self.checked(state, uid, request.pod())?;
        match request.needs.unmet_by(&admission, state) {
            Some(reason) => Err(reason),
            None => Ok(admission),
        }
    }

    /// What the kubelet would give a pod, if the report tells that, and if it is not CPUs that are in use.
    fn checked(&self, state: &State, uid: &str, pod: &Pod) -> Result<Admission, Reason> {
        if let Some(why) = self.facts.unpredictable(pod) {
            return Err(Reason::Unpredictable(why));
        }
        let admission = state.check_as(uid, pod).map_err(Reason::Kubelet)?;
        if admission.takes_cpus_in_use() { Err(Reason::CpusInUse) } else { Ok(admission) }
    }
}

const GONE: Reason = Reason::Rule(crate::rules::Reason::NoHost);

/// All hosts and all pods on them.
#[derive(Debug, Default)]
pub struct Engine {
    counts: Counts,
    places: Vec<Option<Place>>,
    /// What is free of each, apart from all else, as every class looks at it after every change.
    free: Vec<Free>,
    bookings: HashMap<Arc<str>, Booking>,
    shapes: Shapes,
    changes: Changes,
    scratch: Scratch,
}

impl Engine {
    /// Without hosts.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: Counts::new(), ..Self::default() }
    }

    /// A namespace's labels, for rules that select namespaces by label.
    pub fn set_namespace(&mut self, name: &str, labels: &BTreeMap<String, String>) {
        self.counts.set_namespace(name, labels);
    }

    /// A host comes, with what its kubelet has handed out; or a newer report of one that is there.
    ///
    /// Pods that the report lists have what it says. Those that are booked and not in it are on their way: they have what
    /// the kubelet would give them. What the report lists and nobody has booked is taken all the same: a pod holds its
    /// CPUs until its containers have ended, whoever has deleted it.
    ///
    /// # Errors
    /// If it has a taint that no API server would have taken.
    pub fn set_host(&mut self, facts: HostFacts, class: Class) -> Result<HostId, Invalid> {
        let id = self.counts.set_host(&facts.parts())?;
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
            self.free.resize_with(id.index() + 1, Free::default);
        }
        let before = self.places[id.index()].take();
        let pods = before.map(|place| place.pods).unwrap_or_default();
        let mut state = State::new(&facts.admission);
        // What is said to be of several zones is less certain, and so comes after what is of one: it takes what is left.
        let mut allocations: Vec<_> = facts.allocations.iter().collect();
        allocations.sort_by_key(|allocation| allocation.zones.len());
        for allocation in allocations {
            let booked = self.bookings.get(allocation.uid.as_str());
            let pod = booked.map(|booking| booking.request.pod());
            state.restore(&allocation.uid, &allocation.restored(pod));
        }
        for uid in pods.values() {
            let Some(booking) = self.bookings.get(uid) else { continue };
            let pod = booking.request.pod();
            if state.admission(uid).is_none() && take(&mut state, uid, pod).is_err() {
                state.restore(uid, &Restored::without_zones(pod));
            }
        }
        self.places[id.index()] = Some(Place { facts, class, state, pods });
        self.changed(id, true);
        Ok(id)
    }

    /// A Node whose agent reports nothing: no pod is placed there, and its labels and the pods that are bound to it count
    /// for the rules of other pods, as they do for kube-scheduler.
    ///
    /// # Errors
    /// If it has a taint that no API server would have taken.
    pub fn set_node(&mut self, parts: &HostParts<'_>) -> Result<HostId, Invalid> {
        let id = self.counts.set_host(parts)?;
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
            self.free.resize_with(id.index() + 1, Free::default);
        }
        self.changed(id, true);
        Ok(id)
    }

    /// A host is no more, and with it what was booked there: whose that was, in the order in which they came.
    pub fn remove_host(&mut self, host: HostId) -> Vec<Arc<str>> {
        let place = self.places.get_mut(host.index()).and_then(Option::take);
        let pods = place.map(|place| place.pods).unwrap_or_default();
        let pods: Vec<Arc<str>> = pods.into_values().collect();
        for uid in &pods {
            self.bookings.remove(uid);
        }
        self.counts.remove_host(host);
        if let Some(free) = self.free.get_mut(host.index()) {
            *free = Free::default();
        }
        self.changed(host, true);
        pods
    }

    /// The host of a name, if its agent has reported.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<HostId> {
        self.node(name).filter(|host| self.at(*host).is_some())
    }

    /// The Node of a name, whether or not its agent has reported.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<HostId> {
        self.counts.host(name)
    }

    /// All hosts, in the order in which they came.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, &HostFacts)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(at, place)| Some((HostId::at(at), &place.as_ref()?.facts)))
    }

    /// What is known of a host.
    #[must_use]
    pub fn facts(&self, host: HostId) -> Option<&HostFacts> {
        Some(&self.at(host)?.facts)
    }

    /// What its kubelet has handed out, or would have by now.
    #[must_use]
    pub fn state(&self, host: HostId) -> Option<&State> {
        Some(&self.at(host)?.state)
    }

    /// Where a pod is.
    #[must_use]
    pub fn where_is(&self, uid: &str) -> Option<HostId> {
        Some(self.bookings.get(uid)?.host)
    }

    /// Pods on all hosts.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.bookings.len()
    }

    /// Prepares a request: what it asks for is compiled once.
    ///
    /// # Errors
    /// If no API server would have taken its rules: which one, and why.
    pub fn request(&mut self, parts: &PodSpecParts<'_>, needs: Needs) -> Result<Request, Invalid> {
        let rules = Arc::new(Rules::compile(&mut self.counts, parts)?);
        let (shape, key) = self.shapes.find(Key::new(&needs, &rules), &rules);
        Ok(Request { uid: parts.containers.uid.as_str().into(), rules, needs, key, shape })
    }

    /// The best host for a pod, booked: its amounts, cores and pages are nobody else's until [`Self::remove`].
    /// `among` are the hosts that somebody else has found right already; `None` is all.
    pub fn place(&mut self, request: &Request, among: Option<&[HostId]>) -> Option<HostId> {
        if let Some(host) = self.where_is(&request.uid) {
            if among.is_none_or(|among| among.contains(&host)) {
                return Some(host);
            }
            self.remove(&request.uid);
        }
        let (host, admission) = self.chosen(request, among)?;
        // It has been asked, and takes the pod.
        let place = self.places.get_mut(host.index()).and_then(Option::as_mut)?;
        place.state.accept(&request.uid, request.pod(), admission).ok()?;
        self.book(request, host);
        Some(host)
    }

    /// Books a host for a pod if the kubelet would take it there.
    ///
    /// # Errors
    /// Why it would not; rules that are the scheduler's are not asked again.
    pub fn admit(&mut self, request: &Request, host: HostId) -> Result<(), Reason> {
        self.remove(&request.uid);
        let place = self.places.get_mut(host.index()).and_then(Option::as_mut).ok_or(GONE)?;
        let admission = place.checked(&place.state, &request.uid, request.pod())?;
        let taken = place.state.accept(&request.uid, request.pod(), admission);
        taken.map_err(Reason::Kubelet)?;
        self.book(request, host);
        Ok(())
    }

    /// A pod that is bound to a host already, whatever anybody thinks of it. It has what the host's report says, or what
    /// the kubelet would give it. Of many, those that reports list are to be told of first, as they are there already: a
    /// report alone does not tell all that a pod asks for.
    ///
    /// # Errors
    /// Why the kubelet would not take it; it is counted all the same, in the totals of the host.
    pub fn bound(&mut self, request: &Request, host: HostId) -> Result<(), Reason> {
        self.remove(&request.uid);
        let Some(place) = self.places.get_mut(host.index()).and_then(Option::as_mut) else {
            self.book(request, host);
            return self.where_is(&request.uid).map(drop).ok_or(GONE);
        };
        let uid = &*request.uid;
        let mut result = Ok(());
        if let Some(allocation) = place.facts.allocation(uid) {
            place.state.restore(uid, &allocation.restored(Some(request.pod())));
        } else if let Err(reason) = take(&mut place.state, uid, request.pod()) {
            place.state.restore(uid, &Restored::without_zones(request.pod()));
            result = Err(reason);
        }
        self.book(request, host);
        result
    }

    fn book(&mut self, request: &Request, host: HostId) {
        let uid = Arc::clone(&request.uid);
        if let Some(counted) = self.counts.add(Arc::clone(&request.rules), host) {
            let booking = Booking { host, counted, request: request.clone() };
            self.bookings.insert(Arc::clone(&uid), booking);
            if let Some(place) = self.places.get_mut(host.index()).and_then(Option::as_mut) {
                place.pods.insert(counted, uid);
            }
        }
        self.changed(host, false);
    }

    /// A pod goes; says whether it was there. What its host still reports of it stays taken until it does not.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some(booking) = self.bookings.remove(uid) else { return false };
        self.counts.remove(booking.counted);
        if let Some(place) = self.places.get_mut(booking.host.index()).and_then(Option::as_mut) {
            place.pods.remove(&booking.counted);
            if place.facts.allocation(uid).is_none() {
                place.state.remove(uid);
            }
        }
        self.changed(booking.host, false);
        true
    }

    /// Pods that are booked on a host, in the order in which they were.
    pub fn on(&self, host: HostId) -> impl Iterator<Item = &Request> {
        let pods = self.at(host).into_iter().flat_map(|place| place.pods.values());
        pods.filter_map(|uid| Some(&self.bookings.get(uid)?.request))
    }

    /// Nodes that a pod may go to by what other pods and its kubelet do not decide, whether or not their agents report.
    pub fn candidates(&self, request: &Request) -> impl Iterator<Item = HostId> + use<> {
        self.counts.ask(&request.rules).candidates()
    }

    /// What a request has in common with others that every host answers alike now; `None` if other pods matter to it.
    #[must_use]
    pub fn kind<'r>(&self, request: &'r Request) -> Option<&'r Kind> {
        (!self.counts.ask(&request.rules).depends_on_pods()).then_some(&*request.key)
    }

    /// The number of the newest change of a host, or of what is on one.
    #[must_use]
    pub fn last_change(&self) -> u64 {
        self.changes.last()
    }

    /// Hosts that have changed since; `None` if that is too long ago to say.
    pub fn changed_since(&self, seen: u64) -> Option<impl Iterator<Item = HostId> + '_> {
        Some(self.changes.since(seen)?.map(|change| HostId::at(change.host())))
    }

    /// Why a pod cannot go to a host; nothing if it can.
    #[must_use]
    pub fn why_not(&self, request: &Request, host: HostId) -> Vec<Reason> {
        let Some(place) = self.at(host) else {
            return vec![GONE];
        };
        if let Some(reason) = request.needs.unmet(&place.facts) {
            return vec![reason];
        }
        let rules = self.counts.ask(&request.rules).reasons(host);
        if !rules.is_empty() {
            return rules.into_iter().map(Reason::Rule).collect();
        }
        place.judged(&place.state, &request.uid, request).err().into_iter().collect()
    }

    fn at(&self, host: HostId) -> Option<&Place> {
        self.places.get(host.index())?.as_ref()
    }

    fn changed(&mut self, host: HostId, is_of_host: bool) {
        if let Some(place) = self.places.get(host.index()).and_then(Option::as_ref)
            && let Some(free) = self.free.get_mut(host.index())
        {
            *free = Free::of(&place.state);
        }
        self.changes.add(host.index(), is_of_host, self.places.len());
        let Self { shapes, changes, counts, free, .. } = self;
        shapes.keep_up(changes, |fit| search::left(counts, free, host.index(), fit));
    }
}

/// A pod that is there already, or that is sent there, has what the kubelet would give it. If that is nothing, all is as it
/// was: no kubelet has been asked, so none has given out and collected again.
fn take(state: &mut State, uid: &str, pod: &Pod) -> Result<(), Reason> {
    let admission = state.check_as(uid, pod).map_err(Reason::Kubelet)?;
    state.accept(uid, pod, admission).map_err(Reason::Kubelet)
}
