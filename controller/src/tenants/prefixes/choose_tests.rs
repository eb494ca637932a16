//! Tests of the choice of prefixes: all sources of prefixes, restored clusters, and random operations on a simulated
//! API server.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::release::next_action;
use super::test_helpers::claim;
use super::*;
use crate::tenants::claim_gc::ClaimAction;

fn config(pools: Value) -> InfraConfigSpec {
    serde_json::from_value(json!({"addressPools": pools, "vlanQuarantineSeconds": 5})).unwrap()
}

fn pools(routed: bool) -> InfraConfigSpec {
    config(json!([
        {"name": "corp", "cidr": "10.1.0.0/22", "prefixLength": 24, "routed": routed},
        {"name": "six", "cidr": "fd00:120::/32", "prefixLength": 64, "routed": routed},
    ]))
}

fn tenant(name: &str, network: &Value, prefixes: &[(&str, &str)]) -> Arc<TenantCluster> {
    let prefixes: Vec<Value> =
        prefixes.iter().map(|(pool, cidr)| json!({"pool": pool, "cidr": cidr})).collect();
    let mut spec = json!({"network": {"name": "trunk"}});
    spec["network"].as_object_mut().unwrap().extend(network.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": name, "uid": format!("u-{name}")}, "spec": spec, "status": {"prefixes": prefixes},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Chooses the IPv4 prefix of the first tenant.
fn choose(
    config: &InfraConfigSpec,
    claims: &[PrefixClaim],
    tenants: &[Arc<TenantCluster>],
) -> Result<String, Fault> {
    let claims: Vec<Arc<PrefixClaim>> = claims.iter().cloned().map(Arc::new).collect();
    let request = PrefixRequest::of_tenant(&tenants[0], Family::V4).unwrap().unwrap();
    let state = PrefixState { config, claims: &claims, tenants };
    choose_prefix(request, state).map(|choice| match choice {
        PrefixChoice::Unclaimed(prefix) => format!("unclaimed {prefix}"),
        PrefixChoice::KeepClaim(claim) => format!("keep {}", claim.name_any()),
        PrefixChoice::TakeOver(claim) => format!("take over {}", claim.name_any()),
        PrefixChoice::Create(prefix) => format!("create {prefix}"),
    })
}

fn from_pool(name: &str) -> Arc<TenantCluster> {
    tenant(name, &json!({"ipv4": {"fromPool": "corp"}}), &[])
}

fn with_cidr(name: &str, cidr: &str) -> Arc<TenantCluster> {
    tenant(name, &json!({"ipv4": {"cidr": cidr}}), &[])
}

#[test]
fn routed_prefixes_avoid_claims_and_the_cidr_of_tenants() {
    let (routed, shared) = (pools(true), pools(false));
    assert_eq!(choose(&shared, &[], &[from_pool("a")]).unwrap(), "unclaimed 10.1.0.0/24");
    assert_eq!(choose(&shared, &[], &[from_pool("b")]).unwrap(), "unclaimed 10.1.0.0/24");
    let used = [
        claim("10.1.0.0/24", Some("corp"), "x", None),
        claim("10.1.1.0/24", Some("corp"), "y", Some(0)),
    ];
    let tenants = |cidr: &str| [from_pool("a"), with_cidr("z", cidr)];
    assert_eq!(choose(&routed, &used, &tenants("10.1.2.128/25")).unwrap(), "create 10.1.3.0/24");
    let fault = choose(&routed, &used, &tenants("10.1.2.0/23")).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::PoolExhausted);
    assert_eq!(
        fault.message,
        "spec.network.ipv4.fromPool: no prefix of length 24 is free in pool `corp` (10.1.0.0/22): 1 are in use by \
         tenants, 1 in quarantine, the first until 1970-01-01T00:00:05Z, and 1 are the cidr of a tenant; extend \
         InfraConfig's spec.addressPools"
    );
    // The prefix in the status of a tenant is in use even if the tenant's claim was lost.
    let lost = tenant("z", &json!({}), &[("corp", "10.1.2.0/23")]);
    assert_eq!(
        choose(&routed, &used, &[from_pool("a"), lost]).unwrap_err().reason,
        ConditionReason::PoolExhausted
    );
}

#[test]
fn the_cidr_of_a_tenant_is_claimed_where_prefixes_are_routed() {
    let one = [claim("10.1.0.0/24", Some("corp"), "x", None)];
    assert_eq!(
        choose(&pools(true), &one, &[with_cidr("a", "10.2.0.0/24")]).unwrap(),
        "unclaimed 10.2.0.0/24"
    );
    assert_eq!(
        choose(&pools(true), &one, &[with_cidr("a", "10.1.1.9/24")]).unwrap(),
        "create 10.1.1.0/24"
    );
    assert_eq!(
        choose(&pools(false), &one, &[with_cidr("a", "10.1.0.0/16")]).unwrap(),
        "unclaimed 10.1.0.0/16"
    );
    let fault = choose(&pools(true), &one, &[with_cidr("a", "10.1.0.0/16")]).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::PrefixInUse);
    let words = "spec.network.ipv4.cidr: 10.1.0.0/16 overlaps 10.1.0.0/24, which tenant x has";
    assert!(fault.message.starts_with(words), "{fault}");
    // The prefix of a tenant stays routed after its pool was removed, or got another `cidr`.
    for pools in [
        json!([]),
        json!([{"name": "corp", "cidr": "10.8.0.0/16", "prefixLength": 24, "routed": true}]),
    ] {
        let fault = choose(&config(pools.clone()), &one, &[with_cidr("a", "10.1.0.0/16")]);
        assert_eq!(fault.unwrap_err().reason, ConditionReason::PrefixInUse, "{pools}");
    }
    let of_cidr = [claim("10.1.0.0/24", None, "x", None)];
    assert_eq!(
        choose(&config(json!([])), &of_cidr, &[with_cidr("a", "10.1.0.0/16")]).unwrap(),
        "unclaimed 10.1.0.0/16"
    );
    // If two tenants have the same `cidr`, neither tenant waits for the other tenant.
    let both = [with_cidr("a", "10.1.1.0/24"), with_cidr("b", "10.1.1.0/24")];
    assert_eq!(choose(&pools(true), &[], &both).unwrap(), "create 10.1.1.0/24");
}

#[test]
fn the_prefix_of_a_malformed_claim_is_in_use() {
    let config = config(
        json!([{"name": "corp", "cidr": "10.1.0.0/23", "prefixLength": 24, "routed": true}]),
    );
    let other = claim("10.1.0.0/24", Some("corp"), "x", None);
    let malformed = malformed_claim("10.1.1.0/24".parse().unwrap());
    assert_eq!(malformed.name_any(), "10.1.1.0-24");
    let tenants = [from_pool("a")];
    assert_eq!(
        choose(&config, std::slice::from_ref(&other), &tenants).unwrap(),
        "create 10.1.1.0/24"
    );
    let both = [other, malformed];
    let fault = choose(&config, &both, &tenants).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::PoolExhausted);
    let fault = choose(&config, &both, &[with_cidr("a", "10.1.1.0/25")]).unwrap_err();
    assert!(fault.message.contains("tenant (malformed PrefixClaim 10.1.1.0-24) has"), "{fault}");
}

#[test]
fn tenants_keep_their_prefixes() {
    let own = claim("10.1.3.0/24", Some("corp"), "a", None);
    let (keep, none) = ("keep 10.1.3.0-24", config(json!([])));
    for config in [&pools(true), &pools(false), &none] {
        assert_eq!(choose(config, std::slice::from_ref(&own), &[from_pool("a")]).unwrap(), keep);
    }
    // If a tenant has two claims, the claim to the prefix in the status is retained.
    let recorded = tenant("a", &json!({"ipv4": {"fromPool": "corp"}}), &[("corp", "10.1.3.0/24")]);
    let two = [claim("10.1.2.0/24", Some("corp"), "a", None), own.clone()];
    assert_eq!(choose(&pools(true), &two, std::slice::from_ref(&recorded)).unwrap(), keep);
    // A lost claim is created again, unless another tenant has claimed the prefix.
    assert_eq!(
        choose(&pools(true), &[], std::slice::from_ref(&recorded)).unwrap(),
        "create 10.1.3.0/24"
    );
    assert_eq!(
        choose(&none, &[], std::slice::from_ref(&recorded)).unwrap(),
        "unclaimed 10.1.3.0/24"
    );
    let other = [claim("10.1.2.0/23", None, "b", None)];
    let fault = choose(&pools(true), &other, std::slice::from_ref(&recorded)).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::PrefixInUse);
    // In a restored cluster, a tenant takes over the claims of the TenantCluster of the same name.
    for released in [None, Some(0)] {
        let mut earlier = claim("10.1.3.0/24", Some("corp"), "a", released);
        "u-before".clone_into(&mut earlier.spec.tenant_uid);
        assert_eq!(
            choose(&pools(true), &[earlier], &[from_pool("a")]).unwrap(),
            "take over 10.1.3.0-24"
        );
    }
}

#[test]
fn unusable_pools_are_named() {
    for (pools, reason, words) in [
        (json!([]), ConditionReason::NoPool, "spec.addressPools has no pool `corp`"),
        (
            json!([{"name": "corp", "cidr": "fd00::/32", "prefixLength": 64}]),
            ConditionReason::InvalidAddressPool,
            "spec.network.ipv4.fromPool: pool `corp` has IPv6 addresses: fd00::/32",
        ),
        (
            json!([{"name": "corp", "cidr": "10.1.0.0/22", "prefixLength": 21}]),
            ConditionReason::InvalidAddressPool,
            "spec.addressPools[corp].prefixLength: 21 is not from 22 to 30",
        ),
        (
            json!([{"name": "corp", "cidr": "10.1.0.0/22", "prefixLength": 24},
                {"name": "other", "cidr": "10.0.0.0/8", "prefixLength": 24, "routed": true}]),
            ConditionReason::PoolsOverlap,
            "pool `corp` (10.1.0.0/22) overlaps pool `other` (10.0.0.0/8)",
        ),
    ] {
        let fault = choose(&config(pools), &[], &[from_pool("a")]).unwrap_err();
        assert_eq!(fault.reason, reason);
        assert!(fault.message.contains(words), "{fault}");
    }
}

/// A simulated API server that accepts only one claim of each name, and controllers that may be killed at any step.
#[derive(Default)]
struct SimulatedServer {
    claims: BTreeMap<String, PrefixClaim>,
    /// Names of verified claims: when all claims were listed, no other claim excluded them.
    verified: BTreeSet<String>,
    tenants: BTreeMap<String, TenantCluster>,
    second: i64,
}

impl SimulatedServer {
    /// Creates a tenant, or replaces the tenant of this name by a new one.
    fn create_tenant(&mut self, name: &str, family: Family, cidr: Option<IpNet>) {
        let (field, pool) = if family == Family::V4 { ("ipv4", "corp") } else { ("ipv6", "six") };
        let source = cidr.map_or_else(|| json!({"fromPool": pool}), |cidr| json!({"cidr": cidr}));
        let mut tenant = tenant(name, &json!({field: source}), &[]).as_ref().clone();
        tenant.metadata.uid = Some(format!("u-{name}-{}", self.second));
        self.tenants.insert(name.to_owned(), tenant);
    }

    /// Runs the first step of a reconcile, which creates or takes over a claim. The step does not observe the last
    /// `hidden` claims.
    fn claim(&mut self, name: &str, family: Family, config: &InfraConfigSpec, hidden: usize) {
        let Some(tenant) = self.tenants.get(name).cloned() else { return };
        let visible = self.claims.len().saturating_sub(hidden);
        let claims: Vec<Arc<PrefixClaim>> =
            self.claims.values().take(visible).cloned().map(Arc::new).collect();
        let all: Vec<Arc<TenantCluster>> = self.tenants.values().cloned().map(Arc::new).collect();
        let state = PrefixState { config, claims: &claims, tenants: &all };
        let Ok(Some(request)) = PrefixRequest::of_tenant(&tenant, family) else { return };
        match choose_prefix(request, state) {
            Ok(PrefixChoice::Create(prefix)) => {
                let new = new_claim(prefix, request);
                self.claims.entry(new.name_any()).or_insert(new);
            }
            Ok(PrefixChoice::TakeOver(claim)) => {
                let claim = self.claims.get_mut(&claim.name_any()).unwrap();
                request.uid.clone_into(&mut claim.spec.tenant_uid);
                claim.status = None;
            }
            Ok(PrefixChoice::KeepClaim(_)) | Err(_) => {}
            Ok(PrefixChoice::Unclaimed(prefix)) => {
                let PoolSource::Cidr(_) = request.source else {
                    panic!("{prefix} is routed, but not claimed")
                };
            }
        }
    }

    /// Runs the second step of a reconcile, which reads all claims, and verifies or deletes the claims of the tenant.
    fn verify(&mut self, name: &str) {
        let own: Vec<PrefixClaim> =
            self.claims.values().filter(|claim| claim.spec.tenant == name).cloned().collect();
        for claim in own {
            if self.verified.contains(&claim.name_any()) {
                continue;
            }
            if self.claims.values().any(|other| is_conflict(&claim, other)) {
                self.claims.remove(&claim.name_any());
            } else {
                self.verified.insert(claim.name_any());
            }
        }
    }

    /// Writes the verified prefix of a tenant to its status.
    fn record(&mut self, name: &str) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let uid = tenant.metadata.uid.clone().unwrap();
        let verified = &self.verified;
        let mut own = self.claims.values().filter(|claim| claim.spec.tenant_uid == uid);
        let own = own.find(|claim| verified.contains(&claim.name_any()));
        let Some(PrefixClaimSpec { prefix, pool: Some(pool), .. }) = own.map(|one| &one.spec)
        else {
            return;
        };
        let prefixes = json!([{"pool": pool, "cidr": prefix}]);
        tenant.status.as_mut().unwrap().prefixes = serde_json::from_value(prefixes).unwrap();
    }

    fn collect_garbage(&mut self, config: &InfraConfigSpec) {
        let now = Timestamp::from_second(self.second).unwrap();
        for claim in self.claims.values().cloned().collect::<Vec<_>>() {
            let tenant = self.tenants.get(&claim.spec.tenant);
            let tenant =
                tenant.filter(|one| one.metadata.uid.as_ref() == Some(&claim.spec.tenant_uid));
            let end = quarantine_end(&claim, config);
            let due = next_action(&claim, tenant, false, end);
            let Some((action, _)) = due.filter(|(_, due)| *due <= now) else { continue };
            let name = claim.name_any();
            let released = json!({"releasedAt": now.to_string()});
            match action {
                ClaimAction::Release => {
                    self.claims.get_mut(&name).unwrap().status =
                        serde_json::from_value(released).unwrap();
                }
                ClaimAction::Reclaim => self.claims.get_mut(&name).unwrap().status = None,
                ClaimAction::Delete => {
                    self.claims.remove(&name);
                    self.verified.remove(&name);
                }
            }
        }
    }

    fn assert_no_overlap(&self) {
        let verified: Vec<&PrefixClaim> =
            self.verified.iter().filter_map(|name| self.claims.get(name)).collect();
        for (at, one) in verified.iter().enumerate() {
            for other in &verified[at + 1..] {
                assert!(!is_conflict(one, other), "{:?} {:?}", one.spec, other.spec);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn routed_prefixes_never_overlap(
        steps in prop::collection::vec((0..9_u8, 0..8_u8, any::<u32>(), 0..4_usize), 1000),
        is_ipv6: bool,
    ) {
        let family = if is_ipv6 { Family::V6 } else { Family::V4 };
        let mut server = SimulatedServer::default();
        let mut current = pools(true);
        for (action, tenant, number, hidden) in steps {
            let name = format!("t{tenant}");
            server.second += 1;
            match action {
                0 => server.create_tenant(&name, family, None),
                1 => {
                    let cidr = if is_ipv6 {
                        let bits = (0xfd00_0120_u128 << 96) | (u128::from(number) << 64);
                        IpNet::new(std::net::Ipv6Addr::from_bits(bits).into(), 33 + (tenant * 4)).unwrap()
                    } else {
                        let bits = 0x0a01_0000 | (number & 0x3ff);
                        IpNet::new(std::net::Ipv4Addr::from_bits(bits).into(), 23 + tenant % 8).unwrap()
                    };
                    server.create_tenant(&name, family, Some(cidr));
                }
                2 => drop(server.tenants.remove(&name)),
                3 | 4 => server.claim(&name, family, &current, hidden),
                5 => {
                    server.verify(&name);
                    server.record(&name);
                }
                6 => {
                    server.claim(&name, family, &current, 0);
                    server.verify(&name);
                    server.record(&name);
                }
                7 => server.collect_garbage(&current),
                _ => {
                    for pool in &mut current.address_pools {
                        let longer = u8::try_from(number % 4).unwrap();
                        pool.prefix_length = if pool.name == "corp" { 23 + longer } else { 62 + longer };
                    }
                }
            }
            server.assert_no_overlap();
        }
    }
}
