//! Hosts of all machines, with an index by host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Namespace and name of a machine.
pub type MachineName = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineHost {
    pub name: String,
    /// Target of a live migration that has not ended.
    pub migration_target: Option<String>,
}

impl MachineHost {
    /// Reads the host of a VM from its VirtualMachineInstance; `None` if the VM is on no host, or has ended.
    #[must_use]
    pub fn of_instance(instance: &Value) -> Option<Self> {
        let status = &instance["status"];
        let name = status["nodeName"].as_str().filter(|name| !name.is_empty())?;
        if ["Succeeded", "Failed"].contains(&status["phase"].as_str().unwrap_or_default()) {
            return None;
        }
        // `migrationState` remains after the end of a migration. After a success, the host is the target.
        let migration = &status["migrationState"];
        let target = migration["targetNode"].as_str().filter(|target| !target.is_empty());
        let target = target.filter(|target| *target != name && migration["failed"] != true);
        Some(Self { name: name.to_owned(), migration_target: target.map(str::to_owned) })
    }
}

#[derive(Clone, Debug, Default)]
pub struct MachineHosts {
    hosts: BTreeMap<MachineName, MachineHost>,
    machines: BTreeMap<String, BTreeSet<MachineName>>,
}

impl MachineHosts {
    /// Sets the host of a machine; `None` if it is on no host. Returns the hosts that the change affects.
    pub fn set(&mut self, machine: &MachineName, host: Option<MachineHost>) -> BTreeSet<String> {
        let before = self.hosts.get(machine);
        if before == host.as_ref() {
            return BTreeSet::new();
        }
        let affected: BTreeSet<String> =
            before.into_iter().chain(&host).map(|host| host.name.clone()).collect();
        if let Some(before) = self.hosts.remove(machine)
            && let Some(machines) = self.machines.get_mut(&before.name)
        {
            machines.remove(machine);
            if machines.is_empty() {
                self.machines.remove(&before.name);
            }
        }
        if let Some(host) = host {
            self.machines.entry(host.name.clone()).or_default().insert(machine.clone());
            self.hosts.insert(machine.clone(), host);
        }
        affected
    }

    /// Returns the host of a machine.
    #[must_use]
    pub fn host_of(&self, machine: &MachineName) -> Option<&MachineHost> {
        self.hosts.get(machine)
    }

    /// Returns the machines on a host.
    #[must_use]
    pub fn machines_on(&self, host: &str) -> Vec<MachineName> {
        self.machines.get(host).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_are_found_by_host() {
        let mut index = MachineHosts::default();
        let machine = ("cluster-a".to_owned(), "web-1".to_owned());
        let on = |name: &str| Some(MachineHost { name: name.to_owned(), migration_target: None });
        assert_eq!(index.set(&machine, on("a")).len(), 1);
        assert!(index.set(&machine, on("a")).is_empty());
        assert_eq!(index.set(&machine, on("b")).len(), 2);
        assert!(index.machines_on("a").is_empty());
        assert_eq!(index.machines_on("b"), std::slice::from_ref(&machine));
        index.set(&machine, None);
        assert!(index.hosts.is_empty() && index.machines.is_empty());
    }

    #[test]
    fn a_machine_is_on_its_source_during_a_migration() {
        let host = |status: Value| {
            let host = MachineHost::of_instance(&json!({"status": status}))?;
            Some((host.name, host.migration_target))
        };
        let running = json!({"phase": "Running", "nodeName": "a"});
        assert_eq!(host(running), Some(("a".to_owned(), None)));
        let mut status =
            json!({"phase": "Running", "nodeName": "a", "migrationState": {"targetNode": "b"}});
        assert_eq!(host(status.clone()), Some(("a".to_owned(), Some("b".to_owned()))));
        status["migrationState"]["failed"] = true.into();
        assert_eq!(host(status.clone()), Some(("a".to_owned(), None)));
        status["nodeName"] = "b".into();
        assert_eq!(host(status), Some(("b".to_owned(), None)));
        assert_eq!(host(json!({"phase": "Failed", "nodeName": "a"})), None);
        assert_eq!(host(json!({"phase": "Scheduling"})), None);
        assert_eq!(host(json!("x")), None);
    }
}
