//! Computes the steps that reconcile a MachineDeployment: machines to create, adopt and delete, and numbers for the
//! status.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{MacAddress, Problem, excerpt, names};
use serde_json::{Value, json};

use super::additional_interfaces::interface_name;
use super::additional_networks::MAX_NETWORKS;
use super::controller_reference::controller_reference;
use super::deployment::{MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND, MachineDeployment};
use super::hotplug::{UnattachedDisk, own_claims, split_claims, unattached_disks};
use super::network::TENANT_INTERFACE;
use super::render::{RenderedMachine, render_machine};
use super::render_context::RenderContext;
use super::renderer::RenderOptions;
use super::rollout::{
    DeletePolicy, ExistingMachine, RemovalMark, ReplicaCounts, RolloutDecision, StrategyError,
    decide_rollout,
};
use crate::stable_hash::safe_encode;

/// Readiness of a machine according to its Node in the tenant's cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeReadiness {
    /// The tenant's Nodes are not read: the machine is ready if its VirtualMachineInstance is ready.
    #[default]
    NotUsed,
    /// The tenant's Nodes have not been listed yet.
    Unknown,
    /// The machine has no Node, or the Node is not ready.
    NotReady,
    /// The Node has been ready since this time, in seconds since the epoch.
    ReadySince(i64),
}

/// An existing VirtualMachine, with the fields that the reconciler needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingVm {
    /// Field `metadata.name`.
    pub name: String,
    /// Field `metadata.uid`.
    pub uid: String,
    /// Field `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Field `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// UID in the owner reference with `controller: true`; `None` if there is no owner reference with this field.
    pub controller_uid: Option<String>,
    /// Creation time, in seconds since the epoch.
    pub creation_time: i64,
    /// True if the VirtualMachine is being deleted.
    pub is_deleting: bool,
    /// Time at which the VirtualMachineInstance became ready, in seconds since the epoch; `None` if it is not ready.
    pub ready_since: Option<i64>,
    /// Readiness according to the machine's Node in the tenant's cluster.
    pub node: NodeReadiness,
    /// True if the VirtualMachineInstance has ended and the run strategy does not start it again.
    pub has_failed: bool,
    /// Ethernet address of the interface in the tenant's network; `None` unless Berth allocates addresses in this
    /// network.
    pub tenant_mac: Option<MacAddress>,
    /// Interfaces with allocated addresses in networks of other tenants.
    pub attached: Vec<AttachedInterface>,
    /// Hotpluggable disks that KubeVirt has not attached to the running guest.
    pub unattached_disks: Vec<UnattachedDisk>,
}

/// Interface of a machine in the network of another tenant, with addresses that Berth allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedInterface {
    /// Name of the interface in the VirtualMachine.
    pub name: String,
    /// Name of the other TenantCluster.
    pub tenant: String,
    /// Addresses as in the annotation, separated by commas.
    pub recorded: String,
    /// Ethernet address of the interface.
    pub mac: MacAddress,
}

/// Reads the interfaces of a VirtualMachine in networks of other tenants, from the annotations in which Berth recorded
/// their addresses. A user may have changed the annotations and the interfaces, so entries of another form are ignored,
/// and at most one interface in each network is read: otherwise lost addresses of any number would be claimed again.
fn attached_interfaces(
    annotations: &BTreeMap<String, String>,
    interfaces: &[Value],
) -> Vec<AttachedInterface> {
    let mut all: Vec<AttachedInterface> = Vec::new();
    for index in 0..MAX_NETWORKS {
        let name = interface_name(index);
        let key = format!("{}{name}", names::ADDITIONAL_ADDRESSES_PREFIX);
        let recorded = annotations.get(&key).and_then(|value| value.split_once(':'));
        let Some((tenant, recorded)) = recorded else { continue };
        let interface = interfaces.iter().find(|one| one["name"] == name.as_str());
        let mac = interface.and_then(|one| one["macAddress"].as_str()?.parse().ok());
        let Some(mac) = mac else { continue };
        if all.iter().all(|one| one.tenant != tenant) {
            let (tenant, recorded) = (tenant.to_owned(), recorded.to_owned());
            all.push(AttachedInterface { name, tenant, recorded, mac });
        }
    }
    all
}

/// Identity of a MachineDeployment as the owner of VirtualMachines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentOwner {
    /// UID of the MachineDeployment.
    pub uid: String,
    /// True if the MachineDeployment and its VirtualMachines are in the same namespace. Only then can the
    /// VirtualMachines have an owner reference to the MachineDeployment.
    pub shares_namespace: bool,
}

/// The steps that reconcile a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconcileSteps {
    /// Names of the VirtualMachines without an owner that the MachineDeployment adopts.
    pub vms_to_adopt: Vec<String>,
    /// Number of machines to create.
    pub create_count: u32,
    /// Names of the machines to delete.
    pub machines_to_delete: Vec<String>,
    /// Seconds until the next reconcile, if no event triggers a reconcile before.
    pub requeue_after: Option<u32>,
    /// Numbers for the `status` of the MachineDeployment.
    pub counts: ReplicaCounts,
    /// True if the desired number of machines of the current template is available, and all other machines are being
    /// removed.
    pub is_complete: bool,
    /// True if it is not known whether machines are ready, so that the numbers of ready and available machines are not
    /// valid.
    pub is_readiness_unknown: bool,
}

impl ExistingVm {
    /// Reads a VirtualMachine and its VirtualMachineInstance. The machine is ready if the instance is in the phase
    /// Running and has the condition Ready.
    #[must_use]
    pub fn from_objects(vm: &Value, instance: Option<&Value>) -> Self {
        let text = |value: &Value, pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let map = |pointer: &str| {
            let entries = vm.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
            let each =
                entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            each.collect::<BTreeMap<_, _>>()
        };
        let controller = controller_reference(vm);
        let phase = instance.map(|instance| text(instance, "/status/phase")).unwrap_or_default();
        let strategy = text(vm, "/spec/runStrategy");
        let ready_condition = |object: &Value| {
            let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
            let mut conditions = conditions.into_iter().flatten();
            conditions.find(|condition| condition["type"] == "Ready").cloned()
        };
        let interfaces = vm.pointer("/spec/template/spec/domain/devices/interfaces");
        let interfaces =
            interfaces.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let tenant_interface = interfaces.iter().find(|one| one["name"] == TENANT_INTERFACE);
        let tenant_mac = tenant_interface.and_then(|one| one["macAddress"].as_str()?.parse().ok());
        let annotations = map("/metadata/annotations");
        let ready = instance.and_then(ready_condition).filter(|ready| ready["status"] == "True");
        let ready_since = ready.filter(|_| phase == "Running").map(|ready| {
            let since = parse_timestamp(&text(&ready, "/lastTransitionTime"));
            since.unwrap_or_else(|| {
                parse_timestamp(&text(vm, "/metadata/creationTimestamp")).unwrap_or(0)
            })
        });
        Self {
            name: text(vm, "/metadata/name"),
            uid: text(vm, "/metadata/uid"),
            labels: map("/metadata/labels"),
            attached: attached_interfaces(&annotations, interfaces),
            unattached_disks: instance.map(unattached_disks).unwrap_or_default(),
            annotations,
            controller_uid: controller.map(|owner| text(owner, "/uid")),
            creation_time: parse_timestamp(&text(vm, "/metadata/creationTimestamp")).unwrap_or(0),
            is_deleting: vm.pointer("/metadata/deletionTimestamp").is_some(),
            ready_since,
            node: NodeReadiness::NotUsed,
            has_failed: strategy == "Once" && ["Succeeded", "Failed"].contains(&phase.as_str()),
            tenant_mac,
        }
    }

    /// Returns true if `owner` owns the VirtualMachine.
    #[must_use]
    pub fn is_owned_by(&self, owner: &DeploymentOwner) -> bool {
        self.matches_owner(owner) == Some(true)
    }

    /// Returns true if the VirtualMachine has a removal mark.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.annotations.contains_key(names::REMOVAL_ANNOTATION)
    }

    /// Returns true if the VirtualMachine was created from the current template. A VirtualMachine without a revision
    /// was created by another controller and adopted; it counts as current, so that the adoption does not replace it.
    #[must_use]
    pub fn is_current(&self, deployment: &MachineDeployment) -> bool {
        let revision = self.annotations.get(names::REVISION_ANNOTATION);
        revision.is_none_or(|revision| deployment.has_revision(revision))
    }

    fn to_machine(&self, deployment: &MachineDeployment) -> ExistingMachine {
        let removal = match self.annotations.get(names::REMOVAL_ANNOTATION) {
            None => RemovalMark::None,
            Some(reason) if self.has_failed || reason == names::HOST_LOST_REMOVAL => {
                RemovalMark::Lost
            }
            Some(_) => RemovalMark::Draining,
        };
        let ready_since = match self.node {
            NodeReadiness::NotUsed => self.ready_since,
            NodeReadiness::Unknown | NodeReadiness::NotReady => None,
            NodeReadiness::ReadySince(since) => Some(since),
        };
        // A machine that must leave its host counts as outdated, so that a rolling update replaces it.
        let is_leaving = self.annotations.contains_key(names::REPLACEMENT_ANNOTATION);
        ExistingMachine {
            name: self.name.clone(),
            is_current: self.is_current(deployment) && !is_leaving,
            creation_time: self.creation_time,
            ready_since,
            is_deleting: self.is_deleting,
            has_failed: self.has_failed,
            removal,
            is_removed_first: self.annotations.contains_key(names::DELETE_MACHINE_ANNOTATION),
            is_readiness_unknown: self.node == NodeReadiness::Unknown,
        }
    }

    /// Returns true if Berth created the VirtualMachine for the MachineDeployment, false if the VirtualMachine was
    /// adopted. An adopted VirtualMachine has no user data Secret with a known name.
    #[must_use]
    pub fn is_created_by(&self, deployment: &MachineDeployment) -> bool {
        let revision = self
            .annotations
            .get(names::REVISION_ANNOTATION)
            .map(String::as_str)
            .unwrap_or_default();
        let rest = self.name.strip_prefix(deployment.metadata.name.as_str());
        let rest = rest.and_then(|rest| rest.strip_prefix('-')?.strip_prefix(revision));
        !revision.is_empty() && rest.is_some_and(|rest| rest.starts_with('-'))
    }

    /// Returns true if the hotpluggable disks of the VirtualMachine differ from those of the template, or if detached disks
    /// of the VirtualMachine are not deleted yet. Those of a VirtualMachine that is removed or replaced are not updated.
    #[must_use]
    pub fn needs_disk_update(
        &self,
        deployment: &MachineDeployment,
        owner: &DeploymentOwner,
    ) -> bool {
        self.is_owned_by(owner)
            && self.is_created_by(deployment)
            && self.is_current(deployment)
            && !self.is_deleting
            && !self.is_marked()
            && !self.has_failed
            && (!self.has_current_disks(deployment)
                || self.annotations.contains_key(names::DETACHED_DISKS_ANNOTATION))
    }

    /// Returns true if the VirtualMachine has the hotpluggable disks of the template.
    #[must_use]
    pub fn has_current_disks(&self, deployment: &MachineDeployment) -> bool {
        let revision = self.annotations.get(names::HOTPLUG_REVISION_ANNOTATION);
        revision.map(String::as_str) == deployment.hotplug_revision()
    }

    /// Returns the claims of removed hotpluggable disks that are retained.
    #[must_use]
    pub fn retained_claims(&self) -> BTreeSet<String> {
        let recorded = self.annotations.get(names::RETAINED_DISKS_ANNOTATION);
        own_claims(split_claims(recorded.map(String::as_str).unwrap_or_default()), &self.name)
    }

    /// Returns true if `owner` owns the VirtualMachine, false if it has another owner, and `None` if it has no owner.
    /// An owner in another namespace is named by an annotation instead of an owner reference.
    fn matches_owner(&self, owner: &DeploymentOwner) -> Option<bool> {
        let annotated = self.annotations.get(names::MACHINE_DEPLOYMENT_UID_ANNOTATION);
        match (&self.controller_uid, annotated) {
            (Some(uid), _) => Some(*uid == owner.uid),
            (None, Some(uid)) => Some(*uid == owner.uid),
            (None, None) => None,
        }
    }
}

/// Parses a Kubernetes timestamp and returns the seconds since the epoch.
fn parse_timestamp(text: &str) -> Option<i64> {
    text.parse::<k8s_openapi::jiff::Timestamp>().ok().map(k8s_openapi::jiff::Timestamp::as_second)
}

/// Computes the steps. `machines` are all VirtualMachines in the namespace, and `now` is the time in seconds since
/// the epoch. `backoff` is the number of seconds for which no machine may be created, because previous machines have
/// failed.
///
/// # Errors
/// Returns an error if the strategy is invalid.
pub fn compute_steps(
    deployment: &MachineDeployment,
    owner: &DeploymentOwner,
    machines: &[ExistingVm],
    now: i64,
    backoff: Option<u32>,
) -> Result<ReconcileSteps, StrategyError> {
    let labelled_vms =
        machines.iter().filter(|vm| vm.labels.get("md") == Some(&deployment.metadata.name));
    let (mut adopt, mut owned) = (Vec::new(), Vec::new());
    for vm in labelled_vms {
        let is_owned = vm.matches_owner(owner);
        if is_owned == Some(false) || (is_owned.is_none() && vm.is_deleting) {
            continue;
        }
        if is_owned.is_none() {
            adopt.push(vm.name.clone());
        }
        owned.push(vm.to_machine(deployment));
    }
    let policy = delete_policy(deployment)?;
    let RolloutDecision {
        create_count: create,
        machines_to_delete: delete,
        requeue_after,
        counts,
        is_complete,
        is_readiness_unknown,
    } = decide_rollout(&deployment.spec, &owned, policy, now, backoff)?;
    Ok(ReconcileSteps {
        vms_to_adopt: adopt,
        create_count: create,
        machines_to_delete: delete,
        requeue_after,
        counts,
        is_complete,
        is_readiness_unknown,
    })
}

/// Returns which machines are removed first, as an annotation of the MachineDeployment determines.
fn delete_policy(deployment: &MachineDeployment) -> Result<DeletePolicy, StrategyError> {
    match deployment.metadata.annotations.get(names::DELETE_POLICY_ANNOTATION).map(String::as_str) {
        None | Some("Newest") => Ok(DeletePolicy::Newest),
        Some("Oldest") => Ok(DeletePolicy::Oldest),
        Some(other) => Err(StrategyError {
            field: "metadata.annotations[berth.dev/delete-policy]",
            value: excerpt(other),
            message: "must be Newest or Oldest",
        }),
    }
}

/// Renders a new machine, with the owner reference or annotation that names its owner.
///
/// # Errors
/// Returns all problems of the MachineDeployment that prevent rendering.
pub fn render_new_machine(
    deployment: &MachineDeployment,
    owner: &DeploymentOwner,
    context: &RenderContext,
    options: &RenderOptions,
) -> Result<RenderedMachine, Vec<Problem>> {
    let mut rendered = render_machine(deployment, context, options)?;
    let metadata = &mut rendered.machine["metadata"];
    metadata["annotations"] = ownership_annotations(deployment, owner);
    if let Some(revision) = deployment.hotplug_revision() {
        metadata["annotations"][names::HOTPLUG_REVISION_ANNOTATION] = revision.into();
    }
    if owner.shares_namespace {
        metadata["ownerReferences"] = json!([owner_reference(deployment, owner)]);
    }
    Ok(rendered)
}

/// Returns the merge patch that makes the MachineDeployment the owner of an existing machine.
#[must_use]
pub fn adoption_patch(deployment: &MachineDeployment, owner: &DeploymentOwner) -> Value {
    let mut metadata = json!({"annotations": ownership_annotations(deployment, owner)});
    if owner.shares_namespace {
        metadata["ownerReferences"] = json!([owner_reference(deployment, owner)]);
    }
    json!({"metadata": metadata})
}

fn ownership_annotations(deployment: &MachineDeployment, owner: &DeploymentOwner) -> Value {
    json!({names::REVISION_ANNOTATION: deployment.revision(), names::MACHINE_DEPLOYMENT_UID_ANNOTATION: owner.uid})
}

fn owner_reference(deployment: &MachineDeployment, owner: &DeploymentOwner) -> Value {
    json!({
        "apiVersion": format!("{MACHINE_DEPLOYMENT_GROUP}/v1alpha1"), "kind": MACHINE_DEPLOYMENT_KIND, "name": deployment.metadata.name,
        "uid": owner.uid, "controller": true, "blockOwnerDeletion": true,
    })
}

/// Returns a name for a new machine. `random` distinguishes machines that are created at the same time.
#[must_use]
pub fn machine_name(deployment: &MachineDeployment, random: u64) -> String {
    format!("{}{}", machine_name_prefix(deployment), safe_encode(random, 5))
}

/// Returns the prefix of the names of new machines. The rest of each name contains no dash.
#[must_use]
pub fn machine_name_prefix(deployment: &MachineDeployment) -> String {
    format!("{}-{}-", deployment.metadata.name, deployment.revision())
}

/// Returns the backoff in seconds after a number of consecutive failures: 10 s, doubled after each failure, at most 5
/// min, as the kubelet's backoff for containers.
#[must_use]
pub fn backoff_seconds(failures: u32) -> u32 {
    match failures {
        0 => 0,
        _ => 10_u32.saturating_mul(1 << (failures - 1).min(5)).min(300),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(replicas: i32) -> MachineDeployment {
        let object = json!({
            "metadata": {"name": "web", "namespace": "cluster-abc"}, "spec": {"replicas": replicas},
        });
        MachineDeployment::read("test", object).unwrap()
    }

    fn owner() -> DeploymentOwner {
        DeploymentOwner { uid: "u-1".to_owned(), shares_namespace: true }
    }

    fn vm(name: &str, more: Value) -> Value {
        let mut vm = json!({
            "metadata": {
                "name": name, "uid": name, "labels": {"md": "web"}, "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {names::REVISION_ANNOTATION: deployment(1).revision(), names::MACHINE_DEPLOYMENT_UID_ANNOTATION: "u-1"},
                "ownerReferences": [{"uid": "u-1", "controller": true}],
            },
            "spec": {"runStrategy": "Once"},
        });
        for (pointer, value) in more.as_object().unwrap() {
            *vm.pointer_mut(pointer).unwrap() = value.clone();
        }
        vm
    }

    fn running_instance() -> Value {
        json!({"status": {"phase": "Running", "conditions":
            [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}]}})
    }

    #[test]
    fn machine_is_ready_if_its_instance_is_ready() {
        let object = vm("a", json!({}));
        assert_eq!(
            ExistingVm::from_objects(&object, Some(&running_instance())).ready_since,
            Some(1_767_225_660)
        );
        assert_eq!(ExistingVm::from_objects(&object, None).ready_since, None);
        let unready = json!({"status": {"phase": "Running"}});
        assert_eq!(ExistingVm::from_objects(&object, Some(&unready)).ready_since, None);
        for phase in ["Failed", "Succeeded"] {
            let ended = json!({"status": {"phase": phase}});
            assert!(ExistingVm::from_objects(&object, Some(&ended)).has_failed);
            let always = vm("a", json!({"/spec/runStrategy": "Always"}));
            assert!(!ExistingVm::from_objects(&always, Some(&ended)).has_failed);
        }
        let odd =
            json!({"metadata": {"name": 5, "labels": [], "ownerReferences": "x"}, "status": 7});
        assert_eq!(ExistingVm::from_objects(&odd, Some(&odd)), ExistingVm::default());
    }

    #[test]
    fn a_vm_with_allocated_addresses_has_an_ethernet_address_in_the_tenants_network() {
        for (interface, expected) in [
            (
                json!({"name": "tenant", "macAddress": "02:00:00:00:00:01"}),
                Some([2, 0, 0, 0, 0, 1]),
            ),
            (json!({"name": "tenant", "macAddress": "x"}), None),
            (json!({"name": "tenant", "bridge": {}}), None),
            (json!({"name": "additional-1", "macAddress": "02:00:00:00:00:01"}), None),
        ] {
            let devices = json!({"interfaces": [{"name": "default"}, interface]});
            let object = json!({"spec": {"template": {"spec": {"domain": {"devices": devices}}}}});
            let mac = ExistingVm::from_objects(&object, None).tenant_mac;
            assert_eq!(mac, expected.map(MacAddress));
        }
    }

    #[test]
    fn interfaces_in_networks_of_other_tenants_are_recorded() {
        let annotation = |name: &str| format!("{}{name}", names::ADDITIONAL_ADDRESSES_PREFIX);
        let object = json!({
            "metadata": {"annotations": {
                annotation("additional-1"): "abc-storage:10.1.0.7,fd00::7",
                annotation("additional-2"): "abc-storage:10.1.0.8",
                annotation("additional-3"): "10.1.0.9",
                annotation("additional-4"): "abc-storage:10.1.0.10",
                annotation("additional-17"): "abc-backup:10.2.0.7",
                annotation("other"): "abc-backup:10.2.0.7",
                names::CLAIMED_ADDRESSES_ANNOTATION: "10.0.0.7",
            }},
            "spec": {"template": {"spec": {"domain": {"devices": {"interfaces": [
                {"name": "additional-1", "macAddress": "02:00:00:00:00:02"},
                {"name": "additional-3", "macAddress": "02:00:00:00:00:03"},
                {"name": "additional-4", "macAddress": "02:00:00:00:00:04"},
                {"name": "additional-17", "macAddress": "02:00:00:00:00:05"},
                {"name": "other", "macAddress": "02:00:00:00:00:06"},
            ]}}}}},
        });
        let expected = AttachedInterface {
            name: "additional-1".to_owned(),
            tenant: "abc-storage".to_owned(),
            recorded: "10.1.0.7,fd00::7".to_owned(),
            mac: MacAddress([2, 0, 0, 0, 0, 2]),
        };
        assert_eq!(ExistingVm::from_objects(&object, None).attached, [expected]);
    }

    #[test]
    fn only_machines_without_an_owner_are_adopted() {
        let unowned =
            vm("a", json!({"/metadata/annotations": {}, "/metadata/ownerReferences": []}));
        let other =
            vm("b", json!({"/metadata/ownerReferences": [{"uid": "u-2", "controller": true}]}));
        let elsewhere = vm("c", json!({"/metadata/labels": {"md": "db"}}));
        let far = vm("d", json!({"/metadata/ownerReferences": []}));
        let all: Vec<ExistingVm> = [unowned, other, elsewhere, far]
            .iter()
            .map(|vm| ExistingVm::from_objects(vm, Some(&running_instance())))
            .collect();
        let steps = compute_steps(&deployment(2), &owner(), &all, 1_767_230_000, None).unwrap();
        assert_eq!(steps.vms_to_adopt, ["a"]);
        assert_eq!(
            (steps.create_count, steps.machines_to_delete.len(), steps.is_complete),
            (0, 0, true)
        );
        let patch = adoption_patch(&deployment(2), &owner());
        assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "u-1");
    }

    #[test]
    fn a_changed_template_replaces_machines() {
        let object = json!({
            "metadata": {"name": "web"}, "spec": {"replicas": 1, "template": {"metadata": {"labels": {"x": "y"}}}},
        });
        let changed = MachineDeployment::read("test", object).unwrap();
        let old = ExistingVm::from_objects(&vm("a", json!({})), Some(&running_instance()));
        let steps = compute_steps(&changed, &owner(), &[old], 1_767_230_000, None).unwrap();
        assert_eq!((steps.create_count, steps.counts.updated), (1, 0));
    }

    #[test]
    fn the_node_determines_readiness_if_it_is_used() {
        let mut machine = ExistingVm::from_objects(&vm("a", json!({})), Some(&running_instance()));
        let available = |machine: &ExistingVm| {
            let machines = std::slice::from_ref(machine);
            let steps =
                compute_steps(&deployment(1), &owner(), machines, 1_767_230_000, None).unwrap();
            (steps.counts.available, steps.is_readiness_unknown)
        };
        assert_eq!(available(&machine), (1, false));
        machine.node = NodeReadiness::NotReady;
        assert_eq!(available(&machine), (0, false));
        machine.node = NodeReadiness::Unknown;
        assert_eq!(available(&machine), (0, true));
        machine.node = NodeReadiness::ReadySince(1_767_229_000);
        machine.ready_since = None;
        assert_eq!(available(&machine), (1, false));
    }

    #[test]
    fn marked_machines_are_replaced() {
        let machine = |reason: &str| {
            let mut vm = vm("a", json!({}));
            vm["metadata"]["annotations"][names::REMOVAL_ANNOTATION] = reason.into();
            ExistingVm::from_objects(&vm, Some(&running_instance()))
        };
        for reason in ["ScaleDown", names::HOST_LOST_REMOVAL, "malformed"] {
            let all = [machine(reason)];
            let steps = compute_steps(&deployment(1), &owner(), &all, 1_767_230_000, None).unwrap();
            assert_eq!((steps.create_count, steps.counts.replicas), (1, 0), "{reason}");
            assert!(steps.machines_to_delete.is_empty());
        }
        let policy = json!({
            "metadata": {"name": "web", "annotations": {names::DELETE_POLICY_ANNOTATION: "Random"}},
        });
        let policy = MachineDeployment::read("test", policy).unwrap();
        let error = compute_steps(&policy, &owner(), &[], 0, None).unwrap_err();
        assert!(error.to_string().contains("`Random`: must be Newest or Oldest"), "{error}");
    }

    #[test]
    fn disks_of_own_current_machines_are_updated() {
        let object = |disks: Value| {
            let machine = json!({"cloudProviderSpec": {"virtualMachine": {"template": {"secondaryDisks": disks}}}});
            let template = json!({"spec": {"providerSpec": {"value": machine}}});
            let object = json!({
                "metadata": {"name": "web", "namespace": "cluster-abc"}, "spec": {"template": template},
            });
            MachineDeployment::read("test", object).unwrap()
        };
        let disk = json!({"name": "data", "size": "1Gi", "hotpluggable": true});
        let (plain, with_disk) = (object(json!([])), object(json!([disk])));
        let name = machine_name(&plain, 1);
        let created = |revision: &str, more: Value| {
            let mut vm = vm(&name, more);
            vm["metadata"]["annotations"][names::REVISION_ANNOTATION] = revision.into();
            ExistingVm::from_objects(&vm, None)
        };
        let old = created(plain.revision(), json!({}));
        assert!(!old.needs_disk_update(&plain, &owner()));
        assert!(old.is_current(&with_disk) && old.needs_disk_update(&with_disk, &owner()));
        let mut updated = old.clone();
        let revision = with_disk.hotplug_revision().unwrap().to_owned();
        updated.annotations.insert(names::HOTPLUG_REVISION_ANNOTATION.to_owned(), revision);
        assert!(!updated.needs_disk_update(&with_disk, &owner()));
        assert!(updated.needs_disk_update(&plain, &owner()), "the disk was removed");
        let mut detached = updated.clone();
        let disks = (names::DETACHED_DISKS_ANNOTATION.to_owned(), "web-1-disk-data".to_owned());
        detached.annotations.extend([disks]);
        assert!(detached.needs_disk_update(&with_disk, &owner()));
        let mut marked = old.clone();
        marked.annotations.insert(names::REMOVAL_ANNOTATION.to_owned(), "Rollout".to_owned());
        let adopted = ExistingVm { name: "web-1".to_owned(), ..old.clone() };
        let owners = json!([{"uid": "u-2", "controller": true}]);
        let other = created(plain.revision(), json!({"/metadata/ownerReferences": owners}));
        let outdated = created("xxxxxxxxxx", json!({}));
        for vm in [marked, adopted, other, outdated] {
            assert!(!vm.needs_disk_update(&with_disk, &owner()), "{vm:?}");
        }
    }

    #[test]
    fn machine_names_have_fixed_length_and_backoff_doubles() {
        let name = machine_name(&deployment(1), 12345);
        assert_eq!(name.len(), "web".len() + 1 + 10 + 1 + 5, "{name}");
        assert_eq!([0, 1, 2, 3, 6, 40].map(backoff_seconds), [0, 10, 20, 40, 300, 300]);
    }
}
