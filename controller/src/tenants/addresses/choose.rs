//! Chooses an address for an interface of a machine.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{AddressClaim, ClaimingMachine, ConditionReason};
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt as _;

use super::claims::NetworkClaims;
use super::family::Family;
use super::fixed::addresses_annotation;
use super::pool::ValidPool;
use super::release::{is_released, quarantine_end};
use crate::managed_by::is_created_by_berth;
use crate::tenants::fault::{Fault, join_names_limited};

/// Request for an address of each family for one interface of a machine.
#[derive(Clone, Copy, Debug)]
pub struct AddressRequest<'a> {
    /// UID of the machine's TenantCluster.
    pub tenant_uid: &'a str,
    pub machine: &'a ClaimingMachine,
    /// Name of the interface.
    pub interface: &'a str,
    /// Addresses that the MachineDeployment lists. If the list has an address of a family, only the listed addresses of
    /// this family are acceptable.
    pub fixed: &'a [IpAddr],
    /// Duration of the quarantine, from which messages compute its end.
    pub quarantine: SignedDuration,
}

/// Result of [`choose_address`].
#[derive(Clone, Debug, PartialEq)]
pub enum AddressChoice {
    /// The interface already has this claim.
    KeepClaim(Arc<AddressClaim>),
    /// Take over a claim in quarantine: the earlier claim of the same interface, or, for a listed address, the claim of
    /// a deleted machine of the same MachineDeployment.
    TakeOver(Arc<AddressClaim>),
    /// Create a claim to this address.
    Create(IpAddr),
}

/// Chooses an address from a pool. `refused` contains the addresses for which the API server has refused a new claim,
/// because a claim exists that `claims` may lack.
///
/// # Errors
/// Returns a fault if no address is free.
pub fn choose_address(
    pool: &ValidPool,
    claims: &NetworkClaims,
    refused: &BTreeSet<IpAddr>,
    request: AddressRequest<'_>,
) -> Result<AddressChoice, Fault> {
    let fixed = request.fixed.iter().copied().filter(|one| Family::of(*one) == pool.family);
    let fixed: Vec<IpAddr> = fixed.collect();
    let is_acceptable = |address: IpAddr| {
        !refused.contains(&address)
            && if fixed.is_empty() { pool.allocates(address) } else { fixed.contains(&address) }
    };
    let own = claims.of_interface(request.machine, request.interface).filter(|claim| {
        claim.spec.tenant_uid == request.tenant_uid && Family::of(claim.spec.address) == pool.family
    });
    let own: Vec<&Arc<AddressClaim>> = own.collect();
    // A machine retains its address even if the pool has changed.
    if let Some(held) = own.iter().find(|claim| !is_released(claim)) {
        return Ok(AddressChoice::KeepClaim(Arc::clone(held)));
    }
    let is_former = |claim: &Arc<AddressClaim>| {
        is_created_by_berth(claim.labels()) && is_acceptable(claim.spec.address)
    };
    if let Some(former) = own.iter().find(|claim| is_former(claim)) {
        return Ok(AddressChoice::TakeOver(Arc::clone(former)));
    }
    if !fixed.is_empty() {
        let mut all = fixed.iter().filter(|address| !refused.contains(address));
        let free = all.find_map(|address| free_fixed_address(*address, claims, request));
        return free.ok_or_else(|| fixed_in_use_fault(&fixed, claims, request));
    }
    let free =
        pool.ranges().find_map(|range| claims.lowest_free_address(pool.family, range, refused));
    free.map(AddressChoice::Create).ok_or_else(|| exhausted_fault(pool, claims, request.quarantine))
}

/// Returns how an address in the MachineDeployment's list can be claimed; `None` if the address is in use.
fn free_fixed_address(
    address: IpAddr,
    claims: &NetworkClaims,
    request: AddressRequest<'_>,
) -> Option<AddressChoice> {
    let mut all = claims.at(address);
    match (all.next(), all.next()) {
        (None, _) => Some(AddressChoice::Create(address)),
        (Some(one), None) if is_predecessor(one, request) => {
            Some(AddressChoice::TakeOver(Arc::clone(one)))
        }
        _ => None,
    }
}

/// Returns true if the claim belonged to a deleted machine of the same MachineDeployment. The new machine replaces this
/// machine, and need not wait for the end of the quarantine.
fn is_predecessor(claim: &AddressClaim, request: AddressRequest<'_>) -> bool {
    let (former, new) = (&claim.spec.machine, request.machine);
    let deployment = deployment_name(&former.name);
    is_released(claim)
        && is_created_by_berth(claim.labels())
        && claim.spec.tenant_uid == request.tenant_uid
        && former.namespace == new.namespace
        && deployment.is_some()
        && deployment == deployment_name(&new.name)
}

/// Returns the name of a machine's MachineDeployment. The name of a machine consists of the name of its
/// MachineDeployment, the revision and a random suffix, separated by dashes.
fn deployment_name(machine: &str) -> Option<&str> {
    machine.rsplitn(3, '-').nth(2)
}

fn exhausted_fault(pool: &ValidPool, claims: &NetworkClaims, quarantine: SignedDuration) -> Fault {
    let used = claims.iter().filter(|claim| pool.allocates(claim.spec.address));
    let (released, held): (Vec<_>, Vec<_>) = used.partition(|claim| is_released(claim));
    let first = released.iter().filter_map(|claim| quarantine_end(claim, quarantine)).min();
    let until = first.map_or_else(String::new, |until| format!(", the first until {until}"));
    let message = format!(
        "{}: all {} addresses of {} are in use: {} by machines, {} in \
         quarantine{until}; extend the pool, or delete machines",
        pool.family.field(),
        pool.len(),
        pool.cidr,
        held.len(),
        released.len(),
    );
    Fault::new(ConditionReason::AddressesExhausted, message)
}

fn fixed_in_use_fault(
    fixed: &[IpAddr],
    claims: &NetworkClaims,
    request: AddressRequest<'_>,
) -> Fault {
    let quarantine = request.quarantine;
    let user = |address: &IpAddr| {
        let claim = claims.at(*address).next();
        match claim.map(|claim| (&claim.spec.machine, quarantine_end(claim, quarantine))) {
            None => format!("{address} (another controller has just claimed it)"),
            Some((_, Some(until))) => format!("{address} (in quarantine until {until})"),
            Some((machine, None)) => {
                format!("{address} (machine {}/{})", machine.namespace, machine.name)
            }
        }
    };
    let users: Vec<String> = fixed.iter().map(user).collect();
    let message = format!(
        "annotation {} of the template: all {} addresses are in use: {}; list more \
         addresses, or request fewer machines",
        addresses_annotation(request.interface),
        fixed.len(),
        join_names_limited(&users),
    );
    Fault::new(ConditionReason::AddressesExhausted, message)
}

#[cfg(test)]
pub(super) mod test_helpers {
    use berth_api::names::MANAGED_BY_LABEL;
    use berth_api::{AddressClaimSpec, AddressClaimStatus, MacAddress, Time};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::super::pools::NetworkPools;
    use super::*;

    pub(in super::super) fn machine(name: &str) -> ClaimingMachine {
        ClaimingMachine { namespace: "cluster-a".to_owned(), name: name.to_owned() }
    }

    /// Returns a claim of a machine of the TenantCluster with UID `u-1`, as Berth creates it.
    pub(in super::super) fn claim(address: &str, name: &str) -> AddressClaim {
        let address: IpAddr = address.parse().unwrap();
        let spec = AddressClaimSpec {
            network: "cluster-a".to_owned(),
            address,
            tenant: "a".to_owned(),
            tenant_uid: "u-1".to_owned(),
            machine: machine(name),
            interface: "tenant".to_owned(),
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
        };
        let mut claim = AddressClaim::new(&AddressClaim::name_for("cluster-a", address), spec);
        let label = (MANAGED_BY_LABEL.0.to_owned(), MANAGED_BY_LABEL.1.to_owned());
        claim.metadata.labels = Some([label].into());
        claim
    }

    /// Returns a claim that was released at this Unix time in seconds, so that it is in quarantine.
    pub(in super::super) fn released(address: &str, name: &str, second: i64) -> AddressClaim {
        let since = Time(Timestamp::from_second(second).unwrap());
        let status = Some(AddressClaimStatus { released_at: Some(since) });
        AddressClaim { status, ..claim(address, name) }
    }

    pub(in super::super) fn pools(network: Value) -> NetworkPools {
        let mut all = json!({"name": "trunk"});
        all.as_object_mut().unwrap().extend(network.as_object().unwrap().clone());
        NetworkPools::new(&serde_json::from_value(all).unwrap(), &[]).unwrap().unwrap()
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
