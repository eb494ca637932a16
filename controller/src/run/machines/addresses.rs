//! Claims the addresses of a machine before its VirtualMachine is created. [`crate::tenants::addresses`] chooses the
//! addresses; the creation of an AddressClaim is the lock.
//!
//! If the controller stops between the two requests, the next machine of the MachineDeployment gets the name and the
//! claims. Garbage collection releases claims that are not used in this way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::names::ADDRESSES_ANNOTATION;
use berth_api::{AddressClaim, AddressClaimSpec, ClaimingMachine, MacAddress, Problem, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::address_plans::{AddressPlan, AddressPlans, NetworkOwner, attached_annotation};
use super::context::MachineContext;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::guest::{UnknownInterfaces, interfaces_of_machine};
use super::validated::ValidatedDeployment;
use crate::managed_by::tenant_labels;
use crate::run::api_requests::post_params;
use crate::tenants::addresses::choose::{AddressChoice, AddressRequest, choose_address};
use crate::tenants::addresses::fixed::{
    FixedAddressesError, addresses_annotation, parse_fixed_addresses,
};
use crate::tenants::addresses::interface::{additional_config, interface_config};
use crate::tenants::addresses::interrupted::{RevisionMachines, interrupted_machines};
use crate::tenants::addresses::mac::choose_mac;
use crate::tenants::addresses::pool::ValidPool;
use crate::tenants::addresses::pools::NetworkPools;
use crate::tenants::addresses::release::{is_released, quarantine_duration};
use crate::tenants::fault::Fault;
use berth_kubevirt_render::machines::reconcile_steps::{ExistingVm, machine_name_prefix};
use berth_kubevirt_render::machines::{InterfaceConfig, TENANT_INTERFACE};

/// Maximum number of attempts to claim an address of one pool. An attempt fails if the index lacks an existing claim to
/// the address; after the last attempt, the next reconcile continues with an updated index.
const MAX_ATTEMPTS: usize = 32;

/// Claims of a machine, and the configuration of its interfaces.
#[derive(Default)]
pub(super) struct ClaimedAddresses {
    pub(super) interfaces: Vec<InterfaceConfig>,
    /// Annotations that record the addresses in networks of other tenants.
    pub(super) annotations: Vec<(String, String)>,
    claims: Vec<MachineClaim>,
}

struct MachineClaim {
    claim: AddressClaim,
    origin: ClaimOrigin,
}

/// Origin of a machine's claim.
#[derive(Debug, PartialEq, Eq)]
enum ClaimOrigin {
    /// The machine already had the claim.
    Kept,
    /// The claim was created for an address without a claim.
    Created,
    /// The claim was created in place of a claim that has been in quarantine since this time.
    TakenOver(Time),
}

impl ClaimOrigin {
    /// Returns the origin of a claim that was created in place of `former`.
    fn from_former(former: Option<&AddressClaim>) -> Self {
        let released_at = former.and_then(|former| former.status.as_ref()?.released_at);
        released_at.map_or(Self::Created, Self::TakenOver)
    }
}

impl ValidatedDeployment<'_> {
    /// Returns the address pools for the machines; `None` if machines get no addresses from Berth.
    ///
    /// # Errors
    /// Returns a fault if the tenant's pools are invalid.
    pub(super) fn address_pools(&self) -> Result<Option<NetworkPools>, Fault> {
        self.tenant().map_or(Ok(None), NetworkPools::of_tenant)
    }

    /// Returns the address pools with the list of addresses in the template. Returns a problem if the list is invalid.
    pub(super) fn address_plan(
        &self,
        pools: Option<NetworkPools>,
    ) -> Result<Option<AddressPlan>, Problem> {
        let fixed = self.fixed_addresses(TENANT_INTERFACE, pools.as_ref())?;
        Ok(self.tenant().zip(pools).map(|(tenant, pools)| AddressPlan {
            owner: NetworkOwner::new(tenant),
            pools,
            fixed,
            quarantine: quarantine_duration(&self.render_context.config),
        }))
    }

    /// Returns the addresses that the template lists for an interface. `pools` are the pools of the interface's network.
    /// Returns a problem if the list is invalid.
    pub(super) fn fixed_addresses(
        &self,
        interface: &str,
        pools: Option<&NetworkPools>,
    ) -> Result<Vec<IpAddr>, Problem> {
        let annotation = addresses_annotation(interface);
        let annotations = &self.deployment.spec.template.metadata.annotations;
        let text = annotations.get(&annotation).map(String::as_str).unwrap_or_default();
        parse_fixed_addresses(text, pools)
            .map_err(|error| self.fixed_addresses_problem(&annotation, text, &error))
    }

    /// Returns a problem of a list of addresses in the template.
    pub(super) fn fixed_addresses_problem(
        &self,
        annotation: &str,
        text: &str,
        error: &FixedAddressesError,
    ) -> Problem {
        let field = format!("spec.template.metadata.annotations[{annotation}]");
        Problem::new(self.deployment.qualified_name(), field, text, error.to_string())
            .into_fatal("no machine is created")
    }

    /// Returns the names of machines that have claims, but were not created because the controller was stopped. `vms`
    /// are the machines that exist in the API server.
    pub(super) fn interrupted_machines(
        &self,
        plan: &AddressPlan,
        vms: &[ExistingVm],
    ) -> Vec<String> {
        let (context, namespace) = (self.context, &self.namespace);
        let deleted = context.triggers.deleted_machines.all();
        let was_created = |name: &str| {
            vms.iter().any(|vm| vm.name == name)
                || deleted.contains(&(namespace.clone(), name.to_owned()))
                || [&context.machines, &context.instances]
                    .iter()
                    .any(|store| store.get(namespace, name).is_some())
        };
        let machines = RevisionMachines {
            tenant_uid: &plan.owner.tenant_uid,
            namespace,
            name_prefix: &machine_name_prefix(&self.deployment),
            interface: TENANT_INTERFACE,
        };
        context.addresses.read(&plan.owner.network, |claims| {
            interrupted_machines(machines, claims, &plan.pools, Timestamp::now(), was_created)
        })
    }

    /// Claims an address of each pool for a machine. Returns a fault if no address is free.
    pub(super) async fn claim_addresses(
        &self,
        plans: &AddressPlans,
        name: &str,
    ) -> Result<Result<ClaimedAddresses, Fault>, RequestError> {
        let machine = ClaimingMachine { namespace: self.namespace.clone(), name: name.to_owned() };
        let all = || plans.own.iter().chain(&plans.attached);
        // No claim is created if one of the pools has no free address.
        for plan in all() {
            for pool in plan.pools.iter() {
                if let Err(fault) =
                    self.context.choose_pool_address(plan, pool, &machine, &BTreeSet::new())
                {
                    return Ok(Err(fault));
                }
            }
        }
        let mut claimed = ClaimedAddresses::default();
        for plan in all() {
            if let Err(fault) = self.claim_interface(plan, &machine, &mut claimed).await? {
                self.revert_claims(claimed).await?;
                return Ok(Err(fault));
            }
        }
        for (plan, config) in all().zip(&mut claimed.interfaces) {
            if plan.owner.interface != TENANT_INTERFACE {
                claimed.annotations.push(attached_annotation(config, &plan.owner.tenant));
                *config = additional_config(config.clone(), plans.configures_guest());
            }
        }
        Ok(Ok(claimed))
    }

    /// Claims the addresses of one interface of a machine, and adds them to `claimed`, also if no address is free in one
    /// of the pools.
    async fn claim_interface(
        &self,
        plan: &AddressPlan,
        machine: &ClaimingMachine,
        claimed: &mut ClaimedAddresses,
    ) -> Result<Result<(), Fault>, RequestError> {
        let NetworkOwner { tenant_uid, network, interface, .. } = &plan.owner;
        let mac = self
            .context
            .addresses
            .read(network, |claims| choose_mac(tenant_uid, machine, interface, claims));
        let first = claimed.claims.len();
        for pool in plan.pools.iter() {
            match self.context.claim_address(plan, pool, machine, mac).await? {
                Ok(claim) => claimed.claims.push(claim),
                Err(fault) => return Ok(Err(fault)),
            }
        }
        let claims = claimed.claims.iter().skip(first).map(|one| &one.claim);
        claimed.interfaces.push(interface_config(interface, mac, claims, &plan.pools));
        Ok(Ok(()))
    }

    /// Returns the configuration of the interfaces of an existing machine, from its claims; an empty list if it has no
    /// addresses.
    ///
    /// # Errors
    /// Returns the reason if the machine has addresses, but its configuration cannot be computed now.
    pub(super) fn claimed_interfaces(
        &self,
        vm: &ExistingVm,
    ) -> Result<Vec<InterfaceConfig>, UnknownInterfaces> {
        let mut interfaces = Vec::new();
        if vm.tenant_mac.is_some() {
            let Some(tenant) = self.tenant() else { return Err(UnknownInterfaces::NoTenant) };
            let pools = self.address_pools().map_err(UnknownInterfaces::InvalidPools)?;
            let (namespace, name) = (self.namespace.clone(), vm.name.clone());
            let machine = ClaimingMachine { namespace, name };
            let NetworkOwner { tenant_uid, network, interface, .. } = NetworkOwner::new(tenant);
            interfaces = self.context.addresses.read(&network, |claims| {
                interfaces_of_machine(&tenant_uid, &machine, &interface, claims, pools.as_ref())
            })?;
        }
        let attached = self.attached_interfaces(vm, !interfaces.is_empty())?;
        interfaces.extend(attached);
        Ok(interfaces)
    }

    /// Reverts the claims that were created for a machine that does not exist. No guest has used the addresses, so a
    /// new claim is deleted without a quarantine. An address that was taken over from a claim in quarantine returns to
    /// that quarantine.
    pub(super) async fn revert_claims(
        &self,
        claimed: ClaimedAddresses,
    ) -> Result<(), RequestError> {
        for MachineClaim { claim, origin } in &claimed.claims {
            match origin {
                ClaimOrigin::Kept => {}
                ClaimOrigin::Created => self.context.delete_claim(claim).await?,
                ClaimOrigin::TakenOver(released_at) => {
                    self.context.set_released_at(claim, &json!(released_at)).await?;
                }
            }
        }
        Ok(())
    }
}

impl MachineContext {
    pub(super) fn claims_api(&self) -> Api<AddressClaim> {
        Api::all(self.client.clone())
    }

    fn choose_pool_address(
        &self,
        plan: &AddressPlan,
        pool: &ValidPool,
        machine: &ClaimingMachine,
        refused: &BTreeSet<IpAddr>,
    ) -> Result<AddressChoice, Fault> {
        let request = AddressRequest {
            tenant_uid: &plan.owner.tenant_uid,
            machine,
            interface: &plan.owner.interface,
            fixed: &plan.fixed,
            quarantine: plan.quarantine,
        };
        self.addresses
            .read(&plan.owner.network, |claims| choose_address(pool, claims, refused, request))
    }

    /// Claims an address of a pool.
    async fn claim_address(
        &self,
        plan: &AddressPlan,
        pool: &ValidPool,
        machine: &ClaimingMachine,
        mac: MacAddress,
    ) -> Result<Result<MachineClaim, Fault>, RequestError> {
        let keep = |claim| Ok(Ok(MachineClaim { claim, origin: ClaimOrigin::Kept }));
        let mut refused = BTreeSet::new();
        loop {
            let (address, former) = match self.choose_pool_address(plan, pool, machine, &refused) {
                Err(fault) => return Ok(Err(fault)),
                Ok(AddressChoice::KeepClaim(claim)) => return keep((*claim).clone()),
                Ok(AddressChoice::TakeOver(claim)) => (claim.spec.address, Some(claim)),
                Ok(AddressChoice::Create(address)) => (address, None),
            };
            let claim = new_claim(&plan.owner, &plan.fixed, address, machine, mac);
            match self.create_claim(&claim, former.as_deref()).await {
                Ok(claim) => {
                    let (claim_name, machine) = (claim.name_any(), &machine.name);
                    tracing::info!(tenant = %plan.owner.tenant, claim = %claim_name, %machine, "claimed an address");
                    self.addresses.record(claim.clone());
                    let origin = ClaimOrigin::from_former(former.as_deref());
                    return Ok(Ok(MachineClaim { claim, origin }));
                }
                // The claim already exists, so the index is stale.
                Err(kube::Error::Api(status))
                    if status.code == 409 && refused.len() < MAX_ATTEMPTS =>
                {
                    refused.insert(address);
                    if let Some(own) = self.refresh_claim(&plan.owner, address, machine).await? {
                        return keep(own);
                    }
                }
                Err(error) => {
                    let request = || format!("create AddressClaim {}", claim.name_any());
                    return with_request(request, Err(error));
                }
            }
        }
    }

    /// Creates a claim. If `former` is a claim in quarantine to the same address, deletes `former` first. `former` is
    /// not updated instead, because the creation is the lock, and garbage collection needs the creation time. The
    /// deletion has a precondition on the resource version, so the API server refuses it (409) if another client has
    /// written `former` since it was read.
    async fn create_claim(
        &self,
        claim: &AddressClaim,
        former: Option<&AddressClaim>,
    ) -> kube::Result<AddressClaim> {
        if let Some(former) = former {
            let name = former.name_any();
            none_if_not_found(self.claims_api().delete(&name, &if_unchanged(former)).await)?;
        }
        self.claims_api().create(&post_params(), claim).await
    }

    /// Updates the index with the claim to an address that another controller, or this controller before a restart, has
    /// created. Returns the claim if it belongs to the machine.
    pub(super) async fn refresh_claim(
        &self,
        owner: &NetworkOwner,
        address: IpAddr,
        machine: &ClaimingMachine,
    ) -> Result<Option<AddressClaim>, RequestError> {
        let name = AddressClaim::name_for(&owner.network, address);
        let existing = match none_if_not_found(self.claims_api().get(&name).await) {
            // A claim that cannot be parsed counts as in use; the caller excludes its address.
            Err(kube::Error::SerdeError(_)) => return Ok(None),
            existing => with_request(|| format!("get AddressClaim {name}"), existing)?,
        };
        let Some(existing) = existing else { return Ok(None) };
        self.addresses.record(existing.clone());
        let is_own = existing.spec.tenant_uid == owner.tenant_uid
            && existing.spec.machine == *machine
            && existing.spec.interface == owner.interface
            && !is_released(&existing);
        Ok(is_own.then_some(existing))
    }

    /// Deletes a claim. Fails with a conflict if another client has written it since it was read.
    pub(super) async fn delete_claim(&self, claim: &AddressClaim) -> Result<(), RequestError> {
        let name = claim.name_any();
        let deleted = self.claims_api().delete(&name, &if_unchanged(claim)).await;
        let deleted = none_if_not_found(deleted);
        with_request(|| format!("delete AddressClaim {name}"), deleted)?;
        self.addresses.forget(claim);
        Ok(())
    }
}

/// Returns the parameters of a deletion that the API server refuses if another client has written the claim since it
/// was read.
fn if_unchanged(claim: &AddressClaim) -> DeleteParams {
    let preconditions =
        Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// Returns a claim to an address. `fixed` are the addresses that the template lists.
pub(super) fn new_claim(
    owner: &NetworkOwner,
    fixed: &[IpAddr],
    address: IpAddr,
    machine: &ClaimingMachine,
    mac: MacAddress,
) -> AddressClaim {
    let spec = AddressClaimSpec {
        network: owner.network.clone(),
        address,
        tenant: owner.tenant.clone(),
        tenant_uid: owner.tenant_uid.clone(),
        machine: machine.clone(),
        interface: owner.interface.clone(),
        mac,
    };
    let mut claim = AddressClaim::new(&AddressClaim::name_for(&owner.network, address), spec);
    claim.metadata.labels = Some(tenant_labels(&owner.tenant));
    if fixed.contains(&address) {
        let list = fixed.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        claim.metadata.annotations =
            Some(BTreeMap::from([(ADDRESSES_ANNOTATION.to_owned(), list)]));
    }
    claim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_over_claim_keeps_the_former_quarantine() {
        let mut former: AddressClaim = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "AddressClaim", "metadata": {"name": "cluster-a-10.0.0.2"},
            "spec": {
                "network": "cluster-a", "address": "10.0.0.2", "tenant": "a", "tenantUID": "u-1",
                "machine": {"namespace": "cluster-a", "name": "web"}, "interface": "tenant", "mac": "02:00:00:00:00:01",
            },
        }))
        .unwrap();
        assert_eq!(ClaimOrigin::from_former(None), ClaimOrigin::Created);
        assert_eq!(ClaimOrigin::from_former(Some(&former)), ClaimOrigin::Created);
        former.status =
            serde_json::from_value(json!({"releasedAt": "2026-01-01T00:00:00Z"})).unwrap();
        let since: Time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(ClaimOrigin::from_former(Some(&former)), ClaimOrigin::TakenOver(since));
    }
}
