//! Order of the hosts by name. Among hosts with equal scores, the engine selects the first by name. The result
//! therefore does not depend on the order in which the hosts joined the cluster: a dry run and a restarted controller
//! select the same host.

use crate::rules::HostId;

/// The hosts, sorted by name. The rank of a host is its position in this order, counted from 0. The number of a host
/// ([`HostId`]) is its position in the order in which hosts were added.
#[derive(Debug, Default)]
pub(crate) struct HostOrder {
    /// Name of each host, indexed by the host's number.
    names: Vec<Box<str>>,
    /// Rank of each host, indexed by the host's number. Hosts that were added after the last [`Self::update`] have no
    /// entry. Ranks and hosts have 4 bytes, because each decision reads many of them.
    ranks: Vec<u32>,
    /// Host at each rank.
    hosts: Vec<HostId>,
}

impl HostOrder {
    /// Adds the host with the next number. A host that was added before is ignored.
    pub(crate) fn add(&mut self, host: HostId, name: &str) {
        if host.index() == self.names.len() {
            self.names.push(name.into());
        }
    }

    /// Assigns ranks to the hosts that were added. Returns true if the rank of a host that already had a rank may have
    /// changed.
    pub(crate) fn update(&mut self) -> bool {
        let ranked_count = self.ranks.len();
        if ranked_count == self.names.len() {
            return false;
        }
        self.hosts.extend((ranked_count..self.names.len()).map(HostId::from_index));
        let added_from = ranked_count.saturating_sub(1);
        // Lists of the API server are sorted by name, so new hosts usually have the highest ranks.
        let is_sorted = self.hosts[added_from..].is_sorted_by_key(|host| &self.names[host.index()]);
        if !is_sorted {
            self.hosts.sort_by_key(|host| &self.names[host.index()]);
        }
        self.ranks.resize(self.names.len(), 0);
        for (rank, host) in (0..).zip(&self.hosts) {
            self.ranks[host.index()] = rank;
        }
        !is_sorted && ranked_count > 0
    }

    /// Returns the rank of a host; `None` if it was added after the last [`Self::update`].
    pub(crate) fn rank(&self, host: HostId) -> Option<usize> {
        self.ranks.get(host.index()).map(|rank| *rank as usize)
    }

    /// Returns the host with a rank.
    pub(crate) fn host(&self, rank: usize) -> Option<HostId> {
        self.hosts.get(rank).copied()
    }

    /// Returns the numbers of all hosts with a rank, in the order of their names.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.hosts.iter().map(|host| host.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(order: &HostOrder) -> Vec<&str> {
        for (number, rank) in order.ranks.iter().enumerate() {
            assert_eq!(order.host(*rank as usize), Some(HostId::from_index(number)));
        }
        order.numbers().map(|number| &*order.names[number]).collect()
    }

    fn add(order: &mut HostOrder, names: &[&str]) -> bool {
        for name in names {
            order.add(HostId::from_index(order.names.len()), name);
        }
        order.update()
    }

    #[test]
    fn hosts_are_ordered_by_name() {
        let mut order = HostOrder::default();
        assert!(!add(&mut order, &["c", "b", "e"]), "no host had a rank");
        assert_eq!(names(&order), ["b", "c", "e"]);
        assert!(!add(&mut order, &[]));
        assert!(!add(&mut order, &["f", "g"]), "the ranks of b, c and e remain");
        assert_eq!(names(&order), ["b", "c", "e", "f", "g"]);
        assert!(add(&mut order, &["h", "d"]), "d moves e");
        assert_eq!(names(&order), ["b", "c", "d", "e", "f", "g", "h"]);
        order.add(HostId::from_index(0), "c");
        assert!(!order.update(), "the update for a known host is a no-op");
    }

    #[test]
    fn hosts_without_a_rank_are_unknown() {
        let mut order = HostOrder::default();
        order.add(HostId::from_index(0), "a");
        assert_eq!((order.rank(HostId::from_index(0)), order.host(0)), (None, None));
        order.update();
        assert_eq!(order.rank(HostId::from_index(0)), Some(0));
        assert_eq!(order.rank(HostId::from_index(1)), None);
    }
}
