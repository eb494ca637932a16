//! Index of the control-plane VMs of all tenants by topology domain, and the points that spread these VMs over the
//! domains.
//!
//! A domain consists of the hosts with the same value of the label that is the topology key. Every change costs the
//! same, regardless of the number of hosts and VMs. The points of a host may change although the host itself does not:
//! another host of the domain gets a VM, or the minimum over all domains changes. Then [`SpreadIndex::generation`]
//! changes, and request classes compute their scores again. If each host is a domain, as by default, this occurs only
//! when the minimum changes.

use std::collections::{BTreeMap, HashMap};

use berth_api::ControlPlaneSpread;

use super::score_index::Score;

/// Points for each VM by which the number of VMs in a host's domain exceeds the minimum, for each unit of the
/// configured weight.
const POINTS_PER_WEIGHT: u32 = 10;
/// Maximum of the points for the spread, and the points of a host without the label. The value leaves room in a
/// [`Score`]: all other points together are lower than `Score::MAX` minus this value.
const MAX_POINTS: u32 = 50_000;

/// Control-plane VMs of all tenants by topology domain.
#[derive(Debug, Default)]
pub struct SpreadIndex {
    config: ControlPlaneSpread,
    /// Hosts, indexed by their number.
    hosts: Vec<SpreadHost>,
    domains: Vec<Domain>,
    numbers_by_name: HashMap<Box<str>, usize>,
    /// Number of domains with schedulable hosts, by the number of VMs in the domain.
    domains_by_vms: BTreeMap<u32, u32>,
    generation: u64,
}

/// A host: the number of its domain, the number of its VMs, and whether it can get further VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SpreadHost {
    domain: Option<usize>,
    vms: u32,
    is_schedulable: bool,
}

#[derive(Debug, Default)]
struct Domain {
    name: Box<str>,
    vms: u32,
    hosts: u32,
    schedulable_hosts: u32,
}

/// A topology domain, as a plan shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadDomain<'a> {
    /// Value of the label.
    pub name: &'a str,
    /// Number of control-plane VMs on all hosts of the domain.
    pub vms: u32,
    /// Points that the hosts of the domain get for the next control-plane VM.
    pub points: u32,
}

impl Domain {
    /// Returns the number of VMs if the domain has schedulable hosts. A domain without schedulable hosts gets no
    /// further VMs, so it does not count for the minimum.
    fn vms_if_schedulable(&self) -> Option<u32> {
        (self.schedulable_hosts > 0).then_some(self.vms)
    }
}

impl SpreadIndex {
    /// Returns the topology key.
    #[must_use]
    pub fn topology_key(&self) -> &str {
        self.config.topology_key()
    }

    /// Returns the points for each VM by which a domain exceeds the minimum number of VMs; 0 if VMs are not spread.
    #[must_use]
    pub fn points_per_vm(&self) -> u32 {
        self.config.weight().saturating_mul(POINTS_PER_WEIGHT)
    }

    /// Returns the lowest number of VMs in a domain with schedulable hosts.
    #[must_use]
    pub fn minimum(&self) -> u32 {
        self.domains_by_vms.first_key_value().map_or(0, |(vms, _)| *vms)
    }

    /// Returns true if there is a control-plane VM on any host.
    #[must_use]
    pub fn has_vms(&self) -> bool {
        self.hosts.iter().any(|host| host.vms > 0)
    }

    /// Returns the domain of the host with this number; `None` if the host does not have the label.
    #[must_use]
    pub fn domain_of(&self, host: usize) -> Option<SpreadDomain<'_>> {
        let domain = self.domains.get(self.hosts.get(host)?.domain?)?;
        Some(self.describe(domain))
    }

    /// Returns the domains that have hosts, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = SpreadDomain<'_>> {
        self.domains.iter().filter(|domain| domain.hosts > 0).map(|domain| self.describe(domain))
    }

    fn describe<'a>(&self, domain: &'a Domain) -> SpreadDomain<'a> {
        let points = self.points_above(domain.vms, self.minimum());
        SpreadDomain { name: &domain.name, vms: domain.vms, points }
    }

    /// Returns the points of a host without the label.
    #[must_use]
    pub fn points_without_label(&self) -> u32 {
        if self.points_per_vm() == 0 { 0 } else { MAX_POINTS }
    }

    /// Returns the points of a domain with `vms` VMs if the minimum of all domains is `minimum`.
    #[must_use]
    pub fn points_above(&self, vms: u32, minimum: u32) -> u32 {
        vms.saturating_sub(minimum).saturating_mul(self.points_per_vm()).min(MAX_POINTS)
    }

    /// Returns the points that the host with this number gets for the next VM.
    pub(super) fn points(&self, host: usize) -> Score {
        let domain = self.hosts.get(host).and_then(|host| self.domains.get(host.domain?));
        let points = domain.map_or_else(
            || self.points_without_label(),
            |domain| self.points_above(domain.vms, self.minimum()),
        );
        Score::try_from(points).unwrap_or(Score::MAX)
    }

    /// Returns the generation: a number that changes when the points of hosts may have changed although these hosts
    /// have not changed.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Sets the configuration. `domain_name` returns the value that the label with the given key has on a host.
    pub(super) fn set_config<'a>(
        &mut self,
        config: &ControlPlaneSpread,
        domain_name: impl Fn(usize, &str) -> Option<&'a str>,
    ) {
        if self.config == *config {
            return;
        }
        let hosts = std::mem::take(&mut self.hosts);
        *self = Self {
            config: config.clone(),
            generation: self.generation.wrapping_add(1),
            ..Self::default()
        };
        for (number, host) in hosts.into_iter().enumerate() {
            let domain = domain_name(number, config.topology_key());
            let domain = domain.map(|name| self.domain_number(name));
            self.update_host(number, |slot| *slot = SpreadHost { domain, ..host });
        }
    }

    /// Sets the domain of a host, and whether the host can get further VMs.
    pub(super) fn set_host(&mut self, host: usize, domain: Option<&str>, is_schedulable: bool) {
        let domain = domain.map(|name| self.domain_number(name));
        self.update_host(host, |slot| {
            slot.domain = domain;
            slot.is_schedulable = is_schedulable;
        });
    }

    /// Removes a host, together with its VMs.
    pub(super) fn remove_host(&mut self, host: usize) {
        self.update_host(host, |slot| *slot = SpreadHost::default());
    }

    pub(super) fn add_vm(&mut self, host: usize) {
        self.update_host(host, |slot| slot.vms = slot.vms.saturating_add(1));
    }

    pub(super) fn remove_vm(&mut self, host: usize) {
        self.update_host(host, |slot| slot.vms = slot.vms.saturating_sub(1));
    }

    fn domain_number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers_by_name.get(name) {
            return *number;
        }
        self.domains.push(Domain { name: name.into(), ..Domain::default() });
        self.numbers_by_name.insert(name.into(), self.domains.len() - 1);
        self.domains.len() - 1
    }

    fn update_host(&mut self, host: usize, update: impl FnOnce(&mut SpreadHost)) {
        if self.hosts.len() <= host {
            self.hosts.resize(host + 1, SpreadHost::default());
        }
        let Some(slot) = self.hosts.get_mut(host) else { return };
        let before = *slot;
        update(slot);
        let after = *slot;
        if before == after {
            return;
        }
        let minimum = self.minimum();
        self.update_domain(before.domain, |domain| {
            domain.vms = domain.vms.saturating_sub(before.vms);
            domain.hosts = domain.hosts.saturating_sub(1);
            let is_schedulable = u32::from(before.is_schedulable);
            domain.schedulable_hosts = domain.schedulable_hosts.saturating_sub(is_schedulable);
        });
        self.update_domain(after.domain, |domain| {
            domain.vms = domain.vms.saturating_add(after.vms);
            domain.hosts = domain.hosts.saturating_add(1);
            let is_schedulable = u32::from(after.is_schedulable);
            domain.schedulable_hosts = domain.schedulable_hosts.saturating_add(is_schedulable);
        });
        let is_moved = before.domain != after.domain && before.vms.max(after.vms) > 0;
        let has_other_hosts = || {
            let domain = after.domain.and_then(|number| self.domains.get(number));
            domain.is_some_and(|domain| domain.hosts > 1)
        };
        if is_moved || (before.vms != after.vms && has_other_hosts()) || self.minimum() != minimum {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    fn update_domain(&mut self, number: Option<usize>, update: impl FnOnce(&mut Domain)) {
        let Some(domain) = number.and_then(|number| self.domains.get_mut(number)) else { return };
        let before = domain.vms_if_schedulable();
        update(domain);
        let after = domain.vms_if_schedulable();
        if before == after {
            return;
        }
        if let Some(vms) = after {
            *self.domains_by_vms.entry(vms).or_default() += 1;
        }
        if let Some(count) = before.and_then(|vms| self.domains_by_vms.get_mut(&vms)) {
            *count = count.saturating_sub(1);
        }
        if let Some(vms) = before.filter(|vms| self.domains_by_vms.get(vms) == Some(&0)) {
            self.domains_by_vms.remove(&vms);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(weight: u32) -> ControlPlaneSpread {
        ControlPlaneSpread { weight: Some(weight), ..ControlPlaneSpread::default() }
    }

    #[test]
    fn points_are_relative_to_the_emptiest_schedulable_domain() {
        let mut index = SpreadIndex::default();
        for (host, name) in ["a", "b", "c"].into_iter().enumerate() {
            index.set_host(host, Some(name), true);
        }
        index.set_host(3, None, true);
        for host in [0, 0, 1, 1, 1] {
            index.add_vm(host);
        }
        let points = |index: &SpreadIndex| [0, 1, 2, 3].map(|host| index.points(host));
        assert_eq!(points(&index), [2_000, 3_000, 0, 50_000]);
        index.set_host(2, Some("c"), false);
        assert_eq!(points(&index), [0, 1_000, 0, 50_000], "a cordoned host has no minimum");
        index.set_config(&config(30), |host, key| {
            assert_eq!(key, "kubernetes.io/hostname");
            ["a", "b", "c"].get(host).copied()
        });
        assert_eq!(points(&index), [0, 300, 0, 50_000]);
        index.set_config(&config(0), |_, _| None);
        assert_eq!(points(&index), [0; 4], "no spread");
    }

    /// Returns the points of all hosts, computed from scratch. A host is a domain, a number of VMs, and whether it is
    /// schedulable.
    fn scan_points(hosts: &[(Option<usize>, u32, bool)], weight: u32) -> Vec<Score> {
        let count = |domain: usize| -> u32 {
            hosts.iter().filter(|host| host.0 == Some(domain)).map(|host| host.1).sum()
        };
        let open = hosts.iter().filter(|host| host.2).filter_map(|host| host.0);
        let minimum = open.map(count).min().unwrap_or(0);
        let points = |host: &(Option<usize>, u32, bool)| match host.0 {
            _ if weight == 0 => 0,
            None => 50_000,
            Some(domain) => (count(domain).saturating_sub(minimum) * weight * 10).min(50_000),
        };
        hosts.iter().map(|host| u16::try_from(points(host)).unwrap()).collect()
    }

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    proptest! {
        #[test]
        fn the_index_equals_a_full_scan(
            weights in (0_u32..=100, 0_u32..=100),
            changes in prop::collection::vec((0_usize..6, 0_usize..10, 0_usize..5, any::<bool>()), 0..120),
        ) {
            let mut hosts = vec![(None, 0_u32, false); 6];
            let mut index = SpreadIndex::default();
            let mut weight = 100;
            index.remove_host(5);
            for (host, kind, domain, is_schedulable) in changes {
                let generation = index.generation();
                let before: Vec<Score> = (0..6).map(|host| index.points(host)).collect();
                match kind {
                    0..=3 => {
                        index.add_vm(host);
                        hosts[host].1 += 1;
                    }
                    4 | 5 => {
                        index.remove_vm(host);
                        hosts[host].1 = hosts[host].1.saturating_sub(1);
                    }
                    6 | 7 => {
                        index.set_host(host, NAMES.get(domain).copied(), is_schedulable);
                        hosts[host].0 = (domain < 4).then_some(domain);
                        hosts[host].2 = is_schedulable;
                    }
                    8 => {
                        index.remove_host(host);
                        hosts[host] = (None, 0, false);
                    }
                    _ => {
                        weight = if is_schedulable { weights.0 } else { weights.1 };
                        let names: Vec<_> = hosts.iter().map(|host| host.0.map(|at| NAMES[at])).collect();
                        index.set_config(&config(weight), |host, _| names[host]);
                    }
                }
                let points: Vec<Score> = (0..6).map(|host| index.points(host)).collect();
                prop_assert_eq!(&points, &scan_points(&hosts, weight));
                // If the generation is unchanged, classes update only the changed host, so the points of other hosts
                // must be unchanged.
                let is_other_changed = (0..6).any(|at| at != host && points[at] != before[at]);
                prop_assert!(!is_other_changed || index.generation() != generation);
                for domain in index.domains() {
                    let at = NAMES.iter().position(|name| *name == domain.name);
                    let count: u32 = hosts.iter().filter(|host| host.0 == at).map(|host| host.1).sum();
                    prop_assert_eq!(domain.vms, count);
                }
            }
        }
    }
}
