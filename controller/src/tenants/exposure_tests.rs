//! Tests of the plan for the exposure of Services.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::super::cluster::UnknownFact;
use super::super::pool_use::{AppliedPool, ServiceAddress};
use super::*;

fn tenant(name: &str, spec: Value) -> Arc<TenantCluster> {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": spec,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn with_pool(name: &str, addresses: Value) -> Arc<TenantCluster> {
    tenant(name, json!({"exposure": {"loadBalancers": {"addresses": addresses}}}))
}

fn plan(tenant: &TenantCluster, tenants: &[Arc<TenantCluster>]) -> DesiredExposure {
    plan_with(tenant, tenants, &PoolUse::default())
}

fn plan_with(
    tenant: &TenantCluster,
    tenants: &[Arc<TenantCluster>],
    pool_use: &PoolUse,
) -> DesiredExposure {
    let cluster = ClusterFacts {
        dns: Err(UnknownFact::NoDnsService),
        api_server: Ok(["198.51.100.5".parse().unwrap()].into()),
        node_addresses: ["192.0.2.200".parse().unwrap()].into(),
        networks: ["10.244.0.0/16".parse().unwrap()].into(),
        node_local_dns: [].into(),
    };
    let config = InfraConfigSpec::default();
    plan_exposure(ExposureInput { tenant, tenants, config: &config, cluster: &cluster, pool_use })
}

fn single_fault(desired: &DesiredExposure) -> (ConditionReason, &str) {
    let [fault] = desired.faults.as_slice() else { panic!("{:?}", desired.faults) };
    (fault.reason, &fault.message)
}

#[test]
fn nothing_is_desired_without_an_exposure() {
    let none = plan(&tenant("shop", json!({})), &[]);
    assert!(!none.is_requested && none.objects.is_empty() && none.faults.is_empty());
    // Objects of an earlier spec are deleted, except those of the CSI driver.
    assert!(none.is_undesired(ObjectKind::IpAddressPool, "metallb-system", "tenant-shop"));
    let is_undesired = |name: &str| none.is_undesired(ObjectKind::Role, "cluster-shop", name);
    assert!(is_undesired(CLOUD_CONTROLLER_MANAGER) && !is_undesired("kubevirt-csi"));
}

#[test]
fn a_pool_in_a_former_namespace_is_deleted() {
    let desired = plan(&with_pool("shop", json!(["192.0.2.0/28"])), &[]);
    assert!(desired.faults.is_empty());
    let is_undesired =
        |namespace: &str| desired.is_undesired(ObjectKind::IpAddressPool, namespace, "tenant-shop");
    assert!(!is_undesired("metallb-system") && is_undesired("former"));
}

#[test]
fn a_pool_that_overlaps_that_of_an_older_tenant_is_refused() {
    let created = |tenant: &Arc<TenantCluster>, second: i64| {
        let mut tenant = TenantCluster::clone(tenant);
        let time = k8s_openapi::jiff::Timestamp::from_second(second).unwrap();
        tenant.metadata.creation_timestamp = Some(Time(time));
        Arc::new(tenant)
    };
    let older = created(&with_pool("two", json!(["192.0.2.0/28", "2001:db8::/120"])), 1000);
    let younger = created(&with_pool("one", json!(["192.0.2.15-192.0.2.20"])), 2000);
    let other = with_pool("other", json!(["203.0.113.0/28"]));
    let all = [Arc::clone(&older), Arc::clone(&younger), Arc::clone(&other)];
    assert_eq!(plan(&older, &all).objects.len(), 2);
    assert_eq!(plan(&other, &all).objects.len(), 2);
    let refused = plan(&younger, &all);
    let (reason, message) = single_fault(&refused);
    assert_eq!(reason, ConditionReason::LoadBalancerPoolsOverlap);
    assert!(message.contains("TenantCluster two, which is older"), "{message}");
    assert!(message.contains("TenantCluster one keeps its previous pool"), "{message}");
    assert!(refused.objects.is_empty());
    assert!(!refused.is_undesired(ObjectKind::IpAddressPool, "metallb-system", "tenant-one"));
    // If the pool of the younger tenant already has the addresses, a change of the older tenant cannot take them away.
    let spec = json!({"addresses": ["192.0.2.15-192.0.2.20"]});
    let pools = vec![AppliedPool::new("one", &spec)];
    let pool_use = PoolUse { pools, addresses: Vec::new() };
    assert_eq!(plan_with(&younger, &all, &pool_use).objects.len(), 2);
    let refused = plan_with(&older, &all, &pool_use);
    assert_eq!(single_fault(&refused).0, ConditionReason::LoadBalancerPoolsOverlap);
    assert!(refused.objects.is_empty());
}

/// An invalid request does not block the pools of other tenants. The tenant with the invalid request retains its
/// previous pool.
#[test]
fn an_invalid_pool_blocks_only_the_addresses_that_its_tenant_has() {
    let hostile = with_pool("a", json!(["0.0.0.0/0"]));
    let pools = vec![AppliedPool::new("a", &json!({"addresses": ["192.0.2.0/28"]}))];
    let pool_use = PoolUse { pools, addresses: Vec::new() };
    for (addresses, is_free) in [("192.0.2.16/28", true), ("192.0.2.8/29", false)] {
        let tenant = with_pool("b", json!([addresses]));
        let all = [Arc::clone(&hostile), Arc::clone(&tenant)];
        assert_eq!(plan_with(&tenant, &all, &pool_use).faults.is_empty(), is_free, "{addresses}");
        assert!(plan(&tenant, &all).faults.is_empty(), "{addresses}");
    }
}

/// A tenant whose request is refused retains its previous pool, so no other tenant gets the addresses of this pool.
#[test]
fn the_previous_pool_of_a_refused_tenant_stays_its_own() {
    let refused = with_pool("b", json!(["192.0.2.8-192.0.2.40"]));
    let other = with_pool("c", json!(["203.0.113.0/28"]));
    let all = [with_pool("a", json!(["192.0.2.0/28"])), Arc::clone(&refused), Arc::clone(&other)];
    let pools = [("a", "192.0.2.0/28"), ("b", "203.0.113.0/28")]
        .map(|(tenant, range)| AppliedPool::new(tenant, &json!({"addresses": [range]})));
    let pool_use = PoolUse { pools: pools.into(), addresses: Vec::new() };
    for tenant in [&refused, &other] {
        let desired = plan_with(tenant, &all, &pool_use);
        assert_eq!(single_fault(&desired).0, ConditionReason::LoadBalancerPoolsOverlap);
    }
    assert!(plan_with(&all[0], &all, &pool_use).faults.is_empty());
    // If the request is accepted, the tenant's previous pool is released first, and then the other tenant gets its
    // addresses.
    let all = [refused, Arc::clone(&other)];
    let desired = plan_with(&other, &all, &applied(&[("b", "203.0.113.0/28")]));
    let (reason, message) = single_fault(&desired);
    assert_eq!(reason, ConditionReason::LoadBalancerPoolsOverlap);
    assert!(message.contains("still have: b; TenantCluster c keeps"), "{message}");
    assert!(desired.objects.is_empty());
    assert!(!desired.is_undesired(ObjectKind::IpAddressPool, "metallb-system", "tenant-c"));
    let pool_use = applied(&[("b", "192.0.2.8-192.0.2.40")]);
    assert!(plan_with(&other, &all, &pool_use).faults.is_empty());
}

fn applied(pools: &[(&str, &str)]) -> PoolUse {
    let pools = pools.iter();
    let pools = pools.map(|(name, range)| AppliedPool::new(name, &json!({"addresses": [range]})));
    PoolUse { pools: pools.collect(), addresses: Vec::new() }
}

#[test]
fn a_refused_pool_blocks_no_younger_tenant() {
    let all = [
        with_pool("a", json!(["192.0.2.0/28"])),
        with_pool("b", json!(["192.0.2.8-192.0.2.31"])),
        with_pool("c", json!(["192.0.2.24/29"])),
    ];
    let pool_use = applied(&[("a", "192.0.2.0/28")]);
    let faults = all.each_ref().map(|tenant| plan_with(tenant, &all, &pool_use).faults.len());
    assert_eq!(faults, [0, 1, 0], "b gets no address, so c gets those that a does not have");
    // Without tenant a, the request of b is accepted, and takes precedence over that of c.
    let [_, older, younger] = &all;
    let all = [Arc::clone(older), Arc::clone(younger)];
    let faults_with = |pool_use: &PoolUse| {
        all.each_ref().map(|tenant| plan_with(tenant, &all, pool_use).faults.len())
    };
    assert_eq!(faults_with(&pool_use), [1, 1], "b waits until the pool of a is removed");
    assert_eq!(faults_with(&applied(&[])), [0, 1]);
}

/// The objects of MetalLB are changed only for a valid request, and remain unchanged while the request is invalid.
#[test]
fn a_pool_in_use_changes_only_to_a_valid_one() {
    let specs = |desired: &DesiredExposure| {
        let specs = desired.objects.iter().map(|one| one.body["spec"].clone());
        specs.collect::<Vec<_>>()
    };
    let kinds = [ObjectKind::IpAddressPool, ObjectKind::L2Advertisement];
    let is_deleted = |desired: &DesiredExposure| {
        kinds.map(|kind| desired.is_undesired(kind, "metallb-system", "tenant-shop"))
    };
    let before = plan(&with_pool("shop", json!(["192.0.2.0/28"])), &[]);
    let extended = plan(&with_pool("shop", json!(["192.0.2.0/28", "192.0.2.32/28"])), &[]);
    assert_ne!(specs(&before)[0], specs(&extended)[0]);
    assert_eq!(specs(&before)[1], specs(&extended)[1]);
    assert_eq!([is_deleted(&before), is_deleted(&extended)], [[false; 2]; 2]);
    for invalid in [json!([]), json!(["192.0.2.0/24"]), json!(["192.0.2.0/28", "192.0.2.1"])] {
        let desired = plan(&with_pool("shop", invalid), &[]);
        assert!(desired.objects.is_empty() && desired.faults.len() == 1, "{desired:?}");
        assert_eq!(is_deleted(&desired), [false; 2]);
    }
    let access = tenant("shop", json!({"exposure": {"machineAccess": {}}}));
    assert_eq!(is_deleted(&plan(&access, &[])), [true; 2], "the tenant requests no pool any more");
}

#[test]
fn addresses_of_services_stay_in_the_pool_and_in_no_other() {
    let web = ServiceAddress {
        tenant: "shop".to_owned(),
        service: "web".to_owned(),
        address: "192.0.2.9".parse().unwrap(),
    };
    let api = ServiceAddress { service: "api".to_owned(), ..web.clone() };
    let spec = json!({"addresses": ["192.0.2.0-192.0.2.15"]});
    let pools = vec![AppliedPool::new("shop", &spec)];
    let pool_use = PoolUse { pools, addresses: vec![web, api] };
    let kinds = [ObjectKind::IpAddressPool, ObjectKind::L2Advertisement];
    for (tenant, addresses, auto_assign) in [
        (
            with_pool("shop", json!(["192.0.2.0/29"])),
            json!(["192.0.2.0-192.0.2.7", "192.0.2.9-192.0.2.9"]),
            true,
        ),
        (tenant("shop", json!({"exposure": {}})), json!(["192.0.2.9-192.0.2.9"]), false),
        (tenant("shop", json!({})), json!(["192.0.2.9-192.0.2.9"]), false),
    ] {
        let desired = plan_with(&tenant, &[], &pool_use);
        let (reason, message) = single_fault(&desired);
        assert_eq!(reason, ConditionReason::LoadBalancerAddressesInUse);
        assert!(message.contains("Service cluster-shop/web (192.0.2.9)"), "{message}");
        assert_eq!(desired.objects[0].body["spec"]["addresses"], addresses);
        assert_eq!(desired.objects[0].body["spec"]["autoAssign"], auto_assign);
        for kind in kinds {
            assert!(!desired.is_undesired(kind, "metallb-system", "tenant-shop"));
        }
        // Once the Services are deleted, another tenant gets the range.
        let other = with_pool("other", json!(["192.0.2.8/29"]));
        let refused = plan_with(&other, &[Arc::clone(&tenant), Arc::clone(&other)], &pool_use);
        assert_eq!(single_fault(&refused).0, ConditionReason::LoadBalancerAddressesInUse);
        assert!(refused.objects.is_empty());
        let unused = PoolUse { addresses: Vec::new(), ..pool_use.clone() };
        let waiting = plan_with(&other, &[Arc::clone(&tenant)], &unused);
        assert_eq!(single_fault(&waiting).0, ConditionReason::LoadBalancerPoolsOverlap);
        assert!(plan_with(&other, &[tenant], &PoolUse::default()).faults.is_empty());
    }
    let unchanged = plan_with(&with_pool("shop", json!(["192.0.2.0/28"])), &[], &pool_use);
    assert!(unchanged.faults.is_empty());
}

#[test]
fn hostile_pools_are_refused() {
    for (addresses, words) in [
        (json!([]), "addresses has no entry"),
        (json!(["0.0.0.0/0"]), "addresses[0]: `0.0.0.0-255.255.255.255` contains addresses of"),
        (json!(["::/0"]), "which no Service can have"),
        (json!(["203.0.113.9", "169.254.169.254"]), "addresses[1]: `169.254.169.254`"),
        (json!(["239.0.0.1"]), "224.0.0.0-255.255.255.255"),
        (json!(["192.0.2.0/24"]), "contains 192.0.2.200, the address of a Node"),
        (json!(["198.51.100.5"]), "or of the API server"),
        (json!(["10.244.3.0/28"]), "overlaps 10.244.0.0/16"),
        (json!(["203.0.113.0/28", "203.0.113.7"]), "overlaps `203.0.113.0-203.0.113.15`"),
    ] {
        let desired = plan(&with_pool("shop", addresses), &[]);
        let (reason, message) = single_fault(&desired);
        assert_eq!(reason, ConditionReason::InvalidExposure, "{message}");
        assert!(message.contains(words), "{words}: {message}");
        assert!(desired.objects.is_empty());
    }
}

#[test]
fn the_cloud_controller_manager_needs_a_kubeconfig_in_its_namespace() {
    let exposure = json!({"cloudControllerManager": {"image": "ccm:1"}});
    for (reference, words) in [
        (Value::Null, "spec.kubeconfigSecretRef: is missing"),
        (json!({"name": "admin", "namespace": "infra"}), "refers to Secret infra/admin"),
    ] {
        let spec = json!({"exposure": exposure, "kubeconfigSecretRef": reference});
        let desired = plan(&tenant("shop", spec), &[]);
        let (reason, message) = single_fault(&desired);
        assert_eq!(reason, ConditionReason::InvalidExposure);
        assert!(message.contains(words) && message.contains("cluster-shop"), "{message}");
        let name = CLOUD_CONTROLLER_MANAGER;
        assert!(!desired.is_undesired(ObjectKind::Deployment, "cluster-shop", name));
    }
    let spec = json!({"exposure": exposure, "kubeconfigSecretRef": {"name": "admin"}});
    let desired = plan(&tenant("shop", spec), &[]);
    let kinds: Vec<ObjectKind> = desired.objects.iter().map(|one| one.kind).collect();
    assert_eq!(
        kinds,
        [
            ObjectKind::ServiceAccount,
            ObjectKind::Role,
            ObjectKind::RoleBinding,
            ObjectKind::Deployment,
        ]
    );
}
