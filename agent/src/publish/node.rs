//! Fields of the Node that the agent publishes: the published fields, the desired fields, and the server-side apply
//! that writes the desired fields.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Condition;
use berth_api::names::condition::{ADDRESS_CONFLICT, TRUNK_VERIFIED};
use berth_api::names::{AGENT_FIELD_MANAGER, NODE_CONDITION_PREFIX, label, resource};
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use serde_json::{Value, json};

use super::resources::Resources;

/// Fields of a Node as read from the API server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PublishedNode {
    pub labels: BTreeMap<String, String>,
    /// All conditions, by their types.
    pub conditions: BTreeMap<String, NodeCondition>,
    /// Capacity of all resources.
    pub capacity: BTreeMap<String, Quantity>,
    /// Allocatable amount of all resources.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Fields of which the agent is the field manager.
    owned_by_agent: BTreeSet<Field>,
}

/// A field of a Node that the agent may own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// A label, by its key.
    Label(String),
    /// A condition, by its type.
    Condition(String),
    /// An extended resource, by its name: its capacity and its allocatable amount.
    Resource(String),
}

/// Fields of the Node that the agent is to apply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredNode {
    labels: BTreeMap<String, String>,
    conditions: BTreeMap<String, NodeCondition>,
    resources: BTreeMap<String, String>,
}

impl PublishedNode {
    /// Returns the fields of a Node with this metadata and status.
    #[must_use]
    pub fn new(
        metadata: &ObjectMeta,
        conditions: Vec<NodeCondition>,
        capacity: BTreeMap<String, Quantity>,
        allocatable: BTreeMap<String, Quantity>,
    ) -> Self {
        let ours =
            metadata.managed_fields.iter().flatten().filter(|entry| is_applied_by_agent(entry));
        Self {
            labels: metadata.labels.clone().unwrap_or_default(),
            conditions: conditions
                .into_iter()
                .map(|condition| (condition.type_.clone(), condition))
                .collect(),
            capacity,
            allocatable,
            owned_by_agent: ours
                .filter_map(|entry| entry.fields_v1.as_ref())
                .flat_map(|fields| owned_fields(&fields.0))
                .collect(),
        }
    }
}

/// Names under which kubelets write to Nodes (field managers). A kubelet has the name of its program: k3s and
/// MicroK8s run all components in one program.
const KUBELET_MANAGERS: [&str; 5] = ["kubelet", "k3s", "k3s-server", "k3s-agent", "kubelite"];

impl PublishedNode {
    /// Returns true if a field conflict exists because the kubelet set a resource of Berth to 0. A kubelet resets
    /// every extended resource when it registers and finds no checkpoint of device plugins
    /// (`reconcileExtendedResource`, `ShouldResetExtendedResourceCapacity`). The kubelet then owns the field, but
    /// never updates it.
    #[must_use]
    pub fn is_kubelet_reset(&self, path: &str, manager: &str) -> bool {
        let Some(Field::Resource(name)) = Field::parse(path) else { return false };
        let is_zero = |quantities: &BTreeMap<String, Quantity>| {
            quantities.get(&name).is_some_and(|amount| amount.0 == "0")
        };
        KUBELET_MANAGERS.contains(&manager)
            && is_our_resource(&name)
            && (is_zero(&self.capacity) || is_zero(&self.allocatable))
    }
}

fn is_applied_by_agent(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(AGENT_FIELD_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
}

/// Returns the fields in an entry of `managedFields` that are of a kind that the agent writes.
fn owned_fields(fields: &Value) -> BTreeSet<Field> {
    let keys = |path: &str| {
        let keys = fields.pointer(path).and_then(Value::as_object).into_iter().flatten();
        keys.map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    let named = |path: &str, field: fn(String) -> Field| {
        keys(path)
            .into_iter()
            .filter_map(move |key| Some(field(key.strip_prefix("f:")?.to_owned())))
    };
    let condition = |key: String| {
        let key: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
        Some(Field::Condition(key.get("type")?.as_str()?.to_owned()))
    };
    named("/f:metadata/f:labels", Field::Label)
        .chain(named("/f:status/f:capacity", Field::Resource))
        .chain(named("/f:status/f:allocatable", Field::Resource))
        .chain(keys("/f:status/f:conditions").into_iter().filter_map(condition))
        .collect()
}

/// Input for the desired fields of the Node.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Values of the host's labels by key; `None` if a value is unknown.
    pub labels: &'a BTreeMap<&'static str, Option<String>>,
    /// Conditions of the InfraNode, most of which are published on the Node too.
    pub conditions: &'a [Condition],
    /// Extended resources of the host.
    pub resources: &'a Resources,
    /// True if published labels must not change, because pods run that a scheduler may have placed because of a
    /// label.
    pub labels_in_use: bool,
    /// Fields that the agent does not write, because another field manager owns them with another value.
    pub refused_fields: &'a BTreeSet<Field>,
}

impl DesiredNode {
    /// Returns the desired fields of a Node whose published fields are `published`.
    #[must_use]
    pub fn new(input: &Input, published: &PublishedNode) -> Self {
        let allowed = |field: Field| !input.refused_fields.contains(&field);
        let published_label = |key: &str| {
            published
                .labels
                .get(key)
                .filter(|_| published.owned_by_agent.contains(&Field::Label(key.to_owned())))
        };
        let label = |(key, value): (&&'static str, &Option<String>)| {
            let value = match (published_label(key), value) {
                (Some(was), None) => was.clone(),
                (Some(was), Some(_)) if input.labels_in_use => was.clone(),
                (_, value) => value.clone()?,
            };
            allowed(Field::Label((*key).to_owned())).then(|| ((*key).to_owned(), value))
        };
        let mut resources = input.resources.amounts.clone();
        let unknown = |name: &str| {
            input.resources.unknown_prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let kept = published.capacity.iter().filter(|(name, _)| {
            unknown(name) && published.owned_by_agent.contains(&Field::Resource((*name).clone()))
        });
        resources.extend(kept.map(|(name, amount)| (name.clone(), amount.0.clone())));
        resources.retain(|name, _| allowed(Field::Resource(name.clone())));
        let condition = |condition: &Condition| {
            let condition = node_condition(condition, published)?;
            allowed(Field::Condition(condition.type_.clone()))
                .then(|| (condition.type_.clone(), condition))
        };
        Self {
            labels: input.labels.iter().filter_map(label).collect(),
            conditions: input.conditions.iter().filter_map(condition).collect(),
            resources,
        }
    }

    /// Returns true if an apply is necessary and safe: it is necessary if a published field differs from the
    /// desired one, or if an obsolete field is still published.
    #[must_use]
    pub fn needs_apply(&self, published: &PublishedNode) -> bool {
        // If the agent applies no condition but still owns one, the API server deletes the whole list, including
        // the conditions of the kubelet: a kubelet that creates its Node is not recorded as the owner of its
        // conditions (observed with 1.36).
        let is_condition = |field: &Field| matches!(field, Field::Condition(_));
        if self.conditions.is_empty() && published.owned_by_agent.iter().any(is_condition) {
            return false;
        }
        let label = |(key, value)| published.labels.get(key) != Some(value);
        let resource = |(name, amount): (&String, &String)| {
            let same = |published: &BTreeMap<String, Quantity>| {
                published.get(name).is_some_and(|published| published.0 == *amount)
            };
            // The kubelet updates the allocatable amount from the capacity, so a different allocatable amount needs
            // no apply.
            !same(&published.capacity) || !published.allocatable.contains_key(name)
        };
        let condition = |(name, desired): (&String, &NodeCondition)| {
            let content = |condition: &NodeCondition| {
                (condition.status.clone(), condition.reason.clone(), condition.message.clone())
            };
            published.conditions.get(name).map(content) != Some(content(desired))
        };
        let withdrawn = |field: &Field| match field {
            Field::Label(key) => key.starts_with(label::PREFIX) && !self.labels.contains_key(key),
            Field::Condition(name) => !self.conditions.contains_key(name),
            Field::Resource(name) => is_our_resource(name) && !self.resources.contains_key(name),
        };
        self.labels.iter().any(label)
            || self.resources.iter().any(resource)
            || self.conditions.iter().any(condition)
            || published.owned_by_agent.iter().any(withdrawn)
    }

    /// Returns the body of the server-side apply. It is sent to `nodes/status`, where the API server also accepts
    /// labels.
    #[must_use]
    pub fn apply_body(&self, name: &str) -> Value {
        let conditions: Vec<&NodeCondition> = self.conditions.values().collect();
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": self.labels},
            "status": {"capacity": self.resources, "allocatable": self.resources, "conditions": conditions},
        })
    }
}

fn is_our_resource(name: &str) -> bool {
    name == resource::PINNABLE_CPUS || name.starts_with(resource::BRIDGE_PREFIX)
}

/// Converts a condition of the InfraNode to a condition of the Node; `None` if the Node has no such condition. The
/// result has no heartbeat time: the agent's heartbeat is its Lease, and each change of a time would write the
/// whole Node.
fn node_condition(condition: &Condition, published: &PublishedNode) -> Option<NodeCondition> {
    // The kubelet owns the condition `Ready` of a Node. The other two conditions are not published, because the
    // Node stays usable while switches lack a VLAN, or while another machine uses the address of a VM.
    if ["Ready", TRUNK_VERIFIED, ADDRESS_CONFLICT].contains(&condition.type_.as_str()) {
        return None;
    }
    let type_ = format!("{NODE_CONDITION_PREFIX}{}", condition.type_);
    let previous =
        published.conditions.get(&type_).filter(|before| before.status == condition.status);
    let transition_time = previous.and_then(|before| before.last_transition_time.clone());
    Some(NodeCondition {
        type_,
        status: condition.status.clone(),
        reason: Some(condition.reason.clone()),
        message: Some(condition.message.clone()),
        last_transition_time: transition_time.or(Some(Time(condition.last_transition_time.0))),
        last_heartbeat_time: None,
    })
}

impl Field {
    /// Parses the path of a conflict of the API server, such as `.metadata.labels.host.berth.dev/kvm`.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        if let Some(key) = path.strip_prefix(".metadata.labels.") {
            return Some(Self::Label(key.to_owned()));
        }
        if let Some(rest) = path.strip_prefix(".status.conditions[type=\"") {
            return rest.split_once('"').map(|(name, _)| Self::Condition(name.to_owned()));
        }
        let resource = path
            .strip_prefix(".status.capacity.")
            .or_else(|| path.strip_prefix(".status.allocatable."));
        resource.map(|name| Self::Resource(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantities(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        pairs
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())))
            .collect()
    }

    /// Returns a Node with the fields of a kubelet, on which the agent has applied a label, a condition and two
    /// resources.
    fn published_node() -> PublishedNode {
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "labels": {"host.berth.dev/kvm": "true", "host.berth.dev/mine": "x", "kubernetes.io/os": "linux"},
            "managedFields": [
                {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {"f:capacity": {"f:cpu": {}}}}},
                {"manager": "berth-agent", "operation": "Apply", "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:host.berth.dev/kvm": {}}},
                    "f:status": {
                        "f:capacity": {"f:berth.dev/pinnable-cpus": {}, "f:bridge.network.kubevirt.io/br-a": {}},
                        "f:conditions": {"k:{\"type\":\"berth.dev/HostTuned\"}": {".": {}}},
                    },
                }},
            ],
        }))
        .unwrap();
        let condition = NodeCondition {
            type_: "berth.dev/HostTuned".to_owned(),
            status: "True".to_owned(),
            ..NodeCondition::default()
        };
        let amounts = [
            ("cpu", "8"),
            ("berth.dev/pinnable-cpus", "6"),
            ("bridge.network.kubevirt.io/br-a", "1k"),
        ];
        PublishedNode::new(&metadata, vec![condition], quantities(&amounts), quantities(&amounts))
    }

    fn desired_node(
        published: &PublishedNode,
        kvm: Option<&str>,
        resources: &Resources,
        labels_in_use: bool,
        refused: &[Field],
    ) -> DesiredNode {
        let labels = BTreeMap::from([(label::KVM, kvm.map(str::to_owned))]);
        let refused = refused.iter().cloned().collect();
        DesiredNode::new(
            &Input {
                labels: &labels,
                conditions: &[],
                resources,
                labels_in_use,
                refused_fields: &refused,
            },
            published,
        )
    }

    fn resources_with_amounts(pairs: &[(&str, &str)], unknown: Vec<&'static str>) -> Resources {
        let amounts =
            pairs.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect();
        Resources { amounts, unknown_prefixes: unknown }
    }

    #[test]
    fn unknown_fields_stay_and_withdrawn_ones_are_removed() {
        let published = published_node();
        let unknown =
            resources_with_amounts(&[], vec![resource::PINNABLE_CPUS, resource::BRIDGE_PREFIX]);
        let body = desired_node(&published, None, &unknown, false, &[]).apply_body("a");
        assert_eq!(body["metadata"]["labels"], json!({"host.berth.dev/kvm": "true"}));
        let both = json!({"berth.dev/pinnable-cpus": "6", "bridge.network.kubevirt.io/br-a": "1k"});
        assert_eq!(body["status"]["capacity"], both);

        let withdrawn = desired_node(
            &published,
            Some("true"),
            &resources_with_amounts(&[], vec![]),
            false,
            &[],
        );
        assert_eq!(withdrawn.apply_body("a")["status"]["capacity"], json!({}));
        assert!(
            !withdrawn.needs_apply(&published),
            "removing the last condition would remove the kubelet's"
        );
        let mut published = published;
        published.owned_by_agent.retain(|field| !matches!(field, Field::Condition(_)));
        assert!(withdrawn.needs_apply(&published));
    }

    #[test]
    fn a_label_does_not_change_while_pods_may_depend_on_it() {
        let published = published_node();
        let resources = resources_with_amounts(&[], vec![]);
        let label = |hold| {
            desired_node(&published, Some("false"), &resources, hold, &[]).apply_body("a")["metadata"]["labels"]
                [label::KVM]
                .clone()
        };
        assert_eq!((label(true), label(false)), (json!("true"), json!("false")));
    }

    #[test]
    fn an_apply_is_sent_only_if_fields_differ() {
        let mut published = published_node();
        published.conditions.clear();
        published.owned_by_agent.retain(|field| !matches!(field, Field::Condition(_)));
        let same = resources_with_amounts(
            &[("berth.dev/pinnable-cpus", "6"), ("bridge.network.kubevirt.io/br-a", "1k")],
            vec![],
        );
        assert!(!desired_node(&published, Some("true"), &same, false, &[]).needs_apply(&published));
        // A kubelet that registers again removes extended resources that it does not know.
        published.capacity.remove("berth.dev/pinnable-cpus");
        assert!(desired_node(&published, Some("true"), &same, false, &[]).needs_apply(&published));
        // A field that a user owns with another value is not written.
        let refused = [Field::parse(".status.capacity.berth.dev/pinnable-cpus").unwrap()];
        published.owned_by_agent.remove(&refused[0]);
        assert!(
            !desired_node(&published, Some("true"), &same, false, &refused).needs_apply(&published)
        );
    }

    #[test]
    fn only_a_resource_that_a_kubelet_reset_is_taken_over() {
        let mut published = published_node();
        published.capacity.insert("berth.dev/pinnable-cpus".to_owned(), Quantity("0".to_owned()));
        published.capacity.insert("example.com/gpu".to_owned(), Quantity("0".to_owned()));
        let pinnable = ".status.capacity.berth.dev/pinnable-cpus";
        for (path, manager, is_reset) in [
            (pinnable, "kubelet", true),
            (".status.allocatable.berth.dev/pinnable-cpus", "k3s", true),
            (pinnable, "kubectl-edit", false),
            (".status.capacity.bridge.network.kubevirt.io/br-a", "kubelet", false),
            (".status.capacity.example.com/gpu", "kubelet", false),
            (".metadata.labels.host.berth.dev/kvm", "kubelet", false),
        ] {
            assert_eq!(published.is_kubelet_reset(path, manager), is_reset, "{path} {manager}");
        }
    }

    #[test]
    fn conflict_paths_are_parsed() {
        for (path, field) in [
            (
                ".metadata.labels.host.berth.dev/kvm",
                Some(Field::Label("host.berth.dev/kvm".to_owned())),
            ),
            (
                ".status.conditions[type=\"berth.dev/HostTuned\"].status",
                Some(Field::Condition("berth.dev/HostTuned".to_owned())),
            ),
            (".status.allocatable.a/b", Some(Field::Resource("a/b".to_owned()))),
            (".spec.taints", None),
            ("", None),
        ] {
            assert_eq!(Field::parse(path), field, "{path}");
        }
    }
}
