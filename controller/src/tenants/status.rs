//! What is told of a tenant: conditions, in the words of the parts that they are about.

use berth_api::names::CONTROLLER_TENANTS;
use berth_api::{ConditionReason, TenantCluster, TenantClusterStatus, TenantHosts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::fault::{Fault, some_of};
use super::ids::NetworkId;

/// Conditions that this part of the controller writes. `MachinesReady` is another's.
pub const OURS: [&str; 5] = ["Ready", "NetworkReady", "HostsReady", POLICIES_READY, "ObjectsReady"];

/// Condition that a tenant's NetworkPolicies are applied. Machines wait for it.
pub const POLICIES_READY: &str = "PoliciesReady";

/// How far a part is.
pub type Part = Result<Told, Fault>;

/// What is told of a part that is as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The reason of the condition.
    pub reason: ConditionReason,
    /// For a person.
    pub message: String,
}

impl Told {
    /// The usual reason.
    #[must_use]
    pub const fn ready(message: String) -> Self {
        Self { reason: ConditionReason::Ready, message }
    }
}

/// How far all parts are.
#[derive(Clone, Debug)]
pub struct Parts {
    /// VLAN or VNI, and the NetworkAttachmentDefinition.
    pub network: Part,
    /// NetworkPolicies.
    pub policies: Part,
    /// Namespace, instance types, the CSI driver's account.
    pub objects: Part,
    /// The hosts.
    pub hosts: TenantHosts,
    /// What the tenant has.
    pub id: Option<NetworkId>,
    /// `namespace/name` of the NetworkAttachmentDefinition.
    pub attachment: Option<String>,
}

/// Several faults of one part as one.
///
/// # Errors
/// If there are any.
pub fn all_or(faults: &[Fault], told: Told) -> Part {
    match faults.first() {
        None => Ok(told),
        Some(first) => {
            let all: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
            Err(Fault::new(first.reason, all.join("; ")))
        }
    }
}

/// The status that should be; all that this part of the controller says, and nothing of the others'.
#[must_use]
pub fn status(tenant: &TenantCluster, parts: &Parts, now: Timestamp) -> TenantClusterStatus {
    let (vlan, vni) = parts.id.map_or((None, None), NetworkId::split);
    let hosts = hosts(tenant, &parts.hosts);
    let mut conditions = vec![
        condition(tenant, "NetworkReady", &parts.network, now),
        condition(tenant, "HostsReady", &hosts, now),
        condition(tenant, POLICIES_READY, &parts.policies, now),
        condition(tenant, "ObjectsReady", &parts.objects, now),
    ];
    let theirs = tenant.status.iter().flat_map(|status| &status.conditions);
    let machines = theirs.filter(|one| one.type_ == "MachinesReady" && one.status == "False");
    let not: Vec<String> = conditions
        .iter()
        .chain(machines)
        .filter(|one| one.status != "True")
        .map(|one| format!("{}: {}", one.type_, one.message))
        .collect();
    let first = conditions.iter().find(|one| one.status != "True").map(|one| one.reason.clone());
    let first = first.as_ref();
    let ready = if not.is_empty() {
        ("True", ConditionReason::Ready.as_str(), "all is as asked".to_owned())
    } else {
        (
            "False",
            first.map_or(ConditionReason::MachinesNotReady.as_str(), String::as_str),
            not.join("; "),
        )
    };
    conditions.insert(0, make(tenant, "Ready", ready.0, ready.1, ready.2, now));
    TenantClusterStatus {
        observed_generation: tenant.metadata.generation,
        namespace: Some(TenantCluster::namespace_of(&tenant.name_any())),
        vlan,
        vni,
        network_attachment_definition: parts.attachment.clone(),
        hosts: tenant.spec.network.is_some().then(|| parts.hosts.clone()),
        machines: None,
        conditions,
    }
}

/// The status of a tenant in deletion. `has` is what hosts are still to carry.
#[must_use]
pub fn going(
    tenant: &TenantCluster,
    has: Option<NetworkId>,
    reason: ConditionReason,
    message: &str,
    now: Timestamp,
) -> TenantClusterStatus {
    let (vlan, vni) = has.map_or((None, None), NetworkId::split);
    let told = format!("is being deleted: {message}");
    TenantClusterStatus {
        observed_generation: tenant.metadata.generation,
        namespace: Some(TenantCluster::namespace_of(&tenant.name_any())),
        vlan,
        vni,
        conditions: vec![make(tenant, "Ready", "False", reason.as_str(), told, now)],
        ..TenantClusterStatus::default()
    }
}

fn hosts(tenant: &TenantCluster, hosts: &TenantHosts) -> Part {
    let Some(network) = &tenant.spec.network else {
        return Ok(Told {
            reason: ConditionReason::PodNetworkOnly,
            message: "has no network of its own".to_owned(),
        });
    };
    if hosts.selected == 0 {
        let message = format!("no host that it selects has network {}", network.name);
        return Err(Fault::new(ConditionReason::NoHosts, message));
    }
    if hosts.ready == hosts.selected {
        return Ok(Told::ready(format!("ready on all {} hosts", hosts.selected)));
    }
    let named: Vec<String> =
        hosts.not_ready.iter().map(|host| format!("{} ({})", host.name, host.message)).collect();
    let message =
        format!("ready on {} of {} hosts; not on {}", hosts.ready, hosts.selected, some_of(&named));
    Err(Fault::new(ConditionReason::HostsNotReady, message))
}

fn condition(tenant: &TenantCluster, type_: &str, part: &Part, now: Timestamp) -> Condition {
    match part {
        Ok(told) => make(tenant, type_, "True", told.reason.as_str(), told.message.clone(), now),
        Err(fault) => {
            make(tenant, type_, "False", fault.reason.as_str(), fault.message.clone(), now)
        }
    }
}

/// As long as a condition's message may be (`metav1.Condition`).
const LONGEST: usize = 32_768;

fn make(
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
        last_transition_time: before.map_or(Time(now), |one| one.last_transition_time.clone()),
        reason: reason.to_owned(),
        message: message.chars().take(LONGEST).collect(),
    }
}

/// Whether what is there is not what should be, among the fields that are ours.
#[must_use]
pub fn is_new(should: &TenantClusterStatus, tenant: &TenantCluster) -> bool {
    let mut there = tenant.status.clone().unwrap_or_default();
    there.machines = None;
    there.conditions.retain(|one| OURS.contains(&one.type_.as_str()));
    let mut should = should.clone();
    for status in [&mut there, &mut should] {
        status.conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    }
    there != should
}

/// The apply that makes it so. With a resource version it is refused if anything was written in between.
#[must_use]
pub fn apply(tenant: &TenantCluster, status: &TenantClusterStatus, only_if_same: bool) -> Value {
    debug_assert!(status.machines.is_none(), "{CONTROLLER_TENANTS} counts no machines");
    let mut body = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": tenant.name_any(), "uid": tenant.uid()},
        "status": status,
    });
    let entries = tenant.metadata.managed_fields.as_deref().unwrap_or_default();
    if crate::fields::conditions_are_one(entries) {
        let there = tenant.status.iter().flat_map(|status| &status.conditions);
        let others = there.filter(|one| !OURS.contains(&one.type_.as_str()));
        let ours = status.conditions.iter();
        body["status"]["conditions"] = json!(ours.chain(others).collect::<Vec<_>>());
    }
    if only_if_same {
        body["metadata"]["resourceVersion"] = tenant.resource_version().into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn parts() -> Parts {
        Parts {
            network: Ok(Told::ready("VLAN 120".to_owned())),
            policies: Ok(Told::ready("2 policies".to_owned())),
            objects: Ok(Told::ready("all there".to_owned())),
            hosts: TenantHosts { selected: 2, ready: 2, not_ready: Vec::new() },
            id: Some(NetworkId::Vlan(120.try_into().unwrap())),
            attachment: Some("cluster-abc/tenant-abc".to_owned()),
        }
    }

    fn tenant() -> TenantCluster {
        let spec = serde_json::from_value(json!({"network": {"name": "trunk"}})).unwrap();
        TenantCluster::new("abc", spec)
    }

    #[test]
    fn what_stays_the_same_keeps_its_time_and_is_not_written_again() {
        let mut tenant = tenant();
        let first = status(&tenant, &parts(), at(100));
        assert!(is_new(&first, &tenant));
        tenant.status = Some(first.clone());
        let again = status(&tenant, &parts(), at(200));
        assert_eq!(first, again);
        assert!(!is_new(&again, &tenant));
        // What others say there is theirs.
        let mut machines = first.conditions[0].clone();
        machines.type_ = "MachinesReady".to_owned();
        tenant.status.as_mut().unwrap().conditions.push(machines);
        assert!(!is_new(&again, &tenant));
    }

    #[test]
    fn where_conditions_are_one_value_the_others_stay_in_it() {
        let mut tenant = tenant();
        let mut should = status(&tenant, &parts(), at(100));
        let mut machines = should.conditions[0].clone();
        machines.type_ = "MachinesReady".to_owned();
        tenant.status =
            Some(TenantClusterStatus { conditions: vec![machines], ..Default::default() });
        should.conditions.truncate(1);
        let mut types = |fields: Value| {
            let entry = json!([{"manager": "x", "operation": "Apply", "fieldsV1": {"f:status": {"f:conditions": fields}}}]);
            tenant.metadata.managed_fields = serde_json::from_value(entry).unwrap();
            let body = apply(&tenant, &should, true);
            let all = body["status"]["conditions"].as_array().unwrap().clone();
            all.iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(types(json!({})), ["Ready", "MachinesReady"]);
        assert_eq!(types(json!({"k:{\"type\":\"Ready\"}": {".": {}}})), ["Ready"]);
    }

    #[test]
    fn ready_says_what_is_not() {
        let mut parts = parts();
        parts.hosts.ready = 1;
        parts.hosts.not_ready =
            vec![berth_api::TenantHost { name: "b".to_owned(), message: "no uplink".to_owned() }];
        let told = status(&tenant(), &parts, at(0));
        let ready = &told.conditions[0];
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "HostsNotReady"));
        assert_eq!(ready.message, "HostsReady: ready on 1 of 2 hosts; not on b (no uplink)");
        let mut tenant = tenant();
        let mut machines = ready.clone();
        machines.type_ = "MachinesReady".to_owned();
        "no user data".clone_into(&mut machines.message);
        tenant.status =
            Some(TenantClusterStatus { conditions: vec![machines], ..Default::default() });
        parts.hosts.ready = 2;
        let told = status(&tenant, &parts, at(0));
        assert_eq!(told.conditions[0].reason, "MachinesNotReady");
    }
}
