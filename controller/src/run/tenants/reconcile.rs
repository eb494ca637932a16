//! Reconciles a TenantCluster that is not being deleted, in numbered steps with one file per step.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{ConditionReason, TenantCluster};
use k8s_openapi::jiff::Timestamp;

use super::build::{BuildInput, build_objects};
use super::claims::ClaimedId;
use super::context::TenantContext;
use super::error::Error;
use crate::tenants::addresses::release::quarantine_duration;
use crate::tenants::addresses::report::AddressReport;
use crate::tenants::deletion::NamespaceState;
use crate::tenants::fault::Fault;
use crate::tenants::hosts::{TenantHostState, readiness};
use crate::tenants::mtu;
use crate::tenants::network::{HostNetwork, resolve_host_network};
use crate::tenants::network_id::NetworkId;
use crate::tenants::node_local_dns;
use crate::tenants::objects::attachment::TenantCount;
use crate::tenants::pod_mtu;
use crate::tenants::prefixes::grant::TenantPrefixes;
use crate::tenants::status::{self, TenantParts};

/// Delay before the next reconcile after a fault that may disappear without an event.
const RETRY_DELAY: Duration = Duration::from_secs(15);

/// Reasons of faults that are caused by an error of the API server.
const API_ERROR_REASONS: [ConditionReason; 2] =
    [ConditionReason::ApplyFailed, ConditionReason::DeleteFailed];

/// Reconciles a tenant. Returns the delay before the next reconcile; `None` if only the resync period applies.
pub(super) async fn reconcile(
    context: &TenantContext,
    tenant: TenantCluster,
) -> Result<Option<Duration>, Error> {
    // 1. Prepare (client required): finalizer, namespace, and the permission to read Secrets in this namespace.
    let tenant = context.ensure_finalizer(tenant).await?;
    let namespace = context.prepare_namespace(&tenant).await?;
    // 2. Read (client required).
    let observed = context.read_observed_state(&tenant, namespace).await;
    // 3. Validate (needs no client).
    let network = resolve_host_network(&tenant, &observed.hosts).map(|network| {
        // The NetworkAttachmentDefinition and the status use this same MTU.
        network.map(|network| mtu::with_last_known_mtu(network, &tenant))
    });
    // 4. Claim a VLAN or VNI, and prefixes (client required), whatever the state of the namespace.
    let (tenant, claimed) = context.ensure_claim(tenant, &network).await?;
    let id = retained_id(&tenant, &claimed);
    let hosts = readiness(&tenant, id, &observed.hosts);
    let mut parts = TenantParts::new(hosts, id);
    parts.mtu = mtu::status_mtu(&tenant, &network);
    parts.node_local_dns = node_local_dns::compare(&tenant, &observed.cluster.node_local_dns);
    let prefixes = context.ensure_prefixes(&tenant).await?;
    context.report_addresses(&tenant, prefixes, &observed.hosts, &mut parts);
    parts.pod_mtu = pod_mtu::compare(&tenant, &parts.prefixes, parts.mtu);
    if let Err(fault) = &claimed {
        parts.attachment = tenant
            .status
            .as_ref()
            .filter(|_| id.is_some())
            .and_then(|status| status.network_attachment_definition.clone());
        parts.network = Err(fault.clone());
    }
    if namespace == NamespaceState::Terminating {
        let fault = namespace_terminating_fault(&tenant);
        parts.exposure = tenant.spec.exposure.as_ref().map(|_| Err(fault.clone()));
        parts.fail_all(&fault);
    } else {
        // 5. Build (needs no client).
        let desired = build_objects(BuildInput {
            tenant: &tenant,
            network: network.as_ref().ok().and_then(Option::as_ref),
            claimed_id: claimed.as_ref().ok().and_then(Option::as_ref),
            count_tenants: |network| TenantCount(context.count_tenants(network)),
            observed: &observed,
        });
        // 6. Apply (client required).
        context.apply_all(&tenant, desired, observed, &mut parts).await?;
    }
    // 7. Update the status (client required).
    let desired = status::desired_status(&tenant, &parts, Timestamp::now());
    context.update_status(&tenant, &desired).await?;
    requeue_delay(&parts)
}

/// Returns the VLAN or VNI of a tenant for its status: the claimed number. If the claim failed because the network
/// cannot be determined, or must not change, returns the number that is already in the status.
fn retained_id(
    tenant: &TenantCluster,
    claimed: &Result<Option<ClaimedId>, Fault>,
) -> Option<NetworkId> {
    match claimed {
        Ok(claimed) => claimed.as_ref().map(|claimed| claimed.id),
        Err(fault) => {
            let is_retained = matches!(
                fault.reason,
                ConditionReason::NoHosts
                    | ConditionReason::HostNetworksDiffer
                    | ConditionReason::InvalidHostNetwork
                    | ConditionReason::NetworkIdImmutable
            );
            tenant.status.as_ref().and_then(NetworkId::from_status).filter(|_| is_retained)
        }
    }
}

fn namespace_terminating_fault(tenant: &TenantCluster) -> Fault {
    let name = kube::ResourceExt::name_any(tenant);
    let message = format!("namespace {} is being deleted", TenantCluster::namespace_of(&name));
    Fault::new(ConditionReason::NamespaceTerminating, message)
}

/// Returns the delay before the next reconcile; `None` if there is no fault. Returns an error if the API server
/// returned one, so that the backoff applies.
fn requeue_delay(parts: &TenantParts) -> Result<Option<Duration>, Error> {
    let all = [&parts.network, &parts.policies, &parts.objects].into_iter().chain(&parts.exposure);
    // After these faults, the reconcile is retried, because the prefix of another tenant may become free without an
    // event.
    let needs_prefix = |fault: &&Fault| {
        matches!(fault.reason, ConditionReason::PoolExhausted | ConditionReason::PrefixInUse)
    };
    let prefix = parts.addresses.iter().filter_map(|part| part.as_ref().err());
    let faults = all.filter_map(|part| part.as_ref().err()).chain(prefix.filter(needs_prefix));
    let faults: Vec<&Fault> = faults.collect();
    if let Some(fault) = faults.iter().find(|fault| API_ERROR_REASONS.contains(&fault.reason)) {
        return Err(Error::NotApplied(fault.to_string()));
    }
    Ok((!faults.is_empty()).then_some(RETRY_DELAY))
}

impl TenantContext {
    /// Sets the state of the parts that concern the tenant's prefixes and addresses. The reconciler of
    /// MachineDeployments creates the AddressClaims.
    fn report_addresses(
        &self,
        tenant: &TenantCluster,
        prefixes: TenantPrefixes,
        hosts: &[Arc<TenantHostState>],
        parts: &mut TenantParts,
    ) {
        let network = TenantCluster::namespace_of(&kube::ResourceExt::name_any(tenant));
        let quarantine = quarantine_duration(&self.config());
        let AddressReport { part, counts } =
            self.stores.shared_informers.addresses.read(&network, |claims| {
                AddressReport::new(tenant, &prefixes.prefixes, claims, quarantine, hosts)
            });
        let part = part.map(|part| {
            part.and_then(|ready| {
                mtu::find_fault(tenant, &prefixes.prefixes, hosts).map_or(Ok(ready), Err)
            })
        });
        (parts.addresses, parts.address_counts) = (prefixes.join_faults(part), counts);
        parts.prefixes = prefixes.prefixes;
    }

    /// Claims a VLAN or VNI for a tenant and records the number in the tenant's status, from which the reconciler of
    /// hosts reads it.
    async fn ensure_claim(
        &self,
        tenant: TenantCluster,
        network: &Result<Option<HostNetwork>, Fault>,
    ) -> Result<(TenantCluster, Result<Option<ClaimedId>, Fault>), Error> {
        let network = match network {
            Ok(Some(network)) => network,
            Ok(None) => return Ok((tenant, Ok(None))),
            Err(fault) => return Ok((tenant, Err(fault.clone()))),
        };
        let claimed = match self.claim_network_id(&tenant, network).await? {
            Ok(claimed) => claimed,
            Err(fault) => return Ok((tenant, Err(fault))),
        };
        let recorded = tenant.status.as_ref().and_then(NetworkId::from_status);
        let tenant = if recorded == Some(claimed.id) {
            tenant
        } else {
            self.record_network_id(tenant, claimed.id).await?
        };
        Ok((tenant, Ok(Some(claimed))))
    }
}
