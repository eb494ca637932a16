//! Configuration of a machine's network interface, from its AddressClaims and the pools.

use berth_api::{AddressClaim, ClaimingMachine, MacAddress};
use berth_kubevirt_render::machines::InterfaceConfig;
use ipnet::IpNet;

use super::claims::NetworkClaims;
use super::pool::ValidPool;
use super::pools::NetworkPools;
use super::release::is_released;

/// Returns the configuration of an interface. `claims` are the claims of the interface.
#[must_use]
pub fn interface_config<'a>(
    name: &str,
    mac: MacAddress,
    claims: impl IntoIterator<Item = &'a AddressClaim>,
    pools: &NetworkPools,
) -> InterfaceConfig {
    // An address that no pool contains any more has no prefix length, so it is omitted. The machine retains its claim;
    // the configuration of a new machine contains only addresses of the current pools.
    let addresses = claims.into_iter().filter_map(|claim| {
        let address = claim.spec.address;
        let pool = pools.iter().find(|pool| pool.cidr.contains(&address))?;
        IpNet::new(address, pool.cidr.prefix_len()).ok()
    });
    let configs = || pools.iter().map(|pool: &ValidPool| &pool.config);
    let mut search_domains: Vec<String> = Vec::new();
    for domain in configs().flat_map(|config| &config.search_domains) {
        if !search_domains.contains(domain) {
            search_domains.push(domain.clone());
        }
    }
    InterfaceConfig {
        name: name.to_owned(),
        mac,
        mtu: pools.mtu(),
        addresses: addresses.collect(),
        gateways: configs().filter_map(|config| config.gateway).collect(),
        routes: configs().flat_map(|config| config.routes.iter().copied()).collect(),
        nameservers: configs().flat_map(|config| config.nameservers.iter().copied()).collect(),
        search_domains,
    }
}

/// Returns the configuration of an interface in the network of another tenant, from its full configuration. Only the
/// tenant's own network has a default gateway. If `configures_guest` is false, Berth writes no network data, and the guest
/// gets the addresses by DHCP; only the Ethernet address is then part of the configuration.
#[must_use]
pub fn additional_config(config: InterfaceConfig, configures_guest: bool) -> InterfaceConfig {
    if configures_guest {
        return InterfaceConfig { gateways: Vec::new(), ..config };
    }
    InterfaceConfig::new_dhcp(config.name, config.mac)
}

/// Returns the configuration of an interface of an existing machine, from its claims; `None` if it has no claims.
#[must_use]
pub fn claimed_interface(
    tenant_uid: &str,
    machine: &ClaimingMachine,
    interface: &str,
    claims: &NetworkClaims,
    pools: &NetworkPools,
) -> Option<InterfaceConfig> {
    let own = claims.of_interface(machine, interface).map(AsRef::as_ref);
    let own = own.filter(|claim| claim.spec.tenant_uid == tenant_uid && !is_released(claim));
    let own: Vec<&AddressClaim> = own.collect();
    let mac = own.first()?.spec.mac;
    Some(interface_config(interface, mac, own, pools))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::choose::test_helpers::{claim, machine, pools, released};
    use super::*;

    #[test]
    fn both_families_are_in_one_configuration() {
        let pools = pools(json!({
            "ipv4": {"cidr": "10.0.0.0/24", "gateway": "10.0.0.1", "nameservers": ["10.0.0.53"], "mtu": 1450,
                "searchDomains": ["a.example"], "routes": [{"to": "10.9.0.0/16", "via": "10.0.0.2"}]},
            "ipv6": {"cidr": "fd00::/64", "searchDomains": ["a.example", "b.example"]},
        }));
        let claims = [claim("10.0.0.7", "web"), claim("fd00::7", "web"), claim("192.0.2.1", "web")];
        let mac = claims[0].spec.mac;
        let config = interface_config("tenant", mac, &claims, &pools);
        let expected = InterfaceConfig {
            name: "tenant".to_owned(),
            mac,
            mtu: Some(1450),
            addresses: vec!["10.0.0.7/24".parse().unwrap(), "fd00::7/64".parse().unwrap()],
            gateways: vec!["10.0.0.1".parse().unwrap()],
            routes: vec![
                serde_json::from_value(json!({"to": "10.9.0.0/16", "via": "10.0.0.2"})).unwrap(),
            ],
            nameservers: vec!["10.0.0.53".parse().unwrap()],
            search_domains: vec!["a.example".to_owned(), "b.example".to_owned()],
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn only_the_own_network_has_a_default_gateway() {
        let pools = pools(json!({"ipv4": {"cidr": "10.0.0.0/24", "gateway": "10.0.0.1",
            "routes": [{"to": "10.9.0.0/16", "via": "10.0.0.2"}]}}));
        let own = claim("10.0.0.7", "web");
        let config = interface_config("additional-1", own.spec.mac, [&own], &pools);
        let additional = additional_config(config.clone(), true);
        assert!(additional.gateways.is_empty());
        let restored = InterfaceConfig { gateways: config.gateways.clone(), ..additional };
        assert_eq!(restored, config);
        let by_dhcp = additional_config(config.clone(), false);
        assert_eq!((by_dhcp.mac, by_dhcp.name), (config.mac, config.name));
        assert!(by_dhcp.addresses.is_empty() && by_dhcp.routes.is_empty());
    }

    #[test]
    fn the_configuration_of_an_existing_machine_is_the_same() {
        let pools = pools(json!({"ipv4": {"cidr": "10.0.0.0/24"}}));
        let own = claim("10.0.0.7", "web");
        let mut claims = NetworkClaims::default();
        for one in [own.clone(), claim("10.0.0.8", "db"), released("10.0.0.9", "web", 0)] {
            claims.insert(Arc::new(one));
        }
        let find = |uid: &str, name: &str| {
            claimed_interface(uid, &machine(name), "tenant", &claims, &pools)
        };
        let expected = interface_config("tenant", own.spec.mac, [&own], &pools);
        assert_eq!(find("u-1", "web"), Some(expected));
        assert_eq!(find("u-2", "web"), None);
        assert_eq!(find("u-1", "old"), None);
    }
}
