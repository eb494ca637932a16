//! A MachineDeployment (`cluster.k8s.io/v1alpha1`) as it is written: what is needed of it, strictly where
//! machine-controller is strict.

use std::collections::BTreeMap;

use berth_api::Problem;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::launcher::without_nulls;
use crate::stable_hash::stable_hash;

/// A MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDeployment {
    /// Its name, namespace, annotations.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: DeploymentSpec,
    /// Hash of its template, see [`Self::revision`].
    #[serde(skip)]
    revision: String,
    /// Fields by their path that are none of those here.
    #[serde(skip)]
    unknown_fields: BTreeMap<String, Value>,
}

/// The metadata that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// `spec`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// Machines that there should be. Default 1.
    pub replicas: Option<i32>,
    /// Which machines are its own.
    pub selector: LabelSelector,
    /// How they are replaced.
    pub strategy: Option<Strategy>,
    /// Seconds that a machine must run before it counts.
    pub min_ready_seconds: Option<i32>,
    /// No machine is made or replaced while it is set; its number is kept.
    pub paused: bool,
    /// Seconds after which no progress is a failure.
    pub progress_deadline_seconds: Option<i32>,
    /// What machines are like.
    pub template: Template,
}

/// `spec.strategy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `RollingUpdate`, which is the default, or `OnDelete`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bounds.
    pub rolling_update: Option<RollingUpdate>,
}

/// `spec.strategy.rollingUpdate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// How many more than asked for. Default 1.
    pub max_surge: Option<IntOrString>,
    /// How many fewer that run than asked for. Default 0.
    pub max_unavailable: Option<IntOrString>,
}

/// `spec.template`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// Labels and annotations of machines.
    pub metadata: Metadata,
    /// The machine.
    pub spec: MachineSpec,
}

/// `spec.template.spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// Labels and annotations of the tenant's Node.
    pub metadata: Metadata,
    /// Taints of the tenant's Node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Value>,
    /// What the provider is to make.
    pub provider_spec: ProviderSpec,
    /// `kubelet: 1.31.1`
    pub versions: BTreeMap<String, Value>,
}

/// `spec.template.spec.providerSpec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderSpec {
    /// What the provider is to make.
    pub value: Option<Value>,
}

/// Objects of a MachineDeployment by their path, and the fields of each that are read.
const READ: [(&str, &[&str]); 4] = [
    (
        "/spec",
        &[
            "replicas",
            "selector",
            "strategy",
            "minReadySeconds",
            "paused",
            "progressDeadlineSeconds",
            "template",
        ],
    ),
    ("/spec/template", &["metadata", "spec"]),
    ("/spec/template/spec", &["metadata", "taints", "providerSpec", "versions"]),
    ("/spec/template/spec/providerSpec", &["value"]),
];

/// What the kind is written as.
pub const KIND: &str = "MachineDeployment";
/// Its API group.
pub const GROUP: &str = "cluster.k8s.io";

impl MachineDeployment {
    /// Reads one.
    ///
    /// # Errors
    /// Names the field that makes no sense.
    pub fn read(place: &str, object: Value) -> Result<Self, Problem> {
        let text = |pointer: &str| {
            object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        let called = match (name.as_str(), namespace.as_str()) {
            ("", _) => format!("{KIND} in {place}"),
            (name, "") => format!("{KIND} {name}"),
            (name, namespace) => format!("{KIND} {namespace}/{name}"),
        };
        if name.is_empty() {
            let problem = Problem::new(called, "metadata.name", "", "is missing");
            return Err(problem.leaves_out("left out"));
        }
        // An API server takes `null` for absent, and writes `creationTimestamp: null` itself.
        let object = without_nulls(&object);
        let template = object.pointer("/spec/template").map(Value::to_string).unwrap_or_default();
        let unknown_fields = unknown_fields(&object);
        let read: Self = serde_path_to_error::deserialize(object).map_err(|error| {
            let field = error.path().to_string();
            Problem::new(&called, field, "", error.inner().to_string()).leaves_out("left out")
        })?;
        Ok(Self {
            revision: safe_encode(stable_hash(template.bytes()), 10),
            unknown_fields,
            ..read
        })
    }

    /// Fields by their path that Berth does not know.
    #[must_use]
    pub const fn unknown_fields(&self) -> &BTreeMap<String, Value> {
        &self.unknown_fields
    }

    /// What makes machines anew when it changes: a short hash of the template as it is written, so that another version of
    /// this program has the same.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// How it is called in messages.
    #[must_use]
    pub fn called(&self) -> String {
        let Metadata { name, namespace, .. } = &self.metadata;
        if namespace.is_empty() {
            format!("{KIND} {name}")
        } else {
            format!("{KIND} {namespace}/{name}")
        }
    }
}

fn unknown_fields(object: &Value) -> BTreeMap<String, Value> {
    let of = |(path, known): &(&str, &[&str])| {
        let fields = object.pointer(path).and_then(Value::as_object).into_iter().flatten();
        let path = path.trim_start_matches('/').replace('/', ".");
        let rest = fields.filter(|(name, _)| !known.contains(&name.as_str()));
        rest.map(|(name, value)| (format!("{path}.{name}"), value.clone())).collect::<Vec<_>>()
    };
    READ.iter().flat_map(of).collect()
}

/// A number in the letters that Kubernetes makes names of: no vowels, so no words.
pub(super) fn safe_encode(mut number: u64, count: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |_| {
        let at = usize::try_from(number % 27).unwrap_or(0);
        number /= 27;
        char::from(LETTERS[at])
    };
    (0..count).map(letter).collect()
}
