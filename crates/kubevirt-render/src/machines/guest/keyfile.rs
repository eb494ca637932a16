//! Keyfiles of NetworkManager, for operating systems that Ignition configures.

use std::net::IpAddr;

use super::guest_file::GuestFile;
use super::routes::{FURTHER_ROUTE_METRIC, routes};
use crate::machines::interface_config::InterfaceConfig;

const KEYFILE_FOLDER: &str = "/etc/NetworkManager/system-connections";
/// Permission bits of a keyfile. NetworkManager ignores keyfiles that other users can read.
const KEYFILE_MODE: u32 = 0o600;

/// Returns the keyfiles of the interfaces. The keyfile for the pod network matches every Ethernet device. Its priority
/// is the lowest, so NetworkManager uses it only for devices that no other keyfile matches.
pub(super) fn keyfiles(interfaces: &[InterfaceConfig], has_pod_network: bool) -> Vec<GuestFile> {
    let keyfile = |name: &str, content: String| GuestFile {
        path: format!("{KEYFILE_FOLDER}/berth-{name}.nmconnection"),
        mode: KEYFILE_MODE,
        content,
    };
    let mut files: Vec<GuestFile> =
        interfaces.iter().map(|one| keyfile(&one.name, keyfile_content(one))).collect();
    if has_pod_network {
        let pod = "[connection]\nid=berth-default\ntype=ethernet\nautoconnect-priority=-999\nmulti-connect=3\n\n\
                   [ipv4]\nmethod=auto\n\n[ipv6]\nmethod=auto\n";
        files.push(keyfile("default", pod.to_owned()));
    }
    files
}

fn keyfile_content(interface: &InterfaceConfig) -> String {
    let InterfaceConfig { name, mac, .. } = interface;
    let mut text =
        format!("[connection]\nid=berth-{name}\ntype=ethernet\n\n[ethernet]\nmac-address={mac}\n");
    if let Some(mtu) = interface.mtu {
        text += &format!("mtu={mtu}\n");
    }
    if interface.addresses.is_empty() {
        text += &format!("\n[ipv4]\nmethod=auto\nroute-metric={FURTHER_ROUTE_METRIC}\n");
        text += &format!("\n[ipv6]\nmethod=auto\nroute-metric={FURTHER_ROUTE_METRIC}\n");
        return text;
    }
    text += &family_section(interface, false);
    text += &family_section(interface, true);
    text
}

/// Returns the section `ipv4` or `ipv6` of a keyfile. With `method=manual`, NetworkManager ignores router
/// advertisements.
fn family_section(interface: &InterfaceConfig, is_ipv6: bool) -> String {
    let is_family = |address: &IpAddr| address.is_ipv6() == is_ipv6;
    let addresses: Vec<_> =
        interface.addresses.iter().filter(|net| is_family(&net.addr())).collect();
    let (name, method_without_address) =
        if is_ipv6 { ("ipv6", "auto") } else { ("ipv4", "disabled") };
    let method = if addresses.is_empty() { method_without_address } else { "manual" };
    let mut text = format!("\n[{name}]\nmethod={method}\n");
    for (index, address) in (1..).zip(addresses.iter()) {
        text += &format!("address{index}={address}\n");
    }
    for (index, route) in (1..).zip(routes(interface).iter().filter(|route| is_family(&route.via)))
    {
        let metric = route.metric.map(|metric| format!(",{metric}")).unwrap_or_default();
        text += &format!("route{index}={},{}{metric}\n", route.to, route.via);
        if route.is_on_link {
            text += &format!("route{index}_options=onlink=true\n");
        }
    }
    if addresses.is_empty() {
        return text;
    }
    let servers = interface.nameservers.iter().filter(|server| is_family(server));
    let servers: String = servers.map(|server| format!("{server};")).collect();
    if !servers.is_empty() {
        text += &format!("dns={servers}\n");
    }
    if !interface.search_domains.is_empty() {
        text += &format!("dns-search={};\n", interface.search_domains.join(";"));
    }
    text
}
