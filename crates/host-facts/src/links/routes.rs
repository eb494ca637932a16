//! Links that the routes of the host use.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::link::{Link, LinkKind};
use super::table::Links;

/// The links that the routes of the host use.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Links that default routes use.
    pub(super) default_links: BTreeSet<LinkName>,
    /// Links that other routes use, each with the destination of one of these routes.
    pub(super) destinations: BTreeMap<LinkName, String>,
    /// True if it is known for every route which links it uses.
    pub(super) is_complete: bool,
}

impl Routes {
    pub(super) fn add_destination(
        &mut self,
        link: &LinkName,
        destination: &impl std::fmt::Display,
    ) {
        if !self.destinations.contains_key(link) {
            self.destinations.insert(link.clone(), destination.to_string());
        }
    }
}

impl Links {
    pub(super) fn set_routes(&mut self, mut routes: Routes) {
        for link in &mut self.all {
            link.route_destination = routes.destinations.remove(&link.name);
        }
        self.are_routes_known =
            self.mark_default_routes(&routes.default_links) && routes.is_complete;
    }

    /// Marks the links that default routes use and all links below these links: the parent of a VLAN, and those ports
    /// of a bridge or bond that can be connected to an external network. Returns false if there are default routes, but
    /// no known uplink is below them.
    ///
    /// Open vSwitch forwards frames by flows, which are not in the routing tables. If a default route uses a port of an
    /// Open vSwitch datapath, every uplink that is a port of a datapath is marked.
    #[must_use]
    fn mark_default_routes(&mut self, names: &BTreeSet<LinkName>) -> bool {
        let mut marked: BTreeSet<LinkName> = BTreeSet::new();
        let mut pending: Vec<LinkName> = names.iter().cloned().collect();
        while let Some(name) = pending.pop() {
            if !marked.insert(name.clone()) {
                continue;
            }
            pending.extend(self.find_by_name(&name).and_then(|link| link.parent.clone()));
            let can_leave_host = |link: &&Link| link.is_uplink() || link.kind == LinkKind::Vlan;
            let ports = self.all.iter().filter(|link| link.master.as_ref() == Some(&name));
            pending.extend(ports.filter(can_leave_host).map(|link| link.name.clone()));
        }
        let is_open_vswitch = |name: &LinkName| {
            self.find_by_name(name).is_some_and(|l| l.kind == LinkKind::OpenVSwitch)
        };
        // In a capture, an internal port of Open vSwitch cannot be distinguished from other virtual links, so uplinks
        // of datapaths are also marked if no other uplink is.
        let no_uplink_marked = !self.uplinks().any(|link| marked.contains(&link.name));
        if marked.iter().any(is_open_vswitch) || no_uplink_marked {
            let in_datapath = |link: &&Link| link.master.as_ref().is_some_and(is_open_vswitch);
            let uplinks: Vec<LinkName> =
                self.uplinks().filter(in_datapath).map(|link| link.name.clone()).collect();
            for name in uplinks {
                let ports = self.all.iter().filter(|link| link.master.as_ref() == Some(&name));
                marked.extend(ports.map(|link| link.name.clone()));
                marked.insert(name);
            }
        }
        for link in &mut self.all {
            link.has_default_route = marked.contains(&link.name);
        }
        names.is_empty() || self.uplinks().any(|link| link.has_default_route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link_name(text: &str) -> LinkName {
        text.parse().unwrap()
    }

    fn test_link(text: &str, kind: LinkKind, master: Option<&str>, parent: Option<&str>) -> Link {
        let (master, parent) = (master.map(link_name), parent.map(link_name));
        Link { master, parent, ..Link::new(link_name(text), kind) }
    }

    fn sorted_links(mut all: Vec<Link>) -> Links {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Links { all, are_routes_known: true, ..Links::default() }
    }

    #[test]
    fn default_route_marks_all_lower_links() {
        let all = vec![
            test_link("br-ex", LinkKind::Bridge, None, None),
            test_link("bond0", LinkKind::Bond, None, None),
            test_link("bond0.100", LinkKind::Vlan, Some("br-ex"), Some("bond0")),
            test_link("eth0", LinkKind::Physical, Some("bond0"), None),
            test_link("eth1", LinkKind::Physical, None, None),
            test_link("vnet0", LinkKind::Tun, Some("br-ex"), None),
        ];
        let mut links = sorted_links(all);
        assert!(links.mark_default_routes(&BTreeSet::from([link_name("br-ex")])));
        let marked: Vec<&str> =
            links.all.iter().filter(|l| l.has_default_route).map(|l| l.name.as_str()).collect();
        assert_eq!(marked, ["bond0", "bond0.100", "br-ex", "eth0"]);
    }

    #[test]
    fn open_vswitch_route_marks_uplinks_of_the_datapath() {
        let all = vec![
            test_link("br-ex", LinkKind::OpenVSwitch, None, None),
            test_link("bond0", LinkKind::Bond, Some("ovs-system"), None),
            test_link("eth0", LinkKind::Physical, Some("bond0"), None),
            test_link("eth1", LinkKind::Physical, None, None),
            test_link("ovs-system", LinkKind::OpenVSwitch, None, None),
        ];
        let mut links = sorted_links(all);
        assert!(links.mark_default_routes(&BTreeSet::from([link_name("br-ex")])));
        let marked: Vec<&str> =
            links.all.iter().filter(|l| l.has_default_route).map(|l| l.name.as_str()).collect();
        assert_eq!(marked, ["bond0", "br-ex", "eth0"]);
    }

    #[test]
    fn marking_terminates_for_a_cycle_of_links() {
        let all = vec![
            test_link("a", LinkKind::Vlan, None, Some("b")),
            test_link("b", LinkKind::Vlan, None, Some("a")),
        ];
        let mut links = sorted_links(all);
        assert!(
            !links.mark_default_routes(&BTreeSet::from([link_name("a")])),
            "the route leads to no uplink"
        );
        assert!(links.all.iter().all(|link| link.has_default_route));
    }
}
