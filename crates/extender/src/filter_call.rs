//! `filter`: chooses the best host for a pod, and reserves resources on this host.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use berth_placement::engine::Request;
use berth_placement::rules::HostId;
use k8s_openapi::api::core::v1;

use super::admission_order::HostChoice;
use super::availability::AWAITING_REPORT_REASON;
use super::call_answers::FilterAnswer;
use super::error::{FilterError, NotReadyReason, RequestError};
use super::extender::Extender;
use super::observed_pod::ObservedPod;
use super::reservation::{
    POD_GROUP_TIMEOUT, RESERVED_TIMEOUT, Stage, VOLUMES_TIMEOUT, has_exclusive_resources,
};
use super::reservation_table::RestoreResult;

/// Reason for each host if no VirtualMachineInstance with the UID in the pod's labels exists in the pod's namespace.
const UNKNOWN_INSTANCE_REASON: &str =
    "node(s) were not checked: the pod's VirtualMachineInstance was not found";

/// Name of a host, with the ID of the host in the engine or the reason why the host does not accept the pod.
type NamedHost<'n> = (&'n str, Result<HostId, &'static str>);

impl Extender {
    /// Reserves resources for the pod on the best host of `names`. A repeated call returns the same host, as long as
    /// the host is in `names` and accepts the pod. For a pod with ResourceClaims, returns all hosts that accept the
    /// pod, unless resources are already reserved for the pod or its VM.
    pub fn answer_filter<'n>(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        names: &[&'n str],
    ) -> FilterAnswer<'n> {
        self.filter_and_reserve(now, pod, names, false)
    }

    /// Answers a `filter` call for a pod of a PodGroup in the same way as [`Self::answer_filter`]. However, unless the
    /// pod waits for volumes, the reservation expires sooner, because kube-scheduler may only simulate the scheduling
    /// of the group.
    pub fn answer_pod_group_filter<'n>(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        names: &[&'n str],
    ) -> FilterAnswer<'n> {
        self.filter_and_reserve(now, pod, names, true)
    }

    fn filter_and_reserve<'n>(
        &mut self,
        now: Instant,
        pod: &v1::Pod,
        names: &[&'n str],
        is_pod_group_member: bool,
    ) -> FilterAnswer<'n> {
        // 1. Parse the pod, and answer the call if the pod is already bound.
        if self.awaits_pod_list {
            return FilterAnswer::NotReady(NotReadyReason::PodsNotListed);
        }
        let observed = match self.read_pod(pod) {
            Ok(observed) => observed,
            Err(error) => return FilterAnswer::Failed(error),
        };
        if let Some(answer) = self.answer_bound_pod(&observed, names) {
            return answer;
        }
        // 2. Compile the pod's request.
        let request = match self.compile_request(pod, &observed) {
            Ok(request) => request,
            Err(error) => return self.answer_error(now, &observed, error, names),
        };
        // 3. Choose a host as if the pod and its VM had no reservation.
        let named_hosts: Vec<NamedHost<'n>> = names
            .iter()
            .map(|name| (*name, self.find_usable_host(name, has_exclusive_resources(&request))))
            .collect();
        let candidates: Vec<HostId> =
            named_hosts.iter().filter_map(|(_, host)| host.ok()).collect();
        let previous_reservation = self.reservations.take_for_pod(&observed);
        if observed.has_resource_claims && previous_reservation.is_none() {
            let hosts = self.hosts_with_room(now, &request, &named_hosts);
            if !hosts.is_empty() {
                self.queue.refused_pods.remove(observed.uid());
                return FilterAnswer::UnreservedHosts(hosts);
            }
        }
        let previous_host = previous_reservation
            .as_ref()
            .and_then(|(_, reservation)| self.reservations.engine.host(&reservation.host));
        let choice = self.reservations.choose_host(now, &request, candidates, previous_host);
        // 4. If no host accepts the pod: restore the previous reservation, and refuse the pod.
        let Some(host) = choice.host else {
            let refused = self.refusals_by_host(&request, named_hosts, &choice);
            let reserved_host = match self.reservations.restore(previous_reservation, &observed) {
                RestoreResult::NotRestored => None,
                RestoreResult::ReleasedHost(host) => {
                    self.queue.refused_pods.mark_host_changed(host);
                    None
                }
                RestoreResult::RestoredHost(host) => Some(host),
            };
            self.queue.refused_pods.insert(&request, reserved_host);
            return FilterAnswer::Refused(refused);
        };
        // 5. Reserve resources on the chosen host.
        if let Some(released_host) = previous_host.filter(|previous| *previous != host) {
            self.queue.refused_pods.mark_host_changed(released_host);
        }
        let until = now
            .checked_add(self.reservation_timeout(&observed, is_pod_group_member))
            .unwrap_or(now);
        self.reserve(&observed, request, host, until);
        match named_hosts.iter().find(|(_, id)| *id == Ok(host)) {
            Some((name, _)) => FilterAnswer::ReservedHost(name),
            None => {
                FilterAnswer::Failed(FilterError::HostNotOffered { pod: observed.qualified_name() })
            }
        }
    }

    /// Returns the hosts on which the pod fits now, in every order in which the kubelet may admit the pods of the host.
    fn hosts_with_room<'n>(
        &self,
        now: Instant,
        request: &Request,
        named_hosts: &[NamedHost<'n>],
    ) -> Vec<&'n str> {
        let has_room = |host: HostId| {
            self.reservations.engine.rejection_reasons(request, host).is_empty()
                && self.reservations.fits_in_every_order(now, request, host)
        };
        named_hosts
            .iter()
            .filter(|(_, host)| host.is_ok_and(has_room))
            .map(|(name, _)| *name)
            .collect()
    }

    fn read_pod(&self, pod: &v1::Pod) -> Result<ObservedPod, FilterError> {
        let observed = ObservedPod::read(pod)?;
        if observed.uid().is_empty() {
            return Err(FilterError::EmptyUid { pod: observed.qualified_name() });
        }
        if self.queue.is_deleted(observed.uid()) {
            return Err(FilterError::Deleted { pod: observed.qualified_name() });
        }
        Ok(observed)
    }

    /// Returns the answer for a pod that is bound or whose binding was sent; `None` for other pods.
    fn answer_bound_pod<'n>(
        &self,
        observed: &ObservedPod,
        names: &[&'n str],
    ) -> Option<FilterAnswer<'n>> {
        let reservation = self.reservations.get(observed.uid())?;
        let host = &*reservation.host;
        match reservation.stage {
            Stage::Bound { .. } => Some(match names.iter().find(|name| **name == host) {
                Some(name) => FilterAnswer::ReservedHost(name),
                None => FilterAnswer::Failed(FilterError::AlreadyBound {
                    pod: observed.qualified_name(),
                    host: host.to_owned(),
                }),
            }),
            Stage::Binding { .. } => {
                let (pod, host) = (observed.qualified_name(), host.to_owned());
                Some(FilterAnswer::NotReady(NotReadyReason::BindingPending { pod, host }))
            }
            _ => None,
        }
    }

    /// Returns the answer for a pod whose request cannot be compiled. If the pod's VM is unknown, this is
    /// [`FilterAnswer::NotReady`] as long as [`should_hold`](super::unknown_instances::UnknownInstances::should_hold)
    /// is true, and then a refusal.
    fn answer_error<'n>(
        &mut self,
        now: Instant,
        observed: &ObservedPod,
        error: RequestError,
        names: &[&'n str],
    ) -> FilterAnswer<'n> {
        match error {
            RequestError::Field(error) => FilterAnswer::Failed(error.into()),
            RequestError::NotReady(not_ready) => {
                let existing = &observed.existing;
                let instance = existing.vmi_uid.as_deref().unwrap_or_default();
                let unknown = &mut self.queue.unknown_instances;
                if unknown.should_hold(now, observed.uid(), &existing.namespace, instance) {
                    return FilterAnswer::NotReady(not_ready);
                }
                let refused = names.iter().map(|name| (*name, UNKNOWN_INSTANCE_REASON.into()));
                FilterAnswer::Refused(refused.collect())
            }
        }
    }

    /// Returns the reason of each host for the refusal of the pod. The cache provides the reasons that are still valid.
    fn refusals_by_host<'n>(
        &mut self,
        request: &Request,
        named_hosts: Vec<NamedHost<'n>>,
        choice: &HostChoice,
    ) -> Vec<(&'n str, Cow<'static, str>)> {
        let engine = &self.reservations.engine;
        let mut reasons = self.refusal_cache.take_reasons(engine, request);
        let reason = |(name, host): NamedHost<'n>| {
            let host_reason = |host| match choice.order_dependent_hosts.contains(&host) {
                true => Cow::Borrowed(AWAITING_REPORT_REASON),
                false => reasons.reason(engine, request, host),
            };
            (name, host.map_or_else(Cow::Borrowed, host_reason))
        };
        let refused = named_hosts.into_iter().map(reason).collect();
        self.refusal_cache.insert(engine, request, reasons);
        refused
    }

    /// Returns the time after which the reservation of the pod expires.
    fn reservation_timeout(&self, observed: &ObservedPod, is_pod_group_member: bool) -> Duration {
        let existing = &observed.existing;
        let is_unbound =
            |claim: &String| self.virtual_machines.is_unbound(&existing.namespace, claim);
        let waits_for_volumes =
            observed.claims.iter().any(is_unbound) || existing.nominated_node_name.is_some();
        match (waits_for_volumes, is_pod_group_member) {
            (true, _) => VOLUMES_TIMEOUT,
            (false, true) => POD_GROUP_TIMEOUT,
            (false, false) => RESERVED_TIMEOUT,
        }
    }

    /// Records that a `filter` call for the pod was not answered, so that kube-scheduler retries the pod when it fits
    /// on a host.
    pub fn record_unanswered(&mut self, pod: &v1::Pod) {
        let Ok(observed) = ObservedPod::read(pod) else { return };
        if self.reservations.get(observed.uid()).is_none()
            && let Ok(request) = self.compile_request(pod, &observed)
        {
            self.queue.refused_pods.insert_unscanned(&request);
        }
    }
}
