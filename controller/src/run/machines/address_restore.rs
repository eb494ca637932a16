//! Creates the AddressClaims of existing machines again, if a user has deleted them. The address is in an annotation of
//! the VirtualMachine.

use std::net::IpAddr;

use berth_api::names::CLAIMED_ADDRESSES_ANNOTATION;
use berth_api::{ClaimingMachine, MacAddress};
use kube::ResourceExt as _;

use super::address_plans::NetworkOwner;
use super::addresses::new_claim;
use super::errors::{RequestError, ignore_conflict, none_if_not_found, with_request};
use super::validated::ValidatedDeployment;
use crate::run::api_requests::post_params;
use crate::tenants::addresses::lost::{LostAddress, lost_addresses, lost_claims_fault};
use crate::tenants::addresses::pools::NetworkPools;
use crate::tenants::fault::Fault;
use berth_kubevirt_render::machines::reconcile_steps::{AttachedInterface, ExistingVm};

/// Addresses that an interface of a machine uses.
#[derive(Clone, Copy)]
struct UsedAddresses<'a> {
    owner: &'a NetworkOwner,
    /// Pools of the network; `None` if they are invalid.
    pools: Option<&'a NetworkPools>,
    /// Addresses in the annotation of the machine.
    recorded: &'a str,
    mac: MacAddress,
}

impl ValidatedDeployment<'_> {
    /// Creates the missing claims of existing machines. Returns a fault if another machine has claimed the address of a
    /// machine, or if the pools reserve it. In both cases, no machine is changed.
    pub(super) async fn restore_claims(&self) -> Result<Option<Fault>, RequestError> {
        let Some(owner) = self.tenant().map(NetworkOwner::new) else { return Ok(None) };
        let pools = self.address_pools().ok().flatten();
        let mut remaining = Vec::new();
        for vm in self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner) && !vm.is_deleting) {
            let recorded = vm.annotations.get(CLAIMED_ADDRESSES_ANNOTATION);
            if let (Some(recorded), Some(mac)) = (recorded, vm.tenant_mac) {
                let used = UsedAddresses { owner: &owner, pools: pools.as_ref(), recorded, mac };
                remaining.extend(self.restore_interface(vm, used).await?);
            }
            for AttachedInterface { name, tenant, recorded, mac } in &vm.attached {
                let Some(other) = self.attachable_tenant(tenant) else { continue };
                let owner = &NetworkOwner::with_interface(other, name);
                let pools = NetworkPools::of_tenant(other).ok().flatten();
                let used = UsedAddresses { owner, pools: pools.as_ref(), recorded, mac: *mac };
                remaining.extend(self.restore_interface(vm, used).await?);
            }
        }
        Ok(lost_claims_fault(&remaining))
    }

    /// Creates the missing claims of an interface of a machine. Returns the addresses without a claim that remain.
    async fn restore_interface(
        &self,
        vm: &ExistingVm,
        used: UsedAddresses<'_>,
    ) -> Result<Vec<(ClaimingMachine, LostAddress)>, RequestError> {
        let UsedAddresses { owner, pools, recorded, mac } = used;
        let machine = ClaimingMachine { namespace: self.namespace.clone(), name: vm.name.clone() };
        let find_lost = || {
            self.context.addresses.read(&owner.network, |claims| {
                lost_addresses(recorded, &machine, &owner.interface, claims, pools)
            })
        };
        let lost = find_lost();
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        for LostAddress { address, .. } in lost.iter().filter(|one| one.other_user.is_none()) {
            self.restore_claim(owner, *address, vm, &machine, mac).await?;
        }
        Ok(find_lost().into_iter().map(|one| (machine.clone(), one)).collect())
    }

    /// Creates the claim to an address that a machine uses, if the machine still exists.
    async fn restore_claim(
        &self,
        owner: &NetworkOwner,
        address: IpAddr,
        vm: &ExistingVm,
        machine: &ClaimingMachine,
        mac: MacAddress,
    ) -> Result<(), RequestError> {
        // The watch may not have delivered the deletion of the machine yet. Garbage collection has then deleted the
        // claim, which must not be restored.
        let request = || format!("get VirtualMachine {}/{}", self.namespace, vm.name);
        let current = with_request(
            request,
            none_if_not_found(self.machines_api().get_metadata(&vm.name).await),
        )?;
        let exists = current.is_some_and(|current| {
            current.uid().as_ref() == Some(&vm.uid) && current.metadata.deletion_timestamp.is_none()
        });
        if !exists {
            return Ok(());
        }
        // An invalid pool or list does not prevent the claim, because the machine uses the address anyway.
        let owning_tenant = self.render_context.tenants.get(&owner.tenant);
        let pools = owning_tenant.and_then(|tenant| NetworkPools::of_tenant(tenant).ok().flatten());
        let fixed = self.fixed_addresses(&owner.interface, pools.as_ref()).unwrap_or_default();
        let claim = new_claim(owner, &fixed, address, machine, mac);
        let created = self.context.claims_api().create(&post_params(), &claim).await;
        let request = || format!("create AddressClaim {}", claim.name_any());
        match with_request(request, ignore_conflict(created))? {
            Some(created) => {
                let (claim, machine) = (created.name_any(), &vm.name);
                tracing::warn!(%claim, %machine, "restored a deleted AddressClaim, because its machine exists");
                self.context.addresses.record(created);
            }
            // The claim already exists (409), so the index is stale: reads the claim, and adds it to the index.
            None => drop(self.context.refresh_claim(owner, address, machine).await?),
        }
        Ok(())
    }
}
