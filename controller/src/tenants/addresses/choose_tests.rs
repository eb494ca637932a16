//! Tests of the choice of addresses, by controllers that may be killed at any moment and observe only some of the
//! claims.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::pools::NetworkPools;
use super::test_helpers::{claim, machine, pools, released};
use super::*;

const QUARANTINE: SignedDuration = SignedDuration::from_secs(300);

fn index(all: impl IntoIterator<Item = AddressClaim>) -> NetworkClaims {
    let mut claims = NetworkClaims::default();
    all.into_iter().for_each(|claim| claims.insert(Arc::new(claim)));
    claims
}

/// Chooses an IPv4 address for a machine.
fn choose(
    pools: &NetworkPools,
    claims: &NetworkClaims,
    name: &str,
    fixed: &[IpAddr],
) -> Result<AddressChoice, Fault> {
    let machine = machine(name);
    let request = AddressRequest {
        tenant_uid: "u-1",
        machine: &machine,
        interface: "tenant",
        fixed,
        quarantine: QUARANTINE,
    };
    choose_address(pools.iter().next().unwrap(), claims, &BTreeSet::new(), request)
}

fn create(address: &str) -> Result<AddressChoice, Fault> {
    Ok(AddressChoice::Create(address.parse().unwrap()))
}

fn small_pool() -> NetworkPools {
    pools(json!({"ipv4": {"cidr": "10.0.0.0/29", "gateway": "10.0.0.1"}}))
}

#[test]
fn the_lowest_free_address_is_chosen() {
    let pools = small_pool();
    assert_eq!(choose(&pools, &index([]), "a", &[]), create("10.0.0.2"));
    let claims = index([claim("10.0.0.2", "x"), claim("10.0.0.3", "y"), claim("10.0.0.5", "z")]);
    assert_eq!(choose(&pools, &claims, "a", &[]), create("10.0.0.4"));
    let refused = BTreeSet::from(["10.0.0.4".parse().unwrap()]);
    let machine = machine("a");
    let request = AddressRequest {
        tenant_uid: "u-1",
        machine: &machine,
        interface: "tenant",
        fixed: &[],
        quarantine: QUARANTINE,
    };
    let next = choose_address(pools.iter().next().unwrap(), &claims, &refused, request);
    assert_eq!(next, create("10.0.0.6"));
}

#[test]
fn a_machine_keeps_its_claim_also_outside_the_pool() {
    let pools = small_pool();
    let own = claim("10.9.0.2", "a");
    let kept = choose(&pools, &index([own.clone()]), "a", &[]);
    assert_eq!(kept, Ok(AddressChoice::KeepClaim(Arc::new(own.clone()))));
    // A claim with another interface, tenant or machine is not the claim of this request.
    for change in [
        |claim: &mut AddressClaim| "second".clone_into(&mut claim.spec.interface),
        |claim: &mut AddressClaim| "u-2".clone_into(&mut claim.spec.tenant_uid),
        |claim: &mut AddressClaim| "b".clone_into(&mut claim.spec.machine.name),
    ] {
        let mut other = own.clone();
        change(&mut other);
        assert_eq!(choose(&pools, &index([other]), "a", &[]), create("10.0.0.2"));
    }
}

#[test]
fn the_former_address_of_a_machine_is_taken_over() {
    let pools = small_pool();
    let former = released("10.0.0.4", "a", 0);
    let claims = index([former.clone()]);
    assert_eq!(choose(&pools, &claims, "a", &[]), Ok(AddressChoice::TakeOver(Arc::new(former))));
    assert_eq!(choose(&pools, &claims, "b", &[]), create("10.0.0.2"));
    let outside = index([released("10.9.0.4", "a", 0)]);
    assert_eq!(choose(&pools, &outside, "a", &[]), create("10.0.0.2"));
    let mut reserved = released("10.0.0.4", "a", 0);
    reserved.metadata.labels = None;
    assert_eq!(choose(&pools, &index([reserved]), "a", &[]), create("10.0.0.2"));
}

#[test]
fn an_exhausted_pool_is_reported_with_numbers() {
    let claims = index([
        claim("10.0.0.2", "a"),
        claim("10.0.0.3", "b"),
        claim("10.0.0.4", "c"),
        released("10.0.0.5", "d", 100),
        released("10.0.0.6", "e", 0),
        claim("10.9.0.1", "outside"),
    ]);
    let fault = choose(&small_pool(), &claims, "f", &[]).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::AddressesExhausted);
    assert_eq!(
        fault.message,
        "spec.network.ipv4: all 5 addresses of 10.0.0.0/29 are in use: 3 by machines, 2 in quarantine, the first until \
         1970-01-01T00:05:00Z; extend the pool, or delete machines"
    );
}

#[test]
fn a_list_of_addresses_is_the_only_choice() {
    let pools =
        pools(json!({"ipv4": {"cidr": "10.0.0.0/24", "ranges": ["10.0.0.100-10.0.0.200"]}}));
    let fixed: Vec<IpAddr> = ["10.0.0.11", "10.0.0.10"].map(|one| one.parse().unwrap()).into();
    assert_eq!(choose(&pools, &index([]), "a", &fixed), create("10.0.0.11"));
    let claims = index([claim("10.0.0.11", "a")]);
    assert_eq!(choose(&pools, &claims, "b", &fixed), create("10.0.0.10"));
    // The next machine of a MachineDeployment immediately takes over the address of a deleted machine.
    let former = released("10.0.0.10", "web-a-rev1-one", 0);
    let claims = index([claim("10.0.0.11", "a"), former.clone()]);
    assert_eq!(
        choose(&pools, &claims, "web-a-rev2-two", &fixed),
        Ok(AddressChoice::TakeOver(Arc::new(former.clone())))
    );
    for change in [
        |claim: &mut AddressClaim| "u-2".clone_into(&mut claim.spec.tenant_uid),
        |claim: &mut AddressClaim| "default".clone_into(&mut claim.spec.machine.namespace),
        |claim: &mut AddressClaim| "web-rev1-one".clone_into(&mut claim.spec.machine.name),
        |claim: &mut AddressClaim| claim.metadata.labels = None,
    ] {
        let mut foreign = former.clone();
        change(&mut foreign);
        let claims = index([claim("10.0.0.11", "a"), foreign]);
        assert!(choose(&pools, &claims, "web-a-rev2-two", &fixed).is_err());
    }
    let fault = choose(&pools, &claims, "c", &fixed).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::AddressesExhausted);
    assert!(
        fault.message.contains(
            "10.0.0.11 (machine cluster-a/a), 10.0.0.10 (in quarantine until 1970-01-01T00:05:00Z)"
        ),
        "{fault}"
    );
}

/// The deletion of a claim may be received after the creation of the next claim of the same name.
#[test]
fn the_deletion_of_an_earlier_claim_removes_no_later_one() {
    let with_uid = |uid: &str| {
        let mut one = claim("10.0.0.2", uid);
        one.metadata.uid = Some(uid.to_owned());
        one
    };
    let mut claims = index([with_uid("first"), with_uid("second")]);
    assert_eq!(claims.iter().count(), 1);
    claims.remove(&with_uid("first"));
    assert_eq!(choose(&small_pool(), &claims, "a", &[]), create("10.0.0.3"));
    claims.remove(&with_uid("second"));
    assert!(claims.is_empty());
}

#[test]
fn a_claim_with_another_name_reserves_an_address() {
    let mut reserved = claim("10.0.0.2", "appliance");
    reserved.metadata.name = Some("reserved-for-the-appliance".to_owned());
    let mut claims = index([reserved.clone(), claim("10.0.0.2", "x")]);
    claims.remove(&claim("10.0.0.2", "x"));
    assert_eq!(choose(&small_pool(), &claims, "a", &[]), create("10.0.0.3"));
    claims.remove(&reserved);
    assert_eq!(choose(&small_pool(), &claims, "a", &[]), create("10.0.0.2"));
    assert!(claims.is_empty());
}

/// This test would not end if the search visited each address of the pools.
#[test]
fn many_machines_get_addresses_of_large_pools() {
    let all = pools(
        json!({"ipv4": {"cidr": "10.0.0.0/8"}, "ipv6": {"cidr": "fd00::/64", "ranges": ["fd00::10-fd00::ffff:ffff:ffff"]}}),
    );
    let mut claims = NetworkClaims::default();
    for at in 0..20_000 {
        let machine = machine(&format!("m-{at}"));
        let request = AddressRequest {
            tenant_uid: "u-1",
            machine: &machine,
            interface: "tenant",
            fixed: &[],
            quarantine: QUARANTINE,
        };
        for pool in all.iter() {
            let Ok(AddressChoice::Create(address)) =
                choose_address(pool, &claims, &BTreeSet::new(), request)
            else {
                panic!("no free address");
            };
            claims.insert(Arc::new(claim(&address.to_string(), &format!("m-{at}"))));
        }
    }
    assert_eq!(claims.iter().count(), 40_000);
}

/// A simulated API server that accepts each name once, and two controllers, each with a stale index of its own.
#[derive(Default)]
struct Server {
    claims: BTreeMap<String, AddressClaim>,
}

proptest! {
    /// For any interleaving of requests, no address is allocated twice, and no excluded or reserved address is
    /// allocated.
    #[test]
    fn no_address_is_allocated_twice(
        prefix in 24_u8..=29,
        exclude in proptest::collection::vec(0_u8..=255, 0..6),
        range in proptest::option::of((0_u8..=255, 0_u8..=255)),
        steps in proptest::collection::vec((0_usize..2, 0_u8..40, 0_u8..4), 1..120),
    ) {
        let cidr: ipnet::IpNet = format!("10.0.0.0/{prefix}").parse().unwrap();
        let inside = |last: u8| cidr.contains(&IpAddr::from([10, 0, 0, last]));
        let exclude: Vec<String> =
            exclude.into_iter().filter(|last| inside(*last)).map(|last| format!("10.0.0.{last}")).collect();
        let ranges: Vec<String> = range
            .filter(|(a, b)| inside(*a) && inside(*b))
            .map(|(a, b)| format!("10.0.0.{}-10.0.0.{}", a.min(b), a.max(b)))
            .into_iter()
            .collect();
        let spec = json!({"name": "trunk", "ipv4": {"cidr": cidr, "gateway": "10.0.0.1", "exclude": exclude, "ranges": ranges}});
        let Ok(Some(pools)) = NetworkPools::new(&serde_json::from_value(spec).unwrap(), &[]) else { return Ok(()) };
        let pool = pools.iter().next().unwrap();
        let mut server = Server::default();
        let mut indexes = [NetworkClaims::default(), NetworkClaims::default()];
        for (controller, name, event) in steps {
            if event == 0 {
                // The watch of this controller delivers all claims.
                indexes[controller] = index(server.claims.values().cloned());
                continue;
            }
            if event == 1 {
                // The claim of a machine is released, and deleted after its quarantine.
                server.claims.retain(|_, claim| claim.spec.machine != machine(&name.to_string()));
                continue;
            }
            let machine = machine(&name.to_string());
            let request = AddressRequest {
                tenant_uid: "u-1", machine: &machine, interface: "tenant", fixed: &[], quarantine: QUARANTINE,
            };
            let mut refused = BTreeSet::new();
            while let Ok(AddressChoice::Create(address)) =
                choose_address(pool, &indexes[controller], &refused, request)
            {
                let new = claim(&address.to_string(), &name.to_string());
                prop_assert!(!exclude.contains(&address.to_string()) && address != cidr.network());
                prop_assert!(address != cidr.broadcast() && address != IpAddr::from([10, 0, 0, 1]));
                prop_assert!(pool.allocates(address));
                match server.claims.entry(new.name_any()) {
                    std::collections::btree_map::Entry::Occupied(_) => drop(refused.insert(address)),
                    std::collections::btree_map::Entry::Vacant(place) => {
                        indexes[controller].insert(Arc::new(place.insert(new).clone()));
                        break;
                    }
                }
            }
        }
        let addresses: BTreeSet<IpAddr> = server.claims.values().map(|claim| claim.spec.address).collect();
        prop_assert_eq!(addresses.len(), server.claims.len());
    }

    /// After any insertions and removals, the index contains the same claims as a plain list.
    #[test]
    fn the_index_equals_a_list(steps in proptest::collection::vec((1_u8..14, any::<bool>()), 0..60)) {
        let pools: NetworkPools = pools(json!({"ipv4": {"cidr": "10.0.0.0/28"}}));
        let mut claims = NetworkClaims::default();
        let mut list: BTreeMap<u8, AddressClaim> = BTreeMap::new();
        for (last, exists) in steps {
            let one = claim(&format!("10.0.0.{last}"), &last.to_string());
            if exists {
                claims.insert(Arc::new(one.clone()));
                list.insert(last, one);
            } else {
                claims.remove(&one);
                list.remove(&last);
            }
            let lowest = (1..15).find(|last| !list.contains_key(last)).unwrap();
            prop_assert_eq!(choose(&pools, &claims, "new", &[]), create(&format!("10.0.0.{lowest}")));
            prop_assert_eq!(claims.iter().count(), list.len());
        }
    }
}

#[test]
fn malformed_pools_never_panic() {
    for value in [
        json!({"cidr": "10.0.0.0/30", "ranges": ["10.0.0.0-10.0.0.3"]}),
        json!({"cidr": "255.255.255.252/30"}),
    ] {
        let network: Value = json!({"name": "trunk", "ipv4": value});
        drop(NetworkPools::new(&serde_json::from_value(network).unwrap(), &[]));
    }
}
