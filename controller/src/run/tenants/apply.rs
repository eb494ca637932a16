//! Step 6 of a reconcile of a tenant: applies the objects of the tenant, and deletes objects that are no longer
//! desired.

use berth_api::TenantCluster;
use berth_api::names::TENANT_LABEL;
use kube::ResourceExt as _;

use super::build::{DesiredAttachment, DesiredObjects};
use super::context::TenantContext;
use super::error::Error;
use super::read::ObservedState;
use crate::tenants::additional_networks::AdditionalDefinitions;
use crate::tenants::deletion::NamespaceState;
use crate::tenants::fault::Fault;
use crate::tenants::host_leases::is_active;
use crate::tenants::objects::policies::RenderedPolicies;
use crate::tenants::objects::{DesiredObject, ObjectKind};
use crate::tenants::status::{PartResult, ReadyPart, TenantParts, join_faults};

impl TenantContext {
    /// Applies all objects of a tenant, and sets the state of each part.
    pub(super) async fn apply_all(
        &self,
        tenant: &TenantCluster,
        desired: DesiredObjects,
        observed: ObservedState,
        parts: &mut TenantParts,
    ) -> Result<(), Error> {
        let name = tenant.name_any();
        // In a namespace that Berth did not create, existing objects are not adopted, because the creator of the
        // namespace may have created them.
        let may_adopt = observed.namespace == NamespaceState::Owned;
        match desired.attachment {
            Some(DesiredAttachment { object: Ok(object), message }) => {
                let namespace = TenantCluster::namespace_of(&name);
                parts.attachment = Some(format!("{namespace}/{}", object.name()));
                let additional = &desired.additional;
                parts.network =
                    self.apply_attachment(&name, object, message, additional, may_adopt).await;
            }
            Some(DesiredAttachment { object: Err(fault), .. }) => parts.network = Err(fault),
            None if tenant.spec.network.is_none() => {
                let kind = ObjectKind::NetworkAttachmentDefinition;
                if let Err(fault) = self.delete_undesired(kind, &name, &[]).await {
                    parts.network = Err(fault);
                }
            }
            None => {}
        }
        self.apply_additional(desired.additional, may_adopt, parts).await;
        // If the Secret with the kubeconfig could not be read, the reconcile fails here, and is retried.
        let kubeconfig = observed.api_server?.err();
        let (policies, note) = (desired.policies, desired.policies_note);
        parts.policies = self.apply_policies(&name, policies, note, kubeconfig, may_adopt).await;
        parts.objects = self.apply_objects(&name, &desired.objects, may_adopt).await;
        parts.exposure = self.apply_exposure(&name, desired.exposure, may_adopt).await;
        Ok(())
    }

    async fn apply_attachment(
        &self,
        tenant: &str,
        object: DesiredObject,
        message: String,
        additional: &AdditionalDefinitions,
        may_adopt: bool,
    ) -> PartResult {
        self.apply_object(object.clone(), may_adopt).await?;
        let is_undesired = |_: &str, name: &str| {
            name != object.name() && !additional.keeps(name) && !self.is_in_use(tenant, name)
        };
        self.delete_owned(ObjectKind::NetworkAttachmentDefinition, tenant, is_undesired).await?;
        Ok(ReadyPart::ready(message))
    }

    /// Returns true if a machine of a tenant has an address in the network of the NetworkAttachmentDefinition `name` of
    /// another tenant. Without the definition, the machine could neither be started again nor be migrated.
    fn is_in_use(&self, tenant: &str, name: &str) -> bool {
        let Some(other) = TenantCluster::tenant_of_additional_definition(name) else {
            return false;
        };
        let namespace = TenantCluster::namespace_of(tenant);
        let network = TenantCluster::namespace_of(other);
        self.stores.shared_informers.addresses.read(&network, |claims| {
            let mut held = claims.iter().filter(|claim| is_active(claim));
            held.any(|claim| claim.spec.machine.namespace == namespace)
        })
    }

    /// Applies the definitions for the networks of other tenants. Their faults do not affect machines in other networks,
    /// so the definition of the tenant's own network is applied regardless of them.
    async fn apply_additional(
        &self,
        additional: AdditionalDefinitions,
        may_adopt: bool,
        parts: &mut TenantParts,
    ) {
        let mut faults: Vec<Fault> = parts.network.as_ref().err().cloned().into_iter().collect();
        faults.extend(additional.faults);
        for (other, object) in additional.objects {
            match self.apply_object(object, may_adopt).await {
                Ok(()) => parts.additional_networks.push(other),
                Err(fault) => faults.push(fault),
            }
        }
        if let Ok(ready) = parts.network.clone() {
            parts.network = join_faults(&faults, ready);
        } else {
            parts.network = join_faults(&faults, ReadyPart::ready(String::new()));
        }
    }

    async fn apply_policies(
        &self,
        tenant: &str,
        policies: RenderedPolicies,
        note: Option<String>,
        kubeconfig: Option<Fault>,
        may_adopt: bool,
    ) -> PartResult {
        let RenderedPolicies { isolation, exposure, custom, mut faults, lacks_facts } = policies;
        let desired: Vec<&DesiredObject> =
            isolation.iter().chain(&exposure).chain(&custom).collect();
        let namespace = TenantCluster::namespace_of(tenant);
        // While facts are unknown, an existing isolation policy is not changed: it was built when more facts were
        // known.
        let is_retained = |one: &DesiredObject| {
            lacks_facts
                && isolation.contains(one)
                && self.cached_object(ObjectKind::NetworkPolicy, &namespace, one.name()).is_some()
        };
        for one in desired.iter().filter(|one| !is_retained(one)) {
            faults.extend(self.apply_object((*one).clone(), may_adopt).await.err());
        }
        faults
            .extend(self.delete_undesired(ObjectKind::NetworkPolicy, tenant, &desired).await.err());
        // The first fault determines the reason of the condition. Machines are not created while there is a fault,
        // except if the only fault is that of the kubeconfig; so this fault is the last one.
        faults.extend(kubeconfig);
        let note = note.map_or_else(String::new, |note| format!("; {note}"));
        join_faults(
            &faults,
            ReadyPart::ready(format!("{} NetworkPolicies have been applied{note}", desired.len())),
        )
    }

    async fn apply_objects(
        &self,
        tenant: &str,
        desired: &[DesiredObject],
        may_adopt: bool,
    ) -> PartResult {
        let mut faults = Vec::new();
        for one in desired {
            if let Err(fault) = self.apply_object(one.clone(), may_adopt).await
                && !faults.contains(&fault)
            {
                faults.push(fault);
            }
        }
        if faults.is_empty() {
            faults.extend(self.ensure_csi_token(tenant).await.err());
        }
        let all: Vec<&DesiredObject> = desired.iter().collect();
        for kind in [ObjectKind::Instancetype, ObjectKind::Preference] {
            faults.extend(self.delete_undesired(kind, tenant, &all).await.err());
        }
        let label = format!("{TENANT_LABEL}={tenant}");
        join_faults(
            &faults,
            ReadyPart::ready(format!(
                "{} objects with label {label} have been applied",
                desired.len()
            )),
        )
    }
}
