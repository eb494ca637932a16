//! State of the engine: all hosts and pods, and the operations that change them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use berth_api::Class;

use super::change_log::ChangeLog;
use super::free_resources::FreeResources;
use super::host_order::HostOrder;
use super::hosts::{HostEntry, UNKNOWN_HOST_REASON, accept_pod};
use super::reason::Reason;
use super::request::{Request, has_control_plane_role};
use super::request_classes::{RequestClassKey, RequestClasses};
use super::score_index::{ComparedHosts, SearchBuffers};
use super::spread_index::SpreadIndex;
use super::vm_requirements::VmRequirements;
use crate::inventory::ReportedHost;
use crate::rules::{ClusterState, HostId, InvalidField, NodeFields, PodFields, PodId, Rules};
use berth_kubelet_admission::{HostState, ReportedPod};

/// A pod that is assumed to run on a host, as in kube-scheduler's cache.
#[derive(Clone, Debug)]
pub(super) struct AssumedPod {
    pub(super) host: HostId,
    pub(super) pod_id: PodId,
    pub(super) request: Request,
}

/// All hosts and all pods on them.
#[derive(Debug, Default)]
pub struct Engine {
    pub(super) cluster: ClusterState,
    pub(super) host_entries: Vec<Option<HostEntry>>,
    pub(super) host_order: HostOrder,
    /// Free resources of each host, stored in a separate vector because every class reads them after every change.
    pub(super) free_resources: Vec<FreeResources>,
    pub(super) assumed_pods: HashMap<Arc<str>, AssumedPod>,
    pub(super) request_classes: RequestClasses,
    pub(super) spread: SpreadIndex,
    pub(super) change_log: ChangeLog,
    pub(super) search_buffers: SearchBuffers,
    /// Buffer that searches reuse; empty between searches.
    pub(super) compared_hosts: ComparedHosts,
}

impl Engine {
    /// Creates an engine without hosts.
    #[must_use]
    pub fn new() -> Self {
        Self { cluster: ClusterState::new(), ..Self::default() }
    }

    /// Sets the labels of a namespace, for rules that select namespaces by label.
    pub fn set_namespace(&mut self, name: &str, labels: &BTreeMap<String, String>) {
        self.cluster.set_namespace(name, labels);
    }

    /// Adds a host with the allocations of its kubelet, or updates the host from a newer report.
    ///
    /// Pods in the report get the reported resources. Assumed pods that are not in the report have not started yet:
    /// they get the resources that the kubelet would allocate. Reported allocations that belong to no assumed pod count
    /// as allocated: the kubelet releases a pod's CPUs only after its containers have ended, even if the pod was
    /// deleted before.
    ///
    /// # Errors
    ///
    /// Returns an error for a taint that the API server would have rejected.
    pub fn set_host(&mut self, report: ReportedHost, class: Class) -> Result<HostId, InvalidField> {
        let fields = report.node_fields();
        let id = self.cluster.set_host(&fields)?;
        self.host_order.add(id, fields.name);
        if self.host_entries.len() <= id.index() {
            self.host_entries.resize_with(id.index() + 1, || None);
            self.free_resources.resize_with(id.index() + 1, FreeResources::default);
        }
        let before = self.host_entries[id.index()].take();
        let pods = before.map(|entry| entry.pods).unwrap_or_default();
        let mut state = HostState::new(&report.admission);
        // If an allocation is spread over several zones, the report does not show the exact resources in each zone.
        // Therefore allocations in one zone are restored first, and the other allocations get the remaining resources.
        let mut allocations: Vec<_> = report.allocations.iter().collect();
        allocations.sort_by_key(|allocation| allocation.zones.len());
        for allocation in allocations {
            let assumed = self.assumed_pods.get(allocation.uid.as_str());
            let pod = assumed.map(|pod| pod.request.pod());
            state.restore(&allocation.uid, &allocation.to_restored(pod));
        }
        for uid in pods.values() {
            let Some(pod) = self.assumed_pods.get(uid) else { continue };
            let pod = pod.request.pod();
            if state.admission(uid).is_none() && accept_pod(&mut state, uid, pod).is_err() {
                state.restore(uid, &ReportedPod::without_zones(pod));
            }
        }
        self.host_entries[id.index()] = Some(HostEntry { report, class, state, pods });
        self.update_spread_host(id);
        self.record_change(id, true);
        Ok(id)
    }

    /// Removes allocations from the report of a host, as if a newer report did not list these pods.
    pub fn remove_allocations(&mut self, host: HostId, uids: &[Arc<str>]) {
        let Some(entry) = self.host_entry(host) else { return };
        let (mut report, class) = (entry.report.clone(), entry.class);
        report.allocations.retain(|allocation| !uids.iter().any(|uid| **uid == *allocation.uid));
        // The host was added with the same taints before, so they are valid.
        drop(self.set_host(report, class));
    }

    /// Adds a Node whose agent does not report. The engine places no pods on the Node. However, the rules of other pods
    /// take the Node's labels and its bound pods into account, as in kube-scheduler.
    ///
    /// # Errors
    /// Returns an error for a taint that the API server would have rejected.
    pub fn set_node(&mut self, fields: &NodeFields<'_>) -> Result<HostId, InvalidField> {
        let id = self.cluster.set_host(fields)?;
        self.host_order.add(id, fields.name);
        if self.host_entries.len() <= id.index() {
            self.host_entries.resize_with(id.index() + 1, || None);
            self.free_resources.resize_with(id.index() + 1, FreeResources::default);
        }
        self.update_spread_host(id);
        self.record_change(id, true);
        Ok(id)
    }

    /// Removes a host with its assumed pods. Returns the UIDs of these pods, in the order in which the pods were
    /// assumed.
    pub fn remove_host(&mut self, host: HostId) -> Vec<Arc<str>> {
        let entry = self.host_entries.get_mut(host.index()).and_then(Option::take);
        let pods = entry.map(|entry| entry.pods).unwrap_or_default();
        let pods: Vec<Arc<str>> = pods.into_values().collect();
        for uid in &pods {
            self.assumed_pods.remove(uid);
        }
        self.cluster.remove_host(host);
        self.spread.remove_host(host.index());
        if let Some(free) = self.free_resources.get_mut(host.index()) {
            *free = FreeResources::default();
        }
        self.record_change(host, true);
        pods
    }

    /// Returns the host with this name; `None` unless its agent has reported.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<HostId> {
        self.node(name).filter(|host| self.host_entry(*host).is_some())
    }

    /// Returns the Node with this name, even if its agent has not reported.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<HostId> {
        self.cluster.host(name)
    }

    /// Returns all hosts, in the order in which they were added.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, &ReportedHost)> {
        let entries = self.host_entries.iter().enumerate();
        entries.filter_map(|(at, entry)| Some((HostId::from_index(at), &entry.as_ref()?.report)))
    }

    /// Returns the reported data of a host.
    #[must_use]
    pub fn reported_host(&self, host: HostId) -> Option<&ReportedHost> {
        Some(&self.host_entry(host)?.report)
    }

    /// Returns the predicted state of a host's kubelet.
    #[must_use]
    pub fn kubelet_state(&self, host: HostId) -> Option<&HostState> {
        Some(&self.host_entry(host)?.state)
    }

    /// Returns the host on which a pod is assumed.
    #[must_use]
    pub fn host_of_pod(&self, uid: &str) -> Option<HostId> {
        Some(self.assumed_pods.get(uid)?.host)
    }

    /// Returns the number of assumed pods on all hosts.
    #[must_use]
    pub fn pod_count(&self) -> usize {
        self.assumed_pods.len()
    }

    /// Compiles the rules of a pod and finds its request class, so that the returned request can be evaluated many
    /// times.
    ///
    /// # Errors
    ///
    /// Returns the invalid rule and the problem if the pod has a rule that the API server would have rejected.
    pub fn compile_request(
        &mut self,
        fields: &PodFields<'_>,
        vm_requirements: VmRequirements,
    ) -> Result<Request, InvalidField> {
        let rules = Arc::new(Rules::compile(&mut self.cluster, fields)?);
        let is_control_plane = vm_requirements.is_vm && has_control_plane_role(fields);
        let key = RequestClassKey::new(&vm_requirements, &rules, is_control_plane);
        let (class, key) = self.request_classes.find_or_insert(key, &rules);
        Ok(Request {
            uid: fields.containers.uid.as_str().into(),
            rules,
            vm_requirements,
            class_key: key,
            class_index: class,
        })
    }

    /// Selects the best host for a pod and assumes the pod on it: its resources are reserved until [`Self::remove_pod`].
    /// `candidates` lists the hosts that the caller's own checks allow; `None` allows all hosts.
    pub fn place_pod(
        &mut self,
        request: &Request,
        candidates: Option<&[HostId]>,
    ) -> Option<HostId> {
        if let Some(host) = self.host_of_pod(&request.uid) {
            if candidates.is_none_or(|among| among.contains(&host)) {
                return Some(host);
            }
            self.remove_pod(&request.uid);
        }
        let (host, admission) = self.choose_host_with_admission(request, candidates)?;
        // The engine's state has not changed since the admission was computed, so the admission is still valid.
        let entry = self.host_entries.get_mut(host.index()).and_then(Option::as_mut)?;
        entry.state.commit_admission(&request.uid, request.pod(), admission).ok()?;
        self.record_assumed_pod(request, host);
        Some(host)
    }

    /// Assumes a pod on a host if the host's kubelet would admit the pod.
    ///
    /// Returns the reason if the kubelet would reject the pod. The rules of kube-scheduler are not evaluated.
    pub fn assume_if_admitted(&mut self, request: &Request, host: HostId) -> Result<(), Reason> {
        self.remove_pod(&request.uid);
        let entry = self
            .host_entries
            .get_mut(host.index())
            .and_then(Option::as_mut)
            .ok_or(UNKNOWN_HOST_REASON)?;
        let admission = entry.check_admission(&entry.state, &request.uid, request.pod())?;
        let accepted = entry.state.commit_admission(&request.uid, request.pod(), admission);
        accepted.map_err(Reason::Kubelet)?;
        self.record_assumed_pod(request, host);
        Ok(())
    }

    /// Adds a pod that is already bound to a host, regardless of the rules. The pod gets the resources in the host's
    /// report, or else the resources that the kubelet would allocate. Callers that add many pods must first add the
    /// pods that reports list, because these pods already have their resources. A report alone does not suffice to add
    /// a pod, because it does not contain all requests of the pod.
    ///
    /// # Errors
    ///
    /// Returns the reason why the kubelet would reject the pod. The pod then still counts in the host's totals.
    pub fn add_bound_pod(&mut self, request: &Request, host: HostId) -> Result<(), Reason> {
        self.remove_pod(&request.uid);
        let Some(entry) = self.host_entries.get_mut(host.index()).and_then(Option::as_mut) else {
            self.record_assumed_pod(request, host);
            return self.host_of_pod(&request.uid).map(drop).ok_or(UNKNOWN_HOST_REASON);
        };
        let uid = &*request.uid;
        let mut result = Ok(());
        if let Some(allocation) = entry.report.allocation(uid) {
            entry.state.restore(uid, &allocation.to_restored(Some(request.pod())));
        } else if let Err(reason) = accept_pod(&mut entry.state, uid, request.pod()) {
            entry.state.restore(uid, &ReportedPod::without_zones(request.pod()));
            result = Err(reason);
        }
        self.record_assumed_pod(request, host);
        result
    }

    fn record_assumed_pod(&mut self, request: &Request, host: HostId) {
        let uid = Arc::clone(&request.uid);
        if let Some(pod_id) = self.cluster.add_pod(Arc::clone(&request.rules), host) {
            let pod = AssumedPod { host, pod_id, request: request.clone() };
            self.assumed_pods.insert(Arc::clone(&uid), pod);
            self.add_to_spread(request, host);
            if let Some(entry) = self.host_entries.get_mut(host.index()).and_then(Option::as_mut) {
                entry.pods.insert(pod_id, uid);
            }
        }
        self.record_change(host, false);
    }

    /// Removes a pod; returns false if the pod was unknown. Resources that the host's report lists for the pod stay
    /// allocated until a newer report no longer lists them.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(pod) = self.assumed_pods.remove(uid) else { return false };
        self.cluster.remove_pod(pod.pod_id);
        self.remove_from_spread(&pod.request, pod.host);
        if let Some(entry) = self.host_entries.get_mut(pod.host.index()).and_then(Option::as_mut) {
            entry.pods.remove(&pod.pod_id);
            if entry.report.allocation(uid).is_none() {
                entry.state.remove(uid);
            }
        }
        self.record_change(pod.host, false);
        true
    }

    /// Returns the pods that are assumed on a host, in the order in which they were assumed.
    pub fn pods_on_host(&self, host: HostId) -> impl Iterator<Item = &Request> {
        let pods = self.host_entry(host).into_iter().flat_map(|entry| entry.pods.values());
        pods.filter_map(|uid| Some(&self.assumed_pods.get(uid)?.request))
    }

    /// Returns the Nodes that satisfy the pod's rules that depend neither on other pods nor on the kubelet, including
    /// Nodes whose agents do not report.
    pub fn candidate_hosts(&self, request: &Request) -> impl Iterator<Item = HostId> + use<> {
        self.cluster.pod_filter(&request.rules).candidate_hosts()
    }

    /// Returns the key of the request class if all requests with this key get the same result on each host; `None` if
    /// the result for this request depends on other pods or on its volumes.
    #[must_use]
    pub fn class_key<'r>(&self, request: &'r Request) -> Option<&'r RequestClassKey> {
        (!self.cluster.pod_filter(&request.rules).depends_on_pods()).then_some(&*request.class_key)
    }

    /// Returns the number of the newest change of a host or of its pods.
    #[must_use]
    pub fn last_change_number(&self) -> u64 {
        self.change_log.last_number()
    }

    /// Returns the hosts that have changed after change number `seen`; `None` if the log has dropped some of these
    /// changes.
    pub fn hosts_changed_since(&self, seen: u64) -> Option<impl Iterator<Item = HostId> + '_> {
        Some(self.change_log.changes_after(seen)?.map(|change| HostId::from_index(change.host())))
    }

    /// Returns the reasons why a pod cannot be placed on a host; empty if the pod can be placed on the host.
    #[must_use]
    pub fn rejection_reasons(&self, request: &Request, host: HostId) -> Vec<Reason> {
        let Some(entry) = self.host_entry(host) else {
            return vec![UNKNOWN_HOST_REASON];
        };
        if let Some(reason) = request.vm_requirements.host_rejection(&entry.report) {
            return vec![reason];
        }
        let rules = self.cluster.pod_filter(&request.rules).reasons(host);
        if !rules.is_empty() {
            return rules.into_iter().map(Reason::Rule).collect();
        }
        entry.evaluate_admission(&entry.state, &request.uid, request).err().into_iter().collect()
    }

    pub(super) fn host_entry(&self, host: HostId) -> Option<&HostEntry> {
        self.host_entries.get(host.index())?.as_ref()
    }

    fn record_change(&mut self, host: HostId, is_host_change: bool) {
        if let Some(entry) = self.host_entries.get(host.index()).and_then(Option::as_ref)
            && let Some(free) = self.free_resources.get_mut(host.index())
        {
            *free = FreeResources::from_state(&entry.state);
        }
        self.change_log.add(host.index(), is_host_change, self.host_entries.len());
        let Self {
            request_classes: classes,
            change_log: changes,
            cluster,
            free_resources: free,
            ..
        } = self;
        classes.update_recent_fit_scores(changes, |fit| {
            fit.resource_score(cluster, free, host.index())
        });
    }
}
