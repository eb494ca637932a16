//! Tests of pools of prefixes.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parse_pool(value: Value) -> PrefixPool {
    serde_json::from_value(value).unwrap()
}

fn pool(cidr: &str, prefix_length: u8) -> PrefixPool {
    parse_pool(json!({"name": "corp", "cidr": cidr, "prefixLength": prefix_length}))
}

fn nets(all: &str) -> Vec<IpNet> {
    all.split_whitespace().map(|net| net.parse().unwrap()).collect()
}

#[test]
fn the_first_free_prefix_is_found_without_iteration() {
    let small = pool("10.1.0.0/22", 24);
    let large = pool("fd00::/32", 64);
    let whole = pool("10.1.0.0/24", 24);
    for (pool, start, used, expected) in [
        (&small, 0, "", Some("10.1.0.0/24")),
        (&small, 6, "", Some("10.1.2.0/24")),
        (&small, 2, "10.1.2.0/23", Some("10.1.0.0/24")),
        (&small, 2, "10.0.0.0/8", None),
        // Prefixes in use may be longer or shorter than the pool's prefixes, outside the pool, or of the other family.
        (&small, 0, "10.1.0.128/25 10.1.1.7/32 10.2.0.0/16 ::/0", Some("10.1.2.0/24")),
        (&whole, 7, "", Some("10.1.0.0/24")),
        (&whole, 7, "10.1.0.4/30", None),
        (&large, 0, "fd00::/33", Some("fd00:0:8000::/64")),
        (&large, u64::MAX, "fd00:0:ffff:ffff::/64", Some("fd00::/64")),
        (&large, 0, "fd00::/33 fd00:0:8000::/33", None),
    ] {
        let valid = ValidPrefixPool::new(pool).unwrap();
        let found = valid.first_free_prefix(start, nets(used));
        assert_eq!(found.map(|net| net.to_string()).as_deref(), expected, "{start} {used}");
    }
    assert_eq!(ValidPrefixPool::new(&large).unwrap().count(), 1 << 32);
}

#[test]
fn each_problem_is_named() {
    let with = |field: &str, value: Value| {
        let mut pool =
            json!({"name": "corp", "cidr": "10.1.0.0/16", "prefixLength": 24, "routed": true});
        pool[field] = value;
        parse_pool(pool)
    };
    for (pool, words) in [
        (
            with("prefixLength", json!(15)),
            "addressPools[corp].prefixLength: 15 is not from 16 to 30",
        ),
        (with("prefixLength", json!(31)), "31 is not from 16 to 30"),
        (
            with("cidr", json!("224.0.0.0/8")),
            "addressPools[corp].cidr: 224.0.0.0/8 contains addresses",
        ),
        (with("cidr", json!("fd00::/32")), "prefixLength: 24 is not from 32 to 126"),
        (with("nameservers", json!(["fd00::53"])), "nameservers: fd00::53 is not an IPv4 address"),
        (with("searchDomains", json!(["a..b"])), "searchDomains: `a..b` is not a domain name"),
    ] {
        let fault = ValidPrefixPool::new(&pool).unwrap_err();
        assert_eq!(fault.reason, ConditionReason::InvalidAddressPool);
        assert!(
            fault.message.starts_with("InfraConfig default: spec.addressPools[corp]."),
            "{fault}"
        );
        let config = InfraConfigSpec { address_pools: vec![pool], ..InfraConfigSpec::default() };
        let [problem] = config_problems(&config).try_into().unwrap();
        assert!(problem.contains(words) && fault.message.contains(words), "{problem}");
    }
    let two = |routed: bool| {
        let other =
            json!({"name": "other", "cidr": "10.1.4.0/22", "prefixLength": 24, "routed": routed});
        let address_pools = vec![pool("10.1.0.0/16", 24), parse_pool(other)];
        config_problems(&InfraConfigSpec { address_pools, ..InfraConfigSpec::default() })
    };
    assert_eq!(two(false), Vec::<String>::new());
    let problems = two(true);
    assert!(
        problems[0]
            .contains("addressPools[corp] and addressPools[other]: 10.1.0.0/16 and 10.1.4.0/22")
    );
    assert_eq!(problems.len(), 1, "{problems:?}");
}

proptest! {
    #[test]
    fn prefixes_are_in_the_pool_and_free(
        bits: u128, length in 1..60_u8, more in 0..66_u8, start: u64, used in prop::collection::vec((any::<u128>(), 0..128_u8), 0..20),
    ) {
        // Unique local addresses (fc00::/7) are valid for networks of every prefix length.
        let net = |bits: u128, length: u8| {
            let address = std::net::Ipv6Addr::from_bits(bits >> 8 | 0xfd << 120);
            IpNet::new(address.into(), length.clamp(8, 128)).unwrap().trunc()
        };
        let cidr = net(bits, length);
        let spec = pool(&cidr.to_string(), cidr.prefix_len().saturating_add(more).min(126));
        let used: Vec<IpNet> = used.into_iter().map(|(bits, length)| net(bits, length)).collect();
        let valid = ValidPrefixPool::new(&spec).unwrap();
        match valid.first_free_prefix(start, used.iter().copied()) {
            Some(prefix) => {
                prop_assert!(cidr.contains(&prefix) && prefix.prefix_len() == spec.prefix_length);
                prop_assert!(!used.iter().any(|net| overlap(net, &prefix)));
            }
            None => prop_assert!(!used.is_empty()),
        }
    }
}
