//! Subject of an open page: the changes that concern it.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::TenantCluster;
use berth_views::{Kind, ObjectName, Snapshot, hosts, machines, networks, tenants};

use crate::objects::changed::Changed;
use crate::objects::visible::Visible;

/// Maximum number of hosts that are replaced one by one. With more changes, the page is refreshed.
const MAX_TILES: usize = 20;

/// Page that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Fleet,
    Host(String),
    Machine(ObjectName),
    Tenant(String),
    /// A page with rows of these kinds.
    Rows(&'static [Kind]),
}

impl Subject {
    /// Parses the path of a page; `None` if the page has no changes.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            [] => Some(Self::Fleet),
            ["hosts", name] => Some(Self::Host((*name).to_owned())),
            ["vms", namespace, name] => Some(Self::Machine(ObjectName::new(*namespace, *name))),
            ["vms"] => Some(Self::Rows(&machines::KINDS)),
            ["tenants"] => Some(Self::Rows(&tenants::KINDS)),
            ["tenants", name] => Some(Self::Tenant((*name).to_owned())),
            ["networks"] => Some(Self::Rows(&networks::KINDS)),
            _ => None,
        }
    }

    /// Returns true if the page may show a difference after a change. `host_of` returns the host of a VM.
    pub(super) fn concerns(
        &self,
        changed: &Changed,
        host_of: impl Fn(&ObjectName) -> Option<String>,
    ) -> bool {
        let kind = changed.kind;
        let (hosts, of_machines) = (&changed.relations.hosts, &changed.relations.machines);
        let Some(name) = &changed.name else { return self.shows(kind) };
        match self {
            Self::Fleet | Self::Rows(_) => self.shows(kind),
            Self::Host(host) => self.shows(kind) && hosts.contains(host),
            // The report of the host names the CPUs of the VM.
            Self::Machine(machine) if kind == Kind::InfraNode => {
                host_of(machine).is_some_and(|host| host == name.name)
            }
            Self::Machine(machine) => self.shows(kind) && of_machines.contains(machine),
            Self::Tenant(tenant) => {
                let namespace = || TenantCluster::namespace_of(tenant);
                match kind {
                    Kind::TenantCluster => name.name == *tenant,
                    // Each host reports the trunk of the tenant.
                    Kind::InfraNode => true,
                    Kind::AddressClaim => {
                        let namespace = namespace();
                        of_machines.iter().any(|machine| machine.namespace == namespace)
                    }
                    kind => self.shows(kind) && name.namespace == namespace(),
                }
            }
        }
    }

    /// Returns true if the page shows objects of a kind.
    fn shows(&self, kind: Kind) -> bool {
        match self {
            Self::Fleet => matches!(kind, Kind::InfraNode | Kind::Node),
            Self::Host(_) => berth_views::host_detail::KINDS.contains(&kind),
            Self::Machine(_) => machines::KINDS.contains(&kind) || kind == Kind::InfraNode,
            Self::Tenant(_) => {
                let others = [Kind::InfraNode, Kind::MachineDeployment];
                tenants::DETAIL_KINDS.contains(&kind) || others.contains(&kind)
            }
            Self::Rows(kinds) => kinds.contains(&kind),
        }
    }

    /// Returns true if the objects of a user have the object of the page.
    pub(super) fn exists(&self, snapshot: &Snapshot) -> bool {
        match self {
            Self::Fleet | Self::Rows(_) => true,
            Self::Host(name) => hosts::find_without_vms(snapshot, name).is_some(),
            Self::Machine(name) => machines::find(snapshot, name).is_some(),
            Self::Tenant(name) => snapshot.tenants.contains_key(name),
        }
    }
}

/// Update of an open page after changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Update {
    Nothing,
    Refresh,
    /// Replaces these hosts.
    Hosts(BTreeSet<String>),
}

/// Decides on the update of a page after changes.
pub(super) fn update(subject: &Subject, visible: &Visible, batch: &[Arc<Changed>]) -> Update {
    let is_visible = |changed: &&Arc<Changed>| match &changed.name {
        Some(name) => visible.permits(changed.kind, name),
        None => true,
    };
    let seen: Vec<&Arc<Changed>> = batch.iter().filter(is_visible).collect();
    if seen.is_empty() {
        return Update::Nothing;
    }
    if *subject == Subject::Fleet && seen.iter().all(|changed| changed.name.is_some()) {
        let names = seen.iter().filter_map(|changed| Some(changed.name.as_ref()?.name.clone()));
        let hosts: BTreeSet<String> = names.collect();
        if hosts.len() <= MAX_TILES {
            return Update::Hosts(hosts);
        }
    }
    Update::Refresh
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::objects::store::Store;
    use crate::objects::visible::Scope;

    /// Returns a store with a VM on the host `a`.
    fn test_store() -> Store {
        let store = Store::default();
        let instance = json!({"metadata": {"namespace": "cluster-x", "name": "vm"},
            "status": {"nodeName": "a"}});
        store.add(Kind::VirtualMachineInstance, &instance);
        store
    }

    /// Adds an object, and returns the change.
    fn changed(store: &Store, kind: Kind, namespace: &str, name: &str) -> Arc<Changed> {
        let object = json!({"metadata": {"namespace": namespace, "name": name}});
        Arc::new(store.add(kind, &object).unwrap())
    }

    #[test]
    fn pages_are_updated_only_after_changes_that_they_show() {
        let store = test_store();
        let host = changed(&store, Kind::InfraNode, "", "a");
        let machine = changed(&store, Kind::VirtualMachine, "cluster-x", "vm");
        let tenant = changed(&store, Kind::TenantCluster, "", "x");
        for (path, expected) in [
            ("/", [true, false, false]),
            ("/?q=a", [true, false, false]),
            ("/hosts/a", [true, true, false]),
            ("/hosts/b", [false, false, false]),
            ("/vms", [false, true, false]),
            ("/vms/cluster-x/vm", [true, true, false]),
            ("/vms/cluster-x/other", [false, false, false]),
            ("/tenants", [false, false, true]),
            ("/tenants/x", [true, true, true]),
            ("/tenants/y", [true, false, false]),
            ("/networks", [true, false, true]),
        ] {
            let subject = Subject::parse(path).unwrap();
            let concerned = [&host, &machine, &tenant]
                .map(|changed| subject.concerns(changed, |machine| store.host_of(machine)));
            assert_eq!(concerned, expected, "{path}");
        }
        for path in ["/sign-in", "/hosts", "/hosts/a/b", "/vms/a/b/c"] {
            assert_eq!(Subject::parse(path), None, "{path}");
        }
    }

    #[test]
    fn objects_that_are_gone_are_noticed() {
        let everything = Visible::new(Kind::ALL.map(|kind| (kind, Scope::All)).into());
        let snapshot = test_store().select(&everything);
        for (path, exists) in [
            ("/", true),
            ("/vms", true),
            ("/vms/cluster-x/vm", true),
            ("/vms/cluster-x/other", false),
            ("/hosts/a", false),
            ("/tenants/x", false),
        ] {
            assert_eq!(Subject::parse(path).unwrap().exists(&snapshot), exists, "{path}");
        }
    }

    #[test]
    fn changes_of_objects_that_the_user_may_not_see_are_not_reported() {
        let store = Store::default();
        let own = Scope::Some(BTreeSet::from(["cluster-x".to_owned()]));
        let visible = Visible::new(BTreeMap::from([(Kind::VirtualMachine, own)]));
        let machines = Subject::parse("/vms").unwrap();
        for (namespace, expected) in
            [("cluster-x", Update::Refresh), ("cluster-y", Update::Nothing)]
        {
            let batch = [changed(&store, Kind::VirtualMachine, namespace, "vm")];
            assert_eq!(update(&machines, &visible, &batch), expected, "{namespace}");
        }
        let batch = [changed(&store, Kind::InfraNode, "", "a")];
        assert_eq!(update(&Subject::Fleet, &visible, &batch), Update::Nothing);
        let visible = Visible::new(BTreeMap::from([(Kind::InfraNode, Scope::All)]));
        let hosts = BTreeSet::from(["a".to_owned()]);
        assert_eq!(update(&Subject::Fleet, &visible, &batch), Update::Hosts(hosts));
    }
}
