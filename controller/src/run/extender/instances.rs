//! Watch of VirtualMachineInstances, as long as KubeVirt is installed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::names::CLASS_LABEL;
use berth_extender::{PendingVm, VmInstance};
use berth_kubevirt_render::launcher::Configuration;
use berth_runtime::cli::text::error_chain;
use berth_runtime::discovery::is_kind_served;
use berth_runtime::watch::{Config, Event, watch_events};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::service::ExtenderService;
use super::unlisted_kinds::ListedKind;
use super::volumes;
use crate::api_resource::api_resource;

/// Interval between checks whether the kind is installed.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// Delay before a failed check is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Passes VirtualMachineInstances to the extender whenever KubeVirt is installed; never ends.
pub(super) async fn watch_instances(service: Arc<ExtenderService>) {
    let resource =
        api_resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances");
    loop {
        match is_kind_served(&service.client, &resource).await {
            Ok(true) => watch_installed(&service, &resource).await,
            Ok(false) => {
                service.update(|extender, _| extender.set_kubevirt_installed(false));
                service.readiness_gate.set_listed(ListedKind::Instances, true);
            }
            Err(error) => {
                let kind = resource.plural.as_str();
                tracing::warn!(kind, error = %error_chain(&error), "failed to check if a kind is served; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
        }
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

async fn watch_installed(service: &ExtenderService, resource: &ApiResource) {
    let api: Api<DynamicObject> = Api::all_with(service.client.clone(), resource);
    let configuration = volumes::kubevirt_configuration(&service.client).await;
    let mut listed: HashMap<String, VmInstance> = HashMap::new();
    let mut pending = Vec::new();
    let handle = |event: Event<DynamicObject>| match event {
        Event::Init => {
            service.readiness_gate.set_listed(ListedKind::Instances, false);
            listed.clear();
            pending.clear();
        }
        Event::InitApply(object) => {
            pending.extend(read_pending(&object, &configuration));
            listed.extend(read_instance(object));
        }
        Event::InitDone => {
            let all = std::mem::take(&mut listed);
            *service.pending_vms() = std::mem::take(&mut pending);
            service.update(|extender, _| extender.replace_instances(all));
            service.readiness_gate.set_listed(ListedKind::Instances, true);
        }
        Event::Apply(object) => {
            if let Some((uid, instance)) = read_instance(object) {
                service.update(|extender, _| extender.update_instance(&uid, instance));
            }
        }
        Event::Delete(object) => {
            let uid = object.metadata.uid.unwrap_or_default();
            service.update(|extender, _| extender.delete_instance(&uid));
        }
    };
    let is_still_served = |_: &watcher::Error| {
        let (client, resource) = (service.client.clone(), resource.clone());
        async move { is_kind_served(&client, &resource).await.unwrap_or(true) }
    };
    watch_events(api, Config::default(), "virtualmachineinstances", handle, is_still_served).await;
}

/// Reads a VM that has no host yet; `None` if the VM has a host, or if the extender reserves no resources for it.
fn read_pending(object: &DynamicObject, configuration: &Configuration) -> Option<PendingVm> {
    // This check is first, because it is fast and most VMs have a host.
    if object.data.pointer("/status/nodeName").is_some() {
        return None;
    }
    let mut object = serde_json::to_value(object).ok()?;
    // Items of a list have no `apiVersion` and no `kind`, which `PendingVm::read` requires.
    object["apiVersion"] = "kubevirt.io/v1".into();
    object["kind"] = "VirtualMachineInstance".into();
    PendingVm::read(&object, configuration).unwrap_or_else(|error| {
        let metadata = &object["metadata"];
        let (namespace, name) = (metadata["namespace"].as_str(), metadata["name"].as_str());
        tracing::warn!(
            namespace,
            name,
            %error,
            "failed to predict the launcher pod of a VirtualMachineInstance; no resources are reserved for it before the pod exists"
        );
        None
    })
}

/// Reads the few fields of a VirtualMachineInstance that the extender uses.
fn read_instance(mut object: DynamicObject) -> Option<(String, VmInstance)> {
    let mut domain = json!({});
    for field in ["cpu", "memory", "resources"] {
        let value = object.data.pointer_mut(&format!("/spec/domain/{field}")).map(Value::take);
        if let Some(value) = value.filter(|value| !value.is_null()) {
            domain[field] = value;
        }
    }
    let phase = object.data.pointer_mut("/status/phase").map(Value::take);
    let class = object.annotations().get(CLASS_LABEL);
    let annotations = class.map(|class| json!({CLASS_LABEL: class}));
    let metadata = &object.metadata;
    let trimmed = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid,
            "annotations": annotations},
        "spec": {"domain": domain},
        "status": {"phase": phase},
    });
    match VmInstance::read(&trimmed) {
        Ok(read) => Some(read),
        Err(error) => {
            let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
            tracing::warn!(
                namespace,
                name,
                %error,
                "failed to read a VirtualMachineInstance; its launcher pods are placed only by the fields of the pods"
            );
            let namespace = object.metadata.namespace.unwrap_or_default();
            Some((object.metadata.uid?, VmInstance::with_unknown_fields(&namespace)))
        }
    }
}
