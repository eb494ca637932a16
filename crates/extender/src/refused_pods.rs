//! Pods that no host accepted, and the hosts that have changed since the last check of these pods. Decides which pods
//! kube-scheduler must retry, and on which hosts these pods fit.
//!
//! kube-scheduler retries a pod after a Kubernetes event that may have made room for the pod. A new agent report is not
//! such an event. Therefore the extender patches a Node when a waiting pod fits on that Node, once for each refusal of
//! the pod.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use berth_placement::engine::{Engine, Request, RequestClassKey};
use berth_placement::rules::HostId;

/// A pod that waits for free resources.
#[derive(Clone, Debug)]
struct RefusedPod {
    request: Request,
    /// True if the extender has patched a Node for the pod since the last refusal of the pod.
    is_retry_requested: bool,
    /// Value of [`RefusedPods::round_number`] when a full scan of the hosts became due for the pod; `None` if only
    /// changed hosts need to be checked.
    scan_due_since: Option<u64>,
    /// Host on which resources are reserved for the pod's VM. The engine counts the reserved resources as used,
    /// although this pod may use them.
    reserved_host: Option<Arc<str>>,
}

/// All pods that wait for free resources.
#[derive(Debug, Default)]
pub(super) struct RefusedPods {
    pods: BTreeMap<Arc<str>, RefusedPod>,
    /// Hosts that may have more free resources than before.
    changed_hosts: BTreeSet<HostId>,
    /// Number of calls of [`Self::take_hosts_with_resources`] so far. One such call is a round.
    round_number: u64,
}

/// Maximum number of changed hosts for which a round checks each host individually. For more hosts,
/// [`Engine::choose_host`] is faster.
const MAX_INDIVIDUAL_CHECKS: usize = 64;
/// Maximum number of request classes that one call of [`RefusedPods::take_hosts_with_resources`] searches; the other
/// classes are searched in later calls.
const MAX_CLASSES_PER_ROUND: usize = 64;
/// Maximum number of pods without a request class for which one call of [`RefusedPods::take_hosts_with_resources`]
/// scans all hosts. A pod has no request class if its volumes or other pods affect the result, so that each of
/// thousands of such pods needs its own scan.
const MAX_SCANS_PER_ROUND: usize = 64;

impl RefusedPods {
    /// Inserts a pod that no host accepted. `reserved_host` is the host on which resources are reserved for the pod's
    /// VM.
    pub(super) fn insert(&mut self, request: &Request, reserved_host: Option<Arc<str>>) {
        self.add(request, None, reserved_host);
    }

    /// Inserts a pod for which the hosts have not been scanned. The next call of [`Self::take_hosts_with_resources`]
    /// scans all hosts for the pod.
    pub(super) fn insert_unscanned(&mut self, request: &Request) {
        self.add(request, Some(self.round_number), None);
    }

    fn add(&mut self, request: &Request, scan_due: Option<u64>, reserved_host: Option<Arc<str>>) {
        let pod = RefusedPod {
            request: request.clone(),
            is_retry_requested: false,
            scan_due_since: scan_due,
            reserved_host,
        };
        self.pods.insert(request.uid().into(), pod);
    }

    pub(super) fn contains(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Records that a host may have more free resources than before.
    pub(super) fn mark_host_changed(&mut self, host: HostId) {
        if !self.pods.is_empty() {
            self.changed_hosts.insert(host);
        }
    }

    /// Records that hosts may have more free storage than before. Without a pod with volumes, nothing is recorded,
    /// because drivers report their storage very often.
    pub(super) fn mark_storage_changed(&mut self, hosts: impl IntoIterator<Item = HostId>) {
        if self.pods.values().any(|pod| pod.request.has_claims()) {
            self.changed_hosts.extend(hosts);
        }
    }

    /// Schedules a full scan of the hosts for all pods. This is needed after a change of a Node, because the change may
    /// affect rules that count hosts, such as topology spread constraints, on any host.
    pub(super) fn schedule_full_scan(&mut self) {
        for pod in self.pods.values_mut() {
            pod.scan_due_since.get_or_insert(self.round_number);
            pod.is_retry_requested = false;
        }
    }

    /// Returns true if a call of [`Self::take_hosts_with_resources`] may find a host.
    pub(super) fn may_find_host(&self) -> bool {
        let is_due = || {
            self.pods.values().any(|pod| pod.scan_due_since.is_some() && !pod.is_retry_requested)
        };
        !self.changed_hosts.is_empty() || is_due()
    }

    /// Returns the hosts on which a waiting pod now fits, and marks these pods, so that no further retry is requested
    /// for them. `are_all_available` makes the search faster and may be true only if `is_available` returns true for
    /// every host.
    pub(super) fn take_hosts_with_resources(
        &mut self,
        engine: &mut Engine,
        is_available: impl Fn(HostId) -> bool,
        are_all_available: bool,
    ) -> BTreeSet<HostId> {
        let usable = || engine.hosts().map(|(host, _)| host).filter(|host| is_available(*host));
        let candidates: Option<Vec<HostId>> = (!are_all_available).then(|| usable().collect());
        let changed = std::mem::take(&mut self.changed_hosts);
        let mut searched: HashSet<RequestClassKey> = HashSet::new();
        let mut classes_with_host: HashSet<RequestClassKey> = HashSet::new();
        let mut hosts = BTreeSet::new();
        let mut scan_count = 0;
        let round = self.round_number;
        self.round_number = round.wrapping_add(1);
        let awaits_retry = |pod: &&mut RefusedPod| !pod.is_retry_requested;
        let (mut due, others): (Vec<_>, Vec<_>) = self
            .pods
            .values_mut()
            .filter(awaits_retry)
            .partition(|pod| pod.scan_due_since.is_some());
        // The pods whose scan has been due longest come first, so that every pod is scanned eventually.
        due.sort_by_key(|pod| pod.scan_due_since);
        let others = others.into_iter().filter(|_| !changed.is_empty());
        for pod in due.into_iter().chain(others) {
            let scan_due = pod.scan_due_since.take();
            let reserved_host = pod.reserved_host.as_deref().and_then(|host| engine.host(host));
            if let Some(host) = reserved_host.filter(|host| changed.contains(host)) {
                pod.is_retry_requested = true;
                hosts.insert(host);
                continue;
            }
            let class = engine.class_key(&pod.request).cloned();
            if let Some(class) = &class
                && searched.contains(class)
            {
                pod.is_retry_requested = classes_with_host.contains(class);
                continue;
            }
            let needs_scan = scan_due.is_some() || changed.len() > MAX_INDIVIDUAL_CHECKS;
            let is_scanned_alone = needs_scan && class.is_none();
            if searched.len() >= MAX_CLASSES_PER_ROUND
                || (is_scanned_alone && scan_count >= MAX_SCANS_PER_ROUND)
            {
                pod.scan_due_since = scan_due.or(Some(round));
                continue;
            }
            scan_count += usize::from(is_scanned_alone);
            let host = if needs_scan {
                engine.choose_host(&pod.request, candidates.as_deref())
            } else {
                let fits = |host: &&HostId| {
                    is_available(**host)
                        && engine.rejection_reasons(&pod.request, **host).is_empty()
                };
                changed.iter().find(fits).copied()
            };
            if let Some(host) = host {
                pod.is_retry_requested = true;
                hosts.insert(host);
                classes_with_host.extend(class.clone());
            }
            searched.extend(class);
        }
        hosts
    }
}
