//! Tests of HostLeases: any claims, VMs and migrations, and networks that are too large.

use std::collections::BTreeSet;

use berth_api::ClaimingMachine;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::tenants::lease_index::{LeaseIndex, hosts_of_instance};

fn tenant(name: &str, network: &Value) -> Arc<TenantCluster> {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"network": network}, "status": {"vlan": 120, "vni": 0},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn network() -> Value {
    json!({
        "name": "trunk",
        "ipv4": {"cidr": "10.0.0.0/16", "gateway": "10.0.0.1", "nameservers": ["10.0.0.2"],
            "searchDomains": ["a.example"], "mtu": 9000, "routes": [{"to": "10.9.0.0/16", "via": "10.0.0.3"}]},
        "ipv6": {"cidr": "fd00::/64", "gateway": "fe80::1", "mtu": 1500},
    })
}

/// Returns the claim to an address for a machine of the tenant. The MAC address ends with `mac`.
fn claim(tenant: &str, machine: &str, mac: u8, address: &str) -> AddressClaim {
    let network = TenantCluster::namespace_of(tenant);
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "AddressClaim",
        "metadata": {"name": AddressClaim::name_for(&network, address.parse().unwrap())},
        "spec": {
            "network": network, "address": address, "tenant": tenant, "tenantUID": format!("uid-{tenant}"),
            "machine": {"namespace": network, "name": machine}, "interface": "tenant",
            "mac": format!("02:00:00:00:00:{mac:02x}"),
        },
    });
    serde_json::from_value(object).unwrap()
}

fn released(mut claim: AddressClaim) -> AddressClaim {
    claim.status = serde_json::from_value(json!({"releasedAt": "2026-01-01T00:00:00Z"})).unwrap();
    claim
}

/// Returns the desired HostLeases if both tenants, `a` and `b`, have this network.
fn desired(claims: &[AddressClaim], network: &Value) -> DesiredHostLeases {
    let known = |name: &str| ["a", "b"].contains(&name).then(|| tenant(name, network));
    desired_host_leases(claims, known, None)
}

#[test]
fn both_families_of_an_interface_are_in_one_lease() {
    let claims = [claim("a", "web-1.x", 7, "fd00::7"), claim("a", "web-1.x", 7, "10.0.0.7")];
    let DesiredHostLeases { spec, omitted } = desired(&claims, &network());
    assert_eq!(omitted, 0);
    let expected = json!({"networks": [{
        "name": "cluster-a", "vlan": 120, "mtu": 1500,
        "ipv4": {"prefixLength": 16, "gateway": "10.0.0.1", "routes": [{"to": "10.9.0.0/16", "via": "10.0.0.3"}],
            "nameservers": ["10.0.0.2"], "searchDomains": ["a.example"]},
        "ipv6": {"prefixLength": 64, "gateway": "fe80::1"},
        "leases": [{"mac": "02:00:00:00:00:07", "machine": "cluster-a/web-1.x", "hostname": "web-1",
            "ipv4": "10.0.0.7", "ipv6": "fd00::7"}],
    }]});
    assert_eq!(serde_json::to_value(&spec).unwrap(), expected);
    let reversed: Vec<AddressClaim> = claims.into_iter().rev().collect();
    assert_eq!(desired(&reversed, &network()).spec, spec, "the order is deterministic");
}

#[test]
fn machines_of_other_tenants_get_no_default_gateway() {
    let mut attached = claim("a", "web-1", 8, "10.0.0.8");
    "additional-1".clone_into(&mut attached.spec.interface);
    "cluster-b".clone_into(&mut attached.spec.machine.namespace);
    let claims = [claim("a", "web-1", 7, "10.0.0.7"), attached];
    let leases = desired(&claims, &network()).spec.networks.remove(0).leases;
    let found: Vec<_> =
        leases.iter().map(|lease| (lease.machine.as_str(), lease.default_route)).collect();
    assert_eq!(found, [("cluster-a/web-1", None), ("cluster-b/web-1", Some(false))]);
}

#[test]
fn machines_get_the_mtu_of_the_network_by_default() {
    let mut object = tenant("a", &json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/16"}}));
    Arc::make_mut(&mut object).status.as_mut().unwrap().mtu = Some(8950);
    let claims = [claim("a", "web-1", 7, "10.0.0.7")];
    let desired = desired_host_leases(&claims, |_| Some(Arc::clone(&object)), None);
    assert_eq!(desired.spec.networks[0].mtu, Some(8950));
}

#[test]
fn a_prefix_from_a_pool_is_used_like_a_cidr() {
    let claims = [claim("a", "web-1", 7, "10.128.7.5")];
    let gateway = "10.128.7.1";
    let expected = json!({"name": "trunk", "ipv4": {"cidr": "10.128.7.0/24", "gateway": gateway, "mtu": 1400}});
    let mut granted =
        tenant("a", &json!({"name": "trunk", "ipv4": {"fromPool": "corp"}})).as_ref().clone();
    let pending = Arc::new(granted.clone());
    let prefixes =
        json!([{"pool": "corp", "cidr": "10.128.7.0/24", "gateway": gateway, "mtu": 1400}]);
    granted.status.as_mut().unwrap().prefixes = serde_json::from_value(prefixes).unwrap();
    let granted = Arc::new(granted);
    let known = |_: &str| Some(Arc::clone(&granted));
    let leases = desired_host_leases(&claims, known, None);
    assert_eq!(leases, desired(&claims, &expected));
    assert_eq!(leases.spec.networks.len(), 1);
    // While the prefix of the network is unknown, running machines retain their configuration.
    let kept = desired_host_leases(&claims, |_| Some(Arc::clone(&pending)), Some(&leases.spec));
    assert_eq!(kept, leases);
}

#[test]
fn released_foreign_and_disabled_claims_have_no_lease() {
    let valid = || claim("a", "web-1", 7, "10.0.0.7");
    assert_eq!(desired(&[valid()], &network()).spec.networks.len(), 1);
    let mut deleted = valid();
    deleted.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let mut earlier_tenant = valid();
    earlier_tenant.spec.tenant_uid = "earlier".to_owned();
    let mut other_network = valid();
    other_network.spec.network = "cluster-b".to_owned();
    let unknown_tenant = claim("c", "web-1", 7, "10.0.0.7");
    let none = [released(valid()), deleted, earlier_tenant, other_network, unknown_tenant];
    assert_eq!(desired(&none, &network()), DesiredHostLeases::default());
    let mut disabled = network();
    disabled["dhcp"] = false.into();
    let swapped =
        json!({"name": "trunk", "ipv4": {"cidr": "fd00::/64"}, "ipv6": {"cidr": "10.0.0.0/8"}});
    for network in [
        disabled,
        swapped,
        json!({"name": "trunk"}),
        json!({"name": "trunk", "ipv6": {"cidr": "fd00::/64"}}),
    ] {
        assert_eq!(desired(&[valid()], &network), DesiredHostLeases::default(), "{network}");
    }
}

#[test]
fn machines_of_an_unreadable_tenant_keep_their_configuration() {
    let claims = [
        claim("a", "web-1", 7, "10.0.0.7"),
        claim("a", "web-2", 8, "10.0.0.8"),
        claim("a", "web-2", 8, "fd00::8"),
    ];
    let before = desired(&claims, &network()).spec;
    let after = desired_host_leases(&claims[1..], |_| None, Some(&before)).spec;
    assert_eq!(after, desired(&claims[1..], &network()).spec);
    assert_eq!(desired_host_leases(&claims, |_| None, None), DesiredHostLeases::default());
}

/// Returns the desired HostLeases of a tenant after a change of its network, with the previous HostLeases.
fn desired_after(
    claims: &[AddressClaim],
    network: &Value,
    previous: &HostLeasesSpec,
) -> HostLeasesSpec {
    desired_host_leases(claims, |name| Some(tenant(name, network)), Some(previous)).spec
}

#[test]
fn machines_keep_their_configuration_while_the_pools_are_invalid() {
    let claims = [
        claim("a", "web-1", 7, "10.0.0.7"),
        claim("a", "web-1", 7, "fd00::7"),
        claim("a", "web-2", 8, "10.0.0.8"),
        claim("a", "web-3", 9, "10.1.0.9"),
    ];
    let before = desired(&claims[..2], &network()).spec;
    let mut invalid = network();
    invalid["ipv4"]["gateway"] = "10.9.0.1".into();
    invalid["ipv4"]["mtu"] = 1300.into();
    invalid["ipv6"]["gateway"] = "fd00::1".into();
    assert_eq!(desired_after(&claims[..2], &invalid, &before), before);
    // A machine that arrives on the host gets the same configuration if its address is in the same network.
    let expected = desired(&claims[..3], &network()).spec;
    assert_eq!(expected.networks[0].leases.len(), 2);
    assert_eq!(desired_after(&claims, &invalid, &before), expected);
    assert_eq!(desired(&claims, &invalid), DesiredHostLeases::default());
    assert_eq!(desired_after(&claims, &network(), &before), expected, "10.1.0.9 is outside");
}

#[test]
fn a_prefix_length_applies_only_to_addresses_of_its_network() {
    // The pool no longer contains the address of the machine of the first two claims.
    let all = [
        claim("a", "web-1", 7, "10.0.0.7"),
        claim("a", "web-1", 7, "fd00::7"),
        claim("a", "web-2", 8, "10.1.0.8"),
    ];
    let before = desired(&all[..2], &network()).spec;
    let mut moved = network();
    moved["ipv4"] = json!({"cidr": "10.1.0.0/24", "gateway": "10.1.0.1", "mtu": 1400});
    moved["ipv6"]["gateway"] = "fe80::2".into();
    let leased = |spec: &HostLeasesSpec| -> Vec<String> {
        let leases = spec.networks.iter().flat_map(|network| &network.leases);
        leases.filter_map(|lease| lease.ipv4).map(|address| address.to_string()).collect()
    };
    // The running machine retains its IPv4 configuration and its MTU; the configuration of the valid IPv6 pool applies.
    let kept = desired_after(&all, &moved, &before);
    assert_eq!(leased(&kept), ["10.0.0.7"]);
    assert_eq!(
        (&kept.networks[0].ipv4, kept.networks[0].mtu),
        (&before.networks[0].ipv4, Some(1500))
    );
    let gateway = kept.networks[0].ipv6.as_ref().unwrap().gateway;
    assert_eq!(gateway, Some("fe80::2".parse().unwrap()));
    assert_eq!(desired_after(&all, &moved, &kept), kept, "a repetition is a no-op");
    // The configuration of the changed pool applies on a host without this machine, and on a host without previous
    // HostLeases.
    for changed in [desired_after(&all[2..], &moved, &kept), desired(&all, &moved).spec] {
        assert_eq!(leased(&changed), ["10.1.0.8"]);
        let network = &changed.networks[0];
        let options = network.ipv4.as_ref().unwrap();
        assert_eq!(
            (options.prefix_length, options.gateway),
            (24, Some("10.1.0.1".parse().unwrap()))
        );
        assert_eq!(network.mtu, Some(1400));
    }
    assert_eq!(desired(&all[..1], &moved), DesiredHostLeases::default());
    // If the pool is removed, the configuration does not change either.
    let removed = desired_after(&all[..1], &json!({"name": "trunk"}), &before);
    assert_eq!(leased(&removed), ["10.0.0.7"]);
    assert_eq!(
        (&removed.networks[0].ipv4, &removed.networks[0].ipv6),
        (&before.networks[0].ipv4, &None)
    );
}

#[test]
fn a_larger_network_applies_to_all_its_machines() {
    let claims = [claim("a", "web-1", 7, "10.0.0.7"), claim("a", "web-2", 8, "10.1.0.8")];
    let before = desired(&claims[..1], &network()).spec;
    let larger = json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/8"}});
    assert_eq!(desired_after(&claims, &larger, &before), desired(&claims, &larger).spec);
    // A smaller network that does not contain the addresses of all machines applies only after these machines are
    // replaced.
    let before = desired(&claims, &larger).spec;
    assert_eq!(before.networks[0].leases.len(), 2);
    assert_eq!(
        desired_after(&claims, &network(), &before).networks[0].ipv4,
        before.networks[0].ipv4
    );
}

#[test]
fn leases_without_room_are_counted() {
    let many: Vec<AddressClaim> = (0..5000_u32)
        .map(|number| {
            let [.., high, low] = number.to_be_bytes();
            let mut one = claim("a", &format!("web-{number}"), 0, &format!("10.0.{high}.{low}"));
            one.spec.mac = MacAddress([2, 0, 0, 0, high, low]);
            one
        })
        .collect();
    let large = desired(&many, &network());
    assert_eq!(large.spec.networks[0].leases.len(), MAX_ENTRIES);
    assert_eq!(large.omitted, 5000 - MAX_ENTRIES);
    let long_names = many.into_iter().map(|mut one| {
        one.spec.machine.name = format!("{}{}", one.spec.machine.name, "x".repeat(240));
        one
    });
    let long_names: Vec<AddressClaim> = long_names.collect();
    let large = desired(&long_names, &network());
    let leases = large.spec.networks[0].leases.len();
    assert!((2000..MAX_ENTRIES).contains(&leases), "{leases}");
    assert_eq!(large.omitted, 5000 - leases);
    assert!(serde_json::to_string(&large.spec).unwrap().len() <= MAX_BYTES + 100);
}

#[test]
fn a_migrating_machine_is_on_both_hosts() {
    let hosts = |status: Value| {
        let hosts = hosts_of_instance(&json!({"status": status}));
        hosts.into_iter().collect::<Vec<_>>().join(" ")
    };
    let to = |target: &str, failed: bool| json!({"targetNode": target, "failed": failed});
    assert_eq!(hosts(json!({"phase": "Pending"})), "");
    assert_eq!(hosts(json!({"phase": "Scheduling", "activePods": {"u": "", "v": "a"}})), "a");
    assert_eq!(
        hosts(json!({"phase": "Scheduled", "nodeName": "a", "activePods": {"v": "x"}})),
        "a"
    );
    assert_eq!(
        hosts(json!({"phase": "Running", "nodeName": "a", "migrationState": to("b", false)})),
        "a b"
    );
    assert_eq!(
        hosts(json!({"phase": "Running", "nodeName": "a", "migrationState": to("b", true)})),
        "a"
    );
    assert_eq!(
        hosts(json!({"phase": "Running", "nodeName": "b", "migrationState": to("b", false)})),
        "b"
    );
    assert_eq!(hosts(json!({"phase": "Succeeded", "nodeName": "a"})), "");
    for malformed in [json!(7), json!({"nodeName": 7, "activePods": [], "migrationState": "b"})] {
        assert_eq!(hosts(malformed), "");
    }
}

/// Random claim: numbers of the tenant, machine, interface and address; and true if the claim is released.
type RandomClaim = (usize, u8, u8, u8, bool);

const TENANTS: [&str; 2] = ["a", "b"];

/// Converts a random claim to an AddressClaim. All tenants have the same addresses and the same machine names.
fn random_claim((tenant, machine, interface, number, is_released): RandomClaim) -> AddressClaim {
    let address = if number.is_multiple_of(2) {
        format!("10.0.0.{number}")
    } else {
        format!("fd00::{number:x}")
    };
    let one = claim(TENANTS[tenant], &format!("m{machine}"), machine * 2 + interface, &address);
    if is_released { released(one) } else { one }
}

proptest! {
    #[test]
    fn leases_equal_the_claims_of_the_machines_on_the_host(
        claims in prop::collection::vec((0..2_usize, 0..4_u8, 0..2_u8, 4..20_u8, any::<bool>()), 0..40),
        moves in prop::collection::vec((0..2_usize, 0..4_u8, 0..3_u8, 0..4_u8), 0..30),
    ) {
        let mut index = LeaseIndex::default();
        let mut known: BTreeMap<String, Arc<AddressClaim>> = BTreeMap::new();
        let mut hosts: BTreeMap<ClaimingMachine, BTreeSet<String>> = BTreeMap::new();
        let mut moves = moves.into_iter();
        for one in claims {
            let one = Arc::new(random_claim(one));
            let name = one.metadata.name.clone().unwrap();
            let before = known.insert(name.clone(), Arc::clone(&one));
            let machines = before.iter().map(|claim| &claim.spec.machine);
            index.set_claim(&name, machines, Some(&one));
            if let Some((tenant, machine, node, target)) = moves.next() {
                let namespace = TenantCluster::namespace_of(TENANTS[tenant]);
                let machine = ClaimingMachine { namespace, name: format!("m{machine}") };
                let target = (target < 3).then(|| json!({"targetNode": format!("host{target}")}));
                let status = json!({"nodeName": format!("host{node}"), "migrationState": target});
                let on = hosts_of_instance(&json!({"status": status}));
                prop_assert_eq!(on.len(), if target.is_none_or(|one| one["targetNode"] == status["nodeName"]) { 1 } else { 2 });
                let before = hosts.insert(machine.clone(), on.clone()).unwrap_or_default();
                let affected = index.set_hosts(&machine, on.clone());
                prop_assert_eq!(affected, before.symmetric_difference(&on).cloned().collect());
            }
        }
        for host in ["host0", "host1", "host2"] {
            let claims = index.claims_on(host);
            let lookup = |name: &str| Some(tenant(name, &network()));
            let found = desired_host_leases(claims.iter().map(Arc::as_ref), lookup, None);
            prop_assert_eq!(found.omitted, 0);
            // For each address of a lease, there is an active claim of this tenant, interface and machine.
            let mut leased = BTreeSet::new();
            for network in &found.spec.networks {
                let mut macs = BTreeSet::new();
                for lease in &network.leases {
                    prop_assert!(macs.insert(lease.mac));
                    let addresses = [lease.ipv4.map(IpAddr::V4), lease.ipv6.map(IpAddr::V6)];
                    for address in addresses.into_iter().flatten() {
                        let claim = &known[&AddressClaim::name_for(&network.name, address)];
                        prop_assert!(is_active(claim));
                        let spec = &claim.spec;
                        prop_assert_eq!((&spec.network, spec.mac), (&network.name, lease.mac));
                        let machine = format!("{}/{}", spec.machine.namespace, spec.machine.name);
                        prop_assert_eq!(&machine, &lease.machine);
                        prop_assert_eq!(lease.machine.split_once('/').unwrap().0, &network.name);
                        prop_assert!(hosts[&spec.machine].contains(host));
                        leased.insert((network.name.clone(), lease.mac, address.is_ipv4()));
                    }
                }
            }
            // Each interface of a machine on the host has a lease, with an address of each family for which it has an
            // active claim.
            let on_host = known.values().filter(|claim| {
                hosts.get(&claim.spec.machine).is_some_and(|on| on.contains(host)) && is_active(claim)
            });
            let expected: BTreeSet<_> = on_host
                .map(|claim| (claim.spec.network.clone(), claim.spec.mac, claim.spec.address.is_ipv4()))
                .collect();
            prop_assert_eq!(leased, expected);
        }
        for name in TENANTS {
            let of_tenant = known.values().filter(|claim| claim.spec.tenant == name && is_active(claim));
            let expected: BTreeSet<String> =
                of_tenant.filter_map(|claim| hosts.get(&claim.spec.machine)).flatten().cloned().collect();
            prop_assert_eq!(index.hosts_of_tenant(name), expected);
        }
        let mut rebuilt = LeaseIndex::default();
        rebuilt.replace_claims(known.into_values());
        hosts.into_iter().for_each(|(machine, on)| _ = rebuilt.set_hosts(&machine, on));
        for host in ["host0", "host1", "host2"] {
            let names = |index: &LeaseIndex| -> BTreeSet<String> {
                index.claims_on(host).iter().map(|claim| claim.name_any()).collect()
            };
            prop_assert_eq!(names(&index), names(&rebuilt));
        }
    }
}
