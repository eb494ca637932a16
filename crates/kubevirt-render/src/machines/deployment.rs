//! A MachineDeployment (`cluster.k8s.io/v1alpha1`), with the fields that Berth reads. Like machine-controller, the
//! parser rejects fields of the wrong type.

use std::collections::BTreeMap;

use berth_api::Problem;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::revision::TemplateRevisions;
use crate::launcher::without_nulls;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDeployment {
    /// Field `metadata`.
    pub metadata: Metadata,
    /// Field `spec`.
    pub spec: DeploymentSpec,
    /// Hashes of the template, see [`Self::revision`] and [`Self::hotplug_revision`].
    #[serde(skip)]
    revisions: TemplateRevisions,
    /// Unknown fields by path, see [`Self::find_unknown_fields`].
    #[serde(skip)]
    unknown_fields: BTreeMap<String, Value>,
}

/// Field `metadata` of an object; only the parts that Berth uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Field `name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Field `namespace`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Field `labels`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Field `annotations`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Field `spec`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// Desired number of machines. Default 1.
    pub replicas: Option<i32>,
    /// Selector of the machines of this MachineDeployment.
    pub selector: LabelSelector,
    /// Strategy for the replacement of machines.
    pub strategy: Option<UpdateStrategy>,
    /// Time in seconds for which a machine must be ready before it counts as available.
    pub min_ready_seconds: Option<i32>,
    /// True if machines are not replaced. The number of machines is still reconciled.
    pub paused: bool,
    /// Time in seconds without progress after which the rollout has failed.
    pub progress_deadline_seconds: Option<i32>,
    pub template: MachineTemplate,
}

/// Field `spec.strategy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// `RollingUpdate`, which is the default, or `OnDelete`.
    #[serde(rename = "type")]
    pub strategy_type: String,
    /// Field `spec.strategy.rollingUpdate`.
    pub rolling_update: Option<RollingUpdate>,
}

/// Field `spec.strategy.rollingUpdate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Maximum number of machines in addition to `replicas` during an update. Default 1.
    pub max_surge: Option<IntOrString>,
    /// Maximum number of unavailable machines during an update. Default 0.
    pub max_unavailable: Option<IntOrString>,
}

/// Field `spec.template`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineTemplate {
    /// Labels and annotations of machines.
    pub metadata: Metadata,
    /// Field `spec.template.spec`.
    pub spec: MachineSpec,
}

/// Field `spec.template.spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// Labels and annotations of the tenant's Node.
    pub metadata: Metadata,
    /// Taints of the tenant's Node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Value>,
    /// Field `spec.template.spec.providerSpec`.
    pub provider_spec: ProviderSpec,
    /// Versions of components, such as `kubelet: 1.31.1`.
    pub versions: BTreeMap<String, Value>,
}

/// Field `spec.template.spec.providerSpec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderSpec {
    /// Configuration of the machines. The provider defines its format.
    pub value: Option<Value>,
}

/// Names of the known fields of the objects in a MachineDeployment, with the JSON pointer of each object.
const KNOWN_FIELDS: [(&str, &[&str]); 4] = [
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

pub const MACHINE_DEPLOYMENT_KIND: &str = "MachineDeployment";
/// API group of a MachineDeployment.
pub const MACHINE_DEPLOYMENT_GROUP: &str = "cluster.k8s.io";

impl MachineDeployment {
    /// Parses a MachineDeployment. `source` is the file or other origin of the object, for messages.
    ///
    /// # Errors
    /// Returns the field that is missing or has the wrong type.
    pub fn read(source: &str, object: Value) -> Result<Self, Problem> {
        let text = |pointer: &str| {
            object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        let qualified_name = match (name.as_str(), namespace.as_str()) {
            ("", _) => format!("{MACHINE_DEPLOYMENT_KIND} in {source}"),
            (name, "") => format!("{MACHINE_DEPLOYMENT_KIND} {name}"),
            (name, namespace) => format!("{MACHINE_DEPLOYMENT_KIND} {namespace}/{name}"),
        };
        if name.is_empty() {
            let problem = Problem::new(qualified_name, "metadata.name", "", "is missing");
            return Err(problem.into_fatal("the object is skipped"));
        }
        // An API server treats `null` as absent, and also writes `creationTimestamp: null`.
        let object = without_nulls(&object);
        let revisions = TemplateRevisions::of_object(&object);
        let unknown_fields = find_unknown_fields(&object);
        let read: Self = serde_path_to_error::deserialize(object).map_err(|error| {
            let field = error.path().to_string();
            Problem::new(&qualified_name, field, "", error.inner().to_string())
                .into_fatal("the object is skipped")
        })?;
        Ok(Self { revisions, unknown_fields, ..read })
    }

    /// Returns the fields that Berth does not know, without those of the providerSpec: their values by path.
    #[must_use]
    pub const fn unknown_fields(&self) -> &BTreeMap<String, Value> {
        &self.unknown_fields
    }

    /// Returns a short hash of the template without hotpluggable disks. If the hash changes, the machines are replaced. It
    /// is computed from the template as the user wrote it, so that all releases of Berth compute the same hash.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revisions.replacing
    }

    /// Returns true if machines that were created from the template with this hash need not be replaced.
    #[must_use]
    pub fn has_revision(&self, revision: &str) -> bool {
        self.revisions.replacing == revision
            || self.revisions.equivalent.as_deref() == Some(revision)
    }

    /// Returns a short hash of the hotpluggable disks; `None` if the template has none.
    #[must_use]
    pub fn hotplug_revision(&self) -> Option<&str> {
        self.revisions.hotplug.as_deref()
    }

    /// Returns kind, namespace and name, for messages.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        let Metadata { name, namespace, .. } = &self.metadata;
        if namespace.is_empty() {
            format!("{MACHINE_DEPLOYMENT_KIND} {name}")
        } else {
            format!("{MACHINE_DEPLOYMENT_KIND} {namespace}/{name}")
        }
    }
}

fn find_unknown_fields(object: &Value) -> BTreeMap<String, Value> {
    let unknown_below = |(path, known): &(&str, &[&str])| {
        let fields = object.pointer(path).and_then(Value::as_object).into_iter().flatten();
        let path = path.trim_start_matches('/').replace('/', ".");
        let rest = fields.filter(|(name, _)| !known.contains(&name.as_str()));
        rest.map(|(name, value)| (format!("{path}.{name}"), value.clone())).collect::<Vec<_>>()
    };
    KNOWN_FIELDS.iter().flat_map(unknown_below).collect()
}
