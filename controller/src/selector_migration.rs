//! Migration of load balancer Services that KubeVirt's cloud controller manager created before its version 0.3.0. These
//! Services select machines by the label `cloud.kubevirt.io/<id>`, which only machines of earlier releases have. Later
//! versions of the cloud controller manager select the label `cluster.x-k8s.io/cluster-name`, which Berth's machines
//! have. The cloud controller manager never changes the selector of an existing Service.
//!
//! The plan itself changes no object. An old machine retains its old label, and gets the new label in addition.

use std::collections::BTreeMap;

use berth_api::names::TENANT_PREFIX;
use berth_api::{Problem, TenantCluster};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use crate::fleet::InputObject;
use berth_kubevirt_render::machines::RenderedMachine;
use berth_views::deserialize_object;

/// Prefix of the label by which Services from before version 0.3.0 select machines.
const OLD_LABEL_PREFIX: &str = "cloud.kubevirt.io/";
/// Label by which later Services select machines. Its value is the tenant's ID.
pub const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Labels of a selector or of a machine, with their values.
type Labels = BTreeMap<String, String>;

/// Objects in the input files from which the migration is planned.
#[derive(Clone, Copy, Debug)]
pub struct MigrationInput<'a> {
    /// Tenants by name.
    pub tenants: &'a BTreeMap<String, TenantCluster>,
    /// Services of the infra cluster.
    pub services: &'a [InputObject],
    /// VirtualMachines of the infra cluster.
    pub machines: &'a [InputObject],
    /// One new machine of each MachineDeployment, as Berth would create it.
    pub rendered: &'a [RenderedMachine],
}

/// Changes of the infra cluster, after which the Services of old load balancers select both old and new machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// Services with an old selector.
    pub services: Vec<ServiceMigration>,
    /// VirtualMachines that an old selector selects, but the new selector does not.
    pub machines: Vec<MachineMigration>,
    /// Reasons why objects are not migrated.
    pub problems: Vec<Problem>,
}

/// Change of the selector of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceMigration {
    pub namespace: String,
    pub name: String,
    /// Current selector.
    pub before: Labels,
    /// New selector.
    pub after: Labels,
    /// Rendered machines that the new selector selects, by name.
    pub selected: Vec<String>,
}

/// New label in the template of a VirtualMachine. The VirtualMachine is not restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineMigration {
    /// Namespace of the VirtualMachine.
    pub namespace: String,
    /// Name of the VirtualMachine.
    pub name: String,
    /// Value of the label [`CLUSTER_NAME_LABEL`].
    pub cluster: String,
}

impl Migration {
    #[must_use]
    pub fn plan(input: MigrationInput<'_>) -> Self {
        let mut migration = Self::default();
        for InputObject { location, object } in input.services {
            let planned = deserialize_object("Service", location, object)
                .and_then(|service| plan_service(&service, input, &mut migration.problems));
            match planned {
                Ok(service) => migration.services.extend(service),
                Err(problem) => migration.problems.push(problem),
            }
        }
        for InputObject { object, .. } in input.machines {
            match plan_machine(object, &migration.services) {
                Ok(machine) => migration.machines.extend(machine),
                Err(problem) => migration.problems.push(problem),
            }
        }
        migration
    }

    /// Returns the JSON merge patches, in the order in which they must be applied. Each patch also names its object.
    #[must_use]
    pub fn patches(&self) -> Vec<Value> {
        let machines = self.machines.iter().map(MachineMigration::patch);
        machines.chain(self.services.iter().map(ServiceMigration::patch)).collect()
    }
}

impl ServiceMigration {
    /// Returns the JSON merge patch.
    #[must_use]
    pub fn patch(&self) -> Value {
        let Self { namespace, name, .. } = self;
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": self.changed_labels()},
        })
    }

    /// Returns the changed labels of the selector; null removes a label.
    fn changed_labels(&self) -> BTreeMap<&str, Option<&str>> {
        let removed = self.before.keys().filter(|key| !self.after.contains_key(*key));
        let removed = removed.map(|key| (key.as_str(), None));
        let added = self.after.iter().filter(|(key, value)| self.before.get(*key) != Some(*value));
        removed.chain(added.map(|(key, value)| (key.as_str(), Some(value.as_str())))).collect()
    }
}

impl MachineMigration {
    /// Returns the JSON merge patch.
    #[must_use]
    pub fn patch(&self) -> Value {
        let Self { namespace, name, cluster } = self;
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"template": {"metadata": {"labels": {CLUSTER_NAME_LABEL: cluster}}}},
        })
    }
}

/// Plans the change of a Service; `None` if the Service has no old selector.
fn plan_service(
    service: &Service,
    input: MigrationInput<'_>,
    problems: &mut Vec<Problem>,
) -> Result<Option<ServiceMigration>, Problem> {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
    let before = selector.unwrap_or_default();
    if !before.keys().any(|key| key.starts_with(OLD_LABEL_PREFIX)) {
        return Ok(None);
    }
    let name = service.metadata.name.clone().unwrap_or_default();
    let namespace = service.metadata.namespace.clone().unwrap_or_default();
    let qualified_name = format!("Service {namespace}/{name}");
    let labels = before.iter().flat_map(|(key, value)| [key, value]);
    let labels = labels.map(|text| ("spec.selector", text, is_plain(text)));
    let is_name = !name.is_empty() && is_plain(&name);
    let all = [
        ("metadata.name", &name, is_name),
        ("metadata.namespace", &namespace, is_plain(&namespace)),
    ];
    if let Some((field, text, _)) = all.into_iter().chain(labels).find(|(.., is_valid)| !is_valid) {
        let message = "is empty, or contains characters that Kubernetes does not accept";
        return Err(Problem::new(qualified_name, field, text, message).into_fatal("not migrated"));
    }
    let id = namespace.strip_prefix(TENANT_PREFIX).unwrap_or_default();
    if !input.tenants.contains_key(id) {
        let message = format!(
            "is not the namespace of a TenantCluster in the input: add TenantCluster {id} to the files"
        );
        let problem = Problem::new(qualified_name, "metadata.namespace", &namespace, message);
        return Err(problem.into_fatal("not migrated"));
    }
    let mut after: Labels = before.clone();
    after.retain(|key, _| !key.starts_with(OLD_LABEL_PREFIX));
    after.insert(CLUSTER_NAME_LABEL.to_owned(), id.to_owned());
    let mut selected = Vec::new();
    for machine in input.rendered.iter().filter(|machine| machine.namespace == namespace) {
        let labels = template_labels(&machine.machine);
        match after.iter().find(|(key, value)| labels.get(*key) != Some(*value)) {
            None => selected.push(machine.name.clone()),
            Some((key, value)) => {
                let message = format!(
                    "the new selector would not select new machines such as {}, which lack the label \
                     {key}={value}",
                    machine.name
                );
                problems.push(Problem::new(&*qualified_name, "spec.selector", "", message));
            }
        }
    }
    Ok(Some(ServiceMigration { namespace, name, before, after, selected }))
}

/// Plans the change of a VirtualMachine; `None` if none of the `services` to be changed selects it, or if it already
/// has the new label.
fn plan_machine(
    object: &Value,
    services: &[ServiceMigration],
) -> Result<Option<MachineMigration>, Problem> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let labels = template_labels(object);
    let is_selected = |service: &&ServiceMigration| {
        service.namespace == namespace
            && service.before.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    let Some(service) = services.iter().find(is_selected) else { return Ok(None) };
    let Some(cluster) = service.after.get(CLUSTER_NAME_LABEL) else { return Ok(None) };
    if labels.get(CLUSTER_NAME_LABEL) == Some(cluster) {
        return Ok(None);
    }
    if name.is_empty() || !is_plain(name) {
        let qualified_name = format!("VirtualMachine in namespace {namespace}");
        let message = "is not a name that Kubernetes accepts";
        let problem = Problem::new(qualified_name, "metadata.name", name, message);
        return Err(problem.into_fatal("not migrated"));
    }
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Ok(Some(MachineMigration { namespace, name, cluster: cluster.clone() }))
}

/// Returns the labels of a VirtualMachine's template, which KubeVirt copies to its launcher pod.
fn template_labels(machine: &Value) -> Labels {
    let labels = machine.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns true if a text consists only of characters that names and labels may contain, so that it can be printed in a
/// command.
fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
}

#[cfg(test)]
#[path = "selector_migration_tests.rs"]
mod tests;
