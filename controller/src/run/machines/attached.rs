//! Addresses of machines in the networks of other tenants.

use berth_api::names::ADDRESSES_PREFIX;
use berth_api::{ClaimingMachine, ConditionReason, Problem, TenantCluster, excerpt};
use berth_kubevirt_render::machines::reconcile_steps::{AttachedInterface, ExistingVm};
use berth_kubevirt_render::machines::{InterfaceConfig, unmet_additional_network};
use kube::ResourceExt as _;

use super::address_plans::{AddressPlan, NetworkOwner};
use super::guest::{UnknownInterfaces, interfaces_of_machine};
use super::prefixes::unmet_prefix;
use super::template::MachineTemplate;
use super::validated::ValidatedDeployment;
use crate::tenants::addresses::fixed::FixedAddressesError;
use crate::tenants::addresses::interface::additional_config;
use crate::tenants::addresses::pools::NetworkPools;
use crate::tenants::addresses::release::quarantine_duration;
use crate::tenants::fault::Fault;

/// Reason why no machines can be attached to the networks of other tenants.
pub(super) enum AttachmentFault {
    /// Machines wait until one of the tenants changes.
    Waiting(Fault),
    /// A list of addresses in the template is invalid.
    InvalidAddresses(Problem),
}

impl From<Fault> for AttachmentFault {
    fn from(fault: Fault) -> Self {
        Self::Waiting(fault)
    }
}

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
    /// Returns a fault if machines cannot be created until one of the tenants or the template changes.
    pub(super) fn attached_plans(
        &self,
        template: &MachineTemplate,
    ) -> Result<Vec<AddressPlan>, AttachmentFault> {
        self.check_listed_interfaces(template).map_err(AttachmentFault::InvalidAddresses)?;
        let Some(tenant) = self.tenant() else { return Ok(Vec::new()) };
        let config = &self.render_context.config;
        let mut plans = Vec::new();
        for (interface, other) in &template.attached_tenants {
            let tenants = &self.render_context.tenants;
            if let Some(missing) = unmet_additional_network(tenant, other, tenants) {
                let message = format!("machines wait for {missing}");
                return Err(Fault::new(ConditionReason::WaitingForTenant, message).into());
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
                return Err(Fault::new(ConditionReason::WaitingForTenant, message).into());
            };
            let fixed = self
                .fixed_addresses(interface, Some(&pools))
                .map_err(AttachmentFault::InvalidAddresses)?;
            plans.push(AddressPlan {
                owner: NetworkOwner::with_interface(other_tenant, interface),
                pools,
                fixed,
                quarantine: quarantine_duration(config),
            });
        }
        Ok(plans)
    }

    /// Returns a problem if the template lists addresses for an interface that is not in the network of another tenant.
    fn check_listed_interfaces(&self, template: &MachineTemplate) -> Result<(), Problem> {
        let is_attached =
            |interface: &str| template.attached_tenants.iter().any(|(name, _)| name == interface);
        let annotations = self.deployment.spec.template.metadata.annotations.iter();
        let lists = annotations
            .filter_map(|(key, text)| Some((key, key.strip_prefix(ADDRESSES_PREFIX)?, text)));
        for (annotation, interface, text) in lists {
            if !is_attached(interface) {
                let error = FixedAddressesError::NotAttached(excerpt(interface));
                return Err(self.fixed_addresses_problem(annotation, text, &error));
            }
        }
        Ok(())
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
