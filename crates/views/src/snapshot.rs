//! Objects of an infra cluster, as the views need them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use berth_api::{
    AddressClaim, InfraConfig, InfraConfigSpec, InfraNode, Problem, TenantCluster, Time, VlanClaim,
    names,
};
use serde::Serialize;
use serde_json::Value;

use crate::kind::Kind;
use crate::objects::{
    AddressClaimFields, DeploymentFields, InstanceFields, MachineFields, NodeFields, ObjectName,
    PodFields, ServiceFields, StorageClassFields,
};
use crate::parse::deserialize_object;

/// Objects of an infra cluster. Copies share the large objects.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<NodeFields>>,
    /// InfraNodes by name.
    pub infra_nodes: BTreeMap<String, Arc<InfraNode>>,
    /// TenantClusters by name.
    pub tenants: BTreeMap<String, Arc<TenantCluster>>,
    /// The InfraConfig `default`.
    pub config: Option<InfraConfigSpec>,
    /// VlanClaims by name.
    pub vlan_claims: BTreeMap<String, VlanClaim>,
    /// AddressClaims that are not released, by name.
    pub address_claims: BTreeMap<String, AddressClaimFields>,
    /// MachineDeployments.
    pub deployments: BTreeMap<ObjectName, DeploymentFields>,
    /// VirtualMachines.
    pub machines: BTreeMap<ObjectName, Arc<MachineFields>>,
    /// VirtualMachineInstances. The name is that of the VirtualMachine.
    pub instances: BTreeMap<ObjectName, Arc<InstanceFields>>,
    /// Launcher pods.
    pub pods: BTreeMap<ObjectName, Arc<PodFields>>,
    /// Services for the access to machines.
    pub services: BTreeMap<ObjectName, ServiceFields>,
    /// StorageClasses by name.
    pub storage_classes: BTreeMap<String, StorageClassFields>,
    /// Kinds that were not read completely.
    pub unread: Vec<Unread>,
    /// Kinds that can no longer be watched, with the time since which their objects may have changed.
    pub outdated: BTreeMap<Kind, Time>,
    /// Objects that were left out, by kind, namespace and name.
    malformed: BTreeMap<(Kind, ObjectName), Problem>,
}

/// Objects that were not read, because the user has no permission or because the kind is not installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unread {
    #[serde(skip)]
    pub kind: Kind,
    /// Plural name of the kind.
    pub objects: &'static str,
    /// Namespace of the objects that were read nevertheless; absent if none were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
    /// Reason, such as the message of the API server.
    pub reason: String,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, only_namespace, reason, .. } = self;
        match only_namespace {
            Some(namespace) => write!(f, "{objects} outside namespace {namespace}: {reason}"),
            None => write!(f, "{objects}: {reason}"),
        }
    }
}

impl Snapshot {
    /// Adds an object, or replaces the object with its name. An object that cannot be parsed is left out, and becomes a
    /// problem.
    pub fn add(&mut self, kind: Kind, object: &Value) {
        let meta = |field: &str| object.get("metadata").and_then(|meta| meta.get(field)?.as_str());
        let name = ObjectName::new(
            meta("namespace").unwrap_or_default(),
            meta("name").unwrap_or_default(),
        );
        self.remove(kind, &name);
        if name.name.is_empty() {
            let [_, _, kind_name, plural] = kind.resource();
            let problem =
                Problem::new(format!("{kind_name} in {plural}"), "metadata.name", "", "is missing");
            self.malformed.insert((kind, name), problem.into_fatal("left out"));
            return;
        }
        if let Err(problem) = self.insert(kind, name.clone(), object) {
            self.malformed.insert((kind, name), problem);
        }
    }

    fn insert(&mut self, kind: Kind, name: ObjectName, object: &Value) -> Result<(), Problem> {
        let [_, _, kind_name, plural] = kind.resource();
        match kind {
            Kind::AddressClaim => {
                let claim: AddressClaim = deserialize_object(kind_name, plural, object)?;
                if claim.status.is_none_or(|status| status.released_at.is_none()) {
                    let machine = claim.spec.machine;
                    let fields = AddressClaimFields {
                        machine: ObjectName::new(machine.namespace, machine.name),
                        network: claim.spec.network,
                        address: claim.spec.address,
                        interface: claim.spec.interface,
                    };
                    self.address_claims.insert(name.name, fields);
                }
            }
            Kind::InfraConfig => {
                let config: InfraConfig = deserialize_object(kind_name, plural, object)?;
                if name.name == names::INFRA_CONFIG {
                    self.config = Some(config.spec);
                }
            }
            Kind::InfraNode => {
                let node = deserialize_object(kind_name, plural, object)?;
                self.infra_nodes.insert(name.name, Arc::new(node));
            }
            Kind::TenantCluster => {
                let tenant = deserialize_object(kind_name, plural, object)?;
                self.tenants.insert(name.name, Arc::new(tenant));
            }
            Kind::VlanClaim => {
                let claim = deserialize_object(kind_name, plural, object)?;
                self.vlan_claims.insert(name.name, claim);
            }
            Kind::LauncherPod => {
                self.pods.insert(name, Arc::new(PodFields::read(object)));
            }
            Kind::MachineDeployment => {
                self.deployments.insert(name, DeploymentFields::read(object));
            }
            Kind::Node => {
                self.nodes.insert(name.name, Arc::new(NodeFields::read(object)));
            }
            Kind::MachineService => drop(self.services.insert(name, ServiceFields::read(object))),
            Kind::StorageClass => {
                self.storage_classes.insert(name.name, StorageClassFields::read(object));
            }
            Kind::VirtualMachine => {
                self.machines.insert(name, Arc::new(MachineFields::read(object)));
            }
            Kind::VirtualMachineInstance => {
                self.instances.insert(name, Arc::new(InstanceFields::read(object)));
            }
        }
        Ok(())
    }

    /// Removes an object.
    pub fn remove(&mut self, kind: Kind, name: &ObjectName) {
        self.malformed.remove(&(kind, name.clone()));
        match kind {
            Kind::AddressClaim => drop(self.address_claims.remove(&name.name)),
            Kind::InfraConfig if name.name == names::INFRA_CONFIG => self.config = None,
            Kind::InfraConfig => {}
            Kind::InfraNode => drop(self.infra_nodes.remove(&name.name)),
            Kind::TenantCluster => drop(self.tenants.remove(&name.name)),
            Kind::VlanClaim => drop(self.vlan_claims.remove(&name.name)),
            Kind::LauncherPod => drop(self.pods.remove(name)),
            Kind::MachineDeployment => drop(self.deployments.remove(name)),
            Kind::Node => drop(self.nodes.remove(&name.name)),
            Kind::MachineService => drop(self.services.remove(name)),
            Kind::StorageClass => drop(self.storage_classes.remove(&name.name)),
            Kind::VirtualMachine => drop(self.machines.remove(name)),
            Kind::VirtualMachineInstance => drop(self.instances.remove(name)),
        }
    }

    /// Removes all objects of a kind.
    pub fn clear(&mut self, kind: Kind) {
        self.malformed.retain(|(of, _), _| *of != kind);
        match kind {
            Kind::AddressClaim => self.address_claims.clear(),
            Kind::InfraConfig => self.config = None,
            Kind::InfraNode => self.infra_nodes.clear(),
            Kind::TenantCluster => self.tenants.clear(),
            Kind::VlanClaim => self.vlan_claims.clear(),
            Kind::LauncherPod => self.pods.clear(),
            Kind::MachineDeployment => self.deployments.clear(),
            Kind::Node => self.nodes.clear(),
            Kind::MachineService => self.services.clear(),
            Kind::StorageClass => self.storage_classes.clear(),
            Kind::VirtualMachine => self.machines.clear(),
            Kind::VirtualMachineInstance => self.instances.clear(),
        }
    }

    /// Records that objects of a kind were not read, or only those in one namespace.
    pub fn set_unread(
        &mut self,
        kind: Kind,
        only_namespace: Option<&str>,
        reason: impl Into<String>,
    ) {
        let [_, _, _, objects] = kind.resource();
        let only_namespace = only_namespace.map(str::to_owned);
        self.unread.push(Unread { kind, objects, only_namespace, reason: reason.into() });
    }

    /// Returns true if objects of the kind were not read.
    #[must_use]
    pub fn is_unread(&self, kind: Kind) -> bool {
        self.unread.iter().any(|unread| unread.kind == kind)
    }

    /// Returns true if no objects of the kind were read, not even those in one namespace.
    #[must_use]
    pub fn is_refused(&self, kind: Kind) -> bool {
        self.unread.iter().any(|unread| unread.kind == kind && unread.only_namespace.is_none())
    }

    /// Returns the problems of objects that were left out.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.malformed.values()
    }

    /// Adds the problems of another snapshot's objects that `is_selected` accepts.
    pub fn copy_problems(&mut self, other: &Self, is_selected: impl Fn(Kind, &ObjectName) -> bool) {
        let selected = other.malformed.iter().filter(|((kind, name), _)| is_selected(*kind, name));
        self.malformed.extend(selected.map(|(key, problem)| (key.clone(), problem.clone())));
    }

    /// Returns the names of the objects of a kind that were left out.
    pub fn malformed_names(&self, kind: Kind) -> impl Iterator<Item = &ObjectName> {
        let names = self.malformed.keys().filter(move |(of, _)| *of == kind);
        names.map(|(_, name)| name).filter(|name| !name.name.is_empty())
    }

    /// Returns true if the object was left out because it cannot be parsed.
    #[must_use]
    pub fn is_malformed(&self, kind: Kind, name: &ObjectName) -> bool {
        self.malformed.contains_key(&(kind, name.clone()))
    }
}
