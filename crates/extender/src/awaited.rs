//! VMs whose launcher pods are yet to come, and to which host their volumes tie them: their places after a restart.
//!
//! Two paths lead to a volume that only one host has. Without populators CDI waits for a first consumer: KubeVirt sends a
//! first-consumer pod, the volume is made where that goes, the pod ends, the image is imported for minutes, and only then
//! the launcher pod is made. With populators (DataVolume `PendingPopulation`) the launcher pod is the first consumer itself
//! and waits for its volume in the scheduler. What was reserved for either of them is in no object; but the claims and
//! volumes say where it was, and the instance says how much.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration,
};
use serde_json::Value;

use super::book::{Entry, Key, Stage};
use super::desk::Desk;
use berth_api::names::SCHEDULER;
use berth_kubevirt_render::launcher::{Configuration, Launcher, Machine, Surroundings, predict};
use berth_placement::engine::Needs;
use berth_placement::rules::PodSpecParts;

/// Namespace and name.
type Claim = (String, String);

/// Terms of all volumes of one VM at most: each volume multiplies them.
const TERMS: usize = 64;

/// A VM that is on no host yet.
#[derive(Clone, Debug)]
pub struct Awaited {
    instance: String,
    claims: Vec<Claim>,
    launcher: Box<Launcher>,
}

/// A node selector of a volume, or of a node that was selected for one.
#[must_use]
pub fn selected(node: &str) -> NodeSelector {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![name]), ..NodeSelectorTerm::default() };
    NodeSelector { node_selector_terms: vec![term] }
}

impl Awaited {
    /// Reads an instance; `None` if it is on a host, has ended, is another scheduler's, or has no claims.
    ///
    /// # Errors
    /// Names the object and the field that no launcher pod could be made of.
    pub fn read(object: &Value, configuration: &Configuration) -> Result<Option<Self>, String> {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_waiting = matches!(text("/status/phase"), "" | "Pending" | "Scheduling");
        let is_ours = text("/spec/schedulerName") == SCHEDULER;
        let (uid, namespace) = (text("/metadata/uid"), text("/metadata/namespace"));
        if !is_waiting || !is_ours || uid.is_empty() || !text("/status/nodeName").is_empty() {
            return Ok(None);
        }
        let volumes = object.pointer("/spec/volumes").and_then(Value::as_array);
        let names = volumes.into_iter().flatten().filter_map(claim);
        let claims: Vec<Claim> =
            names.map(|name| (namespace.to_owned(), name.to_owned())).collect();
        if claims.is_empty() {
            return Ok(None);
        }
        let machine = Machine::read(object).map_err(|invalid| invalid.to_string())?;
        let machine = machine.ok_or("not a VirtualMachineInstance of kubevirt.io")?;
        // What a network takes of a device plugin matters little here: the launcher pod itself says it later.
        let networks = object.pointer("/spec/networks").and_then(Value::as_array);
        let named = networks
            .into_iter()
            .flatten()
            .filter_map(|network| network.pointer("/multus/networkName").and_then(Value::as_str));
        let whole = |name: &str| {
            if name.contains('/') { name.to_owned() } else { format!("{namespace}/{name}") }
        };
        let mut around = Surroundings::default();
        around.networks = named.map(|name| (whole(name), String::new())).collect();
        let launcher = predict(&machine, configuration, &around);
        let launcher = Box::new(launcher.map_err(|invalid| invalid.to_string())?);
        Ok(Some(Self { instance: uid.to_owned(), claims, launcher }))
    }

    /// Its volumes' claims.
    pub fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter()
    }

    fn key(&self) -> Key {
        let (namespace, instance) = (self.launcher.namespace.clone(), self.instance.clone());
        Key { namespace, instance, migration: String::new() }
    }
}

/// The claim of a volume (KubeVirt `PVCNameFromVirtVolume`): a DataVolume's has its name.
fn claim(volume: &Value) -> Option<&str> {
    let names = ["/persistentVolumeClaim/claimName", "/dataVolume/name"];
    names.into_iter().find_map(|pointer| volume.pointer(pointer)?.as_str())
}

/// What satisfies both.
fn both(one: &NodeSelector, other: &NodeSelector) -> Option<NodeSelector> {
    let join = |a: &Option<Vec<NodeSelectorRequirement>>,
                b: &Option<Vec<NodeSelectorRequirement>>| {
        Some(a.iter().chain(b).flatten().cloned().collect())
    };
    // A term without requirements matches no node, alone; beside another one it would match what that does.
    let is_some = |term: &&NodeSelectorTerm| {
        let all = [&term.match_expressions, &term.match_fields];
        all.into_iter().flatten().any(|all| !all.is_empty())
    };
    let mut terms = Vec::new();
    for a in one.node_selector_terms.iter().filter(is_some) {
        for b in other.node_selector_terms.iter().filter(is_some) {
            terms.push(NodeSelectorTerm {
                match_expressions: join(&a.match_expressions, &b.match_expressions),
                match_fields: join(&a.match_fields, &b.match_fields),
            });
        }
    }
    (!terms.is_empty() && terms.len() <= TERMS)
        .then_some(NodeSelector { node_selector_terms: terms })
}

impl Desk {
    /// VMs that are on no host yet, as they were listed; and, by claims, where their volumes are, as far as these are
    /// anywhere. Their places are reserved when pods are listed too.
    pub fn awaited(&mut self, vms: Vec<Awaited>, volumes: BTreeMap<Claim, NodeSelector>) {
        self.awaited = (vms, volumes);
    }

    /// Reserves for VMs without a pod of their own what their volumes tie to one host.
    pub(super) fn resume_awaited(&mut self) {
        let (mut vms, volumes) = std::mem::take(&mut self.awaited);
        vms.sort_by(|one, other| one.claims.cmp(&other.claims));
        for vm in vms {
            let key = vm.key();
            if self.book.holder(&key).is_some() {
                continue;
            }
            let mut pins = vm.claims.iter().filter_map(|claim| volumes.get(claim));
            let Some(first) = pins.next() else { continue };
            let Some(pin) = pins.try_fold(first.clone(), |all, one| both(&all, one)) else {
                continue;
            };
            self.reserve_awaited(&vm, key, pin);
        }
    }

    fn reserve_awaited(&mut self, vm: &Awaited, key: Key, pin: NodeSelector) {
        let Launcher { pod, namespace, labels, affinity, .. } = &*vm.launcher;
        // Of the launcher's rules only those about other pods count: its volumes have chosen the host already.
        let node_affinity = NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(pin),
            ..NodeAffinity::default()
        };
        let affinity =
            Affinity { node_affinity: Some(node_affinity), ..affinity.clone().unwrap_or_default() };
        let tolerations =
            [Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }];
        let mut pod = pod.clone();
        pod.uid = format!("{}/launcher", vm.instance);
        let needs = match self.instance_of(&key) {
            Some(instance) => instance.needs(&pod),
            None => Needs::default(),
        };
        let parts = PodSpecParts {
            namespace,
            labels: Some(labels),
            is_terminating: false,
            node_selector: None,
            affinity: Some(&affinity),
            tolerations: &tolerations,
            spread: &[],
            containers: &pod,
        };
        let Ok(request) = self.engine.request(&parts, needs) else { return };
        let mut hosts = self.engine.candidates(&request);
        // Where several hosts have the volume, the VM is not lost without this one.
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return };
        if self.engine.place(&request, Some(&[host])).is_none() {
            return;
        }
        let name = self.engine.facts(host).map(|facts| facts.name.clone()).unwrap_or_default();
        let entry = Entry {
            host: self.book.host(&name),
            stage: Stage::Kept { until: None },
            request,
            key: Some(key),
            is_stand_in: true,
            stamp: 0,
            is_seen: false,
            is_listed: false,
            is_terminating: false,
        };
        self.book.put(&pod.uid, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_several_volumes_hold_together() {
        let of = |key: &str, value: &str| NodeSelectorTerm {
            match_expressions: Some(vec![NodeSelectorRequirement {
                key: key.to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![value.to_owned()]),
            }]),
            ..NodeSelectorTerm::default()
        };
        let of_zones = NodeSelector { node_selector_terms: vec![of("zone", "a"), of("zone", "b")] };
        let joined = both(&of_zones, &selected("host")).unwrap();
        assert_eq!(joined.node_selector_terms.len(), 2);
        for term in &joined.node_selector_terms {
            let count = |all: &Option<Vec<NodeSelectorRequirement>>| all.iter().flatten().count();
            assert_eq!((count(&term.match_expressions), count(&term.match_fields)), (1, 1));
        }
        let empty = NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default()] };
        assert_eq!(both(&of_zones, &empty), None, "it matches no node");
    }
}
