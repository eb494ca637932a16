//! Simulation of a cluster: an API server, kubelets with their own admission rules, agents, a scheduler, and the
//! watches that connect them to the extender. Each component may lag behind, and events may arrive in any order.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use berth_api::Class;
use berth_api::infra_node::Allocation;
use berth_extender::{BindAnswer, Extender, FilterAnswer};
use berth_kubelet_admission::HostState;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::allocation::reported_allocation;
use super::host::HostDescription;
use super::pod::{bind_to, observe_pod, uid};

/// Event of the pod watch.
#[derive(Clone, Debug)]
enum PodEvent {
    Applied(Box<v1::Pod>),
    Deleted(String),
}

/// Task of a kubelet. A kubelet runs its tasks in the order in which they were added.
#[derive(Clone, Debug)]
enum KubeletTask {
    AddPod(String),
    RemovePod(String),
}

pub(crate) struct SimulatedKubelet {
    pub(crate) host: HostDescription,
    pub(crate) state: HostState,
    tasks: VecDeque<KubeletTask>,
    reports: VecDeque<(u64, HostDescription)>,
    /// The last report that the agent has sent to the API server, with its version.
    published_report: (u64, HostDescription),
    newest_version: u64,
    /// Allocations of ended pods, by the UID of the pod, that remain in the checkpoint of the Memory Manager until the
    /// kubelet admits another pod.
    stale_memory: BTreeMap<String, Allocation>,
    /// UIDs of the pods that the agent's reports have listed so far.
    reported_pods: HashSet<String>,
}

pub(crate) struct SimulatedCluster {
    pub(crate) extender: Extender,
    pub(crate) now: Instant,
    pub(crate) kubelets: Vec<SimulatedKubelet>,
    /// Pods on the API server, by UID.
    pub(crate) pods: BTreeMap<String, v1::Pod>,
    events: VecDeque<PodEvent>,
    pub(crate) pending_bindings: Vec<(String, String)>,
    report_version: u64,
    /// Log of all events, shown when a test fails.
    pub(crate) log: Vec<String>,
    /// Time since the kubelets and agents last completed all their tasks.
    idle_time: Duration,
    pub(crate) bound_count: usize,
    pub(crate) refused_count: usize,
    pub(crate) refused_binding_count: usize,
    /// True if the Memory Managers' checkpoints list the memory of an ended pod until the kubelet admits another pod.
    /// This memory is not part of `SimulatedKubelet::state`, because a kubelet removes it before it allocates.
    pub(crate) keeps_stale_memory: bool,
    /// Number of pods whose memory a checkpoint has listed after their end.
    pub(crate) pods_with_stale_memory: usize,
}

impl SimulatedCluster {
    pub(crate) fn new(descriptions: Vec<HostDescription>) -> Self {
        let kubelet = |description: HostDescription| {
            let (facts, _) = description.reported_host().expect("the report should be valid");
            let published = (1, description.clone());
            let (work, reports) = (VecDeque::new(), VecDeque::new());
            SimulatedKubelet {
                state: HostState::new(&facts.admission),
                host: description,
                tasks: work,
                reports,
                published_report: published,
                newest_version: 0,
                stale_memory: BTreeMap::new(),
                reported_pods: HashSet::new(),
            }
        };
        let mut this = Self {
            extender: Extender::new(),
            now: Instant::now(),
            kubelets: descriptions.into_iter().map(kubelet).collect(),
            pods: BTreeMap::new(),
            events: VecDeque::new(),
            pending_bindings: Vec::new(),
            report_version: 1,
            log: Vec::new(),
            idle_time: Duration::ZERO,
            bound_count: 0,
            refused_count: 0,
            refused_binding_count: 0,
            keeps_stale_memory: false,
            pods_with_stale_memory: 0,
        };
        this.restart();
        this
    }

    pub(crate) fn host_names(&self) -> Vec<String> {
        self.kubelets.iter().map(|kubelet| kubelet.host.name.clone()).collect()
    }

    /// Restarts the extender and rebuilds its state from the objects on the API server.
    pub(crate) fn restart(&mut self) {
        self.log.push("the extender restarts".to_owned());
        self.extender = Extender::new_awaiting_pod_list();
        self.events.clear();
        for at in 0..self.kubelets.len() {
            self.kubelets[at].reports.clear();
            let (version, description) = self.kubelets[at].published_report.clone();
            self.report_host(at, &description, version);
        }
        let mut unreported = Vec::new();
        let all: Vec<v1::Pod> = self.pods.values().cloned().collect();
        let listed: HashSet<String> = all.iter().map(uid).collect();
        for pod in all {
            let read = observe_pod(&pod);
            if self.extender.is_unreported(&read) {
                unreported.push(pod);
            } else {
                self.extender.update_pod(self.now, pod, &read).expect("the pod should be counted");
            }
        }
        for pod in unreported {
            let read = observe_pod(&pod);
            self.extender.update_pod(self.now, pod, &read).expect("the pod should be counted");
        }
        self.extender.handle_pod_list(self.now, &listed);
    }

    fn report_host(&mut self, at: usize, description: &HostDescription, version: u64) {
        let (facts, problems) = description.reported_host().expect("the report should be valid");
        assert!(problems.is_empty(), "{problems:?}");
        let facts = Some((facts, Class::Standard));
        self.extender
            .update_host(self.now, &description.name, facts, Some(version))
            .expect("the host update should succeed");
        self.kubelets[at].newest_version = self.kubelets[at].newest_version.max(version);
    }

    /// Deletes a Node, although its kubelet continues to run. The Node is created again when the extender reads the
    /// next report of its agent.
    pub(crate) fn delete_node(&mut self, at: usize) {
        let name = &self.kubelets[at].host.name;
        self.log.push(format!("Node {name} is deleted"));
        self.extender.delete_node(name);
        // The extender accepts the next report whatever its version is, so that report counts as the newest.
        self.kubelets[at].newest_version = 0;
    }

    pub(crate) fn create_pod(&mut self, pod: v1::Pod) {
        self.events.push_back(PodEvent::Applied(Box::new(pod.clone())));
        self.pods.insert(uid(&pod), pod);
    }

    /// Delivers the next event of the pod watch.
    pub(crate) fn deliver_event(&mut self) {
        match self.events.pop_front() {
            Some(PodEvent::Applied(pod)) => {
                let read = observe_pod(&pod);
                self.extender.update_pod(self.now, *pod, &read).expect("the pod should be counted");
            }
            Some(PodEvent::Deleted(uid)) => self.extender.delete_pod(self.now, &uid),
            None => {}
        }
    }

    /// Calls `filter` for a pod.
    pub(crate) fn filter_pod(&mut self, uid: &str, names: &[&str]) -> Option<String> {
        let pod = self.pods.get(uid)?.clone();
        match self.extender.answer_filter(self.now, &pod, names) {
            FilterAnswer::ReservedHost(host) => {
                assert!(names.contains(&host), "filter returned {host}, which was not offered");
                self.pending_bindings.retain(|(other, _)| other != uid);
                self.pending_bindings.push((uid.to_owned(), host.to_owned()));
                self.log.push(format!(
                    "host {host} is reserved for pod {uid}: {:?}",
                    observe_pod(&pod).existing.pod
                ));
                Some(host.to_owned())
            }
            FilterAnswer::Refused(hosts) => {
                assert_eq!(hosts.len(), names.len(), "each refused host should have a reason");
                self.refused_count += 1;
                None
            }
            FilterAnswer::NotReady(_) | FilterAnswer::Failed(_) => None,
            FilterAnswer::UnreservedHosts(_) => unreachable!("no pod has ResourceClaims"),
        }
    }

    /// Calls `bind` for a pending binding, and binds the pod if the extender permits the binding. Returns true if the
    /// pod is bound. If `is_known` is false, the extender is not informed of the outcome.
    pub(crate) fn bind_pod(&mut self, at: usize, is_known: bool) -> bool {
        let (uid, host) = self.pending_bindings.remove(at);
        let pod = self.pods.get(&uid).cloned();
        match self.extender.answer_bind(self.now, &uid, &host, pod.as_ref()) {
            BindAnswer::SendBinding => {}
            BindAnswer::AlreadyBound | BindAnswer::PodRequired | BindAnswer::NotReady(_) => {
                return false;
            }
            BindAnswer::Refused(_) => {
                self.refused_binding_count += 1;
                return false;
            }
        }
        let Some(pod) = self.pods.get(&uid).cloned() else {
            self.extender.record_binding_failure(self.now, &uid);
            return false;
        };
        if observe_pod(&pod).existing.node_name.is_some() {
            self.extender.record_binding_failure(self.now, &uid);
            return false;
        }
        let pod = bind_to(pod, &host);
        self.pods.insert(uid.clone(), pod.clone());
        self.events.push_back(PodEvent::Applied(Box::new(pod)));
        let kubelet = self.kubelets.iter_mut().find(|kubelet| kubelet.host.name == host);
        kubelet.expect("the host should exist").tasks.push_back(KubeletTask::AddPod(uid.clone()));
        self.bound_count += 1;
        self.log.push(format!(
            "pod {uid} is bound to {host}; extender receives the outcome: {is_known}"
        ));
        if is_known {
            self.extender.record_binding_success(self.now, &uid);
        }
        true
    }

    /// Runs the next task of a kubelet. The test fails if the kubelet does not admit a pod that is bound to its host.
    pub(crate) fn run_task(&mut self, at: usize) {
        let kubelet = &mut self.kubelets[at];
        match kubelet.tasks.pop_front() {
            Some(KubeletTask::AddPod(uid)) => {
                // The pod was deleted before the kubelet received it.
                let Some(pod) = self.pods.get(&uid) else { return };
                let pod = observe_pod(pod).existing.pod;
                kubelet.stale_memory.clear();
                let result = kubelet.state.admit(&pod);
                let (name, log) = (&kubelet.host.name, self.log.join("\n"));
                assert!(
                    result.is_ok(),
                    "the kubelet of {name} rejects pod {uid}: {result:?}\n{:?}\n{log}",
                    kubelet.host
                );
                let mut cpus = berth_api::CpuSet::new();
                let others = self.pods.keys().filter_map(|uid| kubelet.state.admission(uid));
                for admission in others {
                    let own = admission.cpus(kubelet.state.host());
                    assert!(!own.intersects(&cpus), "CPUs {own} are allocated twice");
                    cpus = cpus.union(&own);
                }
            }
            Some(KubeletTask::RemovePod(uid)) => {
                let allocation =
                    reported_allocation(&kubelet.state, &uid).filter(|_| self.keeps_stale_memory);
                if let Some(memory) = allocation.and_then(memory_of_ended_pod) {
                    kubelet.stale_memory.insert(uid.clone(), memory);
                    self.pods_with_stale_memory += 1;
                }
                kubelet.state.remove(&uid);
                self.log
                    .push(format!("the kubelet of {} has released pod {uid}", kubelet.host.name));
            }
            None => {}
        }
    }

    /// Publishes a report of the host's agent on the API server. The extender receives the report later.
    pub(crate) fn publish_report(&mut self, at: usize) {
        self.report_version += 1;
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        let kubelet = &mut self.kubelets[at];
        let removed = kubelet.tasks.iter().filter_map(|work| match work {
            KubeletTask::RemovePod(uid) => Some(uid.clone()),
            KubeletTask::AddPod(_) => None,
        });
        let uids = uids.into_iter().chain(removed.collect::<Vec<_>>());
        let mut description = kubelet.host.clone();
        description.allocations =
            uids.filter_map(|uid| reported_allocation(&kubelet.state, &uid)).collect();
        if self.keeps_stale_memory {
            for allocation in &mut description.allocations {
                // In the first report that lists a pod, the pod has no control group: the agent has read the checkpoint
                // before the kubelet created the control group.
                let is_new = kubelet.reported_pods.insert(allocation.pod_uid.clone());
                allocation.has_control_group = Some(!is_new);
            }
        }
        description.allocations.extend(kubelet.stale_memory.values().cloned());
        kubelet.published_report = (self.report_version, description.clone());
        kubelet.reports.push_back((self.report_version, description));
    }

    /// Delivers the oldest report in the queue to the extender. If `keep_queued` is true, the report stays in the
    /// queue, so that a later call delivers it again.
    pub(crate) fn deliver_report(&mut self, at: usize, keep_queued: bool) {
        let next = if keep_queued {
            self.kubelets[at].reports.front().cloned()
        } else {
            self.kubelets[at].reports.pop_front()
        };
        if let Some((version, description)) = next {
            let uids: Vec<&String> =
                description.allocations.iter().map(|one| &one.pod_uid).collect();
            self.log.push(format!("report of host {} lists pods {uids:?}", description.name));
            self.report_host(at, &description, version);
        }
    }

    /// Delivers a report without allocations that is older than the last one, which the extender must ignore.
    pub(crate) fn deliver_stale_report(&mut self, at: usize) {
        if self.kubelets[at].newest_version > 1 {
            let description =
                HostDescription { allocations: Vec::new(), ..self.kubelets[at].host.clone() };
            let (facts, _) = description.reported_host().expect("the report should be valid");
            let facts = Some((facts, Class::Standard));
            self.extender
                .update_host(self.now, &description.name, facts, Some(1))
                .expect("the host update should succeed");
        }
    }

    /// Deletes a pod. If `is_forced` is false, the watch first shows that the pod is terminating, and the kubelet ends
    /// the pod before it is deleted. If `is_forced` is true, the pod is deleted immediately, and the kubelet ends the
    /// pod later.
    pub(crate) fn delete_pod(&mut self, uid: &str, is_forced: bool) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        self.log.push(format!("pod {uid} is deleted; forced: {is_forced}"));
        let node = observe_pod(&pod).existing.node_name;
        let at = node
            .and_then(|node| self.kubelets.iter().position(|kubelet| kubelet.host.name == node));
        if !is_forced {
            pod.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
            self.events.push_back(PodEvent::Applied(Box::new(pod)));
            while !self.events.is_empty() {
                self.deliver_event();
            }
        }
        if let Some(at) = at {
            self.kubelets[at].tasks.push_back(KubeletTask::RemovePod(uid.to_owned()));
            while !is_forced && !self.kubelets[at].tasks.is_empty() {
                self.run_task(at);
            }
        }
        self.pods.remove(uid);
        self.events.push_back(PodEvent::Deleted(uid.to_owned()));
        while is_forced && !self.events.is_empty() {
            self.deliver_event();
        }
    }

    /// Advances the time. As soon as [`Self::idle_time`] reaches five seconds, all kubelets and agents complete their
    /// tasks, and the watches deliver all events.
    pub(crate) fn advance_time(&mut self, time: Duration) {
        self.idle_time += time;
        if self.idle_time >= Duration::from_secs(5) {
            self.idle_time = Duration::ZERO;
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
        self.extender.expire_timeouts(self.now);
    }
}

/// Returns the allocation that a report lists for a pod that has ended: only the pod's memory, without CPUs, devices
/// and a control group. Returns `None` if the Memory Manager has allocated no memory to the pod.
pub(crate) fn memory_of_ended_pod(mut allocation: Allocation) -> Option<Allocation> {
    allocation.cpus = None;
    allocation.devices.clear();
    for container in &mut allocation.containers {
        container.cpus = None;
        container.devices.clear();
    }
    allocation.containers.retain(|container| !container.memory.is_empty());
    allocation.has_control_group = Some(false);
    (!allocation.containers.is_empty()).then_some(allocation)
}
