//! The objects of the cluster that the agent reads and writes: its Node, its InfraNode and its HostLeases.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, NotUsed, Object};

/// Fields of a Node's status that the agent reads; the other fields (mainly images) are large.
#[derive(Debug, Clone, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeStatus {
    pub(super) conditions: Vec<NodeCondition>,
    pub(super) capacity: BTreeMap<String, Quantity>,
    pub(super) allocatable: BTreeMap<String, Quantity>,
}

/// A Node with only the fields that the agent reads.
pub(super) type TrimmedNode = Object<NotUsed, NodeStatus>;

/// API handles of the objects.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) node: String,
    pub(super) nodes: Api<TrimmedNode>,
    pub(super) infra_nodes: Api<DynamicObject>,
    pub(super) host_leases: Api<DynamicObject>,
}

impl Objects {
    pub(super) fn new(client: &kube::Client, node: &str) -> Self {
        let infra_node = ApiResource::erase::<berth_api::InfraNode>(&());
        let host_leases = ApiResource::erase::<berth_api::HostLeases>(&());
        Self {
            node: node.to_owned(),
            nodes: Api::all_with(client.clone(), &ApiResource::erase::<Node>(&())),
            infra_nodes: Api::all_with(client.clone(), &infra_node),
            host_leases: Api::all_with(client.clone(), &host_leases),
        }
    }
}

/// Returns an owner reference to the Node, so that an object is garbage-collected with the Node.
pub(super) fn owner_reference(node: &str, uid: &str) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
}
