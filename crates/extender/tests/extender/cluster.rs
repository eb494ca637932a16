//! A simulated API server, kubelets with their own admission rules, agents and a scheduler, and the watches that
//! connect them to the extender. Each of them may lag behind, and events may arrive in any order.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use berth_api::Class;
use berth_extender::{BindAnswer, Extender, FilterAnswer};
use berth_kubelet_admission::State;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::allocation::allocation;
use super::host::HostForm;
use super::pod::{bound_to, observed, uid};

/// Event of the pod watch.
#[derive(Clone, Debug)]
enum Event {
    Applied(Box<v1::Pod>),
    Deleted(String),
}

/// Task of a kubelet; tasks run in order.
#[derive(Clone, Debug)]
enum Task {
    Add(String),
    Remove(String),
}

pub(crate) struct Kubelet {
    pub(crate) form: HostForm,
    pub(crate) state: State,
    tasks: VecDeque<Task>,
    reports: VecDeque<(u64, HostForm)>,
    /// The last report on the API server.
    published: (u64, HostForm),
    newest_version: u64,
}

pub(crate) struct Cluster {
    pub(crate) extender: Extender,
    pub(crate) now: Instant,
    pub(crate) kubelets: Vec<Kubelet>,
    /// Pods on the API server.
    pub(crate) pods: BTreeMap<String, v1::Pod>,
    events: VecDeque<Event>,
    pub(crate) inflight: Vec<(String, String)>,
    version: u64,
    /// Log of all events, shown when a test fails.
    pub(crate) log: Vec<String>,
    /// Time since the kubelets last ran their tasks.
    idle: Duration,
    pub(crate) bound: usize,
    pub(crate) refused: usize,
    pub(crate) not_bound: usize,
}

impl Cluster {
    pub(crate) fn new(forms: Vec<HostForm>) -> Self {
        let kubelet = |form: HostForm| {
            let (facts, _) = form.facts().expect("the report should be valid");
            let published = (1, form.clone());
            let (work, reports) = (VecDeque::new(), VecDeque::new());
            Kubelet {
                state: State::new(&facts.admission),
                form,
                tasks: work,
                reports,
                published,
                newest_version: 0,
            }
        };
        let mut this = Self {
            extender: Extender::new(),
            now: Instant::now(),
            kubelets: forms.into_iter().map(kubelet).collect(),
            pods: BTreeMap::new(),
            events: VecDeque::new(),
            inflight: Vec::new(),
            version: 1,
            log: Vec::new(),
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

    /// Restarts the extender with the objects on the API server.
    pub(crate) fn restart(&mut self) {
        self.log.push("the extender restarts".to_owned());
        self.extender = Extender::awaiting_pod_list();
        self.events.clear();
        for at in 0..self.kubelets.len() {
            self.kubelets[at].reports.clear();
            let (version, form) = self.kubelets[at].published.clone();
            self.report_host(at, &form, version);
        }
        let mut unreported = Vec::new();
        let all: Vec<v1::Pod> = self.pods.values().cloned().collect();
        let listed: HashSet<String> = all.iter().map(uid).collect();
        for pod in all {
            let read = observed(&pod);
            if self.extender.is_unreported(&read) {
                unreported.push(pod);
            } else {
                self.extender.update_pod(self.now, pod, &read).expect("the pod should be counted");
            }
        }
        for pod in unreported {
            let read = observed(&pod);
            self.extender.update_pod(self.now, pod, &read).expect("the pod should be counted");
        }
        self.extender.pods_listed(self.now, &listed);
    }

    fn report_host(&mut self, at: usize, form: &HostForm, version: u64) {
        let (facts, problems) = form.facts().expect("the report should be valid");
        assert!(problems.is_empty(), "{problems:?}");
        let facts = Some((facts, Class::Standard));
        self.extender
            .update_host(self.now, &form.name, facts, Some(version))
            .expect("the host update should succeed");
        self.kubelets[at].newest_version = self.kubelets[at].newest_version.max(version);
    }

    /// Deletes a Node; the kubelet keeps running, and the Node is created again when the agent's next report is read.
    pub(crate) fn delete_node(&mut self, at: usize) {
        let name = &self.kubelets[at].form.name;
        self.log.push(format!("Node {name} is deleted"));
        self.extender.node_deleted(name);
        // The extender accepts the next report whatever its version is, so that report counts as the newest.
        self.kubelets[at].newest_version = 0;
    }

    pub(crate) fn create(&mut self, pod: v1::Pod) {
        self.events.push_back(Event::Applied(Box::new(pod.clone())));
        self.pods.insert(uid(&pod), pod);
    }

    /// Delivers the next event of the pod watch.
    pub(crate) fn deliver_event(&mut self) {
        match self.events.pop_front() {
            Some(Event::Applied(pod)) => {
                let read = observed(&pod);
                self.extender.update_pod(self.now, *pod, &read).expect("the pod should be counted");
            }
            Some(Event::Deleted(uid)) => self.extender.pod_deleted(self.now, &uid),
            None => {}
        }
    }

    /// Calls `filter` for a pod.
    pub(crate) fn filter(&mut self, uid: &str, names: &[&str]) -> Option<String> {
        let pod = self.pods.get(uid)?.clone();
        match self.extender.filter(self.now, &pod, names) {
            FilterAnswer::Host(host) => {
                assert!(names.contains(&host), "filter returned {host}, which was not offered");
                self.inflight.retain(|(other, _)| other != uid);
                self.inflight.push((uid.to_owned(), host.to_owned()));
                self.log.push(format!(
                    "host {host} is reserved for pod {uid}: {:?}",
                    observed(&pod).existing.pod
                ));
                Some(host.to_owned())
            }
            FilterAnswer::Refused(hosts) => {
                assert_eq!(hosts.len(), names.len(), "each refused host should have a reason");
                self.refused += 1;
                None
            }
            FilterAnswer::NotReady(_) | FilterAnswer::Failed(_) => None,
        }
    }

    /// Calls `bind` for a pod in flight; returns true if the pod is bound. If `is_known` is false, the extender is not
    /// called with the outcome.
    pub(crate) fn bind(&mut self, at: usize, is_known: bool) -> bool {
        let (uid, host) = self.inflight.remove(at);
        let pod = self.pods.get(&uid).cloned();
        match self.extender.bind(self.now, &uid, &host, pod.as_ref()) {
            BindAnswer::Send => {}
            BindAnswer::AlreadyBound | BindAnswer::PodNeeded | BindAnswer::NotReady(_) => {
                return false;
            }
            BindAnswer::Refused(_) => {
                self.not_bound += 1;
                return false;
            }
        }
        let Some(pod) = self.pods.get(&uid).cloned() else {
            self.extender.binding_failed(self.now, &uid);
            return false;
        };
        if observed(&pod).existing.node_name.is_some() {
            self.extender.binding_failed(self.now, &uid);
            return false;
        }
        let pod = bound_to(pod, &host);
        self.pods.insert(uid.clone(), pod.clone());
        self.events.push_back(Event::Applied(Box::new(pod)));
        let kubelet = self.kubelets.iter_mut().find(|kubelet| kubelet.form.name == host);
        kubelet.expect("the host should exist").tasks.push_back(Task::Add(uid.clone()));
        self.bound += 1;
        self.log.push(format!(
            "pod {uid} is bound to {host}; extender receives the outcome: {is_known}"
        ));
        if is_known {
            self.extender.binding_succeeded(self.now, &uid);
        }
        true
    }

    /// Runs the next task of a kubelet, which must admit all pods that are bound to it.
    pub(crate) fn run_task(&mut self, at: usize) {
        let kubelet = &mut self.kubelets[at];
        match kubelet.tasks.pop_front() {
            Some(Task::Add(uid)) => {
                // The kubelet never sees a pod that was deleted earlier.
                let Some(pod) = self.pods.get(&uid) else { return };
                let pod = observed(pod).existing.pod;
                let result = kubelet.state.admit(&pod);
                let (name, log) = (&kubelet.form.name, self.log.join("\n"));
                assert!(
                    result.is_ok(),
                    "the kubelet of {name} rejects pod {uid}: {result:?}\n{:?}\n{log}",
                    kubelet.form
                );
                let mut cpus = berth_api::CpuSet::new();
                let others = self.pods.keys().filter_map(|uid| kubelet.state.admission(uid));
                for admission in others {
                    let own = admission.cpus(kubelet.state.host());
                    assert!(!own.intersects(&cpus), "CPUs {own} are allocated twice");
                    cpus = cpus.union(&own);
                }
            }
            Some(Task::Remove(uid)) => {
                kubelet.state.remove(&uid);
                self.log
                    .push(format!("the kubelet of {} has released pod {uid}", kubelet.form.name));
            }
            None => {}
        }
    }

    /// Sends a report of the host's agent.
    pub(crate) fn publish_report(&mut self, at: usize) {
        self.version += 1;
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        let kubelet = &mut self.kubelets[at];
        let removed = kubelet.tasks.iter().filter_map(|work| match work {
            Task::Remove(uid) => Some(uid.clone()),
            Task::Add(_) => None,
        });
        let uids = uids.into_iter().chain(removed.collect::<Vec<_>>());
        let mut form = kubelet.form.clone();
        form.has = uids.filter_map(|uid| allocation(&kubelet.state, &uid)).collect();
        kubelet.published = (self.version, form.clone());
        kubelet.reports.push_back((self.version, form));
    }

    /// Delivers a report; with `keep_queued`, the report is delivered a second time later.
    pub(crate) fn deliver_report(&mut self, at: usize, keep_queued: bool) {
        let next = if keep_queued {
            self.kubelets[at].reports.front().cloned()
        } else {
            self.kubelets[at].reports.pop_front()
        };
        if let Some((version, form)) = next {
            let uids: Vec<&String> = form.has.iter().map(|one| &one.pod_uid).collect();
            self.log.push(format!("report of host {} lists pods {uids:?}", form.name));
            self.report_host(at, &form, version);
        }
    }

    /// Delivers a report that is older than the last one.
    pub(crate) fn deliver_stale_report(&mut self, at: usize) {
        if self.kubelets[at].newest_version > 1 {
            let form = HostForm { has: Vec::new(), ..self.kubelets[at].form.clone() };
            let (facts, _) = form.facts().expect("the report should be valid");
            let facts = Some((facts, Class::Standard));
            self.extender
                .update_host(self.now, &form.name, facts, Some(1))
                .expect("the host update should succeed");
        }
    }

    /// Deletes a pod: the watch shows that the pod is terminating, and its kubelet ends the pod before the pod is
    /// deleted. With `is_forced` the pod is deleted at once, and its kubelet ends the pod some time later.
    pub(crate) fn delete(&mut self, uid: &str, is_forced: bool) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        self.log.push(format!("pod {uid} is deleted; forced: {is_forced}"));
        let node = observed(&pod).existing.node_name;
        let at = node
            .and_then(|node| self.kubelets.iter().position(|kubelet| kubelet.form.name == node));
        if !is_forced {
            pod.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
            self.events.push_back(Event::Applied(Box::new(pod)));
            while !self.events.is_empty() {
                self.deliver_event();
            }
        }
        if let Some(at) = at {
            self.kubelets[at].tasks.push_back(Task::Remove(uid.to_owned()));
            while !is_forced && !self.kubelets[at].tasks.is_empty() {
                self.run_task(at);
            }
        }
        self.pods.remove(uid);
        self.events.push_back(Event::Deleted(uid.to_owned()));
        while is_forced && !self.events.is_empty() {
            self.deliver_event();
        }
    }

    /// Advances the time. Within seconds, kubelets and agents finish their tasks, and the watches deliver all events.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.idle += time;
        if self.idle >= Duration::from_secs(5) {
            self.idle = Duration::ZERO;
            for at in 0..self.kubelets.len() {
                while !self.kubelets[at].tasks.is_empty() {
                    self.run_task(at);
                }
                self.publish_report(at);
                while !self.kubelets[at].reports.is_empty() {
                    self.deliver_report(at, false);
                }
            }
            while !self.events.is_empty() {
                self.deliver_event();
            }
        }
        self.log.push(format!("time advances by {time:?}"));
        self.now += time;
        self.extender.tick(self.now);
    }
}
