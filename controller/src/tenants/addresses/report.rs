//! Status of a tenant's addresses: the condition `AddressesReady`, and `status.addresses` with the numbers of
//! addresses.

use std::sync::Arc;

use berth_api::{AddressClaim, AddressCount, ConditionReason, GrantedPrefix, TenantCluster};
use k8s_openapi::jiff::SignedDuration;

use super::claims::NetworkClaims;
use super::conflicts::find_conflicts;
use super::family::Family;
use super::pool::ValidPool;
use super::pools::NetworkPools;
use super::release::{is_released, quarantine_end};
use crate::tenants::fault::{Fault, join_names_limited};
use crate::tenants::hosts::TenantHostState;
use crate::tenants::status::{PartResult, ReadyPart, join_faults};

/// Maximum number of free addresses in the status, as the CRD specifies it: 2^31-1.
const MAX_FREE: u32 = i32::MAX.unsigned_abs();

/// State of a tenant's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressReport {
    /// State of the pools; `None` if the tenant has neither pools nor claims.
    pub part: Option<PartResult>,
    /// Numbers of allocated, quarantined and free addresses, by pool.
    pub counts: Vec<AddressCount>,
}

impl AddressReport {
    /// Returns the state of a tenant's addresses. `prefixes` are the prefixes that the tenant's network has from the
    /// pools in InfraConfig, and `claims` are the AddressClaims of this network. `hosts` contains the addresses that
    /// are in use by other machines, as the agents report them.
    #[must_use]
    pub fn new(
        tenant: &TenantCluster,
        prefixes: &[GrantedPrefix],
        claims: &NetworkClaims,
        quarantine: SignedDuration,
        hosts: &[Arc<TenantHostState>],
    ) -> Self {
        let network = tenant.spec.network.as_ref();
        let pools = network.map_or(Ok(None), |network| NetworkPools::new(network, prefixes));
        let conflict = find_conflicts(tenant, claims, hosts);
        let pools = match pools {
            Ok(pools) => pools,
            Err(fault) => {
                let faults: Vec<Fault> = [fault].into_iter().chain(conflict).collect();
                let part = Some(join_faults(&faults, ready_part(None, &[])));
                return Self { part, counts: Vec::new() };
            }
        };
        let counts: Vec<AddressCount> =
            pools.iter().flat_map(NetworkPools::iter).map(|pool| count(pool, claims)).collect();
        let outside: Vec<&AddressClaim> = claims
            .iter()
            .map(AsRef::as_ref)
            .filter(|claim| !is_released(claim) && !is_in_pool(claim, pools.as_ref()))
            .collect();
        let outside = (!outside.is_empty()).then(|| addresses_outside_pools_fault(&outside));
        let exhausted = find_exhausted(tenant, pools.as_ref(), &counts, claims, quarantine);
        let faults: Vec<Fault> = [outside, conflict, exhausted].into_iter().flatten().collect();
        if faults.is_empty() && pools.is_none() {
            return Self::default();
        }
        Self { part: Some(join_faults(&faults, ready_part(pools.as_ref(), &counts))), counts }
    }
}

/// Returns true if the network of a pool contains the address of a claim. The address may be outside of the pool's
/// `ranges` if it is from the list of a MachineDeployment.
fn is_in_pool(claim: &AddressClaim, pools: Option<&NetworkPools>) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    let is_fixed =
        annotations.is_some_and(|all| all.contains_key(berth_api::names::ADDRESSES_ANNOTATION));
    let address = claim.spec.address;
    pools
        .into_iter()
        .flat_map(NetworkPools::iter)
        .any(|pool| if is_fixed { pool.permits(address) } else { pool.allocates(address) })
}

fn count(pool: &ValidPool, claims: &NetworkClaims) -> AddressCount {
    let of_family = claims.iter().filter(|claim| Family::of(claim.spec.address) == pool.family);
    let (mut allocated, mut quarantined, mut used) = (0_u32, 0_u32, 0_u128);
    for claim in of_family {
        let number = if is_released(claim) { &mut quarantined } else { &mut allocated };
        *number = number.saturating_add(1);
        used = used.saturating_add(u128::from(pool.allocates(claim.spec.address)));
    }
    let free = u32::try_from(pool.len().saturating_sub(used)).unwrap_or(MAX_FREE).min(MAX_FREE);
    AddressCount { cidr: pool.cidr.to_string(), allocated, quarantined, free }
}

fn addresses_outside_pools_fault(outside: &[&AddressClaim]) -> Fault {
    let names: Vec<String> = outside
        .iter()
        .map(|claim| format!("{} ({})", claim.spec.address, claim.spec.machine.name))
        .collect();
    let message = format!(
        "{} addresses of machines are outside of the pools in spec.network: {}; extend the pools, or replace these \
         machines",
        outside.len(),
        join_names_limited(&names)
    );
    Fault::new(ConditionReason::AddressesOutsidePool, message)
}

/// Returns a fault if a pool has no free address and the tenant lacks machines. As long as all machines exist, no free
/// address is needed.
fn find_exhausted(
    tenant: &TenantCluster,
    pools: Option<&NetworkPools>,
    counts: &[AddressCount],
    claims: &NetworkClaims,
    quarantine: SignedDuration,
) -> Option<Fault> {
    let machines = tenant.status.as_ref()?.machines.as_ref()?;
    if machines.current >= machines.desired {
        return None;
    }
    let all = pools.into_iter().flat_map(NetworkPools::iter).zip(counts);
    let exhausted: Vec<String> = all
        .filter(|(_, count)| count.free == 0)
        .map(|(pool, count)| {
            let released = claims.iter().filter(|claim| pool.allocates(claim.spec.address));
            let until = released.filter_map(|claim| quarantine_end(claim, quarantine)).min();
            let until = until.map_or_else(String::new, |until| format!(", the first until {until}"));
            format!(
                "{}: no address of {} is free for {} missing machines: {} are allocated, {} are in quarantine{until}",
                pool.family.field(),
                pool.cidr,
                machines.desired.saturating_sub(machines.current),
                count.allocated,
                count.quarantined,
            )
        })
        .collect();
    (!exhausted.is_empty()).then(|| {
        let message = format!("{}; extend the pool, or delete machines", exhausted.join("; "));
        Fault::new(ConditionReason::AddressesExhausted, message)
    })
}

/// Returns the state of pools without faults. A gateway in `ranges` is reported by the reason of the condition, which
/// stays true: machines get all other addresses.
fn ready_part(pools: Option<&NetworkPools>, counts: &[AddressCount]) -> ReadyPart {
    let texts = counts
        .iter()
        .map(|count| format!("{}: {} allocated, {} free", count.cidr, count.allocated, count.free));
    let gateways: Vec<String> =
        pools.into_iter().flat_map(NetworkPools::iter).filter_map(gateway_in_ranges_text).collect();
    let reason = if gateways.is_empty() {
        ConditionReason::AddressesReady
    } else {
        ConditionReason::GatewayInRange
    };
    let texts: Vec<String> = texts.chain(gateways).collect();
    ReadyPart { reason, message: texts.join("; ") }
}

fn gateway_in_ranges_text(pool: &ValidPool) -> Option<String> {
    let (gateway, range) = pool.gateway_in_ranges()?;
    Some(format!(
        "{}.ranges: {range} contains the gateway {gateway}, which no machine gets: add it to exclude, or change the \
         range",
        pool.family.field()
    ))
}

#[cfg(test)]
mod tests {
    use berth_api::{TenantClusterStatus, TenantMachines};
    use serde_json::{Value, json};

    use super::super::choose::test_helpers::{claim, released};
    use super::*;

    fn report(network: Value, machines: (u32, u32), claims: &[AddressClaim]) -> AddressReport {
        let spec = serde_json::from_value(json!({"network": network})).unwrap();
        let mut tenant = TenantCluster::new("a", spec);
        let machines = TenantMachines { desired: machines.0, current: machines.1, ready: 0 };
        tenant.status = Some(TenantClusterStatus {
            machines: Some(machines),
            ..TenantClusterStatus::default()
        });
        let mut all = NetworkClaims::default();
        claims.iter().for_each(|claim| all.insert(Arc::new(claim.clone())));
        AddressReport::new(&tenant, &[], &all, SignedDuration::from_secs(300), &[])
    }

    /// Returns the reason of the condition, and for each pool the numbers of allocated, quarantined and free addresses.
    fn summary(report: &AddressReport) -> (Option<ConditionReason>, Vec<[u32; 3]>) {
        let reason = report.part.as_ref().map(|part| match part {
            Ok(ready) => ready.reason,
            Err(fault) => fault.reason,
        });
        let counts = report.counts.iter().map(|one| [one.allocated, one.quarantined, one.free]);
        (reason, counts.collect())
    }

    #[test]
    fn addresses_are_counted_and_faults_are_reported() {
        use ConditionReason::{
            AddressesExhausted, AddressesOutsidePool, AddressesReady, InvalidAddressPool,
        };
        let small = || json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/30"}});
        let one = claim("10.0.0.1", "x");
        let two = released("10.0.0.2", "y", 0);
        let full = [one.clone(), two.clone()];
        for (network, machines, claims, expected) in [
            (json!({"name": "trunk"}), (1, 1), &[][..], (None, vec![])),
            (small(), (1, 1), &[][..], (Some(AddressesReady), vec![[0, 0, 2]])),
            (small(), (1, 1), &full[..], (Some(AddressesReady), vec![[1, 1, 0]])),
            (small(), (2, 1), &full[..], (Some(AddressesExhausted), vec![[1, 1, 0]])),
            (
                json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/32"}}),
                (1, 1),
                &full[..],
                (Some(InvalidAddressPool), vec![]),
            ),
            // The pool was removed or changed while it was in use.
            (json!({"name": "trunk"}), (1, 1), &full[..], (Some(AddressesOutsidePool), vec![])),
            (
                json!({"name": "trunk", "ipv4": {"cidr": "10.9.0.0/30"}}),
                (1, 1),
                &full[..],
                (Some(AddressesOutsidePool), vec![[1, 1, 2]]),
            ),
            (
                json!({"name": "trunk", "ipv6": {"cidr": "fd00::/64"}}),
                (1, 1),
                &[][..],
                (Some(AddressesReady), vec![[0, 0, MAX_FREE]]),
            ),
        ] {
            let report = report(network.clone(), machines, claims);
            assert_eq!(summary(&report), expected, "{network} {report:?}");
        }
        let message = report(small(), (2, 1), &full).part.unwrap().unwrap_err().message;
        assert!(
            message.contains("1 are in quarantine, the first until 1970-01-01T00:05:00Z"),
            "{message}"
        );
        let mut listed = one;
        let annotation = berth_api::names::ADDRESSES_ANNOTATION.to_owned();
        listed.metadata.annotations = Some([(annotation, String::new())].into());
        let ranges =
            json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/30", "ranges": ["10.0.0.2"]}});
        assert_eq!(
            summary(&report(ranges, (1, 1), &[listed])),
            (Some(AddressesReady), vec![[1, 0, 1]])
        );
    }

    #[test]
    fn a_gateway_in_the_ranges_is_named_and_takes_nothing_away() {
        let network = json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/29", "gateway": "10.0.0.1",
            "ranges": ["10.0.0.1-10.0.0.3"]}});
        let found = report(network.clone(), (1, 1), &[claim("10.0.0.2", "x")]);
        assert_eq!(summary(&found), (Some(ConditionReason::GatewayInRange), vec![[1, 0, 1]]));
        let message = found.part.unwrap().unwrap().message;
        let words = "spec.network.ipv4.ranges: 10.0.0.1-10.0.0.3 contains the gateway 10.0.0.1, which no machine gets";
        assert!(message.starts_with("10.0.0.0/29: 1 allocated, 1 free; "), "{message}");
        assert!(message.contains(words), "{message}");
        // A fault takes precedence.
        let full = [claim("10.0.0.2", "x"), claim("10.0.0.3", "y")];
        let reason = Some(ConditionReason::AddressesExhausted);
        assert_eq!(summary(&report(network, (3, 2), &full)), (reason, vec![[2, 0, 0]]));
    }
}
