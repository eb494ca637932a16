//! Addresses of machines in the networks of other tenants.

use berth_api::{ClaimingMachine, ConditionReason, TenantCluster};
use berth_kubevirt_render::machines::reconcile_steps::{AttachedInterface, ExistingVm};
use berth_kubevirt_render::machines::{InterfaceConfig, unmet_additional_network};
use kube::ResourceExt as _;

use super::address_plans::{AddressPlan, NetworkOwner};
use super::guest::{UnknownInterfaces, interfaces_of_machine};
use super::prefixes::unmet_prefix;
use super::template::MachineTemplate;
use super::validated::ValidatedDeployment;
use crate::tenants::addresses::interface::additional_config;
use crate::tenants::addresses::pools::NetworkPools;
use crate::tenants::addresses::release::quarantine_duration;
use crate::tenants::fault::Fault;

impl ValidatedDeployment<'_> {
    /// Returns another tenant if machines may be attached to its network; `None` if it does not exist, or if it is not
    /// in both lists. Users of the tenant's namespace can change the annotations of machines.
    pub(super) fn attachable_tenant(&self, other: &str) -> Option<&TenantCluster> {
        let is_listed = self.tenant()?.additional_tenants().any(|one| one == other);
        let permitted = &self.render_context.config.additional_networks;
        let is_permitted = permitted.iter().any(|one| one == other);
        self.render_context.tenants.get(other).filter(|_| is_listed && is_permitted)
    }

    /// Returns the pools of the networks of other tenants, for new machines.
    ///
    /// # Errors
    /// Returns a fault if machines cannot be created until one of the tenants changes.
    pub(super) fn attached_plans(
        &self,
        template: &MachineTemplate,
    ) -> Result<Vec<AddressPlan>, Fault> {
        let Some(tenant) = self.tenant() else { return Ok(Vec::new()) };
        let config = &self.render_context.config;
        let mut plans = Vec::new();
        for (interface, other) in &template.attached_tenants {
            let tenants = &self.render_context.tenants;
            if let Some(missing) = unmet_additional_network(tenant, other, tenants) {
                let message = format!("machines wait for {missing}");
                return Err(Fault::new(ConditionReason::WaitingForTenant, message));
            }
            let Some(other_tenant) = self.attachable_tenant(other) else { continue };
            let unmet = unmet_prefix(other_tenant, config);
            let pools = unmet.map_or_else(|| NetworkPools::of_tenant(other_tenant), Err);
            let pools = pools.map_err(|fault| {
                let message = format!(
                    "machines wait for valid address pools of TenantCluster {other}: {fault}"
                );
                Fault::new(fault.reason, message)
            })?;
            // Without a claim, the deletion of the other tenant would not wait for the machine.
            let Some(pools) = pools else {
                let message = format!("machines wait for address pools of TenantCluster {other}");
                return Err(Fault::new(ConditionReason::WaitingForTenant, message));
            };
            plans.push(AddressPlan {
                owner: NetworkOwner::with_interface(other_tenant, interface),
                pools,
                fixed: Vec::new(),
                quarantine: quarantine_duration(config),
            });
        }
        Ok(plans)
    }

    /// Returns the configuration of the interfaces of an existing machine in networks of other tenants, from its claims.
    /// `configures_guest` is true if the machine has addresses in its own tenant's network.
    ///
    /// # Errors
    /// Returns the reason if the configuration cannot be computed now.
    pub(super) fn attached_interfaces(
        &self,
        vm: &ExistingVm,
        configures_guest: bool,
    ) -> Result<Vec<InterfaceConfig>, UnknownInterfaces> {
        let machine = ClaimingMachine { namespace: self.namespace.clone(), name: vm.name.clone() };
        let mut interfaces = Vec::new();
        for AttachedInterface { name, tenant, .. } in &vm.attached {
            let Some(other) = self.attachable_tenant(tenant) else {
                return Err(UnknownInterfaces::NotAttachable(tenant.clone()));
            };
            let pools = NetworkPools::of_tenant(other).map_err(UnknownInterfaces::InvalidPools)?;
            let uid = other.uid().unwrap_or_default();
            let network = TenantCluster::namespace_of(tenant);
            let found = self.context.addresses.read(&network, |claims| {
                interfaces_of_machine(&uid, &machine, name, claims, pools.as_ref())
            })?;
            let configs = found.into_iter();
            interfaces.extend(configs.map(|config| additional_config(config, configures_guest)));
        }
        Ok(interfaces)
    }
}
