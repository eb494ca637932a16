//! Network data version 2 of cloud-init, which has the format of netplan.
//!
//! The text is JSON, which is also YAML: strings are quoted, and a MAC address is not read as a number of base 60.
//!
//! cloud-init configures only the interfaces that the network data list, so the interface in the pod network must be
//! listed although its MAC address is unknown: the CNI chooses it, and a MAC address in the VirtualMachine would cut
//! off the VM with some CNIs (cilium/cilium#21347, kubermatic/machine-controller#1752). The interface is matched by
//! its name. Therefore all other interfaces get names that the pattern does not match:
//!
//! * netplan passes the pattern `e*` to its backend. The pattern matches `enp1s0`, `eth0` and `ens3`.
//! * The renderers of cloud-init itself (networkd, NetworkManager, sysconfig, ENI) ignore a pattern, and use the key
//!   of the entry as the name. `enp1s0` is the name of the first interface of a VM of KubeVirt (q35).

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::routes::{FURTHER_ROUTE_METRIC, GuestRoute, routes};
use crate::machines::interface_config::InterfaceConfig;

/// Name of the interface in the pod network.
const POD_INTERFACE: &str = "enp1s0";

/// Returns the network data as JSON.
pub(super) fn network_data(interfaces: &[InterfaceConfig], has_pod_network: bool) -> String {
    let mut ethernets = Map::new();
    for interface in interfaces {
        // systemd-networkd uses the first file whose pattern matches, in the order of names. Therefore this key must
        // sort before `enp1s0`.
        ethernets.insert(format!("berth-{}", interface.name), ethernet_entry(interface));
    }
    if has_pod_network {
        ethernets.insert(POD_INTERFACE.to_owned(), json!({"match": {"name": "e*"}, "dhcp4": true}));
    }
    format!("{:#}\n", json!({"version": 2, "ethernets": ethernets}))
}

fn ethernet_entry(interface: &InterfaceConfig) -> Value {
    let mut ethernet = json!({
        "match": {"macaddress": interface.mac.to_string()},
        "set-name": interface.name,
    });
    if let Some(mtu) = interface.mtu {
        ethernet["mtu"] = mtu.into();
    }
    if interface.addresses.is_empty() {
        ethernet["dhcp4"] = true.into();
        // networkd uses the DHCP route metric that netplan writes also for routes from router advertisements.
        ethernet["dhcp4-overrides"] = json!({"route-metric": FURTHER_ROUTE_METRIC});
        // The guest configures IPv6 from router advertisements, whose flags may start DHCPv6. With `dhcp6: true`
        // instead, cloud-init writes `may-fail=false` for NetworkManager, and the connection would fail in a network
        // without IPv6.
        ethernet["accept-ra"] = true.into();
        // An additional network may have no DHCP server, so the boot must not wait for the interface.
        ethernet["optional"] = true.into();
        return ethernet;
    }
    ethernet["dhcp4"] = false.into();
    ethernet["dhcp6"] = false.into();
    if interface.addresses.iter().any(|net| net.addr().is_ipv6()) {
        ethernet["accept-ra"] = false.into();
    }
    ethernet["addresses"] = interface.addresses.iter().map(ToString::to_string).collect();
    let mut entries = Vec::new();
    for route in routes(interface) {
        if route.is_default() && route.is_ipv6() && !route.is_on_link {
            // cloud-init 22 turns a route to ::/0 into a route to ::/64, so an IPv6 default route is set as `gateway6`.
            ethernet["gateway6"] = route.via.to_string().into();
        } else {
            entries.push(route_entry(&route));
        }
    }
    if !entries.is_empty() {
        ethernet["routes"] = entries.into();
    }
    let mut nameservers = Map::new();
    if !interface.nameservers.is_empty() {
        let all = interface.nameservers.iter().map(IpAddr::to_string);
        nameservers.insert("addresses".to_owned(), all.collect());
    }
    if !interface.search_domains.is_empty() {
        nameservers.insert("search".to_owned(), interface.search_domains.clone().into());
    }
    if !nameservers.is_empty() {
        ethernet["nameservers"] = nameservers.into();
    }
    ethernet
}

/// Returns an entry of `routes`. The destination of a default route is a prefix, because cloud-init 22 refuses the word
/// `default`. An IPv6 route has no metric, because cloud-init fails to write it for NetworkManager.
fn route_entry(route: &GuestRoute) -> Value {
    let mut entry = json!({"to": route.to.to_string(), "via": route.via.to_string()});
    if let (Some(metric), false) = (route.metric, route.is_ipv6()) {
        entry["metric"] = metric.into();
    }
    if route.is_on_link {
        entry["on-link"] = true.into();
    }
    entry
}
