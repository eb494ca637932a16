//! Reads the machines that must leave a host, with their MachineDeployments and migrations, from the API server.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::EVACUATION_ANNOTATION;
use berth_kubevirt_render::machines::reconcile_steps::NodeReadiness;
use berth_runtime::call::with_timeout;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};

use super::evacuator::Evacuator;
use super::index::{InstanceFacts, MachineKey};
use super::informers::EvacuationInformers;
use super::resources::migration_resource;
use crate::api_resource::{deployment_resource, machine_resource};
use crate::evacuation::decide::{DeploymentKey, Deployments};
use crate::evacuation::deployment::DeploymentState;
use crate::evacuation::machine::{EvacuatingMachine, Machine, is_ready, ready_since};
use crate::evacuation::migration::Migration;
use crate::evacuation::record::EvacuationRecord;
use crate::machine_owner::is_owned_by;
use crate::run::node_readiness::find_node_readiness;
use crate::run::reconcile::ReconcileFailure;

/// Machines that must leave a host.
pub(super) struct Evacuation {
    pub(super) machines: Vec<ObservedMachine>,
    pub(super) deployments: Deployments,
}

/// A machine that must leave a host.
pub(super) struct ObservedMachine {
    /// The VirtualMachine.
    pub(super) object: DynamicObject,
    pub(super) evacuating: EvacuatingMachine,
    /// The evacuation record in the annotation of the VirtualMachine.
    pub(super) record: Option<EvacuationRecord>,
}

impl ObservedMachine {
    pub(super) fn qualified_name(&self) -> String {
        format!("{}/{}", self.evacuating.namespace, self.evacuating.machine.name)
    }
}

impl Evacuator {
    /// Reads the machines that must leave a host, in the order of their names.
    pub(super) async fn read(
        &self,
        keys: &[MachineKey],
        now: Timestamp,
    ) -> Result<Evacuation, ReconcileFailure> {
        let mut migrations: BTreeMap<String, Vec<Migration>> = BTreeMap::new();
        let mut deployment_keys: BTreeSet<DeploymentKey> = BTreeSet::new();
        for (namespace, name) in keys {
            let instance = self.informers.instances.informer().get(namespace, name);
            let labels = instance.as_ref().and_then(|one| one.metadata.labels.as_ref());
            if let Some(deployment) = labels.and_then(|labels| labels.get("md")) {
                deployment_keys.insert((namespace.clone(), deployment.clone()));
            }
        }
        let namespaces: BTreeSet<&String> = keys.iter().map(|(namespace, _)| namespace).collect();
        for namespace in namespaces {
            let all =
                self.list(&migration_resource(), Some(namespace), ListParams::default()).await?;
            let all = all.iter().map(Migration::read).collect();
            migrations.insert(namespace.clone(), all);
        }
        let mut evacuation = Evacuation { machines: Vec::new(), deployments: BTreeMap::new() };
        for deployment_key in deployment_keys {
            self.read_deployment(deployment_key, keys, &migrations, now, &mut evacuation).await?;
        }
        evacuation.machines.sort_by_key(ObservedMachine::qualified_name);
        Ok(evacuation)
    }

    /// Reads a MachineDeployment and its machines, and adds the machines that are in `keys` to `evacuation`.
    async fn read_deployment(
        &self,
        deployment_key: DeploymentKey,
        keys: &[MachineKey],
        migrations: &BTreeMap<String, Vec<Migration>>,
        now: Timestamp,
        evacuation: &mut Evacuation,
    ) -> Result<(), ReconcileFailure> {
        let (namespace, deployment) = &deployment_key;
        let selector = ListParams::default().labels(&format!("md={deployment}"));
        let objects = self.list(&machine_resource(), Some(namespace), selector).await?;
        let facts = |object: &DynamicObject| {
            let instance = self.informers.instances.informer().get(namespace, &object.name_any());
            instance.map(|one| (one.uid().unwrap_or_default(), InstanceFacts::read(&one)))
        };
        let names: Vec<String> = objects.iter().map(|object| object.name_any()).collect();
        let EvacuationInformers { tenants, connections, .. } = &self.informers;
        let each = names.iter().map(String::as_str);
        // The store omits Nodes that exceed its limits. With `NotReady`, the machines of these Nodes would be removed
        // at once.
        let omitted = NodeReadiness::Unknown;
        let nodes = find_node_readiness(tenants, connections, namespace, each, omitted);
        let nodes: BTreeMap<String, NodeReadiness> = names.into_iter().zip(nodes).collect();
        let machine = |object: &DynamicObject| {
            let instance_since = facts(object).and_then(|(_, facts)| facts.ready_since);
            let node = nodes.get(&object.name_any()).copied().unwrap_or_default();
            Machine {
                is_ready: is_ready(instance_since.is_some(), node),
                ready_since: ready_since(instance_since, node),
                ..Machine::read(object, now)
            }
        };
        // The MachineDeployment may be in another namespace than its machines.
        let selector = ListParams::default().fields(&format!("metadata.name={deployment}"));
        let owners = self.list(&deployment_resource(), None, selector).await?;
        let owner = owners.into_iter().find(|owner| {
            objects.iter().any(|object| is_owned_by(object, owner.metadata.uid.as_deref()))
        });
        let owner_id = owner.as_ref().and_then(|owner| owner.uid());
        let is_owned = |object: &DynamicObject| is_owned_by(object, owner_id.as_deref());
        if let Some(owner) = &owner {
            let own: Vec<Machine> =
                objects.iter().filter(|object| is_owned(object)).map(machine).collect();
            let value = serde_json::to_value(owner).unwrap_or_default();
            let state = DeploymentState::read(value, &own, now);
            evacuation.deployments.insert(deployment_key.clone(), state);
        }
        for object in objects {
            let key = (namespace.clone(), object.name_any());
            let Some((instance_uid, facts)) = facts(&object).filter(|_| keys.contains(&key)) else {
                continue;
            };
            let own = migrations.get(namespace).into_iter().flatten();
            let mut machine = machine(&object);
            machine.removal_report = self.informers.removals.get(namespace, &key.1);
            let evacuating = EvacuatingMachine {
                namespace: namespace.clone(),
                machine,
                instance_uid,
                migration_obstacle: facts.migration_obstacle,
                deployment: is_owned(&object).then(|| deployment.clone()),
                migrations: own.filter(|one| one.instance == key.1).cloned().collect(),
            };
            let record = object.annotations().get(EVACUATION_ANNOTATION);
            let record = record.and_then(|text| EvacuationRecord::parse(text));
            evacuation.machines.push(ObservedMachine { object, evacuating, record });
        }
        Ok(())
    }

    /// Lists objects of a kind; the list is empty if the kind is not installed.
    async fn list(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Result<Vec<DynamicObject>, ReconcileFailure> {
        let client = self.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        match with_timeout(api.list(&params)).await {
            Ok(list) => Ok(list.items),
            Err(error) if error.status_code() == Some(404) => Ok(Vec::new()),
            Err(error) => {
                let request = format!("list {}", resource.plural);
                Err(ReconcileFailure::RequestFailed(request, error))
            }
        }
    }
}
