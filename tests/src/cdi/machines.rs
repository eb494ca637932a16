//! Simulation of virt-controller: each VirtualMachine gets the DataVolumes of its templates, then a launcher pod with their
//! claims, and its instance runs when the pod runs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::kubevirt::current_time;

/// Phases of a DataVolume in which virt-controller creates the launcher pod. In the last two, the pod is the first consumer.
const PHASES: [&str; 3] = ["Succeeded", "PendingPopulation", "WaitForFirstConsumer"];

/// virt-controller.
pub(super) struct Machines {
    client: Client,
    machines: ApiResource,
    instances: ApiResource,
    volumes: ApiResource,
}

impl Machines {
    pub(super) fn new(client: Client) -> Self {
        let resource = |group: &str, version: &str, kind: &str| {
            ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
        };
        Self {
            client,
            machines: resource("kubevirt.io", "v1", "VirtualMachine"),
            instances: resource("kubevirt.io", "v1", "VirtualMachineInstance"),
            volumes: resource("cdi.kubevirt.io", "v1beta1", "DataVolume"),
        }
    }

    /// Handles each VirtualMachine once. Returns the first error, after all of them.
    pub(super) async fn sync(&self) -> Result<()> {
        let parameters = ListParams::default().match_any();
        let machines: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.machines);
        let volumes: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.volumes);
        let pods: Api<Pod> = Api::all(self.client.clone());
        let machines = machines.list(&parameters).await?.items;
        let phase = |volume: &DynamicObject| {
            volume.data["status"]["phase"].as_str().unwrap_or_default().to_owned()
        };
        let volumes: BTreeMap<(String, String), String> = volumes
            .list(&parameters)
            .await?
            .iter()
            .map(|one| ((one.namespace().unwrap_or_default(), one.name_any()), phase(one)))
            .collect();
        let pods: BTreeMap<(String, String), bool> = pods
            .list(&parameters)
            .await?
            .iter()
            .map(|pod| {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                let key = (pod.namespace().unwrap_or_default(), pod.name_any());
                (key, phase == Some("Running"))
            })
            .collect();
        let mut result = Ok(());
        for machine in machines.iter().filter(|one| one.metadata.deletion_timestamp.is_none()) {
            result = result.and(self.sync_machine(machine, &volumes, &pods).await);
        }
        result
    }

    async fn sync_machine(
        &self,
        machine: &DynamicObject,
        volumes: &BTreeMap<(String, String), String>,
        pods: &BTreeMap<(String, String), bool>,
    ) -> Result<()> {
        let namespace = machine.namespace().unwrap_or_default();
        let templates = machine.data["spec"]["dataVolumeTemplates"].as_array();
        let mut claims = Vec::new();
        let mut are_ready = true;
        for template in templates.into_iter().flatten() {
            let name = template["metadata"]["name"].as_str().unwrap_or_default();
            match volumes.get(&(namespace.clone(), name.to_owned())) {
                Some(phase) => are_ready &= PHASES.contains(&phase.as_str()),
                None => {
                    self.create_volume(machine, template).await?;
                    are_ready = false;
                }
            }
            claims.push(name);
        }
        if !are_ready {
            return Ok(());
        }
        let pod = format!("virt-launcher-{}", machine.name_any());
        match pods.get(&(namespace.clone(), pod.clone())) {
            None => {
                let pod = serde_json::from_value(launcher_pod(machine, &pod, &claims))?;
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
                unless_it_exists(api.create(&PostParams::default(), &pod).await)
            }
            Some(true) => self.create_instance(machine).await,
            Some(false) => Ok(()),
        }
    }

    /// Creates a DataVolume of a machine, if the ServiceAccount of the machine may clone from the namespace of its source
    /// (`AuthorizeSA` of CDI, which virt-controller calls).
    async fn create_volume(&self, machine: &DynamicObject, template: &Value) -> Result<()> {
        let namespace = machine.namespace().unwrap_or_default();
        if let Some(source) = template["spec"]["sourceRef"]["namespace"].as_str() {
            let review = json!({"spec": {
                "user": format!("system:serviceaccount:{namespace}:default"),
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": {
                    "group": "cdi.kubevirt.io", "resource": "datavolumes", "subresource": "source",
                    "verb": "create", "namespace": source,
                },
            }});
            let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
            let review: SubjectAccessReview = serde_json::from_value(review)?;
            let review = reviews.create(&PostParams::default(), &review).await?;
            let status = review.status.context("the SubjectAccessReview has no status")?;
            ensure!(
                status.allowed,
                "VirtualMachine {namespace}/{}: may not clone from {source}",
                machine.name_any()
            );
        }
        let mut volume = template.clone();
        volume["apiVersion"] = self.volumes.api_version.clone().into();
        volume["kind"] = self.volumes.kind.clone().into();
        volume["metadata"]["namespace"] = namespace.clone().into();
        volume["metadata"]["ownerReferences"] = json!([owner(machine)]);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &self.volumes);
        let volume = serde_json::from_value(volume)?;
        unless_it_exists(api.create(&PostParams::default(), &volume).await)
    }

    async fn create_instance(&self, machine: &DynamicObject) -> Result<()> {
        let namespace = machine.namespace().unwrap_or_default();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &self.instances);
        if api.get_opt(&machine.name_any()).await?.is_some() {
            return Ok(());
        }
        let ready =
            json!({"type": "Ready", "status": "True", "lastTransitionTime": current_time()});
        // The kind VirtualMachineInstance has no status subresource.
        let instance = json!({
            "apiVersion": self.instances.api_version, "kind": self.instances.kind,
            "metadata": {
                "name": machine.name_any(), "namespace": namespace, "labels": machine.labels(),
                "ownerReferences": [owner(machine)],
            },
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "conditions": [ready]},
        });
        let instance = serde_json::from_value(instance)?;
        unless_it_exists(api.create(&PostParams::default(), &instance).await)
    }
}

/// Returns the launcher pod of a machine, with these claims.
fn launcher_pod(machine: &DynamicObject, name: &str, claims: &[&str]) -> Value {
    let volumes: Vec<Value> = claims
        .iter()
        .enumerate()
        .map(|(at, claim)| {
            json!({"name": format!("disk-{at}"), "persistentVolumeClaim": {"claimName": claim}})
        })
        .collect();
    json!({
        "metadata": {
            "name": name, "labels": {"kubevirt.io": "virt-launcher"}, "ownerReferences": [owner(machine)],
        },
        "spec": {
            "containers": [{"name": "compute", "image": "registry.invalid/virt-launcher:1"}], "volumes": volumes,
        },
    })
}

fn owner(machine: &DynamicObject) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine.name_any(), "uid": machine.uid(),
        "controller": true, "blockOwnerDeletion": true,
    })
}

fn unless_it_exists<T>(created: kube::Result<T>) -> Result<()> {
    match created {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => Ok(created.map(drop)?),
    }
}
