//! Index of machines by host, and of AddressClaims by machine, from which the HostLeases of a host are computed without
//! searching all claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{AddressClaim, ClaimingMachine};
use kube::ResourceExt as _;
use serde_json::Value;

use super::host_leases::is_active;

/// Index of the hosts of machines and of the machines' active claims.
#[derive(Debug, Default)]
pub struct LeaseIndex {
    hosts: BTreeMap<ClaimingMachine, BTreeSet<String>>,
    machines: BTreeMap<String, BTreeSet<ClaimingMachine>>,
    claims: BTreeMap<ClaimingMachine, Vec<Arc<AddressClaim>>>,
}

impl LeaseIndex {
    /// Sets the hosts of a machine, and returns the hosts that are affected by the change. A machine without a
    /// VirtualMachineInstance has no hosts.
    pub fn set_hosts(
        &mut self,
        machine: &ClaimingMachine,
        hosts: BTreeSet<String>,
    ) -> BTreeSet<String> {
        let before = self.hosts.remove(machine).unwrap_or_default();
        let affected: BTreeSet<String> = before.symmetric_difference(&hosts).cloned().collect();
        for host in &affected {
            if hosts.contains(host) {
                self.machines.entry(host.clone()).or_default().insert(machine.clone());
            } else if let Some(machines) = self.machines.get_mut(host) {
                machines.remove(machine);
                if machines.is_empty() {
                    self.machines.remove(host);
                }
            }
        }
        if !hosts.is_empty() {
            self.hosts.insert(machine.clone(), hosts);
        }
        affected
    }

    /// Replaces the claim of this name by its current version, or removes it if `current` is `None`. Returns the hosts
    /// that are affected by the change. `machines` contains the machines to which any version of the claim has
    /// referred.
    pub fn set_claim<'m>(
        &mut self,
        name: &str,
        machines: impl IntoIterator<Item = &'m ClaimingMachine>,
        current: Option<&'m Arc<AddressClaim>>,
    ) -> BTreeSet<String> {
        let current = current.filter(|claim| is_active(claim));
        let mut affected = BTreeSet::new();
        let machines: BTreeSet<&ClaimingMachine> =
            machines.into_iter().chain(current.map(|claim| &claim.spec.machine)).collect();
        for machine in machines {
            let own = current.filter(|claim| claim.spec.machine == *machine);
            let claims = self.claims.entry(machine.clone()).or_default();
            let before = claims.iter().position(|claim| claim.name_any() == name);
            let before = before.map(|at| claims.swap_remove(at));
            claims.extend(own.cloned());
            if claims.is_empty() {
                self.claims.remove(machine);
            }
            if before.map(|claim| claim.spec.clone()) != own.map(|claim| claim.spec.clone()) {
                affected.extend(self.hosts.get(machine).into_iter().flatten().cloned());
            }
        }
        affected
    }

    /// Replaces all claims. All hosts are affected.
    pub fn replace_claims(&mut self, all: impl IntoIterator<Item = Arc<AddressClaim>>) {
        self.claims.clear();
        for claim in all.into_iter().filter(|claim| is_active(claim)) {
            self.claims.entry(claim.spec.machine.clone()).or_default().push(claim);
        }
    }

    /// Returns the active claims of the machines on a host.
    #[must_use]
    pub fn claims_on(&self, host: &str) -> Vec<Arc<AddressClaim>> {
        let machines = self.machines.get(host).into_iter().flatten();
        machines.filter_map(|machine| self.claims.get(machine)).flatten().cloned().collect()
    }

    /// Returns the hosts on which machines of a tenant are.
    #[must_use]
    pub fn hosts_of_tenant(&self, tenant: &str) -> BTreeSet<String> {
        let is_of_tenant = |claim: &Arc<AddressClaim>| claim.spec.tenant == tenant;
        let machines = self.claims.iter().filter(|(_, claims)| claims.iter().any(is_of_tenant));
        machines.filter_map(|(machine, _)| self.hosts.get(machine)).flatten().cloned().collect()
    }
}

/// Returns the hosts of a VM according to its VirtualMachineInstance: the host that runs it, and during a live
/// migration also the target host. virt-controller sets `migrationState.targetNode` when the target's pod is ready,
/// which is before the guest arrives; `nodeName` when the first pod is ready; and `activePods` when a pod has a Node.
#[must_use]
pub fn hosts_of_instance(instance: &Value) -> BTreeSet<String> {
    let status = &instance["status"];
    let mut hosts = BTreeSet::new();
    if ["Succeeded", "Failed"].contains(&status["phase"].as_str().unwrap_or_default()) {
        return hosts;
    }
    let mut add = |host: &Value| {
        hosts.extend(host.as_str().filter(|host| !host.is_empty()).map(str::to_owned));
    };
    let migration = &status["migrationState"];
    if migration["failed"] != true {
        add(&migration["targetNode"]);
    }
    if status["nodeName"].as_str().is_some_and(|host| !host.is_empty()) {
        add(&status["nodeName"]);
    } else {
        status["activePods"].as_object().into_iter().flatten().for_each(|(_, host)| add(host));
    }
    hosts
}
