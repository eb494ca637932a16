//! An API server, kubelets that decide by their own rules, agents, a scheduler, and the watches between them and the
//! sidecar: each may be late, in any order.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use berth_api::Class;
use berth_extender::{Answer, Bind, Desk};
use berth_kubelet_admission::State;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::allocation::allocation;
use super::host::HostForm;
use super::pod::{on, seen, uid};

/// What the watch of pods will tell.
#[derive(Clone, Debug)]
enum Event {
    Is(Box<v1::Pod>),
    Gone(String),
}

/// What comes to a kubelet, in order.
#[derive(Clone, Debug)]
enum Work {
    Add(String),
    Remove(String),
}

pub(crate) struct Kubelet {
    pub(crate) form: HostForm,
    pub(crate) state: State,
    work: VecDeque<Work>,
    reports: VecDeque<(u64, HostForm)>,
    /// The last one on the API server.
    published: (u64, HostForm),
    seen: u64,
}

pub(crate) struct Cluster {
    pub(crate) desk: Desk,
    pub(crate) now: Instant,
    pub(crate) kubelets: Vec<Kubelet>,
    /// What the API server has.
    pub(crate) pods: BTreeMap<String, v1::Pod>,
    events: VecDeque<Event>,
    pub(crate) inflight: Vec<(String, String)>,
    version: u64,
    /// What has happened, for whoever reads of a failure.
    pub(crate) told: Vec<String>,
    /// Since kubelets have done their work.
    idle: Duration,
    pub(crate) bound: usize,
    pub(crate) refused: usize,
    pub(crate) not_bound: usize,
}

impl Cluster {
    pub(crate) fn new(forms: Vec<HostForm>) -> Self {
        let kubelet = |form: HostForm| {
            let (facts, _) = form.facts().expect("a host that a kubelet starts on");
            let published = (1, form.clone());
            let (work, reports) = (VecDeque::new(), VecDeque::new());
            Kubelet { state: State::new(&facts.admission), form, work, reports, published, seen: 0 }
        };
        let mut this = Self {
            desk: Desk::new(),
            now: Instant::now(),
            kubelets: forms.into_iter().map(kubelet).collect(),
            pods: BTreeMap::new(),
            events: VecDeque::new(),
            inflight: Vec::new(),
            version: 1,
            told: Vec::new(),
            idle: Duration::ZERO,
            bound: 0,
            refused: 0,
            not_bound: 0,
        };
        this.restart();
        this
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.kubelets.iter().map(|kubelet| kubelet.form.name.clone()).collect()
    }

    /// The sidecar begins anew, with what the API server has now.
    pub(crate) fn restart(&mut self) {
        self.told.push("it begins anew".to_owned());
        self.desk = Desk::unlisted();
        self.events.clear();
        for at in 0..self.kubelets.len() {
            self.kubelets[at].reports.clear();
            let (version, form) = self.kubelets[at].published.clone();
            self.tell_host(at, &form, version);
        }
        let mut late = Vec::new();
        let all: Vec<v1::Pod> = self.pods.values().cloned().collect();
        let listed: HashSet<String> = all.iter().map(uid).collect();
        for pod in all {
            let read = seen(&pod);
            if self.desk.is_on_its_way(&read) {
                late.push(pod);
            } else {
                self.desk.pod(self.now, pod, &read).expect("a pod that can be counted");
            }
        }
        for pod in late {
            let read = seen(&pod);
            self.desk.pod(self.now, pod, &read).expect("a pod that can be counted");
        }
        self.desk.pods_listed(self.now, &listed);
    }

    fn tell_host(&mut self, at: usize, form: &HostForm, version: u64) {
        let (facts, problems) = form.facts().expect("a report that can be read");
        assert!(problems.is_empty(), "{problems:?}");
        let told = Some((facts, Class::Standard));
        self.desk.host(self.now, &form.name, told, Some(version)).expect("a host");
        self.kubelets[at].seen = self.kubelets[at].seen.max(version);
    }

    /// Somebody deletes its Node; the kubelet runs on, and makes it again when its agent's next report is read.
    pub(crate) fn node_goes(&mut self, at: usize) {
        let name = &self.kubelets[at].form.name;
        self.told.push(format!("Node {name} is deleted"));
        self.desk.node_is_gone(name);
        // What is read then is the newest.
        self.kubelets[at].seen = 0;
    }

    pub(crate) fn create(&mut self, pod: v1::Pod) {
        self.events.push_back(Event::Is(Box::new(pod.clone())));
        self.pods.insert(uid(&pod), pod);
    }

    /// The next thing that the watch of pods tells.
    pub(crate) fn hear(&mut self) {
        match self.events.pop_front() {
            Some(Event::Is(pod)) => {
                let read = seen(&pod);
                self.desk.pod(self.now, *pod, &read).expect("a pod that can be counted");
            }
            Some(Event::Gone(uid)) => self.desk.pod_is_gone(self.now, &uid),
            None => {}
        }
    }

    /// The scheduler asks about a pod.
    pub(crate) fn filter(&mut self, uid: &str, names: &[&str]) -> Option<String> {
        let pod = self.pods.get(uid)?.clone();
        match self.desk.filter(self.now, &pod, names) {
            Answer::Host(host) => {
                assert!(names.contains(&host), "{host} was not asked about");
                self.inflight.retain(|(other, _)| other != uid);
                self.inflight.push((uid.to_owned(), host.to_owned()));
                self.told
                    .push(format!("{host} is reserved for {uid}: {:?}", seen(&pod).existing.pod));
                Some(host.to_owned())
            }
            Answer::Refused(hosts) => {
                assert_eq!(hosts.len(), names.len(), "each host has a reason");
                self.refused += 1;
                None
            }
            Answer::NotYet(_) | Answer::Wrong(_) => None,
        }
    }

    /// The scheduler binds one of those that it was answered; says whether the binding was made.
    pub(crate) fn bind(&mut self, at: usize, is_told: bool) -> bool {
        let (uid, host) = self.inflight.remove(at);
        let pod = self.pods.get(&uid).cloned();
        match self.desk.bind(self.now, &uid, &host, pod.as_ref()) {
            Bind::Send => {}
            Bind::Done | Bind::Unknown | Bind::NotYet(_) => return false,
            Bind::Refused(_) => {
                self.not_bound += 1;
                return false;
            }
        }
        let Some(pod) = self.pods.get(&uid).cloned() else {
            self.desk.not_bound(self.now, &uid);
            return false;
        };
        if seen(&pod).existing.node_name.is_some() {
            self.desk.not_bound(self.now, &uid);
            return false;
        }
        let pod = on(pod, &host);
        self.pods.insert(uid.clone(), pod.clone());
        self.events.push_back(Event::Is(Box::new(pod)));
        let kubelet = self.kubelets.iter_mut().find(|kubelet| kubelet.form.name == host);
        kubelet.expect("a host").work.push_back(Work::Add(uid.clone()));
        self.bound += 1;
        self.told.push(format!("{uid} is bound to {host}, told: {is_told}"));
        if is_told {
            self.desk.bound(self.now, &uid);
        }
        true
    }

    /// The kubelet does the next thing it was told. What the sidecar has bound it must take.
    pub(crate) fn work(&mut self, at: usize) {
        let kubelet = &mut self.kubelets[at];
        match kubelet.work.pop_front() {
            Some(Work::Add(uid)) => {
                // One that has gone before it was seen is nothing to a kubelet.
                let Some(pod) = self.pods.get(&uid) else { return };
                let pod = seen(pod).existing.pod;
                let taken = kubelet.state.admit(&pod);
                let (name, told) = (&kubelet.form.name, self.told.join("\n"));
                assert!(
                    taken.is_ok(),
                    "{name} refuses {uid}: {taken:?}\n{:?}\n{told}",
                    kubelet.form
                );
                let mut cpus = berth_api::CpuSet::new();
                let others = self.pods.keys().filter_map(|uid| kubelet.state.admission(uid));
                for admission in others {
                    let own = admission.cpus(kubelet.state.host());
                    assert!(!own.intersects(&cpus), "CPUs {own} are booked twice");
                    cpus = cpus.union(&own);
                }
            }
            Some(Work::Remove(uid)) => {
                kubelet.state.remove(&uid);
                self.told.push(format!("{} has taken back what {uid} had", kubelet.form.name));
            }
            None => {}
        }
    }

    /// Its agent reports.
    pub(crate) fn report(&mut self, at: usize) {
        self.version += 1;
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        let kubelet = &mut self.kubelets[at];
        let gone = kubelet.work.iter().filter_map(|work| match work {
            Work::Remove(uid) => Some(uid.clone()),
            Work::Add(_) => None,
        });
        let uids = uids.into_iter().chain(gone.collect::<Vec<_>>());
        let mut form = kubelet.form.clone();
        form.has = uids.filter_map(|uid| allocation(&kubelet.state, &uid)).collect();
        kubelet.published = (self.version, form.clone());
        kubelet.reports.push_back((self.version, form));
    }

    /// A report arrives; `again` is one that came before, once more.
    pub(crate) fn read(&mut self, at: usize, again: bool) {
        let next = if again {
            self.kubelets[at].reports.front().cloned()
        } else {
            self.kubelets[at].reports.pop_front()
        };
        if let Some((version, form)) = next {
            let uids: Vec<&String> = form.has.iter().map(|one| &one.pod_uid).collect();
            self.told.push(format!("{} is known to have {uids:?}", form.name));
            self.tell_host(at, &form, version);
        }
    }

    /// A report arrives that is older than the last.
    pub(crate) fn read_stale(&mut self, at: usize) {
        if self.kubelets[at].seen > 1 {
            let form = HostForm { has: Vec::new(), ..self.kubelets[at].form.clone() };
            let (facts, _) = form.facts().expect("a report that can be read");
            let told = Some((facts, Class::Standard));
            self.desk.host(self.now, &form.name, told, Some(1)).expect("a host");
        }
    }

    /// A pod is deleted: the sidecar hears that it ends, and its kubelet ends it before it goes. By force it goes at once,
    /// and its kubelet ends it some time later.
    pub(crate) fn delete(&mut self, uid: &str, is_forced: bool) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        self.told.push(format!("{uid} is deleted, by force: {is_forced}"));
        let node = seen(&pod).existing.node_name;
        let at = node
            .and_then(|node| self.kubelets.iter().position(|kubelet| kubelet.form.name == node));
        if !is_forced {
            pod.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
            self.events.push_back(Event::Is(Box::new(pod)));
            while !self.events.is_empty() {
                self.hear();
            }
        }
        if let Some(at) = at {
            self.kubelets[at].work.push_back(Work::Remove(uid.to_owned()));
            while !is_forced && !self.kubelets[at].work.is_empty() {
                self.work(at);
            }
        }
        self.pods.remove(uid);
        self.events.push_back(Event::Gone(uid.to_owned()));
        while is_forced && !self.events.is_empty() {
            self.hear();
        }
    }

    /// Time goes by. In seconds kubelets and agents do what they have to do, and all of it is heard of.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.idle += time;
        if self.idle >= Duration::from_secs(5) {
            self.idle = Duration::ZERO;
            for at in 0..self.kubelets.len() {
                while !self.kubelets[at].work.is_empty() {
                    self.work(at);
                }
                self.report(at);
                while !self.kubelets[at].reports.is_empty() {
                    self.read(at, false);
                }
            }
            while !self.events.is_empty() {
                self.hear();
            }
        }
        self.told.push(format!("{time:?} go by"));
        self.now += time;
        self.desk.tick(self.now);
    }
}
