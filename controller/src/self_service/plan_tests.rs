//! Tests of the plan of a quota. The oracle adds up the grants with 128 bits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{
    ApprovalMode, Bytes, ConditionReason, PrefixPool, QuotaAmounts, TenantGrant, TenantQuota,
    TenantRequest,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::assignment::{NamespaceLabels, assigned_quota};
use super::demand::FlavorSizes;
use super::flavor::FlavorSize;
use super::plan::{MAX_UNDECIDED, PlanFacts, QuotaPlan, name_in_use, plan_quota, sum};
use crate::tenants::fault::Fault;

const GIB: u64 = 1 << 30;

fn quota(limits: Value) -> TenantQuota {
    let mut all = json!({
        "tenants": 100, "machines": 100, "flavors": ["small", "large"], "storageClasses": ["fast"],
        "hostNetworks": ["trunk"], "pools": [{"name": "corp", "minPrefixLength": 24}],
    });
    all.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "q", "uid": "q"},
        "spec": {"namespaces": {"names": ["team-a"]}, "approval": "Automatic", "limits": all},
    }))
    .unwrap()
}

/// Returns a request that was created in this second.
fn request(name: &str, second: u32, spec: Value) -> TenantRequest {
    let mut all = json!({"machines": {"count": 1, "flavors": ["small"]}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantRequest",
        "metadata": {
            "name": name, "namespace": "team-a", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": format!("2026-01-01T00:{:02}:{:02}Z", second / 60 % 60, second % 60),
        },
        "spec": all,
    }))
    .unwrap()
}

fn machines(count: u32) -> Value {
    json!({"machines": {"count": count, "flavors": ["small"]}})
}

fn sizes() -> FlavorSizes {
    let size = |cpus, memory, hugepages| FlavorSize { cpus, memory, hugepages };
    BTreeMap::from([
        ("small".to_owned(), Ok(size(2, 8 * GIB, 0))),
        ("large".to_owned(), Ok(size(8, 4 * GIB, 4 * GIB))),
    ])
}

fn pools() -> Vec<PrefixPool> {
    let pool = |name: &str, length: u8| json!({"name": name, "cidr": "10.0.0.0/8", "prefixLength": length});
    serde_json::from_value(json!([pool("corp", 24), pool("other", 24)])).unwrap()
}

fn plan_with(
    quota: &TenantQuota,
    grants: Vec<TenantGrant>,
    requests: &[TenantRequest],
    names_in_use: &BTreeMap<String, Fault>,
    settled: &BTreeSet<String>,
) -> QuotaPlan {
    let requests: Vec<Arc<TenantRequest>> = requests.iter().cloned().map(Arc::new).collect();
    let (namespaces, sizes, pools) = (NamespaceLabels::new(), sizes(), pools());
    let facts =
        PlanFacts { namespaces: &namespaces, sizes: &sizes, pools: &pools, names_in_use, settled };
    plan_quota(quota, grants, &requests, facts)
}

fn plan(quota: &TenantQuota, grants: Vec<TenantGrant>, requests: &[TenantRequest]) -> QuotaPlan {
    plan_with(quota, grants, requests, &BTreeMap::new(), &BTreeSet::new())
}

/// Plans with machines and volumes that fit the reduced grants of all requests.
fn plan_settled(
    quota: &TenantQuota,
    grants: Vec<TenantGrant>,
    requests: &[TenantRequest],
) -> QuotaPlan {
    let uids = requests.iter().filter_map(|request| request.metadata.uid.clone()).collect();
    plan_with(quota, grants, requests, &BTreeMap::new(), &uids)
}

fn names(plan: &QuotaPlan) -> Vec<&str> {
    plan.grants.iter().map(|grant| grant.name.as_str()).collect()
}

fn reason(plan: &QuotaPlan, name: &str) -> Option<ConditionReason> {
    plan.refusals.get(&format!("uid-{name}")).map(|fault| fault.reason)
}

#[test]
fn the_oldest_requests_are_granted() {
    let quota = quota(json!({"tenants": 2}));
    let requests = [
        request("c", 3, json!({})),
        request("b", 2, json!({})),
        request("a", 2, json!({})),
        request("d", 1, json!({})),
    ];
    let plan = plan(&quota, Vec::new(), &requests);
    assert_eq!(names(&plan), ["d", "a"], "of two requests of one second, the UID decides");
    assert_eq!(reason(&plan, "b"), Some(ConditionReason::QuotaExceeded));
    assert!(plan.refusals["uid-b"].message.contains("tenants: 1 requested, others have 2 of 2"));
}

#[test]
fn machines_count_with_the_largest_of_their_instance_types() {
    let spec = json!({
        "machines": {"count": 3, "flavors": ["small", "large"]},
        "storage": {"size": "10Gi", "classes": ["fast"]}, "network": {"name": "trunk"},
    });
    let plan = plan(&quota(json!({})), Vec::new(), &[request("a", 0, spec)]);
    assert_eq!(
        plan.grants[0].amounts,
        QuotaAmounts {
            tenants: 1,
            machines: 3,
            cpus: 24,
            memory: Bytes(24 * GIB),
            hugepages: Bytes(12 * GIB),
            storage: Bytes(10 * GIB),
            networks: 1,
        }
    );
}

#[test]
fn an_edit_beyond_the_quota_keeps_the_grant() {
    let quota = quota(json!({"machines": 4}));
    let first =
        plan(&quota, Vec::new(), &[request("a", 0, machines(2)), request("b", 1, machines(2))]);
    let mut edited = request("a", 0, machines(3));
    edited.metadata.generation = Some(2);
    let second =
        plan(&quota, first.grants.clone(), &[edited.clone(), request("b", 1, machines(2))]);
    assert_eq!(second.grants, first.grants);
    assert_eq!(reason(&second, "a"), Some(ConditionReason::QuotaExceeded));
    // When the other request is deleted, the edit is granted.
    let rest = vec![first.grants[0].clone()];
    let third = plan(&quota, rest, &[edited]);
    assert_eq!((third.grants[0].generation, third.grants[0].amounts.machines), (2, 3));
}

#[test]
fn a_reduced_limit_takes_nothing_from_a_tenant() {
    let granted = plan(&quota(json!({})), Vec::new(), &[request("a", 0, machines(10))]).grants;
    let reduced = quota(json!({"machines": 4}));
    let same = plan(&reduced, granted.clone(), &[request("a", 0, machines(10))]);
    assert_eq!((same.grants, same.refusals.len()), (granted.clone(), 0));
    for (count, expected) in [(11, 10), (7, 7)] {
        let mut edited = request("a", 0, machines(count));
        edited.metadata.generation = Some(2);
        let plan = plan(&reduced, granted.clone(), &[edited]);
        assert_eq!(plan.grants[0].resources.machines.count, expected, "{count}");
    }
    let other =
        plan(&reduced, granted, &[request("a", 0, machines(10)), request("b", 1, json!({}))]);
    assert_eq!(names(&other), ["a"]);
}

/// A user creates the machines of a request, reduces the request, and requests the same resources for another tenant.
#[test]
fn a_reduced_request_counts_until_its_machines_are_deleted() {
    let quota = quota(json!({"machines": 10, "storage": "10Gi"}));
    let first = request("a", 0, machines(10));
    let granted = plan(&quota, Vec::new(), &[first]).grants;
    let mut reduced = request("a", 0, machines(4));
    reduced.metadata.generation = Some(2);
    let other = request("b", 1, machines(6));
    let both = [reduced, other];
    let early = plan(&quota, granted, &both);
    assert_eq!(reason(&early, "b"), Some(ConditionReason::QuotaExceeded));
    let grant = &early.grants[0];
    assert_eq!((grant.generation, grant.resources.machines.count), (2, 4));
    assert_eq!((grant.amounts.machines, grant.amounts.cpus), (10, 20));
    assert_eq!(grant.reduced_amounts.map(|amounts| amounts.machines), Some(4));
    let later = plan_settled(&quota, early.grants, &both);
    assert_eq!(names(&later), ["a", "b"]);
    let grant = &later.grants[0];
    assert_eq!((grant.amounts.machines, grant.amounts.cpus), (4, 8));
    assert_eq!(grant.reduced_amounts, None);
    // The same amounts are granted again, and nothing is reduced.
    assert_eq!(plan_settled(&quota, later.grants.clone(), &both), later);
}

/// Fewer machines of a larger instance type: the quota counts the larger value of each amount.
#[test]
fn each_amount_of_a_reduced_request_counts_alone() {
    let quota = quota(json!({"hugepages": "16Gi"}));
    let granted = plan(&quota, Vec::new(), &[request("a", 0, machines(10))]).grants;
    let spec = json!({"machines": {"count": 4, "flavors": ["large"]}});
    let mut edited = request("a", 0, spec);
    edited.metadata.generation = Some(2);
    let plan = plan(&quota, granted, &[edited]);
    let amounts = plan.grants[0].amounts;
    assert_eq!((amounts.machines, amounts.cpus), (10, 32));
    assert_eq!((amounts.memory, amounts.hugepages), (Bytes(80 * GIB), Bytes(16 * GIB)));
    let reduced = plan.grants[0].reduced_amounts.unwrap();
    assert_eq!((reduced.machines, reduced.cpus, reduced.memory), (4, 32, Bytes(16 * GIB)));
}

#[test]
fn a_manual_quota_needs_the_approval_of_the_current_spec() {
    let mut quota = quota(json!({}));
    quota.spec.approval = ApprovalMode::Manual;
    let with = |generation: i64, approval: Value| {
        let mut request = request("a", 0, json!({}));
        request.metadata.generation = Some(generation);
        request.status = serde_json::from_value(json!({ "approval": approval })).unwrap();
        plan(&quota, Vec::new(), &[request])
    };
    let approved = json!({"decision": "Approved", "generation": 2, "uid": "uid-a"});
    assert_eq!(names(&with(2, approved.clone())), ["a"]);
    // The requester has edited the spec after the approval.
    let edited = with(3, approved);
    assert_eq!(names(&edited), Vec::<&str>::new());
    assert_eq!(reason(&edited, "a"), Some(ConditionReason::WaitingForApproval));
    // The requester has deleted the request that the approver has read, and created another one with its name.
    let earlier = json!({"decision": "Approved", "generation": 2, "uid": "uid-earlier"});
    let replaced = with(2, earlier);
    assert_eq!(reason(&replaced, "a"), Some(ConditionReason::WaitingForApproval));
    let denied =
        json!({"decision": "Denied", "generation": 2, "uid": "uid-a", "message": "too large"});
    let denied = with(2, denied);
    assert_eq!(reason(&denied, "a"), Some(ConditionReason::ApprovalDenied));
    assert!(denied.refusals["uid-a"].message.contains("too large"));
}

#[test]
fn values_outside_of_the_quota_are_refused() {
    let network = |pool: &str, length: u8| json!({"network": {"name": "trunk", "ipv4": {"pool": pool, "prefixLength": length}}});
    for (spec, expected, words) in [
        (
            json!({"machines": {"count": 1, "flavors": ["huge"]}}),
            ConditionReason::NotPermitted,
            "huge",
        ),
        (json!({"machines": {"count": 1, "flavors": []}}), ConditionReason::InvalidSpec, "flavors"),
        (
            json!({"storage": {"size": "1Gi", "classes": ["slow"]}}),
            ConditionReason::NotPermitted,
            "storage.classes: slow",
        ),
        (json!({"network": {"name": "office"}}), ConditionReason::NotPermitted, "office"),
        (network("other", 24), ConditionReason::NotPermitted, "limits.pools"),
        (network("corp", 16), ConditionReason::NotPermitted, "16 is requested"),
        (json!({"tenantName": "../x"}), ConditionReason::InvalidSpec, "../x"),
        (json!({"tenantName": "x".repeat(56)}), ConditionReason::InvalidSpec, "55"),
    ] {
        let plan = plan(&quota(json!({})), Vec::new(), &[request("a", 0, spec.clone())]);
        assert_eq!(reason(&plan, "a"), Some(expected), "{spec}");
        assert!(plan.refusals["uid-a"].message.contains(words), "{:?}", plan.refusals);
        assert_eq!(names(&plan), Vec::<&str>::new());
    }
    let permitted = plan(&quota(json!({})), Vec::new(), &[request("a", 0, network("corp", 24))]);
    assert_eq!(names(&permitted), ["a"]);
}

#[test]
fn names_of_others_are_refused() {
    let quota = quota(json!({}));
    let bank = json!({"tenantName": "bank"});
    let requests = [request("a", 0, bank.clone()), request("b", 1, bank.clone())];
    let same = plan(&quota, Vec::new(), &requests);
    assert_eq!(names(&same), ["a"]);
    assert_eq!(reason(&same, "b"), Some(ConditionReason::TenantNameInUse));
    let used = BTreeMap::from([("uid-a".to_owned(), name_in_use("bank", "x"))]);
    let plan = plan_with(&quota, Vec::new(), &[request("a", 0, bank)], &used, &BTreeSet::new());
    assert_eq!(reason(&plan, "a"), Some(ConditionReason::TenantNameInUse));
}

#[test]
fn immutable_fields_are_compared_with_the_grant() {
    let quota = quota(json!({}));
    let granted = plan(&quota, Vec::new(), &[request("a", 0, json!({}))]).grants;
    for spec in [json!({"tenantName": "bank"}), json!({"network": {"name": "trunk"}})] {
        let mut edited = request("a", 0, spec);
        edited.metadata.generation = Some(2);
        let plan = plan(&quota, granted.clone(), &[edited]);
        assert_eq!(plan.grants, granted);
        assert_eq!(reason(&plan, "a"), Some(ConditionReason::InvalidSpec));
    }
}

#[test]
fn a_request_that_is_being_deleted_gets_no_grant_and_keeps_one() {
    let quota = quota(json!({"tenants": 1}));
    let mut deleted = request("a", 0, json!({}));
    deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
    let next = request("b", 1, json!({}));
    let free = plan(&quota, Vec::new(), &[deleted.clone(), next.clone()]);
    assert_eq!(names(&free), ["b"]);
    let granted = plan(&quota, Vec::new(), &[request("a", 0, json!({}))]).grants;
    let kept = plan(&quota, granted, &[deleted, next]);
    assert_eq!(names(&kept), ["a"]);
}

#[test]
fn a_request_is_assigned_to_one_quota() {
    let named = |name: &str, selector: Value| {
        let mut quota = quota(json!({}));
        quota.metadata.name = Some(name.to_owned());
        quota.spec.namespaces = serde_json::from_value(selector).unwrap();
        Arc::new(quota)
    };
    let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    let namespaces = BTreeMap::from([("team-a".to_owned(), labels)]);
    let by_label = named("label", json!({"selector": {"matchLabels": {"team": "a"}}}));
    let by_name = named("name", json!({"names": ["team-a"]}));
    let other = named("other", json!({"selector": {"matchLabels": {"team": "b"}}}));
    let invalid = json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Maybe"}]}});
    let invalid = named("invalid", invalid);
    let assign = |spec: Value, quotas: &[&Arc<TenantQuota>]| {
        let quotas: Vec<Arc<TenantQuota>> = quotas.iter().map(|one| Arc::clone(one)).collect();
        let found = assigned_quota(&request("a", 0, spec), &quotas, &namespaces);
        found.map(|quota| quota.metadata.name.clone().unwrap()).map_err(|fault| fault.reason)
    };
    assert_eq!(assign(json!({}), &[&by_label, &other, &invalid]), Ok("label".to_owned()));
    assert_eq!(assign(json!({}), &[&other, &invalid]), Err(ConditionReason::QuotaNotFound));
    assert_eq!(assign(json!({}), &[&by_label, &by_name]), Err(ConditionReason::AmbiguousQuota));
    let spec = json!({"quota": "name"});
    assert_eq!(assign(spec.clone(), &[&by_label, &by_name]), Ok("name".to_owned()));
    // A quota that does not select the namespace cannot be used by its name.
    assert_eq!(assign(json!({"quota": "other"}), &[&other]), Err(ConditionReason::QuotaNotFound));
    // The quota that has granted the request stays its quota.
    let mut granting = (*other).clone();
    let grant = TenantGrant { uid: "uid-a".to_owned(), ..TenantGrant::default() };
    granting.status.get_or_insert_default().grants = vec![grant];
    assert_eq!(assign(json!({}), &[&by_label, &Arc::new(granting)]), Ok("other".to_owned()));
}

/// Returns the sum of one amount of all grants.
fn total(grants: &[TenantGrant], amount: impl Fn(&QuotaAmounts) -> u64) -> u128 {
    grants.iter().map(|grant| u128::from(amount(&grant.amounts))).sum()
}

/// Returns the reasons of all refusals. A message also has the amounts of grants that a plan adds after the refusal.
fn reasons(plan: &QuotaPlan) -> BTreeMap<&String, ConditionReason> {
    plan.refusals.iter().map(|(uid, fault)| (uid, fault.reason)).collect()
}

/// Records that each tenant has as many machines as its grant permits. Machines of an earlier grant stay.
fn create_machines(created: &mut BTreeMap<String, u32>, grants: &[TenantGrant]) {
    for grant in grants {
        let count = created.entry(grant.uid.clone()).or_default();
        *count = (*count).max(grant.resources.machines.count);
    }
}

proptest! {
    /// The sum of the grants never exceeds a limit, whatever is requested and edited in any order; neither does the number of
    /// machines, although users delete machines only in each second round; a second plan of the same input decides the same; each
    /// granted or refused request has exactly one result.
    #[test]
    fn grants_never_exceed_the_limits(
        limits in (0u32..8, 0u32..60, 0u32..300, 0u64..400, 0u64..100, 0u64..2000, 0u32..6),
        rounds in prop::collection::vec(
            prop::collection::vec((0usize..10, 0u32..40, 0usize..3, 0u64..1000, any::<bool>()), 0..8),
            1..5,
        ),
    ) {
        let (tenants, most_machines, cpus, memory, hugepages, storage, networks) = limits;
        let quota = quota(json!({
            "tenants": tenants, "machines": most_machines, "cpus": cpus, "memory": format!("{memory}Gi"),
            "hugepages": format!("{hugepages}Gi"), "storage": format!("{storage}Gi"), "networks": networks,
        }));
        let mut requests: BTreeMap<usize, TenantRequest> = BTreeMap::new();
        let mut grants: Vec<TenantGrant> = Vec::new();
        let mut created: BTreeMap<String, u32> = BTreeMap::new();
        for (round, edits) in (1i64..).zip(rounds) {
            if round % 2 == 0 {
                let delete = |grant: &TenantGrant| (grant.uid.clone(), grant.resources.machines.count);
                created = grants.iter().map(delete).collect();
                let all: Vec<TenantRequest> = requests.values().cloned().collect();
                grants = plan_settled(&quota, grants, &all).grants;
                create_machines(&mut created, &grants);
            }
            for (index, count, flavors, size, has_network) in edits {
                let flavors = [vec!["small"], vec!["large"], vec!["small", "large"]][flavors].clone();
                let mut spec = json!({
                    "machines": {"count": count, "flavors": flavors},
                    "storage": {"size": format!("{size}Gi"), "classes": ["fast"]},
                });
                if has_network {
                    spec["network"] = json!({"name": "trunk"});
                }
                let second = u32::try_from(index).unwrap();
                let mut edited = request(&format!("r{index}"), second, spec);
                edited.metadata.generation = Some(round);
                requests.insert(index, edited);
            }
            let all: Vec<TenantRequest> = requests.values().cloned().collect();
            let planned = plan(&quota, grants.clone(), &all);
            let again = plan(&quota, planned.grants.clone(), &all);
            prop_assert_eq!(&again.grants, &planned.grants);
            prop_assert_eq!(reasons(&again), reasons(&planned));
            let granted = &planned.grants;
            create_machines(&mut created, granted);
            let machines: u128 = created.values().map(|count| u128::from(*count)).sum();
            prop_assert!(machines <= u128::from(most_machines));
            prop_assert!(total(granted, |one| one.tenants.into()) <= u128::from(tenants));
            prop_assert!(total(granted, |one| one.machines.into()) <= u128::from(most_machines));
            prop_assert!(total(granted, |one| one.cpus) <= u128::from(cpus));
            prop_assert!(total(granted, |one| one.memory.0) <= u128::from(memory * GIB));
            prop_assert!(total(granted, |one| one.hugepages.0) <= u128::from(hugepages * GIB));
            prop_assert!(total(granted, |one| one.storage.0) <= u128::from(storage * GIB));
            prop_assert!(total(granted, |one| one.networks.into()) <= u128::from(networks));
            let used = sum(granted);
            prop_assert_eq!(u128::from(used.cpus), total(granted, |one| one.cpus));
            for request in &all {
                let uid = request.metadata.uid.as_ref().unwrap();
                let is_current = planned.grant_of(request)
                    .is_some_and(|grant| Some(grant.generation) == request.metadata.generation);
                prop_assert_eq!(is_current, !planned.refusals.contains_key(uid));
            }
            // A grant disappears only with its request.
            for before in &grants {
                prop_assert!(granted.iter().any(|after| after.uid == before.uid));
            }
            grants = planned.grants;
        }
    }
}

#[test]
fn a_namespace_has_a_limited_number_of_undecided_requests() {
    let limit = u32::try_from(MAX_UNDECIDED).unwrap();
    // The first requests are refused, and the last is from another namespace.
    let mut all: Vec<TenantRequest> =
        (0..limit + 2).map(|at| request(&format!("r{at:02}"), at, machines(1000))).collect();
    let mut other = request("other", limit + 3, machines(1000));
    other.metadata.namespace = Some("team-b".to_owned());
    all.push(other);
    let all: Vec<Arc<TenantRequest>> = all.into_iter().map(Arc::new).collect();
    let mut quota = quota(json!({}));
    quota.spec.namespaces.names.insert("team-b".to_owned());
    let (namespaces, sizes, names) = (NamespaceLabels::new(), sizes(), BTreeMap::new());
    let facts = PlanFacts {
        namespaces: &namespaces,
        sizes: &sizes,
        pools: &[],
        names_in_use: &names,
        settled: &BTreeSet::new(),
    };
    let plan = plan_quota(&quota, Vec::new(), &all, facts);
    let reason = |name: &str| plan.refusals[&format!("uid-{name}")].reason;
    assert_eq!(reason(&format!("r{:02}", limit - 1)), ConditionReason::QuotaExceeded);
    assert_eq!(reason(&format!("r{limit:02}")), ConditionReason::TooManyRequests);
    assert_eq!(reason(&format!("r{:02}", limit + 1)), ConditionReason::TooManyRequests);
    assert_eq!(reason("other"), ConditionReason::QuotaExceeded);
}

#[test]
fn storage_beyond_the_largest_quantity_is_refused() {
    let plan = |size: &str| {
        let spec = json!({"storage": {"size": size, "classes": ["fast"]}});
        let all = [Arc::new(request("a", 0, spec))];
        let (namespaces, sizes, names) = (NamespaceLabels::new(), sizes(), BTreeMap::new());
        let facts = PlanFacts {
            namespaces: &namespaces,
            sizes: &sizes,
            pools: &[],
            names_in_use: &names,
            settled: &BTreeSet::new(),
        };
        plan_quota(&quota(json!({})), Vec::new(), &all, facts)
    };
    assert_eq!(plan("7Ei").refusals, BTreeMap::new());
    let refused = plan("8Ei").refusals;
    assert_eq!(refused["uid-a"].reason, ConditionReason::InvalidSpec);
    assert!(refused["uid-a"].message.contains("storage.size: 8Ei"), "{}", refused["uid-a"].message);
}

#[test]
fn pools_of_a_grant_cannot_be_changed() {
    let quota = quota(json!({}));
    let network = |pool: &str| json!({"network": {"name": "trunk", "ipv4": {"pool": pool}}});
    let granted = plan(&quota, Vec::new(), &[request("a", 0, network("corp"))]).grants;
    assert_eq!(granted.len(), 1);
    for spec in [network("other"), json!({"network": {"name": "trunk"}})] {
        let mut edited = request("a", 0, spec);
        edited.metadata.generation = Some(2);
        let plan = plan(&quota, granted.clone(), &[edited]);
        assert_eq!(plan.grants, granted);
        assert_eq!(reason(&plan, "a"), Some(ConditionReason::InvalidSpec));
    }
}
