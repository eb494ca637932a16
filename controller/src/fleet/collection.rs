//! Objects of a fleet, sorted by kind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use berth_api::{HostProfile, InfraNode, VlanClaim};
use k8s_openapi::api::core::v1;
use serde_json::Value;

use super::kinds::{self, string_at};
use super::machine::FleetMachine;
use super::object::{FleetItem, FleetObject, fatal_problem};
use super::planned::{MachineCounts, PlannedTenant};
use super::storage::StorageObjects;
use berth_api::Problem;
use berth_kubevirt_render::launcher::{ClusterObjects, Configuration};
use berth_kubevirt_render::machines::{self, MachineDeployment};

/// A fleet: the hosts, the running workloads, and the workloads to be placed.
#[derive(Debug, Default)]
pub struct Fleet {
    /// InfraNodes by name.
    pub infra_nodes: BTreeMap<String, InfraNode>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, v1::Node>,
    /// HostProfiles by name.
    pub profiles: BTreeMap<String, HostProfile>,
    /// VirtualMachines and VirtualMachineInstances, in input order. A machine has more than a kilobyte, which would be
    /// copied at each growth of the vector.
    pub machines: Vec<Box<FleetMachine>>,
    /// Pods by namespace and name.
    pub pods: BTreeMap<(String, String), v1::Pod>,
    /// Objects that launcher pods depend on: instance types, preferences, network definitions and namespaces.
    pub cluster_objects: ClusterObjects,
    /// KubeVirt's configuration.
    pub kubevirt_configuration: Configuration,
    /// MachineDeployments, in input order.
    pub deployments: Vec<MachineDeployment>,
    /// Fields of all MachineDeployments, also of invalid ones, that decide how machines leave a drained host.
    pub deployment_fields: Vec<Value>,
    /// Objects that the rendering of machines reads: tenants, defaults and storage.
    pub render_context: machines::RenderContext,
    /// Objects on which the hosts of VMs with volumes depend.
    pub storage: StorageObjects,
    /// Existing VlanClaims.
    pub claims: Vec<Arc<VlanClaim>>,
    /// Tenants, each with its planned network.
    pub tenants: Vec<PlannedTenant>,
    /// Numbers of machines that MachineDeployments would create. The machines themselves are in `machines`.
    pub machine_counts: Vec<MachineCounts>,
    /// Number of objects that were ignored, by kind.
    pub ignored_counts: BTreeMap<String, usize>,
    /// Problems of the input objects.
    pub problems: Vec<Problem>,
}

impl Fleet {
    /// Sorts objects by kind, and adds the planned objects of tenants and MachineDeployments.
    #[must_use]
    pub fn from_items(items: Vec<FleetItem>, problems: Vec<Problem>) -> Self {
        let mut fleet = Self { problems, ..Self::default() };
        let mut machine_indices = HashMap::with_capacity(items.len());
        for FleetItem { location, object } in items {
            let added =
                object.and_then(|object| fleet.add(object, &location, &mut machine_indices));
            if let Err(problem) = added {
                fleet.problems.push(problem);
            }
        }
        fleet.add_tenant_objects();
        fleet.expand_deployments();
        fleet
    }

    /// Adds a MachineDeployment with its missing machines to a fleet that has no MachineDeployments.
    pub fn add_deployment(&mut self, item: FleetItem) {
        let FleetItem { location, object } = item;
        let added = object.and_then(|object| self.add(object, &location, &mut HashMap::new()));
        if let Err(problem) = added {
            self.problems.push(problem);
        }
        self.expand_deployments();
    }

    fn add(
        &mut self,
        object: FleetObject,
        location: &str,
        machine_indices: &mut HashMap<(String, String), usize>,
    ) -> Result<(), Problem> {
        let duplicate = match object {
            FleetObject::InfraNode(name, node) => {
                let qualified_name = format!("InfraNode {name}");
                self.infra_nodes.insert(name, *node).map(|_| qualified_name)
            }
            FleetObject::HostProfile(name, profile) => {
                let qualified_name = format!("HostProfile {name}");
                self.profiles.insert(name, *profile).map(|_| qualified_name)
            }
            FleetObject::Node(name, node) => {
                let qualified_name = format!("Node {name}");
                self.nodes.insert(name, *node).map(|_| qualified_name)
            }
            FleetObject::Pod(name, pod) => {
                let namespace = pod.metadata.namespace.clone();
                let namespace = namespace.unwrap_or_else(|| "default".to_owned());
                let qualified_name = format!("Pod {namespace}/{name}");
                self.pods.insert((namespace, name), *pod).map(|_| qualified_name)
            }
            FleetObject::Machine(machine) => {
                self.add_machine(machine, machine_indices);
                None
            }
            FleetObject::Configuration(configuration) => {
                self.kubevirt_configuration = *configuration;
                None
            }
            FleetObject::Deployment(deployment, fields) => {
                self.deployment_fields.push(fields);
                self.deployments.push((*deployment)?);
                None
            }
            FleetObject::DeploymentFields(fields) => {
                self.deployment_fields.push(fields);
                None
            }
            FleetObject::Tenant(name, tenant) => {
                let qualified_name = format!("TenantCluster {name}");
                self.render_context.tenants.insert(name, *tenant).map(|_| qualified_name)
            }
            FleetObject::Claim(claim) => {
                self.claims.push(Arc::new(*claim));
                None
            }
            FleetObject::Config(config) => {
                self.render_context.config = config.spec;
                None
            }
            FleetObject::Storage(object) => self.storage.add(object)?,
            FleetObject::Other(object) => {
                let in_render_context = self.render_context.add(&object);
                self.storage.add_class(location, &object)?;
                if !self.cluster_objects.add(&object).map_err(fatal_problem)? && !in_render_context
                {
                    let group = kinds::group_of_api_version(string_at(&object, "/apiVersion"));
                    *self
                        .ignored_counts
                        .entry(kinds::format_kind(string_at(&object, "/kind"), group))
                        .or_default() += 1;
                }
                None
            }
        };
        match duplicate {
            None => Ok(()),
            Some(object) => {
                let message = format!("is defined more than once; the one in {location} is used");
                Err(Problem::new(object, "", "", message))
            }
        }
    }

    /// Adds a machine. If a VirtualMachine and its VirtualMachineInstance, which have the same name, are both in the
    /// input, the instance determines the host.
    fn add_machine(
        &mut self,
        mut machine: Box<FleetMachine>,
        machine_indices: &mut HashMap<(String, String), usize>,
    ) {
        let key = (machine.machine.namespace.clone(), machine.machine.name.clone());
        let Some(&at) = machine_indices.get(&key) else {
            machine_indices.insert(key, self.machines.len());
            return self.machines.push(machine);
        };
        let Some(known) = self.machines.get_mut(at) else { return };
        if known.kind == machine.kind {
            let message = "is defined more than once; the last one is used";
            self.problems.push(Problem::new(&machine.machine.object, "", "", message));
            *known = machine;
        } else if machine.kind == "VirtualMachineInstance" {
            known.host = machine.host.take();
            known.migration_obstacle = machine.migration_obstacle.take();
            known.is_external = machine.is_external;
            known.drain.machine.is_ready = machine.drain.machine.is_ready;
            known.should_run = true;
        } else {
            machine.host = known.host.take();
            machine.migration_obstacle = known.migration_obstacle.take();
            machine.is_external = known.is_external;
            machine.drain.machine.is_ready = known.drain.machine.is_ready;
            machine.should_run = true;
            *known = machine;
        }
    }
}
