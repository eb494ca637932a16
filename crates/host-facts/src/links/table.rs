//! The links of a network namespace.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::bridge_filter::BridgeFilter;
use super::conflicting_settings::ConflictingSettings;
use super::link::Link;

/// All links of the host's network namespace, and other facts about the host's network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Every link of this network namespace, sorted by name.
    pub all: Vec<Link>,
    /// True if it is known which links the default routes use.
    pub are_routes_known: bool,
    /// True if netlink failed, so that most properties of the links are unknown.
    pub is_incomplete: bool,
    /// UDP ports of the sockets of this host.
    pub udp_ports: BTreeSet<u16>,
    /// Settings and other programs that disturb tenant networks and that Berth does not change.
    pub conflicting_settings: ConflictingSettings,
    /// State of Berth's nf_tables table, which drops control frames of guests at the uplinks.
    pub filter: BridgeFilter,
}

impl Links {
    /// Returns the link with this name.
    #[must_use]
    pub fn find_by_name(&self, name: &LinkName) -> Option<&Link> {
        let found = self.all.binary_search_by(|link| link.name.cmp(name)).ok();
        found.and_then(|index| self.all.get(index))
    }

    /// Returns the ports of the bridge or bond with this name.
    pub fn ports_of<'a>(&'a self, master: &'a LinkName) -> impl Iterator<Item = &'a Link> {
        self.all.iter().filter(move |link| link.master.as_ref() == Some(master))
    }

    /// Returns the links that are stacked on the link `parent`.
    pub fn links_stacked_on<'a>(&'a self, parent: &'a LinkName) -> impl Iterator<Item = &'a Link> {
        self.all.iter().filter(move |link| link.parent.as_ref() == Some(parent))
    }

    /// Returns all physical links and bonds.
    pub fn uplinks(&self) -> impl Iterator<Item = &Link> {
        self.all.iter().filter(|link| link.is_uplink())
    }
}

/// Returns the names of the links by interface index, by which netlink messages refer to links.
pub(super) fn names_by_index(links: &[Link]) -> BTreeMap<u32, LinkName> {
    links.iter().filter_map(|link| Some((link.index?, link.name.clone()))).collect()
}
