//! Other programs and settings that affect the host's links.

use std::collections::BTreeMap;

use berth_api::LinkName;

use super::link::Link;
use crate::kernel_files::switch;
use crate::root::Root;

/// Settings and programs that disturb tenant networks and that Berth does not change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConflictingSettings {
    /// `net.bridge.bridge-nf-call-iptables`: bridged IPv4 frames pass the host's iptables rules, so a FORWARD policy
    /// of DROP drops VMs' traffic. The value 0 of a single bridge does not override this setting.
    pub bridge_calls_iptables: Option<bool>,
    /// Other programs that manage links.
    pub managers: BTreeMap<LinkName, Manager>,
}

/// A daemon that configures links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// systemd-networkd (`/run/systemd/netif/links/<ifindex>`).
    Networkd,
    /// NetworkManager (`/run/NetworkManager/devices/<ifindex>`).
    NetworkManager,
}

impl Manager {
    /// Returns the name of the daemon.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Networkd => "systemd-networkd",
            Self::NetworkManager => "NetworkManager",
        }
    }
}

pub(super) fn observe(root: &Root, links: &[Link]) -> ConflictingSettings {
    let networkd = root.list("run/systemd/netif/links").is_ok_and(|links| !links.is_empty());
    let nm = root.list("run/NetworkManager/devices").is_ok_and(|links| !links.is_empty());
    let manager = |link: &Link| {
        let index = link.index?;
        let read = |path: String| root.read(&path).unwrap_or_default();
        if networkd && networkd_manages(&read(format!("run/systemd/netif/links/{index}"))) {
            Some(Manager::Networkd)
        } else if nm && nm_manages(&read(format!("run/NetworkManager/devices/{index}"))) {
            Some(Manager::NetworkManager)
        } else {
            None
        }
    };
    let managers = if networkd || nm {
        // A host with many pods has thousands of links; only the managers of Berth's links and of uplinks are relevant.
        let relevant = links.iter().filter(|link| link.is_ours() || link.is_uplink());
        relevant.filter_map(|link| Some((link.name.clone(), manager(link)?))).collect()
    } else {
        BTreeMap::new()
    };
    let bridge_calls_iptables = switch(root, "proc/sys/net/bridge/bridge-nf-call-iptables");
    ConflictingSettings { bridge_calls_iptables, managers }
}

/// Returns true if the text has an `ADMIN_STATE=` such as `configured`; systemd-networkd writes `unmanaged` for links
/// that match no `.network` file.
pub fn networkd_manages(text: &str) -> bool {
    let state = text.lines().find_map(|line| line.strip_prefix("ADMIN_STATE="));
    state.is_some_and(|state| !matches!(state, "unmanaged" | "linger"))
}

/// Returns true if the text has `managed=true` and an active profile; a link that another program created has no profile.
pub fn nm_manages(text: &str) -> bool {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value("managed") == Some("true") && value("connection-uuid").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_with_a_profile_are_managed() {
        assert!(networkd_manages(
            "# This is private\nADMIN_STATE=configured\nOPER_STATE=routable\n"
        ));
        assert!(!networkd_manages("ADMIN_STATE=unmanaged\n"));
        assert!(nm_manages("[device]\nmanaged=true\nconnection-uuid=1-2\n"));
        assert!(!nm_manages("[device]\nmanaged=true\n") && !nm_manages(""));
    }
}
