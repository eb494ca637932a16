//! Who is looked at when something happens: the deployments that it concerns, and no others.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use berth_api::names;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedSender;

use super::index::{Index, Place, Whose, deployment_of, place};
use super::{deployments, policies};
use berth_runtime::watch::OptionalInformer;

/// Those that wait to be looked at.
pub(super) type Queue = UnboundedSender<ReconcileRequest<DynamicObject>>;

/// What is kept of who belongs to whom.
pub(super) struct Wake {
    queue: Queue,
    /// Of deployments, machines and tenants. They are followed by what tells of news, so they come after it.
    stores: OnceLock<[OptionalInformer; 3]>,
    by_name: Index<String>,
    by_namespace: Index<String>,
    /// Machines by their namespace and their deployment's name.
    machines: Index<Place>,
    /// What deployments go by of each tenant, as it was last.
    tenants: Mutex<BTreeMap<String, Facts>>,
}

/// What a tenant's machines are made by: its uid and spec, how they are attached to its network, and whether its
/// NetworkPolicies are in force.
type Facts = (Option<String>, Option<i64>, Option<String>, bool);

impl Wake {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            stores: OnceLock::new(),
            by_name: Index::default(),
            by_namespace: Index::default(),
            machines: Index::default(),
            tenants: Mutex::default(),
        }
    }

    /// Where objects are looked up; before anything is told.
    pub(super) fn set(
        &self,
        deployments: &OptionalInformer,
        machines: &OptionalInformer,
        tenants: &OptionalInformer,
    ) {
        let stores = [deployments, machines, tenants].map(Clone::clone);
        // It is set once.
        self.stores.set(stores).unwrap_or_default();
    }

    fn look_at(&self, (namespace, name): Place) {
        let mut reference = ObjectRef::new_with(&name, deployments());
        reference.namespace = Some(namespace);
        // Without a receiver all is over.
        drop(self.queue.send(reference.into()));
    }

    fn look_at_all(&self, places: Vec<Place>) {
        places.into_iter().for_each(|place| self.look_at(place));
    }

    /// News of a deployment.
    pub(super) fn deployment(&self, object: &DynamicObject, is_gone: bool) {
        let place = place(object);
        self.by_name.note(place.1.clone(), place.clone(), !is_gone);
        self.by_namespace.note(place.0.clone(), place.clone(), !is_gone);
        self.look_at(place);
    }

    /// News of a machine.
    pub(super) fn machine(&self, machine: &DynamicObject, is_gone: bool) {
        let Some(deployment) = deployment_of(machine) else { return };
        let place = place(machine);
        self.machines.note((place.0.clone(), deployment.clone()), place, !is_gone);
        self.owners(machine, deployment);
    }

    /// News of a machine's instance. One whose machine is not there concerns nobody: machines are what counts.
    pub(super) fn instance(&self, instance: &DynamicObject, _: bool) {
        let Some([_, machines, _]) = self.stores.get() else { return };
        let (namespace, name) = place(instance);
        let machine = machines.get(&namespace, &name);
        if let Some((machine, deployment)) =
            machine.as_deref().and_then(|machine| Some((machine, deployment_of(machine)?)))
        {
            self.owners(machine, deployment);
        }
    }

    fn owners(&self, machine: &DynamicObject, deployment: &String) {
        match Whose::of(machine) {
            Whose::Of(place) => self.look_at(place),
            Whose::Uid(uid) => {
                let Some([deployments, ..]) = self.stores.get() else { return };
                let mut all = self.by_name.at(deployment);
                all.retain(|(namespace, name)| {
                    deployments.get(namespace, name).and_then(|one| one.uid()) == Some(uid.clone())
                });
                self.look_at_all(all);
            }
            Whose::Anybodys => self.look_at_all(self.by_name.at(deployment)),
        }
    }

    /// News of a tenant. Its status changes with every machine; what machines are made by, seldom.
    pub(super) fn tenant(&self, tenant: &DynamicObject, is_gone: bool) {
        let Some([_, _, tenants]) = self.stores.get() else { return };
        let name = tenant.name_any();
        let field = |pointer: &str| tenant.data.pointer(pointer)?.as_str().map(str::to_owned);
        // The namespace stands there as soon as it is reconciled.
        let attachment = field("/status/networkAttachmentDefinition");
        let attachment = attachment.or_else(|| field("/status/namespace"));
        let is_isolated = policies::not_in_force(tenant).is_none();
        let facts: Facts = (tenant.uid(), tenant.metadata.generation, attachment, is_isolated);
        let is_same = {
            let mut known = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            if is_gone {
                known.remove(&name);
                false
            } else {
                known.insert(name.clone(), facts.clone()) == Some(facts)
            }
        };
        if is_same {
            return;
        }
        // Where a namespace is no tenant's, deployments name theirs themselves.
        let concerns = |namespace: &String| match namespace.strip_prefix("cluster-") {
            Some(other) => other == name || tenants.named(other).is_none(),
            None => true,
        };
        self.look_at_all(self.by_namespace.of(concerns));
    }

    /// News of machine-controller's own machines.
    pub(super) fn foreign(&self, machine: &DynamicObject, _: bool) {
        self.look_at_all(self.by_namespace.at(&machine.namespace().unwrap_or_default()));
    }

    /// Machines of a namespace that carry a deployment's name.
    pub(super) fn machines_of(&self, namespace: &str, deployment: &str) -> Vec<Place> {
        self.machines.at(&(namespace.to_owned(), deployment.to_owned()))
    }

    /// Namespaces with machines that were made for a deployment, by its uid. Of all namespaces, so for rare use.
    pub(super) fn namespaces_of(&self, object: &DynamicObject) -> Vec<String> {
        let Some([_, machines, _]) = self.stores.get() else { return Vec::new() };
        let name = object.name_any();
        let all = self.machines.of(|(_, deployment)| *deployment == name);
        let is_its = |(namespace, name): &Place| {
            let machine = machines.get(namespace, name)?;
            let owner = machine.owner_references().iter().find(|one| one.controller == Some(true));
            let marked = machine.annotations().get(names::MACHINE_DEPLOYMENT_UID);
            let uid = owner.map(|owner| &owner.uid).or(marked);
            (uid.is_some() && uid == object.metadata.uid.as_ref()).then(|| namespace.clone())
        };
        all.iter().filter_map(is_its).collect()
    }

    /// Deployments of a namespace.
    pub(super) fn beside(&self, namespace: &str) -> Vec<Place> {
        self.by_namespace.at(&namespace.to_owned())
    }
}
