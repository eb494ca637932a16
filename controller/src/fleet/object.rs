//! Parsing of a single object. Errors name the invalid field.

use berth_api::names::{CLASS_LABEL, MACHINE_DEPLOYMENT_UID_ANNOTATION};
use berth_api::{HostProfile, InfraConfig, InfraNode, TenantCluster, VlanClaim};
use k8s_openapi::api::core::v1;
use serde_json::Value;

use super::drain_facts::{DrainFacts, deployment_fields};
use super::kinds::{string_at, value_at};
use super::machine::FleetMachine;
use super::machine_claims::machine_claims;
use super::storage::StorageObject;
use super::stream::InputObject;
use crate::evacuation::machine::{EXTERNAL_STRATEGY, migration_obstacle};
use berth_api::Problem;
use berth_kubevirt_render::launcher::{Configuration, Invalid, Machine};
use berth_kubevirt_render::machines::controller_reference;
use berth_kubevirt_render::machines::{
    MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND, MachineDeployment,
};
use berth_views::deserialize_object;

/// A parsed object and its source.
#[derive(Debug)]
pub struct FleetItem {
    /// File and document that contain the object, such as `fleet/hosts.yaml, document 3`.
    pub(super) location: String,
    pub(super) object: Result<FleetObject, Problem>,
}

#[derive(Debug)]
pub(super) enum FleetObject {
    InfraNode(String, Box<InfraNode>),
    HostProfile(String, Box<HostProfile>),
    Node(String, Box<v1::Node>),
    Pod(String, Box<v1::Pod>),
    Machine(Box<FleetMachine>),
    Configuration(Box<Configuration>),
    /// A MachineDeployment, or its problem if it is invalid, and the fields that decide how its existing machines
    /// leave a drained host.
    Deployment(Box<Result<MachineDeployment, Problem>>, Value),
    /// A MachineDeployment of a live cluster, reduced to the fields that decide how its machines leave a drained host.
    /// Its missing machines are not planned.
    DeploymentFields(Value),
    Tenant(String, Box<TenantCluster>),
    Config(Box<InfraConfig>),
    Claim(Box<VlanClaim>),
    Storage(StorageObject),
    /// An object that launcher pods may depend on, or an object of a kind that is ignored.
    Other(Value),
}

impl FleetItem {
    /// Parses an object. All work that needs no other object is done here, because this function runs on all cores.
    #[must_use]
    pub fn from_input(found: InputObject) -> Self {
        let InputObject { location, object } = found;
        Self { object: parse_object(&location, object), location }
    }

    /// Converts a MachineDeployment of a live cluster. Its missing machines are not planned.
    #[must_use]
    pub(crate) fn from_cluster_deployment(found: &InputObject) -> Self {
        let fields = deployment_fields(&found.object);
        Self { object: Ok(FleetObject::DeploymentFields(fields)), location: found.location.clone() }
    }
}

fn parse_object(location: &str, object: Value) -> Result<FleetObject, Problem> {
    super::kinds::check_kind(location, &object)?;
    let kind = string_at(&object, "/kind");
    let group = string_at(&object, "/apiVersion").split('/').next().unwrap_or_default();
    match (kind, group) {
        ("InfraNode", "berth.dev") => {
            let node: InfraNode = deserialize_object(kind, location, &object)?;
            Ok(FleetObject::InfraNode(required_name(kind, location, &object)?, Box::new(node)))
        }
        ("HostProfile", "berth.dev") => {
            let profile: HostProfile = deserialize_object(kind, location, &object)?;
            Ok(FleetObject::HostProfile(required_name(kind, location, &object)?, Box::new(profile)))
        }
        ("TenantCluster", "berth.dev") => {
            let tenant: TenantCluster = deserialize_object(kind, location, &object)?;
            Ok(FleetObject::Tenant(required_name(kind, location, &object)?, Box::new(tenant)))
        }
        ("InfraConfig", "berth.dev") => {
            Ok(FleetObject::Config(Box::new(deserialize_object(kind, location, &object)?)))
        }
        ("VlanClaim", "berth.dev") => {
            Ok(FleetObject::Claim(Box::new(deserialize_object(kind, location, &object)?)))
        }
        (MACHINE_DEPLOYMENT_KIND, MACHINE_DEPLOYMENT_GROUP) => {
            let fields = deployment_fields(&object);
            let read = MachineDeployment::read(location, object);
            Ok(FleetObject::Deployment(Box::new(read), fields))
        }
        ("Node", "v1") => {
            let node: v1::Node = deserialize_object(kind, location, &object)?;
            Ok(FleetObject::Node(required_name(kind, location, &object)?, Box::new(node)))
        }
        ("Pod", "v1") => {
            let pod: v1::Pod = deserialize_object(kind, location, &object)?;
            Ok(FleetObject::Pod(required_name(kind, location, &object)?, Box::new(pod)))
        }
        ("VirtualMachine", "kubevirt.io") => parse_machine("VirtualMachine", object),
        ("VirtualMachineInstance", "kubevirt.io") => {
            parse_machine("VirtualMachineInstance", object)
        }
        ("KubeVirt", "kubevirt.io") => {
            let configuration = Configuration::from_kubevirt(&object).map_err(fatal_problem)?;
            Ok(FleetObject::Configuration(Box::new(configuration)))
        }
        _ => match StorageObject::parse(location, &object) {
            Some(storage) => Ok(FleetObject::Storage(storage?)),
            None => Ok(FleetObject::Other(object)),
        },
    }
}

fn parse_machine(kind: &'static str, object: Value) -> Result<FleetObject, Problem> {
    let Some(machine) = Machine::read(&object).map_err(fatal_problem)? else {
        return Ok(FleetObject::Other(object));
    };
    let template = if kind == "VirtualMachine" { "/spec/template/metadata" } else { "/metadata" };
    let class = value_at(&object, template)
        .and_then(|meta| meta.get("annotations")?.get(CLASS_LABEL)?.as_str());
    let is_on = kind == "VirtualMachineInstance"
        || (string_at(&object, "/spec/runStrategy") != "Halted"
            && value_at(&object, "/spec/running") != Some(&Value::Bool(false)));
    let host = Some(string_at(&object, "/status/nodeName")).filter(|host| !host.is_empty());
    let is_instance = kind == "VirtualMachineInstance";
    let has_deployment = if is_instance {
        value_at(&object, "/metadata/labels/md").is_some()
    } else {
        has_deployment(&object)
    };
    let is_external = is_instance
        && host.is_some()
        && string_at(&object, "/spec/evictionStrategy") == EXTERNAL_STRATEGY;
    let drain = DrainFacts::read(&object, has_deployment);
    Ok(FleetObject::Machine(Box::new(FleetMachine {
        machine,
        kind,
        host: host.map(str::to_owned),
        should_run: is_on,
        migration_obstacle: is_external.then(|| migration_obstacle(&object)).flatten(),
        is_external,
        has_deployment,
        drain,
        class: class.map(str::to_owned),
        claims: machine_claims(&object),
    })))
}

/// Returns true if a MachineDeployment owns the VirtualMachine. If the two are in different namespaces, an annotation
/// of the VirtualMachine names the MachineDeployment.
fn has_deployment(machine: &Value) -> bool {
    let owner = controller_reference(machine);
    let annotations = value_at(machine, "/metadata/annotations");
    owner.is_some_and(|owner| owner["kind"] == MACHINE_DEPLOYMENT_KIND)
        || annotations.is_some_and(|all| all.get(MACHINE_DEPLOYMENT_UID_ANNOTATION).is_some())
}

pub(super) fn fatal_problem(invalid: Invalid) -> Problem {
    Problem::new(invalid.object, invalid.field, "", invalid.message).into_fatal("left out")
}

fn required_name(kind: &str, location: &str, object: &Value) -> Result<String, Problem> {
    let name = string_at(object, "/metadata/name");
    if name.is_empty() {
        let problem =
            Problem::new(format!("{kind} in {location}"), "metadata.name", "", "is missing");
        return Err(problem.into_fatal("left out"));
    }
    Ok(name.to_owned())
}
