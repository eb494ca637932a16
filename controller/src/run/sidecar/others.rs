//! Namespaces, claims without a volume, and VMs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::Sidecar;
use super::gate::Kind;
use super::volumes;
use berth_api::names::CLASS_LABEL;
use berth_extender::{Instance, PendingVm};
use berth_kubevirt_render::launcher::Configuration;
use berth_runtime::discovery::is_served;
use berth_runtime::watch::{Config, Event, always, watch};

/// A kind that is not installed is asked for again after so long.
const PROBE: Duration = Duration::from_secs(15);
/// What the scheduler writes to a claim whose volume is to be made on a node.
pub(super) const SELECTED: &str = "volume.kubernetes.io/selected-node";

/// Follows namespaces for ever: rules select pods by their labels.
pub(super) async fn namespaces(sidecar: Arc<Sidecar>) {
    let api: Api<Namespace> = Api::all(sidecar.client.clone());
    let take = |event: Event<Namespace>| match event {
        Event::Init => sidecar.gate.listed(Kind::Namespaces, false),
        Event::InitDone => sidecar.gate.listed(Kind::Namespaces, true),
        Event::InitApply(namespace) => {
            sidecar.extender().namespace(&namespace.name_any(), namespace.labels());
        }
        Event::Apply(namespace) => {
            sidecar
                .tell(|extender, _| extender.namespace(&namespace.name_any(), namespace.labels()));
        }
        // Its pods have gone before it.
        Event::Delete(_) => {}
    };
    watch(api, Config::default(), "namespaces", take, always).await;
}

/// Namespace and name, and the node that was selected.
type Claim = ((String, String), Option<String>);

/// Follows claims for ever; those that have a volume are nobody's concern here.
pub(super) async fn claims(sidecar: Arc<Sidecar>) {
    let api: Api<DeserializeGuard<PersistentVolumeClaim>> = Api::all(sidecar.client.clone());
    let mut listed: Vec<Claim> = Vec::new();
    // Most claims have their volume, and a change of one is of no matter then.
    let mut open: BTreeSet<(String, String)> = BTreeSet::new();
    let take = |event: Event<DeserializeGuard<PersistentVolumeClaim>>| match event {
        Event::Init => {
            sidecar.gate.listed(Kind::Claims, false);
            listed.clear();
        }
        Event::InitApply(object) => listed.extend(object.0.ok().and_then(|claim| waits(&claim))),
        Event::InitDone => {
            open = listed.iter().map(|(key, _)| key.clone()).collect();
            let all = std::mem::take(&mut listed);
            sidecar.tell(|extender, now| extender.claims_listed(now, all));
            sidecar.gate.listed(Kind::Claims, true);
        }
        Event::Apply(object) => {
            let Ok(claim) = object.0 else { return };
            let key = (claim.namespace().unwrap_or_default(), claim.name_any());
            let waits = waits(&claim).map(|(_, node)| node);
            if waits.is_some() || open.contains(&key) {
                sidecar.tell(|extender, now| extender.claim(now, &key.0, &key.1, waits.clone()));
            }
            if waits.is_some() {
                open.insert(key);
            } else {
                open.remove(&key);
            }
        }
        Event::Delete(object) => {
            let metadata = object.0.map_or_else(|invalid| invalid.metadata, |claim| claim.metadata);
            let key = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
            open.remove(&key);
            sidecar.tell(|extender, now| extender.claim(now, &key.0, &key.1, None));
        }
    };
    watch(api, Config::default(), "persistentvolumeclaims", take, always).await;
}

fn waits(claim: &PersistentVolumeClaim) -> Option<Claim> {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let key = (claim.namespace().unwrap_or_default(), claim.name_any());
    let node = claim.annotations().get(SELECTED).cloned();
    volume.is_none_or(str::is_empty).then_some((key, node))
}

/// Follows `VirtualMachineInstances` for ever, where there are any.
pub(super) async fn instances(sidecar: Arc<Sidecar>) {
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
    let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachineinstances");
    loop {
        match is_served(&sidecar.client, &resource).await {
            Ok(true) => follow_instances(&sidecar, &resource).await,
            Ok(false) => {
                sidecar.tell(|extender, _| extender.set_kubevirt_installed(false));
                sidecar.gate.listed(Kind::Instances, true);
            }
            Err(error) => {
                let why = berth_runtime::cli::text::chain(&error);
                tracing::warn!("whether there are virtualmachineinstances: {why}; asking again");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        }
        tokio::time::sleep(PROBE).await;
    }
}

async fn follow_instances(sidecar: &Sidecar, resource: &ApiResource) {
    let api: Api<DynamicObject> = Api::all_with(sidecar.client.clone(), resource);
    let configuration = volumes::kubevirt(&sidecar.client).await;
    let mut listed: HashMap<String, Instance> = HashMap::new();
    let mut awaited = Vec::new();
    let take = |event: Event<DynamicObject>| match event {
        Event::Init => {
            sidecar.gate.listed(Kind::Instances, false);
            listed.clear();
            awaited.clear();
        }
        Event::InitApply(object) => {
            awaited.extend(waiting(&object, &configuration));
            listed.extend(read(object));
        }
        Event::InitDone => {
            let all = std::mem::take(&mut listed);
            *sidecar.pending_vms() = std::mem::take(&mut awaited);
            sidecar.tell(|extender, _| extender.instances_listed(all));
            sidecar.gate.listed(Kind::Instances, true);
        }
        Event::Apply(object) => {
            if let Some((uid, instance)) = read(object) {
                sidecar.tell(|extender, _| extender.instance(&uid, instance));
            }
        }
        Event::Delete(object) => {
            let uid = object.metadata.uid.unwrap_or_default();
            sidecar.tell(|extender, _| extender.instance_deleted(&uid));
        }
    };
    let is_still_served = |_: &kube::runtime::watcher::Error| {
        let (client, resource) = (sidecar.client.clone(), resource.clone());
        async move { is_served(&client, &resource).await.unwrap_or(true) }
    };
    watch(api, Config::default(), "virtualmachineinstances", take, is_still_served).await;
}

/// One that is on no host yet.
fn waiting(object: &DynamicObject, configuration: &Configuration) -> Option<PendingVm> {
    // Most are on a host.
    if object.data.pointer("/status/nodeName").is_some() {
        return None;
    }
    let mut object = serde_json::to_value(object).ok()?;
    // Items of a list have neither.
    object["apiVersion"] = "kubevirt.io/v1".into();
    object["kind"] = "VirtualMachineInstance".into();
    PendingVm::read(&object, configuration).unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to predict a launcher pod; nothing is reserved for it before it comes");
        None
    })
}

/// An instance is large, and little of it is looked at.
fn read(mut object: DynamicObject) -> Option<(String, Instance)> {
    let mut domain = json!({});
    for field in ["cpu", "memory", "resources"] {
        let found = object.data.pointer_mut(&format!("/spec/domain/{field}")).map(Value::take);
        if let Some(found) = found.filter(|found| !found.is_null()) {
            domain[field] = found;
        }
    }
    let phase = object.data.pointer_mut("/status/phase").map(Value::take);
    let class = object.annotations().get(CLASS_LABEL);
    let annotations = class.map(|class| json!({CLASS_LABEL: class}));
    let metadata = &object.metadata;
    let small = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid,
            "annotations": annotations},
        "spec": {"domain": domain},
        "status": {"phase": phase},
    });
    match Instance::read(&small) {
        Ok(read) => Some(read),
        Err(why) => {
            tracing::warn!("{why}; its pods are placed by what they themselves say");
            let namespace = object.metadata.namespace.unwrap_or_default();
            Some((object.metadata.uid?, Instance::unknown(&namespace)))
        }
    }
}
