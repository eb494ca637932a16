//! Owner of a machine, in the metadata of its VirtualMachine.

use berth_api::names::MACHINE_DEPLOYMENT_UID_ANNOTATION;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

/// Returns the UID of the MachineDeployment that owns a machine. If both are in different namespaces, an annotation
/// replaces the owner reference.
pub(crate) fn owner_uid(machine: &DynamicObject) -> Option<&str> {
    let owner = machine.owner_references().iter().find(|owner| owner.controller == Some(true));
    let annotated = machine.annotations().get(MACHINE_DEPLOYMENT_UID_ANNOTATION);
    owner.map(|owner| &owner.uid).or(annotated).map(String::as_str)
}

/// Returns true if the MachineDeployment with this UID owns the machine.
pub(crate) fn is_owned_by(machine: &DynamicObject, uid: Option<&str>) -> bool {
    uid.is_some() && owner_uid(machine) == uid
}
