//! Units of systemd-networkd for Flatcar, which has no NetworkManager. Flatcar's unit `zz-default.network` configures
//! the other interfaces by DHCP.

use super::guest_file::GuestFile;
use super::routes::{FURTHER_ROUTE_METRIC, routes};
use crate::machines::interface_config::InterfaceConfig;

/// Returns the units of the interfaces.
pub(super) fn networkd_units(interfaces: &[InterfaceConfig]) -> Vec<GuestFile> {
    let unit_file = |interface: &InterfaceConfig| GuestFile {
        path: format!("/etc/systemd/network/10-berth-{}.network", interface.name),
        mode: 0o644,
        content: unit_content(interface),
    };
    interfaces.iter().map(unit_file).collect()
}

fn unit_content(interface: &InterfaceConfig) -> String {
    let has_addresses = !interface.addresses.is_empty();
    // VLANs and bridges on top of the interface have the same MAC address, but no permanent MAC address, so only
    // PermanentMACAddress= matches the interface alone.
    let mut text = format!("[Match]\nPermanentMACAddress={}\n", interface.mac);
    if interface.mtu.is_some() || !has_addresses {
        text += "\n[Link]\n";
    }
    if let Some(mtu) = interface.mtu {
        text += &format!("MTUBytes={mtu}\n");
    }
    if !has_addresses {
        text += &format!(
            "RequiredForOnline=no\n\n[Network]\nDHCP=yes\n\n[DHCPv4]\nRouteMetric={FURTHER_ROUTE_METRIC}\n\n\
             [IPv6AcceptRA]\nRouteMetric={FURTHER_ROUTE_METRIC}\n"
        );
        return text;
    }
    text += "\n[Network]\nDHCP=no\n";
    for address in &interface.addresses {
        text += &format!("Address={address}\n");
    }
    if interface.addresses.iter().any(|net| net.addr().is_ipv6()) {
        text += "IPv6AcceptRA=no\n";
    }
    for server in &interface.nameservers {
        text += &format!("DNS={server}\n");
    }
    if !interface.search_domains.is_empty() {
        text += &format!("Domains={}\n", interface.search_domains.join(" "));
    }
    for route in routes(interface) {
        text += &format!("\n[Route]\nDestination={}\nGateway={}\n", route.to, route.via);
        if let Some(metric) = route.metric {
            text += &format!("Metric={metric}\n");
        }
        if route.is_on_link {
            text += "GatewayOnLink=yes\n";
        }
    }
    text
}
