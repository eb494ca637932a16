//! `/etc/berth/machine.env`: the identity and the addresses of a machine, for scripts and systemd units of its guest.

use std::net::IpAddr;

use super::guest_file::GuestFile;
use super::guest_machine::GuestMachine;

/// Path of the file.
pub(super) const PATH: &str = "/etc/berth/machine.env";

/// Returns the file. All variables are set, so that scripts can use `set -u`; a variable without a value is empty.
pub(super) fn machine_env(machine: &GuestMachine<'_>) -> GuestFile {
    // The addresses of further interfaces are in networks of other tenants.
    let first = machine.interfaces.iter().find(|one| !one.addresses.is_empty());
    let addresses = || first.into_iter().flat_map(|one| &one.addresses).map(|net| net.addr());
    let gateways = || first.into_iter().flat_map(|one| &one.gateways).copied();
    let text = |address: Option<IpAddr>| address.map(|one| one.to_string()).unwrap_or_default();
    let variables = [
        ("BERTH_TENANT", machine.tenant.to_owned()),
        ("BERTH_MACHINE", machine.name.to_owned()),
        ("BERTH_NAMESPACE", machine.namespace.to_owned()),
        ("BERTH_ADDRESS_IPV4", text(addresses().find(IpAddr::is_ipv4))),
        ("BERTH_ADDRESS_IPV6", text(addresses().find(IpAddr::is_ipv6))),
        ("BERTH_GATEWAY_IPV4", text(gateways().find(IpAddr::is_ipv4))),
        ("BERTH_GATEWAY_IPV6", text(gateways().find(IpAddr::is_ipv6))),
    ];
    let lines =
        variables.iter().map(|(name, value)| format!("{name}={}\n", quote_for_shell(value)));
    GuestFile { path: PATH.to_owned(), mode: 0o644, content: lines.collect() }
}

/// Quotes a value for a shell. Values without special characters stay unquoted, so that systemd's `EnvironmentFile=`
/// and a shell read the same value.
fn quote_for_shell(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    if value.bytes().all(is_plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_safe_for_a_shell() {
        for (value, quoted) in [
            ("web-1.x", "web-1.x"),
            ("fd00:120::7", "fd00:120::7"),
            ("", ""),
            ("a b", "'a b'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's", r"'it'\''s'"),
            ("a\nB=c", "'a\nB=c'"),
        ] {
            assert_eq!(quote_for_shell(value), quoted);
        }
    }
}
