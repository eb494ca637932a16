//! Tests of the decisions about load balancer address pools.

use serde_json::json;

use super::super::pool_use::AppliedPool;
use super::*;

/// Returns tenants with these names and requests. They have no creation timestamps, so their names determine which
/// tenant is older.
fn tenants(requests: &[(&str, &str)]) -> Vec<Arc<TenantCluster>> {
    let requests = requests.iter().map(|(name, range)| {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
            "spec": {"exposure": {"loadBalancers": {"addresses": [range]}}},
        });
        let tenant: TenantCluster = serde_json::from_value(object).unwrap();
        Arc::new(tenant)
    });
    requests.collect()
}

fn applied(pools: &[(&str, &str)]) -> Vec<AppliedPool> {
    let pools = pools.iter();
    pools.map(|(name, range)| AppliedPool::new(name, &json!({"addresses": [range]}))).collect()
}

fn requested(tenant: &TenantCluster) -> &[AddressRange] {
    let exposure = tenant.spec.exposure.as_ref().unwrap();
    &exposure.load_balancers.as_ref().unwrap().addresses
}

fn decide_all(tenants: &[Arc<TenantCluster>], pools: &[AppliedPool]) -> Vec<PoolDecision> {
    let pool_use = PoolUse { pools: pools.to_vec(), addresses: Vec::new() };
    let may_apply = |_: PoolRequest<'_>| true;
    let state = PoolState { tenants, pool_use: &pool_use, may_apply: &may_apply };
    let all = tenants.iter();
    all.map(|tenant| decide(PoolRequest { tenant, ranges: requested(tenant) }, state)).collect()
}

fn are_refused(decisions: &[PoolDecision]) -> Vec<bool> {
    decisions.iter().map(|one| matches!(one, PoolDecision::Refused(_))).collect()
}

/// Changes the pools of accepted tenants, one after the other. Returns for each tenant whether it is refused, and
/// checks that no change alters this.
fn change_pools(tenants: &[Arc<TenantCluster>], pools: &mut Vec<AppliedPool>) -> Vec<bool> {
    let refused = are_refused(&decide_all(tenants, pools));
    loop {
        let decisions = decide_all(tenants, pools);
        assert_eq!(are_refused(&decisions), refused, "{tenants:?} {pools:?}");
        let mut accepted = tenants.iter().zip(&decisions).filter(|(tenant, decision)| {
            let name = tenant.name_any();
            let mut own = pools.iter().filter(|pool| pool.tenant == name);
            **decision == PoolDecision::Accepted && own.all(|pool| pool.ranges != requested(tenant))
        });
        let Some((tenant, _)) = accepted.next() else {
            let is_waiting = |one: &PoolDecision| matches!(one, PoolDecision::Waits(_));
            assert!(!decisions.iter().any(is_waiting), "{tenants:?} {pools:?}");
            return refused;
        };
        let (name, ranges) = (tenant.name_any(), requested(tenant).to_vec());
        pools.retain(|pool| pool.tenant != name);
        assert!(!pools.iter().any(|pool| overlap(&pool.ranges, &ranges)), "{tenants:?} {pools:?}");
        pools.push(AppliedPool { tenant: name, ranges });
    }
}

/// Tests all combinations for three tenants and three addresses in which each current pool contains at most one
/// address.
#[test]
fn a_refused_tenant_keeps_its_pool_and_each_other_tenant_gets_its_request() {
    let single = ["192.0.2.0", "192.0.2.1", "192.0.2.2"];
    let ranges = [single.as_slice(), &["192.0.2.0/31", "192.0.2.1-192.0.2.2"]].concat();
    let names = ["a", "b", "c"];
    // Index of the address in each tenant's current pool; 3 for a tenant without a pool.
    let owned = (0..64_usize).map(|number| [number % 4, number / 4 % 4, number / 16]);
    let is_possible = |owned: &[usize; 3]| {
        let [a, b, c] = *owned;
        (a == 3 || (a != b && a != c)) && (b == 3 || b != c)
    };
    let owned: Vec<[usize; 3]> = owned.filter(is_possible).collect();
    assert_eq!(owned.len(), 34);
    let mut refusals = 0;
    for number in 0..125_usize {
        let requests = [number % 5, number / 5 % 5, number / 25].map(|index| ranges[index]);
        let requests: Vec<(&str, &str)> = names.into_iter().zip(requests).collect();
        let tenants = tenants(&requests);
        for owned in &owned {
            let pools = names.into_iter().zip(owned);
            let pools: Vec<(&str, &str)> = pools
                .filter_map(|(name, index)| single.get(*index).map(|one| (name, *one)))
                .collect();
            let before = applied(&pools);
            let mut after = before.clone();
            let refused = change_pools(&tenants, &mut after);
            for (tenant, is_refused) in tenants.iter().zip(refused) {
                let find = |pools: &[AppliedPool]| {
                    let name = tenant.name_any();
                    let pool = pools.iter().find(|pool| pool.tenant == name);
                    pool.map(|pool| pool.ranges.clone())
                };
                let expected =
                    if is_refused { find(&before) } else { Some(requested(tenant).to_vec()) };
                assert_eq!(find(&after), expected, "{requests:?} {pools:?}");
                refusals += usize::from(is_refused);
            }
        }
    }
    assert!(refusals > 0);
}

#[test]
fn tenants_that_need_each_others_addresses_keep_their_pools() {
    let [first, second, third] =
        ["192.0.2.0-192.0.2.15", "192.0.2.16-192.0.2.31", "192.0.2.32-192.0.2.47"];
    for (requests, pools, cycle) in [
        // If c released its pool, a would get it.
        (
            [("a", "192.0.2.0-192.0.2.31"), ("b", first), ("c", "192.0.2.16-192.0.2.47")],
            vec![("b", third), ("c", first)],
            vec!["b", "c"],
        ),
        (
            [("a", first), ("b", second), ("c", first)],
            vec![("b", first), ("c", second)],
            vec!["b", "c"],
        ),
        (
            [("a", second), ("b", third), ("c", first)],
            vec![("a", first), ("b", second), ("c", third)],
            vec!["a", "b", "c"],
        ),
    ] {
        let tenants = tenants(&requests);
        let decisions = decide_all(&tenants, &applied(&pools));
        for (tenant, decision) in tenants.iter().zip(&decisions) {
            let PoolDecision::Refused(reasons) = decision else { panic!("{decision:?}") };
            let message = reasons.join(", ");
            assert!(message.contains("whose pool already has these addresses"), "{message}");
            let names = format!("must first request other addresses: {}", cycle.join(", "));
            let is_member = cycle.contains(&tenant.name_any().as_str());
            assert_eq!(message.contains(&names), is_member, "{message}");
        }
    }
}

#[test]
fn a_tenant_waits_until_another_tenant_has_released_the_addresses() {
    let [first, second, third] =
        ["192.0.2.0-192.0.2.15", "192.0.2.16-192.0.2.31", "192.0.2.32-192.0.2.47"];
    let tenants = tenants(&[("a", first), ("b", second), ("c", third), ("d", first)]);
    let mut pools = applied(&[("b", first), ("c", second)]);
    let decisions = decide_all(&tenants, &pools);
    let waits = |name: &str| PoolDecision::Waits(vec![name.to_owned()]);
    assert_eq!(decisions[..3], [waits("b"), waits("c"), PoolDecision::Accepted]);
    assert_eq!(change_pools(&tenants, &mut pools), [false, false, false, true]);
    // A tenant that requests no pool may still have one from an earlier request.
    let decisions = decide_all(&tenants[..1], &applied(&[("e", first)]));
    assert_eq!(decisions, [waits("e")]);
}
