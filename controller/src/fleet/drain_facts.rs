//! Facts of machines and MachineDeployments that decide how a machine leaves a drained host.

use berth_api::names::{
    MACHINE_DEPLOYMENT_UID_ANNOTATION, REMOVAL_ANNOTATION, REPLACEMENT_ANNOTATION,
};
use berth_kubevirt_render::machines::controller_reference;
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::kinds::{string_at, value_at};
use crate::evacuation::machine::{Machine, instance_ready_since};

/// Facts of an existing machine.
#[derive(Clone, Debug, Default)]
pub struct DrainFacts {
    /// Name of the MachineDeployment of the machine; `None` if there is none, or if the machine does not exist yet.
    pub deployment: Option<String>,
    /// UID of the MachineDeployment, if it is known.
    pub owner_uid: Option<String>,
    /// State of the machine. `is_ready` is the readiness of its instance.
    pub machine: Machine,
}

impl DrainFacts {
    /// Reads a VirtualMachine or a VirtualMachineInstance.
    pub(super) fn read(object: &Value, has_deployment: bool) -> Self {
        let is_ready = instance_ready_since(object).is_some();
        let annotations = value_at(object, "/metadata/annotations");
        let annotation = |key: &str| annotations.and_then(|all| all.get(key)?.as_str());
        let is_changing = annotation(REMOVAL_ANNOTATION).is_some()
            || annotation(REPLACEMENT_ANNOTATION).is_some()
            || !string_at(object, "/metadata/deletionTimestamp").is_empty();
        // Most machines are not being removed, and need no conversion.
        let marked = is_changing.then(|| json!({"metadata": object.get("metadata")}));
        let marked = marked.and_then(|value| serde_json::from_value::<DynamicObject>(value).ok());
        let machine = match marked {
            Some(marked) => Machine { is_ready, ..Machine::read(&marked, Timestamp::UNIX_EPOCH) },
            None => {
                let name = string_at(object, "/metadata/name").to_owned();
                Machine { name, is_ready, ..Machine::default() }
            }
        };
        // The owner of a VirtualMachineInstance is its VirtualMachine.
        let owner = controller_reference(object).filter(|owner| owner["kind"] != "VirtualMachine");
        let owner = owner.map(|owner| string_at(owner, "/uid"));
        let owner = owner.or_else(|| annotation(MACHINE_DEPLOYMENT_UID_ANNOTATION));
        let deployment = Some(string_at(object, "/metadata/labels/md")).filter(|_| has_deployment);
        Self {
            deployment: deployment.filter(|name| !name.is_empty()).map(str::to_owned),
            owner_uid: owner.filter(|uid| !uid.is_empty()).map(str::to_owned),
            machine,
        }
    }

    /// Returns true if the machine belongs to the MachineDeployment. `namespace` is the namespace of the machine. If
    /// a UID is unknown, the namespaces must be equal.
    pub(crate) fn is_owned_by(&self, namespace: &str, deployment: &Value) -> bool {
        let name = self.deployment.as_deref();
        let uid = string_at(deployment, "/metadata/uid");
        let has_name = name.is_some_and(|name| name == string_at(deployment, "/metadata/name"));
        has_name
            && match self.owner_uid.as_deref().filter(|_| !uid.is_empty()) {
                Some(owner) => owner == uid,
                None => namespace == string_at(deployment, "/metadata/namespace"),
            }
    }
}

/// Returns the fields of a MachineDeployment that decide how its machines leave a host.
pub(super) fn deployment_fields(object: &Value) -> Value {
    let field = |path: &str| value_at(object, path).cloned().unwrap_or_default();
    json!({
        "metadata": {
            "name": field("/metadata/name"), "namespace": field("/metadata/namespace"),
            "uid": field("/metadata/uid"),
        },
        "spec": field("/spec"),
        "status": {
            "replicas": field("/status/replicas"),
            "availableReplicas": field("/status/availableReplicas"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_owners_are_read() {
        let object = json!({"metadata": {
            "name": "web-1", "labels": {"md": "web"},
            "annotations": {REPLACEMENT_ANNOTATION: "2026-05-01T12:00:00Z"},
            "ownerReferences": [{"controller": true, "kind": "MachineDeployment", "name": "web", "uid": "u",
                                 "apiVersion": "cluster.k8s.io/v1alpha1"}],
        }});
        let facts = DrainFacts::read(&object, true);
        assert_eq!(facts.machine.name, "web-1");
        assert!(facts.machine.awaits_replacement() && !facts.machine.is_leaving());
        let deployment =
            |uid: &str| json!({"metadata": {"name": "web", "namespace": "a", "uid": uid}});
        assert!(
            facts.is_owned_by("b", &deployment("u")) && facts.is_owned_by("a", &deployment(""))
        );
        assert!(
            !facts.is_owned_by("a", &deployment("v")) && !facts.is_owned_by("b", &deployment(""))
        );
        assert!(DrainFacts::read(&object, false).deployment.is_none());
    }
}
