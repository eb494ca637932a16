//! NetworkPolicies in a tenant's namespace, for ingress and egress on the pod network.
//!
//! No rule is empty, because `{}` in a list of rules permits all traffic. A rule that depends on unknown facts is
//! omitted, and a fault is reported. NetworkPolicies are additive, so custom policies can only permit more traffic.
//! `docs/isolation.md` has a table of the connections that the policies permit.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::names::CUSTOM_POLICY_LABEL;
use berth_api::{
    ConditionReason, CustomNetworkPolicy, Exposure, InfraConfigSpec, Isolation, NetworkPolicies,
};
use serde_json::{Value, json};

use super::cloud_controller_manager::{
    CLOUD_CONTROLLER_MANAGER_POLICY, cloud_controller_manager_policy,
};
use super::desired_object::DesiredObject;
use super::exposure_policies::{
    MACHINE_ACCESS_POLICY, load_balancer_policies, machine_access_policy,
};
use super::kind::ObjectKind;
use super::peers::{
    dns_rules, internet_peers, name_server_rules, same_namespace_peer, single_address_peer,
};
use super::workload_policies;
use crate::tenants::cluster::{ClusterFacts, UnknownFact};
use crate::tenants::fault::Fault;
use crate::tenants::load_balancer_service::LoadBalancerService;

const ISOLATION_POLICY: &str = "cluster-isolation";

/// Data from which [`render_policies`] renders the NetworkPolicies of a tenant.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput<'a> {
    /// ID of the tenant, which is the name of its TenantCluster.
    pub tenant: &'a str,
    /// NetworkPolicies that the tenant's spec requests.
    pub requested: Option<&'a NetworkPolicies>,
    /// InfraConfig, which applies to all tenants.
    pub config: &'a InfraConfigSpec,
    /// Facts of the infra cluster.
    pub cluster: &'a ClusterFacts,
    /// Address of the tenant's own API server, if it is known.
    pub api_server: Option<IpAddr>,
    /// Exposure of Services that the tenant's spec requests.
    pub exposure: Option<&'a Exposure>,
    /// Services of type LoadBalancer in the tenant's namespace.
    pub load_balancers: &'a [LoadBalancerService],
}

/// The NetworkPolicies of a tenant.
#[derive(Clone, Debug, Default)]
pub struct RenderedPolicies {
    /// NetworkPolicies that isolate the tenant.
    pub isolation: Vec<DesiredObject>,
    /// NetworkPolicies that permit traffic to the exposed ports of machines.
    pub exposure: Vec<DesiredObject>,
    /// NetworkPolicies from the lists in the InfraConfig and in the tenant's spec.
    pub custom: Vec<DesiredObject>,
    /// Reasons why NetworkPolicies or rules cannot be rendered.
    pub faults: Vec<Fault>,
    /// True if facts of the infra cluster are missing, so that the policies in `isolation` permit less traffic than
    /// desired. The caller should then not change those that exist.
    pub lacks_facts: bool,
}

/// Reason why a NetworkPolicy in a list cannot be rendered.
#[derive(Debug, thiserror::Error)]
enum InvalidPolicy {
    #[error("another policy has this name; rename it")]
    DuplicateName,
    #[error("the spec cannot be serialized: {0}")]
    Serialize(#[from] serde_json::Error),
}

/// Renders all NetworkPolicies of a tenant.
#[must_use]
pub fn render_policies(input: PolicyInput<'_>) -> RenderedPolicies {
    let mut all = RenderedPolicies::default();
    let isolation = input.requested.and_then(|asked| asked.isolation).unwrap_or_default();
    if isolation != Isolation::Off {
        add_isolation_policies(input, isolation, &mut all);
    }
    let own = input.requested.map(|asked| asked.custom.as_slice()).unwrap_or_default();
    let reserved_names = [
        ISOLATION_POLICY,
        workload_policies::IMPORTER_POLICY,
        workload_policies::CDI_POLICY,
        workload_policies::VIRT_API_POLICY,
        CLOUD_CONTROLLER_MANAGER_POLICY,
        MACHINE_ACCESS_POLICY,
    ];
    let mut taken: BTreeSet<String> = reserved_names.map(str::to_owned).into();
    taken.extend(all.exposure.iter().map(|one| one.name().to_owned()));
    let common = input.config.custom_network_policies.as_slice();
    for (source, place, list) in [
        ("infra-config", "InfraConfig default: spec.customNetworkPolicies", common),
        ("tenant", "spec.networkPolicies.custom", own),
    ] {
        for policy in list {
            match render_custom_policy(input.tenant, source, policy, &mut taken) {
                Ok(wanted) => all.custom.push(wanted),
                Err(error) => {
                    let message = format!("{place}[{}]: {error}", policy.name);
                    all.faults.push(Fault::new(ConditionReason::InvalidPolicy, message));
                }
            }
        }
    }
    all
}

fn add_isolation_policies(
    input: PolicyInput<'_>,
    isolation: Isolation,
    all: &mut RenderedPolicies,
) {
    let PolicyInput { tenant, config, cluster, .. } = input;
    let mut rules_or_fault = |what: &str, rules: Result<Vec<Value>, UnknownFact>| {
        rules.unwrap_or_else(|error| {
            all.lacks_facts = true;
            let fault =
                Fault::new(ConditionReason::ClusterFactsUnknown, format!("{what}: {error}"));
            all.faults.push(fault);
            Vec::new()
        })
    };
    let internet =
        rules_or_fault("addresses of the infra API server", internet_peers(config, cluster));
    let mut out = vec![json!({"to": [same_namespace_peer()]})];
    out.extend(rules_or_fault("cluster DNS", dns_rules(config, cluster)));
    let servers = config.dns_config.as_ref().and_then(|dns| dns.nameservers.clone());
    out.extend(name_server_rules(&servers.unwrap_or_default(), &mut all.faults));
    out.extend(input.api_server.map(|address| json!({"to": [single_address_peer(address)]})));
    let policy_object = |name: &str, spec: Value| {
        DesiredObject::new(ObjectKind::NetworkPolicy, tenant, name, json!({"spec": spec}))
    };
    if isolation == Isolation::Egress {
        out.extend(internet.iter().map(|block| json!({"to": [block]})));
        let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": out});
        all.isolation.push(policy_object(ISOLATION_POLICY, spec));
    } else {
        all.isolation.push(policy_object(
            ISOLATION_POLICY,
            json!({
                "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [same_namespace_peer()]}], "egress": out,
            }),
        ));
        // These policies are omitted if ingress is not isolated: they would then restrict the ingress of the pods that
        // they select.
        all.isolation.push(policy_object(
            workload_policies::CDI_POLICY,
            workload_policies::cdi_policy_spec(),
        ));
        all.isolation.push(policy_object(
            workload_policies::VIRT_API_POLICY,
            workload_policies::virt_api_policy_spec(),
        ));
        add_exposure_policies(input, all);
    }
    if input.exposure.is_some_and(|exposure| exposure.cloud_controller_manager.is_some()) {
        let addresses = cluster.api_server.as_ref().cloned().unwrap_or_default();
        all.isolation.push(cloud_controller_manager_policy(tenant, &addresses));
    }
    // This policy is omitted if egress is not isolated: it would then restrict the egress of importers.
    all.isolation.push(policy_object(
        workload_policies::IMPORTER_POLICY,
        workload_policies::importer_policy_spec(config, &internet),
    ));
}

/// Adds the policies that permit traffic to exposed ports. They are omitted if ingress is not isolated: they would then
/// restrict the ingress of the pods that they select.
fn add_exposure_policies(input: PolicyInput<'_>, all: &mut RenderedPolicies) {
    let Some(exposure) = input.exposure else { return };
    if exposure.load_balancers.is_some() {
        all.exposure.extend(load_balancer_policies(input.tenant, input.load_balancers));
    }
    let access = exposure.machine_access.as_ref();
    all.exposure.extend(access.and_then(|access| machine_access_policy(input.tenant, access)));
}

fn render_custom_policy(
    tenant: &str,
    source: &str,
    policy: &CustomNetworkPolicy,
    taken: &mut BTreeSet<String>,
) -> Result<DesiredObject, InvalidPolicy> {
    if !taken.insert(policy.name.clone()) {
        return Err(InvalidPolicy::DuplicateName);
    }
    let mut spec = serde_json::to_value(&policy.spec)?;
    if spec.get("podSelector").is_none_or(Value::is_null) {
        // Policies for KKP may omit `podSelector` to select all pods, but the API server requires this field.
        spec["podSelector"] = json!({});
    }
    let mut wanted =
        DesiredObject::new(ObjectKind::NetworkPolicy, tenant, &policy.name, json!({"spec": spec}));
    wanted.body["metadata"]["labels"][CUSTOM_POLICY_LABEL] = source.into();
    Ok(wanted)
}

#[cfg(test)]
#[path = "policies_tests.rs"]
mod tests;
