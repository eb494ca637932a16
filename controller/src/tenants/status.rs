//! Status of a tenant: one condition for each part of the tenant, and the condition `Ready`.

use berth_api::names::TENANTS_FIELD_MANAGER;
use berth_api::{
    AddressCount, ConditionReason, GrantedPrefix, TenantCluster, TenantClusterStatus, TenantHosts,
};
use berth_api::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::comparison::Comparison;
use super::fault::{Fault, join_names_limited};
use super::network_id::NetworkId;
use super::node_local_dns::NODE_LOCAL_DNS_DISTINCT;
use super::pod_mtu::POD_MTU_FITS;
use crate::managed_fields::{conditions_are_atomic, with_existing_conditions};

/// Types of the conditions that the reconciler of tenants writes. The reconciler of MachineDeployments writes
/// `MachinesReady`.
pub const OWNED_CONDITIONS: [&str; 9] = [
    "Ready",
    "NetworkReady",
    ADDRESSES_READY,
    "HostsReady",
    POLICIES_READY,
    "ObjectsReady",
    EXPOSURE_READY,
    NODE_LOCAL_DNS_DISTINCT,
    POD_MTU_FITS,
];

/// Type of the condition that is true if the address pools of the tenant are valid and have addresses for its machines.
/// It is absent without address pools.
pub const ADDRESSES_READY: &str = "AddressesReady";

/// Type of the condition that is true if MetalLB's objects and the cloud controller manager are applied, and the cloud
/// controller manager is available. It is absent without `spec.exposure`.
const EXPOSURE_READY: &str = "ExposureReady";

/// Type of the condition that is true if the tenant's NetworkPolicies are applied. Machines are created only after
/// this condition is true.
pub const POLICIES_READY: &str = "PoliciesReady";

/// State of a part of a tenant: ready, or the [`Fault`] that the condition of the part reports.
pub type PartResult = Result<ReadyPart, Fault>;

/// Reason and message of a part that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyPart {
    pub reason: ConditionReason,
    /// Message of the condition.
    pub message: String,
}

impl ReadyPart {
    /// Returns a part with reason `Ready`.
    #[must_use]
    pub const fn ready(message: String) -> Self {
        Self { reason: ConditionReason::Ready, message }
    }
}

/// State of all parts of a tenant.
#[derive(Clone, Debug)]
pub struct TenantParts {
    /// State of the tenant's VLAN or VNI and of its NetworkAttachmentDefinition.
    pub network: PartResult,
    /// State of the address pools; `None` if the tenant has neither address pools nor AddressClaims.
    pub addresses: Option<PartResult>,
    /// Prefixes that the network has from pools of InfraConfig.
    pub prefixes: Vec<GrantedPrefix>,
    /// Number of addresses in the tenant's pools, by family.
    pub address_counts: Vec<AddressCount>,
    /// State of the NetworkPolicies.
    pub policies: PartResult,
    /// State of the namespace, the instance types, and the ServiceAccount of the CSI driver.
    pub objects: PartResult,
    /// State of the exposure of services; `None` if the tenant requests none.
    pub exposure: Option<PartResult>,
    /// Readiness of the tenant's network on the hosts.
    pub hosts: TenantHosts,
    /// The tenant's VLAN or VNI.
    pub id: Option<NetworkId>,
    /// MTU of the tenant's network.
    pub mtu: Option<u32>,
    /// `namespace/name` of the NetworkAttachmentDefinition.
    pub attachment: Option<String>,
    /// Other tenants whose networks can be attached to the tenant's machines.
    pub additional_networks: Vec<String>,
    /// Result of the comparison of the tenant's name servers with the addresses of NodeLocal DNSCache; `None` if the
    /// infra cluster has no NodeLocal DNSCache. It does not affect the condition `Ready`, because machines may have
    /// other name servers.
    pub node_local_dns: Option<Comparison>,
    /// Result of the comparison of the MTU of the tenant's pod network with that of the machines; `None` if the spec
    /// does not declare the pod network. It does not affect the condition `Ready`, because only large packets are lost.
    pub pod_mtu: Option<Comparison>,
}

impl TenantParts {
    /// Returns the state of a tenant that is only on the pod network and whose parts are all ready.
    #[must_use]
    pub fn new(hosts: TenantHosts, id: Option<NetworkId>) -> Self {
        Self {
            network: Ok(ReadyPart {
                reason: ConditionReason::PodNetworkOnly,
                message: "the tenant has only the pod network".to_owned(),
            }),
            addresses: None,
            prefixes: Vec::new(),
            address_counts: Vec::new(),
            policies: Ok(ReadyPart::ready(String::new())),
            objects: Ok(ReadyPart::ready(String::new())),
            exposure: None,
            hosts,
            id,
            mtu: None,
            attachment: None,
            additional_networks: Vec::new(),
            node_local_dns: None,
            pod_mtu: None,
        }
    }

    /// Sets a fault on those parts among `network`, `policies` and `objects` that have no fault yet.
    pub fn fail_all(&mut self, fault: &Fault) {
        for part in [&mut self.network, &mut self.policies, &mut self.objects] {
            if part.is_ok() {
                *part = Err(fault.clone());
            }
        }
    }
}

/// Returns `ready` if `faults` is empty.
///
/// # Errors
/// Returns one fault with the messages of all faults and the reason of the first fault.
pub fn join_faults(faults: &[Fault], ready: ReadyPart) -> PartResult {
    match faults.first() {
        None => Ok(ready),
        Some(first) => {
            let all: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
            Err(Fault::new(first.reason, all.join("; ")))
        }
    }
}

/// Returns the desired status, with all fields that the reconciler of tenants owns and no field that the reconciler of
/// MachineDeployments owns.
#[must_use]
pub fn desired_status(
    tenant: &TenantCluster,
    parts: &TenantParts,
    now: Timestamp,
) -> TenantClusterStatus {
    let (vlan, vni) = parts.id.map_or((None, None), NetworkId::to_fields);
    let hosts = hosts_part(tenant, &parts.hosts);
    let mut conditions = vec![
        part_condition(tenant, "NetworkReady", &parts.network, now),
        part_condition(tenant, "HostsReady", &hosts, now),
        part_condition(tenant, POLICIES_READY, &parts.policies, now),
        part_condition(tenant, "ObjectsReady", &parts.objects, now),
    ];
    if let Some(addresses) = &parts.addresses {
        conditions.insert(1, part_condition(tenant, ADDRESSES_READY, addresses, now));
    }
    if let Some(exposure) = &parts.exposure {
        conditions.push(part_condition(tenant, EXPOSURE_READY, exposure, now));
    }
    let theirs = tenant.status.iter().flat_map(|status| &status.conditions);
    let machines = theirs.filter(|one| one.type_ == "MachinesReady" && one.status == "False");
    let not_ready: Vec<String> = conditions
        .iter()
        .chain(machines)
        .filter(|one| one.status != "True")
        .map(|one| format!("{}: {}", one.type_, one.message))
        .collect();
    let first = conditions.iter().find(|one| one.status != "True").map(|one| one.reason.clone());
    let first = first.as_ref();
    let ready = if not_ready.is_empty() {
        ("True", ConditionReason::Ready.as_str(), "all parts are ready".to_owned())
    } else {
        (
            "False",
            first.map_or(ConditionReason::MachinesNotReady.as_str(), String::as_str),
            not_ready.join("; "),
        )
    };
    conditions.insert(0, new_condition(tenant, "Ready", ready.0, ready.1, ready.2, now));
    let comparisons =
        [(NODE_LOCAL_DNS_DISTINCT, &parts.node_local_dns), (POD_MTU_FITS, &parts.pod_mtu)];
    for (type_, comparison) in comparisons {
        if let Some(Comparison { status, reason, message }) = comparison.clone() {
            conditions.push(new_condition(tenant, type_, status, reason.as_str(), message, now));
        }
    }
    TenantClusterStatus {
        observed_generation: tenant.metadata.generation,
        namespace: Some(TenantCluster::namespace_of(&tenant.name_any())),
        vlan,
        vni,
        mtu: parts.mtu,
        network_attachment_definition: parts.attachment.clone(),
        additional_networks: parts.additional_networks.clone(),
        prefixes: parts.prefixes.clone(),
        addresses: parts.address_counts.clone(),
        hosts: tenant.spec.network.is_some().then(|| parts.hosts.clone()),
        machines: None,
        conditions,
    }
}

/// Returns the status of a tenant that is being deleted. `id` is the VLAN or VNI that hosts may still carry.
#[must_use]
pub fn deleting_status(
    tenant: &TenantCluster,
    id: Option<NetworkId>,
    reason: ConditionReason,
    message: &str,
    now: Timestamp,
) -> TenantClusterStatus {
    let (vlan, vni) = id.map_or((None, None), NetworkId::to_fields);
    let message = format!("the tenant is being deleted: {message}");
    TenantClusterStatus {
        observed_generation: tenant.metadata.generation,
        namespace: Some(TenantCluster::namespace_of(&tenant.name_any())),
        vlan,
        vni,
        // The machines of the tenant use this MTU until they are deleted, so the status retains it.
        mtu: tenant.status.as_ref().and_then(|status| status.mtu),
        // Hosts need the prefixes to answer the DHCP requests of the remaining machines.
        prefixes: tenant.status.as_ref().map(|status| status.prefixes.clone()).unwrap_or_default(),
        conditions: vec![new_condition(tenant, "Ready", "False", reason.as_str(), message, now)],
        ..TenantClusterStatus::default()
    }
}

fn hosts_part(tenant: &TenantCluster, hosts: &TenantHosts) -> PartResult {
    let Some(network) = &tenant.spec.network else {
        return Ok(ReadyPart {
            reason: ConditionReason::PodNetworkOnly,
            message: "the tenant has only the pod network".to_owned(),
        });
    };
    if hosts.selected == 0 {
        let message = format!("no host that the tenant selects has network {}", network.name);
        return Err(Fault::new(ConditionReason::NoHosts, message));
    }
    if hosts.ready == hosts.selected {
        return Ok(ReadyPart::ready(format!(
            "the network is ready on all {} hosts",
            hosts.selected
        )));
    }
    let named: Vec<String> =
        hosts.not_ready.iter().map(|host| format!("{} ({})", host.name, host.message)).collect();
    let message = format!(
        "the network is ready on {} of {} hosts; not on {}",
        hosts.ready,
        hosts.selected,
        join_names_limited(&named)
    );
    Err(Fault::new(ConditionReason::HostsNotReady, message))
}

fn part_condition(
    tenant: &TenantCluster,
    type_: &str,
    part: &PartResult,
    now: Timestamp,
) -> Condition {
    match part {
        Ok(ready) => {
            new_condition(tenant, type_, "True", ready.reason.as_str(), ready.message.clone(), now)
        }
        Err(fault) => {
            new_condition(tenant, type_, "False", fault.reason.as_str(), fault.message.clone(), now)
        }
    }
}

/// Maximum length of a condition's message (`metav1.Condition`).
const MAX_MESSAGE_LENGTH: usize = 32_768;

fn new_condition(
    tenant: &TenantCluster,
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> Condition {
    let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
    let before = conditions.find(|one| one.type_ == type_ && one.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        observed_generation: tenant.metadata.generation,
        last_transition_time: before.map_or(Time(now), |one| one.last_transition_time),
        reason: reason.to_owned(),
        message: message.chars().take(MAX_MESSAGE_LENGTH).collect(),
    }
}

/// Returns true if the desired status differs from the actual status in a field that the reconciler of tenants owns.
#[must_use]
pub fn differs(desired: &TenantClusterStatus, tenant: &TenantCluster) -> bool {
    let mut actual = tenant.status.clone().unwrap_or_default();
    actual.machines = None;
    actual.conditions.retain(|one| OWNED_CONDITIONS.contains(&one.type_.as_str()));
    let mut desired = desired.clone();
    for status in [&mut actual, &mut desired] {
        status.conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    }
    actual != desired
}

/// Returns the body of the request that applies the status. With `only_if_unchanged`, the API server refuses the
/// request if another client has written the object since it was read.
#[must_use]
pub fn apply_body(
    tenant: &TenantCluster,
    status: &TenantClusterStatus,
    only_if_unchanged: bool,
) -> Value {
    debug_assert!(
        status.machines.is_none(),
        "{TENANTS_FIELD_MANAGER} must not set status.machines"
    );
    let mut body = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": tenant.name_any(), "uid": tenant.uid()},
        "status": status,
    });
    let entries = tenant.metadata.managed_fields.as_deref().unwrap_or_default();
    if conditions_are_atomic(entries) {
        let existing = tenant.status.iter().flat_map(|status| &status.conditions);
        let conditions = status.conditions.clone();
        body["status"]["conditions"] =
            json!(with_existing_conditions(existing, &OWNED_CONDITIONS, conditions));
    }
    if only_if_unchanged {
        body["metadata"]["resourceVersion"] = tenant.resource_version().into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timestamp_at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn ready_parts() -> TenantParts {
        TenantParts {
            network: Ok(ReadyPart::ready("VLAN 120".to_owned())),
            addresses: None,
            prefixes: Vec::new(),
            address_counts: Vec::new(),
            policies: Ok(ReadyPart::ready("2 policies".to_owned())),
            objects: Ok(ReadyPart::ready("5 objects are applied".to_owned())),
            exposure: None,
            hosts: TenantHosts { selected: 2, ready: 2, not_ready: Vec::new() },
            id: Some(NetworkId::Vlan(120.try_into().unwrap())),
            mtu: Some(1500),
            attachment: Some("cluster-abc/tenant-abc".to_owned()),
            additional_networks: Vec::new(),
            node_local_dns: None,
            pod_mtu: None,
        }
    }

    fn tenant() -> TenantCluster {
        let spec = serde_json::from_value(json!({"network": {"name": "trunk"}})).unwrap();
        TenantCluster::new("abc", spec)
    }

    #[test]
    fn an_unchanged_condition_keeps_its_time_and_is_not_written_again() {
        let mut tenant = tenant();
        let first = desired_status(&tenant, &ready_parts(), timestamp_at(100));
        assert!(differs(&first, &tenant));
        tenant.status = Some(first.clone());
        let again = desired_status(&tenant, &ready_parts(), timestamp_at(200));
        assert_eq!(first, again);
        assert!(!differs(&again, &tenant));
        // `differs` ignores conditions of other reconcilers.
        let mut machines = first.conditions[0].clone();
        machines.type_ = "MachinesReady".to_owned();
        tenant.status.as_mut().unwrap().conditions.push(machines);
        assert!(!differs(&again, &tenant));
    }

    #[test]
    fn conditions_of_other_managers_are_kept_in_atomic_lists() {
        let mut tenant = tenant();
        let mut desired = desired_status(&tenant, &ready_parts(), timestamp_at(100));
        let mut machines = desired.conditions[0].clone();
        machines.type_ = "MachinesReady".to_owned();
        tenant.status =
            Some(TenantClusterStatus { conditions: vec![machines], ..Default::default() });
        desired.conditions.truncate(1);
        let mut types = |fields: Value| {
            let entry = json!([{"manager": "x", "operation": "Apply", "fieldsV1": {"f:status": {"f:conditions": fields}}}]);
            tenant.metadata.managed_fields = serde_json::from_value(entry).unwrap();
            let body = apply_body(&tenant, &desired, true);
            let all = body["status"]["conditions"].as_array().unwrap().clone();
            all.iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(types(json!({})), ["Ready", "MachinesReady"]);
        assert_eq!(types(json!({"k:{\"type\":\"Ready\"}": {".": {}}})), ["Ready"]);
    }

    #[test]
    fn addresses_have_a_condition_only_with_pools() {
        let types = |parts: &TenantParts| {
            let status = desired_status(&tenant(), parts, timestamp_at(0));
            let all = status.conditions.iter().map(|one| format!("{} {}", one.type_, one.status));
            (all.collect::<Vec<_>>(), status.addresses)
        };
        let (conditions, _) = types(&ready_parts());
        assert!(!conditions.iter().any(|one| one.starts_with("AddressesReady")), "{conditions:?}");
        let count =
            AddressCount { cidr: "10.0.0.0/24".to_owned(), free: 254, ..AddressCount::default() };
        let parts = TenantParts {
            addresses: Some(Err(Fault::new(
                ConditionReason::AddressesExhausted,
                "no address".to_owned(),
            ))),
            address_counts: vec![count.clone()],
            ..ready_parts()
        };
        let (conditions, counts) = types(&parts);
        assert!(conditions.contains(&"AddressesReady False".to_owned()), "{conditions:?}");
        assert!(conditions.contains(&"Ready False".to_owned()), "{conditions:?}");
        assert_eq!(counts, [count]);
    }

    #[test]
    fn exposure_has_a_condition_only_if_it_is_requested() {
        let conditions = |exposure: Option<PartResult>| {
            let parts = TenantParts { exposure, ..ready_parts() };
            let status = desired_status(&tenant(), &parts, timestamp_at(0));
            let all = status.conditions.into_iter();
            all.map(|one| format!("{} {}", one.type_, one.reason)).collect::<Vec<_>>()
        };
        let absent = conditions(None);
        assert!(!absent.iter().any(|one| one.starts_with("ExposureReady")), "{absent:?}");
        let fault = Fault::new(ConditionReason::CrdMissing, "no MetalLB".to_owned());
        let missing = conditions(Some(Err(fault)));
        assert!(missing.contains(&"ExposureReady CrdMissing".to_owned()), "{missing:?}");
        assert!(missing.contains(&"Ready CrdMissing".to_owned()), "{missing:?}");
    }

    #[test]
    fn a_dns_collision_is_not_a_part_of_ready() {
        let comparison = Comparison {
            status: "False",
            reason: ConditionReason::AddressCollision,
            message: String::new(),
        };
        let parts = TenantParts { node_local_dns: Some(comparison), ..ready_parts() };
        let status = desired_status(&tenant(), &parts, timestamp_at(0));
        let find = |type_: &str| status.conditions.iter().find(|one| one.type_ == type_).unwrap();
        assert_eq!(find("Ready").status, "True");
        assert_eq!(find(NODE_LOCAL_DNS_DISTINCT).reason, "AddressCollision");
    }

    #[test]
    fn a_large_mtu_of_pods_is_not_a_part_of_ready() {
        let comparison = Comparison {
            status: "False",
            reason: ConditionReason::PodMtuTooLarge,
            message: String::new(),
        };
        let find = |pod_mtu: Option<Comparison>, type_: &str| {
            let parts = TenantParts { pod_mtu, ..ready_parts() };
            let status = desired_status(&tenant(), &parts, timestamp_at(0));
            let found = status.conditions.into_iter().find(|one| one.type_ == type_);
            found.map(|one| format!("{} {}", one.status, one.reason))
        };
        assert_eq!(find(None, POD_MTU_FITS), None);
        let expected = Some("False PodMtuTooLarge".to_owned());
        assert_eq!(find(Some(comparison.clone()), POD_MTU_FITS), expected);
        assert_eq!(find(Some(comparison), "Ready"), Some("True Ready".to_owned()));
    }

    #[test]
    fn the_ready_condition_contains_the_parts_that_are_not_ready() {
        let mut parts = ready_parts();
        parts.hosts.ready = 1;
        parts.hosts.not_ready =
            vec![berth_api::TenantHost { name: "b".to_owned(), message: "no uplink".to_owned() }];
        let status = desired_status(&tenant(), &parts, timestamp_at(0));
        let ready = &status.conditions[0];
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "HostsNotReady"));
        assert_eq!(
            ready.message,
            "HostsReady: the network is ready on 1 of 2 hosts; not on b (no uplink)"
        );
        let mut tenant = tenant();
        let mut machines = ready.clone();
        machines.type_ = "MachinesReady".to_owned();
        "no user data".clone_into(&mut machines.message);
        tenant.status =
            Some(TenantClusterStatus { conditions: vec![machines], ..Default::default() });
        parts.hosts.ready = 2;
        let status = desired_status(&tenant, &parts, timestamp_at(0));
        assert_eq!(status.conditions[0].reason, "MachinesNotReady");
    }
}
