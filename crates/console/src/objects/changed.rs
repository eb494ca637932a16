//! A change of the store, with the hosts and machines that it concerns.

use std::collections::BTreeSet;

use berth_views::{Kind, ObjectName, Snapshot};

/// A change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) kind: Kind,
    /// The object that was created, changed or deleted; `None` if any object of the kind may have changed.
    pub(crate) name: Option<ObjectName>,
    pub(crate) relations: Relations,
}

impl Changed {
    /// Any object of the kind may have changed.
    pub(crate) fn of_kind(kind: Kind) -> Self {
        Self { kind, name: None, relations: Relations::default() }
    }
}

/// Hosts and machines of an object, before and after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Relations {
    pub(crate) hosts: BTreeSet<String>,
    pub(crate) machines: BTreeSet<ObjectName>,
}

impl Relations {
    /// Adds the hosts and machines of an object in the snapshot.
    pub(super) fn add(&mut self, all: &Snapshot, kind: Kind, name: &ObjectName) {
        let host_of = |machine: &ObjectName| all.instances.get(machine)?.host.clone();
        match kind {
            Kind::InfraNode | Kind::Node => {
                self.hosts.insert(name.name.clone());
            }
            Kind::VirtualMachine | Kind::VirtualMachineInstance => {
                self.hosts.extend(host_of(name));
                self.machines.insert(name.clone());
            }
            Kind::LauncherPod => {
                if let Some(pod) = all.pods.get(name) {
                    self.hosts.extend(pod.host.clone());
                    let vm = pod.vm.as_deref();
                    self.machines.extend(vm.map(|vm| ObjectName::new(name.namespace.as_str(), vm)));
                }
            }
            Kind::AddressClaim => {
                let claim = all.address_claims.get(&name.name);
                self.machines.extend(claim.map(|claim| claim.machine.clone()));
            }
            Kind::InfraConfig
            | Kind::MachineDeployment
            | Kind::MachineService
            | Kind::StorageClass
            | Kind::TenantCluster
            | Kind::VlanClaim => {}
        }
    }
}
