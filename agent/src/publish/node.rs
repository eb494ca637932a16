//! The Node: what it should say of the host, what it says, and the one apply between the two.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::{AGENT, NODE_CONDITION_PREFIX, label, resource};
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ManagedFieldsEntry, ObjectMeta};
use serde_json::{Value, json};

use super::resources::Resources;

/// The part of a Node that matters here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// All its conditions, by type.
    pub conditions: BTreeMap<String, NodeCondition>,
    /// All its resources.
    pub capacity: BTreeMap<String, Quantity>,
    /// What of them pods can have.
    pub allocatable: BTreeMap<String, Quantity>,
    /// What of all this the agent applied.
    owned: BTreeSet<Field>,
}

/// A field of a Node that the agent may own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// A label, by its key.
    Label(String),
    /// A condition, by its type.
    Condition(String),
    /// A resource, by its name, in capacity and in allocatable.
    Resource(String),
}

/// What the Node should say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSays {
    labels: BTreeMap<String, String>,
    conditions: BTreeMap<String, NodeCondition>,
    resources: BTreeMap<String, String>,
}

impl Told {
    /// What a Node with this metadata and status says.
    #[must_use]
    pub fn of(
        metadata: &ObjectMeta,
        conditions: Vec<NodeCondition>,
        capacity: BTreeMap<String, Quantity>,
        allocatable: BTreeMap<String, Quantity>,
    ) -> Self {
        let ours = metadata.managed_fields.iter().flatten().filter(|entry| is_ours(entry));
        Self {
            labels: metadata.labels.clone().unwrap_or_default(),
            conditions: conditions.into_iter().map(|one| (one.type_.clone(), one)).collect(),
            capacity,
            allocatable,
            owned: ours
                .filter_map(|entry| entry.fields_v1.as_ref())
                .flat_map(|fields| owned(&fields.0))
                .collect(),
        }
    }
}

/// Field managers that kubelets write their Node as: the name of the program (k3s and MicroK8s have one for all).
const KUBELETS: [&str; 5] = ["kubelet", "k3s", "k3s-server", "k3s-agent", "kubelite"];

impl Told {
    /// Whether a conflict is with a kubelet that has set one of our resources to 0. It does so with every extended
    /// resource when it registers and finds no checkpoint of device plugins (`reconcileExtendedResource`,
    /// `ShouldResetExtendedResourceCapacity`), and takes the field with it, but never counts it again.
    #[must_use]
    pub fn was_reset(&self, path: &str, manager: &str) -> bool {
        let Some(Field::Resource(name)) = Field::of_conflict(path) else { return false };
        let is_zero = |there: &BTreeMap<String, Quantity>| {
            there.get(&name).is_some_and(|amount| amount.0 == "0")
        };
        KUBELETS.contains(&manager)
            && is_our_resource(&name)
            && (is_zero(&self.capacity) || is_zero(&self.allocatable))
    }
}

fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(AGENT) && entry.operation.as_deref() == Some("Apply")
}

/// What an entry of `managedFields` owns, of what the agent writes.
fn owned(fields: &Value) -> BTreeSet<Field> {
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

/// What is to be said: facts by now, and what holds some of them back.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Labels; `None` where not known.
    pub labels: &'a BTreeMap<&'static str, Option<String>>,
    /// Conditions of the InfraNode.
    pub conditions: &'a [Condition],
    /// Extended resources.
    pub resources: &'a Resources,
    /// Whether pods run that may have been placed by a label, so that none of those that are there changes.
    pub hold: bool,
    /// Fields that another manager holds with another value: they are left to it.
    pub refused: &'a BTreeSet<Field>,
}

impl NodeSays {
    /// What a Node that says `told` should say.
    #[must_use]
    pub fn new(facts: &Facts, told: &Told) -> Self {
        let allowed = |field: Field| !facts.refused.contains(&field);
        let was = |key: &str| {
            told.labels.get(key).filter(|_| told.owned.contains(&Field::Label(key.to_owned())))
        };
        let label = |(key, value): (&&'static str, &Option<String>)| {
            let value = match (was(key), value) {
                (Some(was), None) => was.clone(),
                (Some(was), Some(_)) if facts.hold => was.clone(),
                (_, value) => value.clone()?,
            };
            allowed(Field::Label((*key).to_owned())).then(|| ((*key).to_owned(), value))
        };
        let mut resources = facts.resources.amounts.clone();
        let unknown =
            |name: &str| facts.resources.unknown.iter().any(|prefix| name.starts_with(prefix));
        let kept = told.capacity.iter().filter(|(name, _)| {
            unknown(name) && told.owned.contains(&Field::Resource((*name).clone()))
        });
        resources.extend(kept.map(|(name, amount)| (name.clone(), amount.0.clone())));
        resources.retain(|name, _| allowed(Field::Resource(name.clone())));
        let condition = |condition: &Condition| {
            let condition = node_condition(condition, told)?;
            allowed(Field::Condition(condition.type_.clone()))
                .then(|| (condition.type_.clone(), condition))
        };
        Self {
            labels: facts.labels.iter().filter_map(label).collect(),
            conditions: facts.conditions.iter().filter_map(condition).collect(),
            resources,
        }
    }

    /// Whether the Node says something else, or still says what is withdrawn, and can be told without harm.
    #[must_use]
    pub fn differs(&self, told: &Told) -> bool {
        // An apply that gives up its last condition takes the whole list with it, the kubelet's too: a kubelet that
        // makes its Node leaves no owner of them behind (seen with 1.36).
        let is_condition = |field: &Field| matches!(field, Field::Condition(_));
        if self.conditions.is_empty() && told.owned.iter().any(is_condition) {
            return false;
        }
        let label = |(key, value)| told.labels.get(key) != Some(value);
        let resource = |(name, amount): (&String, &String)| {
            let same = |there: &BTreeMap<String, Quantity>| {
                there.get(name).is_some_and(|there| there.0 == *amount)
            };
            // Allocatable is the kubelet's to work out: what it makes of a capacity is its word.
            !same(&told.capacity) || !told.allocatable.contains_key(name)
        };
        let condition = |(name, wanted): (&String, &NodeCondition)| {
            let words =
                |one: &NodeCondition| (one.status.clone(), one.reason.clone(), one.message.clone());
            told.conditions.get(name).map(words) != Some(words(wanted))
        };
        let withdrawn = |field: &Field| match field {
            Field::Label(key) => key.starts_with(label::PREFIX) && !self.labels.contains_key(key),
            Field::Condition(name) => !self.conditions.contains_key(name),
            Field::Resource(name) => is_our_resource(name) && !self.resources.contains_key(name),
        };
        self.labels.iter().any(label)
            || self.resources.iter().any(resource)
            || self.conditions.iter().any(condition)
            || told.owned.iter().any(withdrawn)
    }

    /// The body of the server-side apply to `nodes/status`, which labels pass through too.
    #[must_use]
    pub fn apply(&self, name: &str) -> Value {
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

/// The Node's form of a condition. No heartbeat: the agent's Lease is its sign of life, and a time that moves
/// would be a write of the whole Node each time.
fn node_condition(condition: &Condition, told: &Told) -> Option<NodeCondition> {
    // A Node has a `Ready` of its own.
    if condition.type_ == "Ready" {
        return None;
    }
    let type_ = format!("{NODE_CONDITION_PREFIX}{}", condition.type_);
    let before = told.conditions.get(&type_).filter(|before| before.status == condition.status);
    let since = before.and_then(|before| before.last_transition_time.clone());
    Some(NodeCondition {
        type_,
        status: condition.status.clone(),
        reason: Some(condition.reason.clone()),
        message: Some(condition.message.clone()),
        last_transition_time: since.or_else(|| Some(condition.last_transition_time.clone())),
        last_heartbeat_time: None,
    })
}

impl Field {
    /// The field that the server names in a conflict, as `.metadata.labels.host.berth.dev/kvm`.
    #[must_use]
    pub fn of_conflict(path: &str) -> Option<Self> {
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

    /// A Node on which the agent once applied a label, a condition and two resources, beside a kubelet's.
    fn told() -> Told {
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
        Told::of(&metadata, vec![condition], quantities(&amounts), quantities(&amounts))
    }

    fn says(
        told: &Told,
        kvm: Option<&str>,
        resources: &Resources,
        hold: bool,
        refused: &[Field],
    ) -> NodeSays {
        let labels = BTreeMap::from([(label::KVM, kvm.map(str::to_owned))]);
        let refused = refused.iter().cloned().collect();
        NodeSays::new(
            &Facts { labels: &labels, conditions: &[], resources, hold, refused: &refused },
            told,
        )
    }

    fn amounts(pairs: &[(&str, &str)], unknown: Vec<&'static str>) -> Resources {
        let amounts =
            pairs.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect();
        Resources { amounts, unknown }
    }

    #[test]
    fn what_is_not_known_stays_and_what_is_withdrawn_is_left_out() {
        let told = told();
        let unknown = amounts(&[], vec![resource::PINNABLE_CPUS, resource::BRIDGE_PREFIX]);
        let body = says(&told, None, &unknown, false, &[]).apply("a");
        assert_eq!(body["metadata"]["labels"], json!({"host.berth.dev/kvm": "true"}));
        let both = json!({"berth.dev/pinnable-cpus": "6", "bridge.network.kubevirt.io/br-a": "1k"});
        assert_eq!(body["status"]["capacity"], both);

        let withdrawn = says(&told, Some("true"), &amounts(&[], vec![]), false, &[]);
        assert_eq!(withdrawn.apply("a")["status"]["capacity"], json!({}));
        assert!(!withdrawn.differs(&told), "the last condition would take the kubelet's with it");
        let mut told = told;
        told.owned.retain(|field| !matches!(field, Field::Condition(_)));
        assert!(withdrawn.differs(&told));
    }

    #[test]
    fn a_label_holds_while_pods_may_lean_on_it() {
        let told = told();
        let resources = amounts(&[], vec![]);
        let label = |hold| {
            says(&told, Some("false"), &resources, hold, &[]).apply("a")["metadata"]["labels"]
                [label::KVM]
                .clone()
        };
        assert_eq!((label(true), label(false)), (json!("true"), json!("false")));
    }

    #[test]
    fn an_apply_is_made_only_where_it_changes_something() {
        let mut told = told();
        told.conditions.clear();
        told.owned.retain(|field| !matches!(field, Field::Condition(_)));
        let same = amounts(
            &[("berth.dev/pinnable-cpus", "6"), ("bridge.network.kubevirt.io/br-a", "1k")],
            vec![],
        );
        assert!(!says(&told, Some("true"), &same, false, &[]).differs(&told));
        // A kubelet that registers anew drops what it does not know.
        told.capacity.remove("berth.dev/pinnable-cpus");
        assert!(says(&told, Some("true"), &same, false, &[]).differs(&told));
        // What a person holds is left to them.
        let refused = [Field::of_conflict(".status.capacity.berth.dev/pinnable-cpus").unwrap()];
        told.owned.remove(&refused[0]);
        assert!(!says(&told, Some("true"), &same, false, &refused).differs(&told));
    }

    #[test]
    fn only_a_kubelets_zero_of_our_resources_is_taken_back() {
        let mut told = told();
        told.capacity.insert("berth.dev/pinnable-cpus".to_owned(), Quantity("0".to_owned()));
        told.capacity.insert("example.com/gpu".to_owned(), Quantity("0".to_owned()));
        let pinnable = ".status.capacity.berth.dev/pinnable-cpus";
        for (path, manager, is_reset) in [
            (pinnable, "kubelet", true),
            (".status.allocatable.berth.dev/pinnable-cpus", "k3s", true),
            (pinnable, "kubectl-edit", false),
            (".status.capacity.bridge.network.kubevirt.io/br-a", "kubelet", false),
            (".status.capacity.example.com/gpu", "kubelet", false),
            (".metadata.labels.host.berth.dev/kvm", "kubelet", false),
        ] {
            assert_eq!(told.was_reset(path, manager), is_reset, "{path} {manager}");
        }
    }

    #[test]
    fn conflicts_name_fields() {
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
            assert_eq!(Field::of_conflict(path), field, "{path}");
        }
    }
}
