//! All links of a network namespace.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::filter::BridgeFilter;
use super::link::Link;
use super::trouble::Trouble;

/// All links, sorted by name, and what is known of routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Every link of this network namespace, sorted by name.
    pub all: Vec<Link>,
    /// Whether default routes were looked up at all.
    pub routes_known: bool,
    /// Whether the kernel could not be asked, so that much of what is below is missing.
    pub incomplete: bool,
    /// UDP ports that are taken on this host.
    pub udp_ports: BTreeSet<u16>,
    /// Whether bridged frames go through the host's iptables rules, and who manages the links.
    pub trouble: Trouble,
    /// The rules that keep guests' control frames from the uplinks.
    pub filter: BridgeFilter,
}

impl Links {
    /// The link of that name.
    #[must_use]
    pub fn named(&self, name: &LinkName) -> Option<&Link> {
        let found = self.all.binary_search_by(|link| link.name.cmp(name)).ok();
        found.and_then(|index| self.all.get(index))
    }

    /// Ports of the bridge or bond of that name.
    pub fn ports<'a>(&'a self, master: &'a LinkName) -> impl Iterator<Item = &'a Link> {
        self.all.iter().filter(move |link| link.master.as_ref() == Some(master))
    }

    /// Links stacked on the one of that name.
    pub fn stacked_on<'a>(&'a self, parent: &'a LinkName) -> impl Iterator<Item = &'a Link> {
        self.all.iter().filter(move |link| link.parent.as_ref() == Some(parent))
    }

    /// Physical links and bonds.
    pub fn uplinks(&self) -> impl Iterator<Item = &Link> {
        self.all.iter().filter(|link| link.is_uplink())
    }
}

/// Names by the kernel's numbers, for messages that refer to links by number.
pub(super) fn names_by_index(links: &[Link]) -> BTreeMap<u32, LinkName> {
    links.iter().filter_map(|link| Some((link.index?, link.name.clone()))).collect()
}
