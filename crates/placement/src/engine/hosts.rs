//! A host of the engine: the agent's report, the predicted state of the kubelet, and the pods on the host.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::Class;

use super::reason::Reason;
use super::request::Request;
use crate::inventory::ReportedHost;
use crate::rules::{self, PodId};
use berth_kubelet_admission::pod::Pod;
use berth_kubelet_admission::{Admission, HostState};

/// A host and the pods on it.
#[derive(Debug)]
pub(super) struct HostEntry {
    pub(super) report: ReportedHost,
    pub(super) class: Class,
    pub(super) state: HostState,
    /// The pods that are assumed on the host, with their UIDs, in the order in which they were assumed. The kubelet
    /// receives the pods in this order.
    pub(super) pods: BTreeMap<PodId, Arc<str>>,
}

impl HostEntry {
    /// Returns the resources that this host's kubelet would allocate to a pod if its state were `state`. Returns the
    /// reason if the kubelet would reject the pod, or if the zones have too little memory for the guest.
    pub(super) fn evaluate_admission(
        &self,
        state: &HostState,
        uid: &str,
        request: &Request,
    ) -> Result<Admission, Reason> {
        let admission = self.check_admission(state, uid, request.pod())?;
        match request.vm_requirements.insufficient_zone_memory(&admission, state) {
            Some(reason) => Err(reason),
            None => Ok(admission),
        }
    }

    /// Returns the resources that the kubelet would allocate to a pod. Returns the reason if the kubelet would reject
    /// the pod, if the kubelet's decision is unpredictable, or if the kubelet would allocate CPUs that are in use.
    pub(super) fn check_admission(
        &self,
        state: &HostState,
        uid: &str,
        pod: &Pod,
    ) -> Result<Admission, Reason> {
        if let Some(reason) = self.report.missing_information(pod) {
            return Err(Reason::Unpredictable(reason));
        }
        let admission = state.check_as(uid, pod).map_err(Reason::Kubelet)?;
        if admission.takes_cpus_in_use() { Err(Reason::CpusInUse) } else { Ok(admission) }
    }
}

pub(super) const UNKNOWN_HOST_REASON: Reason = Reason::Rule(rules::Reason::HostNotFound);

/// Admits a pod that runs on a host or will be bound to it, with the resources that the kubelet would allocate. If the
/// kubelet would reject the pod, `state` is unchanged. (`HostState::admit` would also account for the resources that a
/// kubelet allocates to a rejected pod and then releases.)
pub(super) fn accept_pod(state: &mut HostState, uid: &str, pod: &Pod) -> Result<(), Reason> {
    let admission = state.check_as(uid, pod).map_err(Reason::Kubelet)?;
    state.commit_admission(uid, pod, admission).map_err(Reason::Kubelet)
}
