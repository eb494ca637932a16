//! Tests of the validation of address pools.

use serde_json::{Value, json};

use super::*;

fn pools(network: Value) -> Result<Option<NetworkPools>, Fault> {
    let mut all = json!({"name": "trunk"});
    all.as_object_mut().unwrap().extend(network.as_object().unwrap().clone());
    NetworkPools::new(&serde_json::from_value(all).unwrap(), &[])
}

/// Returns the problem of a network with this pool.
fn problem(network: Value) -> String {
    let fault = pools(network).unwrap_err();
    assert_eq!(fault.reason, ConditionReason::InvalidAddressPool);
    fault.message
}

#[test]
fn each_problem_is_named() {
    let with = |field: &str, value: Value| json!({"ipv4": {"cidr": "10.0.0.0/24", field: value}});
    for (network, words) in [
        (
            json!({"ipv4": {"cidr": "fd00::/64"}}),
            "spec.network.ipv4.cidr: fd00::/64 is not an IPv4 network",
        ),
        (
            json!({"ipv6": {"cidr": "10.0.0.0/24"}}),
            "spec.network.ipv6.cidr: 10.0.0.0/24 is not an IPv6 network",
        ),
        (
            json!({"ipv4": {"cidr": "10.0.0.0/31"}}),
            "10.0.0.0/31 is too small for machines: use a prefix of at most /30",
        ),
        (json!({"ipv4": {"cidr": "10.0.0.1/32"}}), "10.0.0.1/32 is too small"),
        (
            json!({"ipv6": {"cidr": "fd00::/127"}}),
            "fd00::/127 is too small for machines: use a prefix of at most /126",
        ),
        (json!({"ipv6": {"cidr": "fd00::/128"}}), "fd00::/128 is too small"),
        (json!({"ipv4": {"cidr": "224.0.0.0/8"}}), "contains addresses that no machine can have"),
        (json!({"ipv4": {"cidr": "0.0.0.0/0"}}), "contains addresses that no machine can have"),
        (json!({"ipv4": {"cidr": "127.0.0.0/8"}}), "contains addresses that no machine can have"),
        (json!({"ipv6": {"cidr": "fe80::/64"}}), "contains addresses that no machine can have"),
        (json!({"ipv6": {"cidr": "::/0"}}), "contains addresses that no machine can have"),
        (with("gateway", json!("10.0.1.1")), "gateway: 10.0.1.1 is not in 10.0.0.0/24"),
        (with("gateway", json!("fd00::1")), "gateway: fd00::1 is not in 10.0.0.0/24"),
        (with("gateway", json!("fe80::1")), "gateway: fe80::1 is not in 10.0.0.0/24"),
        (
            json!({"ipv6": {"cidr": "fd00::/64", "gateway": "fd01::1"}}),
            "gateway: fd01::1 is not in fd00::/64, and is not link-local (fe80::/10)",
        ),
        (with("gateway", json!("10.0.0.0")), "gateway: 10.0.0.0 is not the address of a host"),
        (with("gateway", json!("10.0.0.255")), "gateway: 10.0.0.255 is not the address of a host"),
        (
            with("ranges", json!(["10.0.0.200-10.0.1.3"])),
            "ranges: 10.0.0.200-10.0.1.3 is not in 10.0.0.0/24",
        ),
        (with("exclude", json!(["fd00::1"])), "exclude: fd00::1 is not in 10.0.0.0/24"),
        (
            with("routes", json!([{"to": "10.9.0.0/16", "via": "10.1.0.1"}])),
            "routes: next hop: 10.1.0.1 is not in",
        ),
        (
            with("routes", json!([{"to": "fd01::/64", "via": "10.0.0.1"}])),
            "routes: fd01::/64 is not an IPv4 network",
        ),
        (
            with("nameservers", json!(["2001:db8::53"])),
            "nameservers: 2001:db8::53 is not an IPv4 address",
        ),
        (with("searchDomains", json!(["a..b"])), "searchDomains: `a..b` is not a domain name"),
        (with("searchDomains", json!(["a b\n"])), "searchDomains: `a b ` is not a domain name"),
        (with("ranges", json!(["10.0.0.0", "10.0.0.255"])), "no address of 10.0.0.0/24 remains"),
        (
            json!({"ipv4": {"cidr": "10.0.0.0/30", "gateway": "10.0.0.1", "nameservers": ["10.0.0.2"]}}),
            "no address",
        ),
        (
            json!({"ipv6": {"cidr": "fd00::/64", "mtu": 1200}}),
            "spec.network.ipv6.mtu: 1200 is too small",
        ),
        (
            json!({"ipv4": {"cidr": "10.0.0.0/24", "mtu": 1200}, "ipv6": {"cidr": "fd00::/64"}}),
            "spec.network.ipv4.mtu",
        ),
    ] {
        let found = problem(network.clone());
        assert!(found.contains(words), "{network}: {found}");
    }
    let both = problem(json!({"ipv4": {"cidr": "10.0.0.0/32"}, "ipv6": {"cidr": "fd00::/128"}}));
    assert!(both.contains("ipv4") && both.contains("; spec.network.ipv6"), "{both}");
}

#[test]
fn valid_pools_have_the_addresses_of_hosts() {
    assert!(pools(json!({})).unwrap().is_none());
    let all = pools(json!({
        "ipv4": {"cidr": "10.0.0.9/29", "gateway": "10.0.0.9", "exclude": ["10.0.0.12-10.0.0.13"],
            "nameservers": ["10.0.0.10", "192.0.2.53"], "searchDomains": ["a.example", "b"], "mtu": 1400},
        "ipv6": {"cidr": "fd00::/64", "routes": [{"to": "fd01::/48", "via": "fd00::1"}], "mtu": 1300},
    }))
    .unwrap()
    .unwrap();
    let [ipv4, ipv6] = all.iter().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((ipv4.cidr.to_string(), ipv4.len()), ("10.0.0.8/29".to_owned(), 2));
    for (address, is_allocated) in [
        ("10.0.0.8", false),
        ("10.0.0.9", false),
        ("10.0.0.10", false),
        ("10.0.0.11", true),
        ("10.0.0.12", false),
    ] {
        assert_eq!(ipv4.allocates(address.parse().unwrap()), is_allocated, "{address}");
    }
    assert!(
        ipv4.allocates("10.0.0.14".parse().unwrap()) && !ipv4.permits("10.0.0.15".parse().unwrap())
    );
    assert_eq!(ipv6.len(), (1 << 64) - 2);
    assert!(
        !ipv6.permits("fd00::".parse().unwrap()) && ipv6.permits("fd00::ffff".parse().unwrap())
    );
    assert_eq!((all.mtu(), all.requested_mtu()), (Some(1300), Some((Family::V6, 1300))));
}

#[test]
fn the_network_has_the_default_mtu() {
    let mtu = |network: Value, status: Value| {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a"},
            "spec": {"network": network}, "status": status,
        });
        let tenant = serde_json::from_value(object).unwrap();
        NetworkPools::of_tenant(&tenant).unwrap().map(|pools| pools.mtu())
    };
    let v4 = |more: Value| {
        let mut pool = json!({"cidr": "10.0.0.0/24"});
        pool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"name": "trunk", "ipv4": pool})
    };
    assert_eq!(mtu(v4(json!({})), json!({"mtu": 8950})), Some(Some(8950)));
    assert_eq!(mtu(v4(json!({"mtu": 1400})), json!({"mtu": 8950})), Some(Some(1400)));
    assert_eq!(mtu(v4(json!({})), json!({})), Some(None));
    assert_eq!(mtu(v4(json!({})), json!({"mtu": 575})), Some(None), "a lease cannot contain it");
    assert_eq!(mtu(json!({"name": "trunk"}), json!({"mtu": 8950})), None);
}

#[test]
fn routers_of_ipv6_may_have_link_local_addresses() {
    let all = pools(json!({"ipv6": {"cidr": "fd00::/126", "gateway": "fe80::1",
        "routes": [{"to": "fd01::/48", "via": "fe80::2:3"}]}}));
    let all = all.unwrap().unwrap();
    let pool = all.iter().next().unwrap();
    assert_eq!((pool.len(), pool.config.gateway), (3, Some("fe80::1".parse().unwrap())));
}

#[test]
fn a_gateway_in_the_ranges_is_found_and_not_allocated() {
    let find = |pool: Value| {
        let all = pools(json!({"ipv4": pool})).unwrap().unwrap();
        let pool = all.iter().next().unwrap();
        let found = pool.gateway_in_ranges();
        (found.map(|(gateway, range)| format!("{gateway} {range}")), pool.len())
    };
    let ranges = json!(["10.0.0.9", "10.0.0.10-10.0.0.19"]);
    for (gateway, exclude, expected) in [
        ("10.0.0.1", json!([]), (None, 11)),
        ("10.0.0.10", json!([]), (Some("10.0.0.10 10.0.0.10-10.0.0.19".to_owned()), 10)),
        ("10.0.0.10", json!(["10.0.0.8-10.0.0.10"]), (None, 9)),
    ] {
        let pool = json!({"cidr": "10.0.0.0/24", "ranges": ranges, "gateway": gateway, "exclude": exclude});
        assert_eq!(find(pool.clone()), expected, "{pool}");
    }
    assert_eq!(find(json!({"cidr": "10.0.0.0/24", "gateway": "10.0.0.1"})), (None, 253));
}

#[test]
fn addresses_outside_ranges_are_permitted_but_not_allocated() {
    let all = pools(
        json!({"ipv4": {"cidr": "10.0.0.0/24", "ranges": ["10.0.0.100-10.0.0.110", "10.0.0.105-10.0.0.120"],
        "exclude": ["10.0.0.108", "10.0.0.5"]}}),
    );
    let all = all.unwrap().unwrap();
    let pool = all.iter().next().unwrap();
    assert_eq!(pool.len(), 20);
    assert!(
        pool.permits("10.0.0.4".parse().unwrap()) && !pool.allocates("10.0.0.4".parse().unwrap())
    );
    assert!(!pool.permits("10.0.0.5".parse().unwrap()));
}
