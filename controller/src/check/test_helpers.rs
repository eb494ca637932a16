//! Runs a single check on test objects, for unit tests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::host::Host;
use super::{Input, Kind, LISTS, Outcome, select};

pub(crate) fn run_check(id: &str, input: &Input) -> Outcome {
    let checks = select(&[id.to_owned()]);
    assert_eq!(checks.len(), 1, "{id}");
    super::run(&checks, input).checks.remove(0).outcome
}

/// Returns the input of a cluster of Kubernetes 1.36 without objects, except for those of this kind.
pub(crate) fn input_with(kind: Kind, objects: &Value) -> Input {
    with_objects(empty_cluster(), kind, objects)
}

/// Returns the input of a cluster of Kubernetes 1.36 without objects.
pub(crate) fn empty_cluster() -> Input {
    Input {
        kubernetes: Ok("v1.36.2".to_owned()),
        lists: LISTS.iter().map(|key| (*key, Ok(Vec::new()))).collect(),
        hosts: Ok(Vec::new()),
        ca_bundles: Ok(Vec::new()),
        crds: BTreeMap::new(),
        ..Input::default()
    }
}

/// Replaces the objects of a kind. Kinds that are listed by namespace have one list for each namespace, so each object
/// is put into the list of its own namespace.
pub(crate) fn with_objects(mut input: Input, kind: Kind, objects: &Value) -> Input {
    let objects = objects.as_array().cloned().unwrap_or_default();
    for (_, namespace) in LISTS.iter().filter(|(one, _)| *one == kind) {
        let mut own = objects.clone();
        own.retain(|one| namespace.is_empty() || one["metadata"]["namespace"] == *namespace);
        input.lists.insert((kind, *namespace), Ok(own));
    }
    input
}

/// Returns a host from the status of its InfraNode.
pub(crate) fn host(name: &str, status: &Value) -> Host {
    Host::from_object(&json!({"metadata": {"name": name}, "status": status}))
}
