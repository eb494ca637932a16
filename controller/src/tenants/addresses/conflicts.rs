//! Addresses of a tenant's machines that are already in use by other machines, according to the reports of the hosts'
//! agents.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::infra_node::AddressConflictStatus;
use berth_api::{AddressClaim, ClaimingMachine, ConditionReason, TenantCluster};
use kube::ResourceExt as _;

use super::claims::NetworkClaims;
use super::release::is_released;
use crate::tenants::fault::{Fault, join_names_limited};
use crate::tenants::hosts::TenantHostState;

/// Returns a fault that lists the addresses of the tenant's machines that are also in use by other machines, with the
/// machine, the host of its VM and the other machine. `claims` are the claims of the tenant's network.
///
/// An entry of a report is used only if the machine still has the claim of the address, so neither a stale nor a wrong
/// report can name a machine of another tenant. The last report of an unresponsive agent is ignored.
#[must_use]
pub fn find_conflicts(
    tenant: &TenantCluster,
    claims: &NetworkClaims,
    hosts: &[Arc<TenantHostState>],
) -> Option<Fault> {
    let network = TenantCluster::namespace_of(&tenant.name_any());
    let responsive = hosts.iter().filter(|host| host.unresponsive_since.is_none());
    let mut conflicts: BTreeMap<(IpAddr, &str), String> = BTreeMap::new();
    for host in responsive {
        for conflict in host.address_conflicts.iter().filter(|one| one.network == network) {
            if has_claim(claims, conflict) {
                let text = describe(conflict, &host.name);
                conflicts.insert((conflict.address, host.name.as_str()), text);
            }
        }
    }
    if conflicts.is_empty() {
        return None;
    }
    let texts: Vec<String> = conflicts.into_values().collect();
    let message = format!(
        "network {network}: {}: hosts do not answer the DHCP requests of these VMs; stop the other machines, or exclude the \
         addresses in spec.network and delete the VirtualMachines, whose replacements get other addresses",
        join_names_limited(&texts)
    );
    Some(Fault::new(ConditionReason::AddressInUse, message))
}

/// Returns true if the machine in an entry of a report has the claim of the address.
fn has_claim(claims: &NetworkClaims, conflict: &AddressConflictStatus) -> bool {
    let is_of_machine = |claim: &AddressClaim| {
        let ClaimingMachine { namespace, name } = &claim.spec.machine;
        conflict.machine.split_once('/') == Some((namespace.as_str(), name.as_str()))
    };
    claims.at(conflict.address).any(|claim| !is_released(claim) && is_of_machine(claim))
}

fn describe(conflict: &AddressConflictStatus, host: &str) -> String {
    let AddressConflictStatus { address, machine, mac, .. } = conflict;
    match mac {
        Some(mac) => {
            format!(
                "{address} of {machine} on host {host} is in use by a machine with MAC address {mac}"
            )
        }
        None => format!(
            "{address} of {machine} on host {host} is in use by another machine, as the guest reports"
        ),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::MacAddress;
    use serde_json::json;

    use super::super::choose::test_helpers::{claim, released};
    use super::*;

    fn host(name: &str, conflicts: &[(&str, &str, &str)]) -> Arc<TenantHostState> {
        let conflict = |(network, address, machine): &(&str, &str, &str)| AddressConflictStatus {
            network: (*network).to_owned(),
            address: address.parse().unwrap(),
            machine: (*machine).to_owned(),
            mac: address.contains('.').then_some(MacAddress([2, 0, 0, 0, 0, 9])),
        };
        let address_conflicts = conflicts.iter().map(conflict).collect();
        Arc::new(TenantHostState {
            name: name.to_owned(),
            address_conflicts,
            ..TenantHostState::default()
        })
    }

    fn fault(claims: &[AddressClaim], hosts: &[Arc<TenantHostState>]) -> Option<Fault> {
        let spec = serde_json::from_value(json!({"network": {"name": "trunk"}})).unwrap();
        let mut all = NetworkClaims::default();
        claims.iter().for_each(|claim| all.insert(Arc::new(claim.clone())));
        find_conflicts(&TenantCluster::new("a", spec), &all, hosts)
    }

    #[test]
    fn network_address_machine_host_and_remedy_are_named() {
        let claims = [claim("10.0.0.1", "x"), claim("fd00::1", "x")];
        let reports =
            [("cluster-a", "10.0.0.1", "cluster-a/x"), ("cluster-a", "fd00::1", "cluster-a/x")];
        let fault = fault(&claims, &[host("rack1-a", &reports)]).unwrap();
        assert_eq!(fault.reason, ConditionReason::AddressInUse);
        let expected = "network cluster-a: 10.0.0.1 of cluster-a/x on host rack1-a is in use by a machine with MAC address \
                        02:00:00:00:00:09, fd00::1 of cluster-a/x on host rack1-a is in use by another machine, as the guest \
                        reports: hosts do not answer";
        assert!(fault.message.starts_with(expected), "{}", fault.message);
        assert!(fault.message.contains("exclude the addresses"), "{}", fault.message);
    }

    #[test]
    fn reports_are_used_only_for_claims_of_the_machine() {
        let report = ("cluster-a", "10.0.0.1", "cluster-a/x");
        let hosts = [host("rack1-a", &[report])];
        assert!(fault(&[claim("10.0.0.1", "x")], &hosts).is_some());
        for claims in [vec![], vec![claim("10.0.0.1", "y")], vec![released("10.0.0.1", "x", 0)]] {
            assert_eq!(fault(&claims, &hosts), None, "{claims:?}");
        }
        let other = ("cluster-b", "10.0.0.1", "cluster-a/x");
        let claims = [claim("10.0.0.1", "x")];
        assert_eq!(fault(&claims, &[host("rack1-a", &[other])]), None);
        let mut unresponsive = host("rack1-a", &[report]).as_ref().clone();
        unresponsive.unresponsive_since = Some(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(fault(&claims, &[Arc::new(unresponsive)]), None);
    }
}
