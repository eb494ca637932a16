//! Settings and other programs that affect the host's links and that Berth does not change.

use std::collections::BTreeMap;

use berth_api::LinkName;

use super::link::Link;
use crate::kernel_files::read_bool;
use crate::root::Root;

/// Settings and programs that disturb tenant networks and that Berth does not change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConflictingSettings {
    /// True if `net.bridge.bridge-nf-call-iptables` is on: bridged IPv4 frames then pass through the host's iptables
    /// rules, so that a FORWARD policy of DROP drops the traffic of VMs. A bridge's own option with the value 0 does
    /// not override this setting.
    pub does_bridge_call_iptables: Option<bool>,
    /// Uplinks and links of Berth that another program manages, each with that program.
    pub managers: BTreeMap<LinkName, LinkManager>,
}

/// A daemon that manages links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkManager {
    /// systemd-networkd; it writes `/run/systemd/netif/links/<ifindex>`.
    Networkd,
    /// NetworkManager; it writes `/run/NetworkManager/devices/<ifindex>`.
    NetworkManager,
}

impl LinkManager {
    /// Returns the name of the daemon.
    #[must_use]
    pub const fn daemon_name(self) -> &'static str {
        match self {
            Self::Networkd => "systemd-networkd",
            Self::NetworkManager => "NetworkManager",
        }
    }
}

pub(super) fn observe(root: &Root, links: &[Link]) -> ConflictingSettings {
    let networkd = root.list("run/systemd/netif/links").is_ok_and(|links| !links.is_empty());
    let nm = root.list("run/NetworkManager/devices").is_ok_and(|links| !links.is_empty());
    let manager_of = |link: &Link| {
        let index = link.index?;
        let read = |path: String| root.read(&path).unwrap_or_default();
        if networkd && is_managed_by_networkd(&read(format!("run/systemd/netif/links/{index}"))) {
            Some(LinkManager::Networkd)
        } else if nm
            && is_managed_by_network_manager(&read(format!("run/NetworkManager/devices/{index}")))
        {
            Some(LinkManager::NetworkManager)
        } else {
            None
        }
    };
    let managers = if networkd || nm {
        // A host with many pods has thousands of links, but only the managers of Berth's links and of uplinks matter.
        let relevant = links.iter().filter(|link| link.is_created_by_berth() || link.is_uplink());
        relevant.filter_map(|link| Some((link.name.clone(), manager_of(link)?))).collect()
    } else {
        BTreeMap::new()
    };
    let bridge_calls_iptables = read_bool(root, "proc/sys/net/bridge/bridge-nf-call-iptables");
    ConflictingSettings { does_bridge_call_iptables: bridge_calls_iptables, managers }
}

/// Returns true if `text`, the content of systemd-networkd's file about a link, shows that systemd-networkd manages the
/// link: `ADMIN_STATE=` has a value such as `configured`. For links that match no `.network` file, the value is
/// `unmanaged`.
pub fn is_managed_by_networkd(text: &str) -> bool {
    let state = text.lines().find_map(|line| line.strip_prefix("ADMIN_STATE="));
    state.is_some_and(|state| !matches!(state, "unmanaged" | "linger"))
}

/// Returns true if `text`, the content of NetworkManager's file about a link, shows that NetworkManager manages the
/// link: it has `managed=true` and an active profile. A link that another program has created has no profile.
pub fn is_managed_by_network_manager(text: &str) -> bool {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value("managed") == Some("true") && value("connection-uuid").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_without_profile_is_unmanaged() {
        assert!(is_managed_by_networkd(
            "# This is private\nADMIN_STATE=configured\nOPER_STATE=routable\n"
        ));
        assert!(!is_managed_by_networkd("ADMIN_STATE=unmanaged\n"));
        assert!(is_managed_by_network_manager("[device]\nmanaged=true\nconnection-uuid=1-2\n"));
        assert!(
            !is_managed_by_network_manager("[device]\nmanaged=true\n")
                && !is_managed_by_network_manager("")
        );
    }
}
