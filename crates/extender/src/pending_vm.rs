//! VMs without a launcher pod whose volumes only one host can reach, and their reservations after a restart.
//!
//! A volume that only one host can reach is created in one of two ways. Without populators, CDI waits for a first
//! consumer: KubeVirt creates a first-consumer pod, the volume is provisioned on the host of that pod, the pod ends,
//! CDI imports the image for minutes, and only then KubeVirt creates the launcher pod. With populators (DataVolume
//! `PendingPopulation`), the launcher pod itself is the first consumer and waits for its volume in the scheduler. In
//! both cases no Kubernetes object stores the reservation, but it can be computed: the PersistentVolumeClaims and
//! volumes name the host, and the VirtualMachineInstance has the amounts of the resources.

use berth_api::names::SCHEDULER_NAME;
use berth_kubevirt_render::launcher::{ClusterObjects, Configuration, Launcher, Machine, predict};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use serde_json::Value;

use super::error::VmError;
use super::reservation::VmKey;

/// Namespace and name of a PersistentVolumeClaim.
pub(super) type ClaimKey = (String, String);

/// Maximum number of node selector terms that [`intersect_selectors`] returns. Each intersection multiplies the numbers
/// of terms of its two selectors, so many volumes could otherwise need an unlimited amount of memory.
const MAX_TERMS: usize = 64;

/// A VM that has PersistentVolumeClaims and is not on a host yet.
#[derive(Clone, Debug)]
pub struct PendingVm {
    pub(super) instance: String,
    pub(super) claims: Vec<ClaimKey>,
    pub(super) launcher: Box<Launcher>,
}

/// Returns a node selector that matches only this node, for a volume that will be provisioned there.
#[must_use]
pub fn selector_for_node(node: &str) -> NodeSelector {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![name]), ..NodeSelectorTerm::default() };
    NodeSelector { node_selector_terms: vec![term] }
}

impl PendingVm {
    /// Parses a VirtualMachineInstance. Returns `None` if the VM is on a host, has ended, uses another scheduler, or
    /// has no PersistentVolumeClaims.
    ///
    /// # Errors
    /// Returns an error if the launcher pod of the VM cannot be predicted.
    pub fn read(object: &Value, configuration: &Configuration) -> Result<Option<Self>, VmError> {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_waiting = matches!(text("/status/phase"), "" | "Pending" | "Scheduling");
        let uses_berth_scheduler = text("/spec/schedulerName") == SCHEDULER_NAME;
        let (uid, namespace) = (text("/metadata/uid"), text("/metadata/namespace"));
        if !is_waiting
            || !uses_berth_scheduler
            || uid.is_empty()
            || !text("/status/nodeName").is_empty()
        {
            return Ok(None);
        }
        let volumes = object.pointer("/spec/volumes").and_then(Value::as_array);
        let names = volumes.into_iter().flatten().filter_map(claim_name);
        let claims: Vec<ClaimKey> =
            names.map(|name| (namespace.to_owned(), name.to_owned())).collect();
        if claims.is_empty() {
            return Ok(None);
        }
        let machine = Machine::read(object)?.ok_or(VmError::WrongKind)?;
        // The launcher pod is predicted without device plugin resources of networks: they restrict the choice of a
        // host, which the volumes already determine.
        let mut cluster_objects = ClusterObjects::default();
        cluster_objects.add_networks_without_resource(&machine);
        let launcher = Box::new(predict(&machine, configuration, &cluster_objects)?);
        Ok(Some(Self { instance: uid.to_owned(), claims, launcher }))
    }

    /// Returns the PersistentVolumeClaims of the VM's volumes.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimKey> {
        self.claims.iter()
    }

    pub(super) fn vm_key(&self) -> VmKey {
        let (namespace, instance) = (self.launcher.namespace.clone(), self.instance.clone());
        VmKey { namespace, instance_uid: instance, migration_uid: String::new() }
    }
}

/// Returns the name of the PersistentVolumeClaim of a KubeVirt volume (KubeVirt `PVCNameFromVirtVolume`). The claim of
/// a DataVolume has the same name as the DataVolume.
fn claim_name(volume: &Value) -> Option<&str> {
    let names = ["/persistentVolumeClaim/claimName", "/dataVolume/name"];
    names.into_iter().find_map(|pointer| volume.pointer(pointer)?.as_str())
}

/// Returns a node selector that matches the nodes that both selectors match; `None` if no term remains, or if there
/// are more than [`MAX_TERMS`] terms.
pub(super) fn intersect_selectors(
    first: &NodeSelector,
    other: &NodeSelector,
) -> Option<NodeSelector> {
    let join = |a: &Option<Vec<NodeSelectorRequirement>>,
                b: &Option<Vec<NodeSelectorRequirement>>| {
        Some(a.iter().chain(b).flatten().cloned().collect())
    };
    // Terms without requirements are omitted. Such a term matches no node, but its combination with another term would
    // match the nodes of the other term.
    let has_requirements = |term: &&NodeSelectorTerm| {
        let all = [&term.match_expressions, &term.match_fields];
        all.into_iter().flatten().any(|all| !all.is_empty())
    };
    let mut terms = Vec::new();
    for a in first.node_selector_terms.iter().filter(has_requirements) {
        for b in other.node_selector_terms.iter().filter(has_requirements) {
            terms.push(NodeSelectorTerm {
                match_expressions: join(&a.match_expressions, &b.match_expressions),
                match_fields: join(&a.match_fields, &b.match_fields),
            });
        }
    }
    (!terms.is_empty() && terms.len() <= MAX_TERMS)
        .then_some(NodeSelector { node_selector_terms: terms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_several_volumes_are_intersected() {
        let selector_term = |key: &str, value: &str| NodeSelectorTerm {
            match_expressions: Some(vec![NodeSelectorRequirement {
                key: key.to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![value.to_owned()]),
            }]),
            ..NodeSelectorTerm::default()
        };
        let zone_selector = NodeSelector {
            node_selector_terms: vec![selector_term("zone", "a"), selector_term("zone", "b")],
        };
        let joined = intersect_selectors(&zone_selector, &selector_for_node("host")).unwrap();
        assert_eq!(joined.node_selector_terms.len(), 2);
        for term in &joined.node_selector_terms {
            let count = |all: &Option<Vec<NodeSelectorRequirement>>| all.iter().flatten().count();
            assert_eq!((count(&term.match_expressions), count(&term.match_fields)), (1, 1));
        }
        let empty = NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default()] };
        assert_eq!(
            intersect_selectors(&zone_selector, &empty),
            None,
            "an empty term matches no node"
        );
    }
}
