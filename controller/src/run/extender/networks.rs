//! Watch of NetworkAttachmentDefinitions. A launcher pod does not always request the resource of its network; the
//! extender then adds the resource, so that the pod is placed only on a host that has the network.

use std::sync::Arc;

use berth_api::names::READY_NETWORK_ANNOTATION;
use berth_kubevirt_render::launcher::RESOURCE_NAME;
use berth_runtime::watch::{OptionalInformer, OptionalKind};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::service::ExtenderService;
use super::unlisted_kinds::ListedKind;
use crate::tenants::objects::ObjectKind;

/// Maximum length of a resource name: a DNS subdomain, `/`, and a name.
const MAX_RESOURCE_NAME_BYTES: usize = 253 + 1 + 63;

/// Annotations with resources that VMs of a network require.
const ANNOTATIONS: [&str; 2] = [RESOURCE_NAME, READY_NETWORK_ANNOTATION];

/// Passes the resources of networks to the extender; never ends.
pub(super) async fn watch_networks(service: Arc<ExtenderService>) {
    let kind = OptionalKind {
        resource: ObjectKind::NetworkAttachmentDefinition.resource(),
        label_selector: None,
        trim: keep_resource_name,
    };
    let updates = Arc::clone(&service);
    let handle = move |object: &DynamicObject, is_deleted: bool| {
        let names = ANNOTATIONS.iter().filter_map(|key| object.annotations().get(*key));
        let names =
            names.map(String::as_str).filter(|name| !is_deleted && is_extended_resource(name));
        let resources: Vec<&str> = names.collect();
        let network = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
        updates.update(|extender, _| extender.update_network_resources(&network, &resources));
    };
    let (informer, watch) = OptionalInformer::start(&service.client, kind, handle);
    let mark_listed = async {
        informer.wait_until_ready().await;
        service.readiness_gate.set_listed(ListedKind::Networks, true);
    };
    tokio::join!(watch, mark_listed);
}

/// Returns true for the name of a device plugin resource. A tenant can write any text in the annotation, such as `cpu`.
fn is_extended_resource(name: &str) -> bool {
    name.contains('/') && name.len() <= MAX_RESOURCE_NAME_BYTES
}

/// Removes all fields except the name and the resources.
fn keep_resource_name(object: &mut DynamicObject) {
    object.data = serde_json::Value::Null;
    let metadata = &mut object.metadata;
    (metadata.labels, metadata.managed_fields, metadata.owner_references) = (None, None, None);
    metadata
        .annotations
        .iter_mut()
        .for_each(|all| all.retain(|key, _| ANNOTATIONS.contains(&key.as_str())));
}
