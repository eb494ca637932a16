//! Simulation of kubelets: a kubelet admits or refuses each pod of its Node by the rules of
//! [`berth_kubelet_admission`], and an admitted pod runs at once ([`super::pod_status`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use berth_api::InfraNodeStatus;
use berth_api::infra_node::Allocation;
use berth_kubelet_admission::HostState;
use berth_kubevirt_render::launcher::ExistingPod;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::agent;
use super::pod_status::next_status;

/// Host whose kubelet and agent are simulated.
#[derive(Clone, Debug)]
pub struct SimulatedHost {
    /// Name of the Node and of the InfraNode.
    pub name: String,
    /// Report of the agent while the host has no pods.
    pub report: InfraNodeStatus,
    /// Resources that the kubelet can allocate.
    pub state: HostState,
    /// Returns the report about the resources that the kubelet has allocated to the pod with this uid.
    pub report_allocation: fn(&HostState, &str) -> Option<Allocation>,
}

pub(super) struct Kubelets {
    client: Client,
    hosts: BTreeMap<String, SimulatedHost>,
    /// Name of the host of each admitted pod, by the pod's uid.
    admitted: BTreeMap<String, String>,
    refusals: Arc<Mutex<Vec<String>>>,
}

impl Kubelets {
    pub(super) fn new(
        client: Client,
        hosts: Vec<SimulatedHost>,
        refusals: Arc<Mutex<Vec<String>>>,
    ) -> Self {
        let hosts = hosts.into_iter().map(|host| (host.name.clone(), host)).collect();
        Self { client, hosts, admitted: BTreeMap::new(), refusals }
    }

    /// Handles each pod of the hosts once, and writes the reports. Returns the first error, after all pods and reports.
    pub(super) async fn sync(&mut self) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let mut pods = pods.list(&ListParams::default()).await?.items;
        // A kubelet receives its pods in the order in which they are bound.
        pods.sort_by_key(binding_order);
        self.release_deleted(&pods);
        let mut result = Ok(());
        for pod in &pods {
            result = result.and(self.sync_pod(pod).await);
        }
        result.and(agent::write_reports(&self.client, &self.hosts, &self.admitted).await)
    }

    /// Releases the resources of pods that no longer exist.
    fn release_deleted(&mut self, pods: &[Pod]) {
        let uids: BTreeSet<&str> =
            pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        let deleted: Vec<String> =
            self.admitted.keys().filter(|uid| !uids.contains(uid.as_str())).cloned().collect();
        for uid in deleted {
            self.release(&uid);
        }
    }

    fn release(&mut self, uid: &str) {
        let Some(name) = self.admitted.remove(uid) else { return };
        if let Some(host) = self.hosts.get_mut(&name) {
            host.state.remove(uid);
        }
    }

    async fn sync_pod(&mut self, pod: &Pod) -> Result<()> {
        let existing = ExistingPod::read(pod)?;
        let Some(host) = existing.node_name.clone().filter(|name| self.hosts.contains_key(name))
        else {
            return Ok(());
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &existing.namespace);
        if existing.is_terminating {
            // The containers of a deleted pod end immediately, so the simulated kubelet removes the pod in the same
            // step.
            self.release(&existing.pod.uid);
            let uid = Preconditions { uid: pod.uid(), ..Preconditions::default() };
            let immediately = DeleteParams::default().grace_period(0).preconditions(uid);
            return match pods.delete(&existing.name, &immediately).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                deleted => Ok(deleted.map(drop)?),
            };
        }
        if existing.is_terminal {
            self.release(&existing.pod.uid);
            return Ok(());
        }
        let status = if self.admit(&host, &existing) {
            next_status(pod, existing.is_first_consumer)
        } else {
            Some(json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"}))
        };
        if let Some(status) = status {
            let patch = Patch::Strategic(json!({"status": status}));
            pods.patch_status(&existing.name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Admits a pod, unless it was admitted before. Returns false if the kubelet refuses the pod.
    fn admit(&mut self, host: &str, existing: &ExistingPod) -> bool {
        let uid = &existing.pod.uid;
        let Some(kubelet) = self.hosts.get_mut(host).filter(|_| !self.admitted.contains_key(uid))
        else {
            return true;
        };
        match kubelet.state.admit(&existing.pod).map(|_| ()) {
            Ok(()) => {
                self.admitted.insert(uid.clone(), host.to_owned());
                true
            }
            Err(refusal) => {
                let message =
                    format!("{host} refuses {}/{}: {refusal}", existing.namespace, existing.name);
                self.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(message);
                false
            }
        }
    }
}

/// Returns a key that sorts pods in the order of their binding. The time of the binding has a resolution of one second.
fn binding_order(pod: &Pod) -> (String, u64) {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut scheduled = conditions.filter(|one| one.type_ == "PodScheduled");
    let since = scheduled.find_map(|one| one.last_transition_time.as_ref());
    let version = pod.resource_version().and_then(|version| version.parse().ok());
    (since.map(|since| since.0.to_string()).unwrap_or_default(), version.unwrap_or_default())
}
