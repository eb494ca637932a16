//! Simulation of machines inside a tenant's cluster: the Node of each VM that runs joins the cluster with an attached
//! volume, and the volume is detached some time after the pods have left the cordoned Node. [`super::Kubelets`]
//! simulates the kubelets of these pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use berth_api::names::REMOVAL_ANNOTATION;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::random::Random;
use super::{create_client, create_runtime};
use crate::cluster::registered_node;

const PODS_NAMESPACE: &str = "default";
/// Each iteration of the simulation detaches each volume that may be detached with the probability 1 / `DETACH_RATE`.
const DETACH_RATE: u64 = 4;

/// Running simulation, stopped on drop.
#[derive(Debug)]
pub struct MachineNodes(Option<Runtime>);

/// State of the Node of a machine. A Node that was deleted is not created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The Node exists and is not ready, so that no pods are scheduled to it.
    Registered,
    Ready,
    /// The machine was deleted before its Node became ready.
    Left,
}

struct Simulation {
    machines: Api<DynamicObject>,
    instances: Api<DynamicObject>,
    nodes: Api<Node>,
    pods: Api<Pod>,
    volumes: Api<VolumeAttachment>,
    phases: BTreeMap<String, Phase>,
    random: Random,
}

impl MachineNodes {
    /// Starts the simulation for the machines in a namespace of the infra cluster.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub fn start(infra: &Path, tenant: &Path, namespace: &str, seed: u64) -> Result<Self> {
        let runtime = create_runtime()?;
        let (infra, tenant) = runtime
            .block_on(async { tokio::try_join!(create_client(infra), create_client(tenant)) })?;
        let mut simulation = Simulation::new(&infra, &tenant, namespace, seed);
        runtime.spawn(async move {
            loop {
                // After an error, such as a conflict or a busy server, the next iteration tries again.
                drop(simulation.join_machines().await);
                drop(simulation.detach_volumes().await);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Ok(Self(Some(runtime)))
    }
}

impl Drop for MachineNodes {
    fn drop(&mut self) {
        self.0.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

impl Simulation {
    fn new(infra: &Client, tenant: &Client, namespace: &str, seed: u64) -> Self {
        let resource =
            |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
        let in_namespace = |kind: &str| -> Api<DynamicObject> {
            Api::namespaced_with(infra.clone(), namespace, &resource(kind))
        };
        Self {
            machines: in_namespace("VirtualMachine"),
            instances: in_namespace("VirtualMachineInstance"),
            nodes: Api::all(tenant.clone()),
            pods: Api::namespaced(tenant.clone(), PODS_NAMESPACE),
            volumes: Api::all(tenant.clone()),
            phases: BTreeMap::new(),
            random: Random::new(seed),
        }
    }

    /// Registers a Node for each machine that has begun to run, and makes the Node ready in a later iteration, unless
    /// the machine is being removed by then.
    async fn join_machines(&mut self) -> kube::Result<()> {
        let instances = self.instances.list(&ListParams::default()).await?;
        let machines = self.machines.list(&ListParams::default()).await?;
        let existing: BTreeSet<String> = machines.iter().map(ResourceExt::name_any).collect();
        let is_kept = |vm: &&DynamicObject| {
            vm.metadata.deletion_timestamp.is_none()
                && !vm.annotations().contains_key(REMOVAL_ANNOTATION)
        };
        let kept: BTreeSet<String> =
            machines.iter().filter(is_kept).map(ResourceExt::name_any).collect();
        for name in instances.iter().map(ResourceExt::name_any).filter(|name| kept.contains(name)) {
            match self.phases.get(&name).copied() {
                None => {
                    let node = serde_json::from_value(unready_node(&name));
                    let node = node.map_err(kube::Error::SerdeError)?;
                    self.nodes.create(&PostParams::default(), &node).await?;
                    self.phases.insert(name, Phase::Registered);
                }
                Some(Phase::Registered) => {
                    self.make_ready(&name).await?;
                    self.phases.insert(name, Phase::Ready);
                }
                Some(Phase::Ready | Phase::Left) => {}
            }
        }
        // The cloud controller manager deletes the Node of a machine that does not exist any more.
        for (name, phase) in &mut self.phases {
            if *phase == Phase::Registered && !existing.contains(name) {
                *phase = Phase::Left;
                drop(self.nodes.delete(name, &DeleteParams::default()).await);
            }
        }
        Ok(())
    }

    /// Attaches a volume and makes a Node ready. If its machine was just marked for removal and the controller has
    /// deleted the Node, the volume is detached.
    async fn make_ready(&self, name: &str) -> kube::Result<()> {
        let volume = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": "csi.example", "nodeName": name, "source": {"persistentVolumeName": name}},
        });
        let volume = serde_json::from_value(volume).map_err(kube::Error::SerdeError)?;
        // The volume already exists if an earlier iteration failed after this request.
        drop(self.volumes.create(&PostParams::default(), &volume).await);
        let patch = Patch::Merge(json!({"status": registered_node(name)["status"]}));
        match self.nodes.patch_status(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.volumes.delete(name, &DeleteParams::default()).await.map(drop)
            }
            result => result.map(drop),
        }
    }

    /// Detaches the volumes of cordoned Nodes without pods, a random part of them in each iteration. The volume of a
    /// deleted Node is never detached, so that the test detects a Node that was deleted too early.
    async fn detach_volumes(&mut self) -> kube::Result<()> {
        let nodes = self.nodes.list(&ListParams::default()).await?;
        let pods = self.pods.list(&ListParams::default()).await?;
        let used: BTreeSet<&str> =
            pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
        let is_cordoned =
            |node: &&Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        let empty = nodes.iter().filter(is_cordoned).map(ResourceExt::name_any);
        let empty: BTreeSet<String> = empty.filter(|name| !used.contains(name.as_str())).collect();
        for volume in self.volumes.list(&ListParams::default()).await? {
            if empty.contains(&volume.spec.node_name) && self.random.below(DETACH_RATE) == 0 {
                self.volumes.delete(&volume.name_any(), &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }
}

/// Returns a Node as a kubelet registers it, before its network is ready.
fn unready_node(name: &str) -> Value {
    let mut node = registered_node(name);
    node["spec"]["providerID"] = format!("kubevirt://{name}").into();
    node["status"]["conditions"] =
        json!([{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]);
    node
}
