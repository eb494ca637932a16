//! A valid pool of InfraConfig from which tenants' networks get prefixes.

use berth_api::{ConditionReason, GrantedPrefix, InfraConfigSpec, PrefixGateway, PrefixPool};
use ipnet::IpNet;
use rangemap::RangeInclusiveSet;

use crate::tenants::addresses::checks::PoolCheck;
use crate::tenants::addresses::family::{Family, to_number};
use crate::tenants::fault::Fault;

/// A pool that passed validation. A pool may have 2^60 prefixes, so no function iterates over all prefixes of a pool.
#[derive(Clone, Copy, Debug)]
pub struct ValidPrefixPool<'a> {
    /// Family of the addresses.
    pub family: Family,
    /// Network, without host bits.
    pub cidr: IpNet,
    /// The pool in the InfraConfig.
    pub spec: &'a PrefixPool,
}

impl<'a> ValidPrefixPool<'a> {
    /// Validates a pool.
    ///
    /// # Errors
    /// Returns a fault with all problems of the pool.
    pub fn new(spec: &'a PrefixPool) -> Result<Self, Fault> {
        let problems = find_problems(spec);
        if problems.is_empty() {
            let family = Family::of(spec.cidr.addr());
            return Ok(Self { family, cidr: spec.cidr.trunc(), spec });
        }
        let message = format!("InfraConfig default: spec.{}", problems.join("; spec."));
        Err(Fault::new(ConditionReason::InvalidAddressPool, message))
    }

    /// Returns the number of prefixes.
    #[must_use]
    pub fn count(&self) -> u128 {
        let bits = self.spec.prefix_length.saturating_sub(self.cidr.prefix_len());
        1_u128.checked_shl(bits.into()).unwrap_or(u128::MAX)
    }

    /// Returns the prefix with an index, counted from 0 at the start of the pool.
    #[must_use]
    pub fn prefix(&self, index: u128) -> Option<IpNet> {
        let offset = index.checked_shl(self.host_bits())?;
        let address = to_number(self.cidr.network()).saturating_add(offset);
        IpNet::new(self.family.address(address), self.spec.prefix_length).ok()
    }

    /// Returns the first prefix of the pool that overlaps none of `used`. The search starts at the index `start` modulo
    /// [`count`](Self::count), and continues at index 0 after the last prefix.
    #[must_use]
    pub fn first_free_prefix(
        &self,
        start: u64,
        used: impl IntoIterator<Item = IpNet>,
    ) -> Option<IpNet> {
        // The set contains each index plus 1, because `RangeInclusiveSet` fails to compute the predecessor of 0.
        let mut taken = RangeInclusiveSet::new();
        for (first, last) in used.into_iter().filter_map(|net| self.overlapping_indexes(&net)) {
            taken.insert(first.saturating_add(1)..=last.saturating_add(1));
        }
        let count = self.count();
        let start = u128::from(start).checked_rem(count)?.saturating_add(1);
        let free = |range: std::ops::RangeInclusive<u128>| {
            taken.gaps(&range).next().map(|gap| *gap.start())
        };
        let mut number = free(start..=count);
        if number.is_none() && start > 1 {
            number = free(1..=start.saturating_sub(1));
        }
        self.prefix(number?.checked_sub(1)?)
    }

    /// Returns the indexes of the first and the last prefix of the pool that overlap a network.
    fn overlapping_indexes(&self, net: &IpNet) -> Option<(u128, u128)> {
        if Family::of(net.addr()) != self.family {
            return None;
        }
        let base = to_number(self.cidr.network());
        let first = to_number(net.network()).max(base);
        let last = to_number(net.broadcast()).min(to_number(self.cidr.broadcast()));
        let index = |number: u128| number.checked_sub(base)?.checked_shr(self.host_bits());
        (first <= last).then_some(())?;
        Some((index(first)?, index(last)?))
    }

    fn host_bits(&self) -> u32 {
        self.cidr.max_prefix_len().saturating_sub(self.spec.prefix_length).into()
    }

    /// Returns a prefix with the gateway, name servers, search domains and MTU of the pool.
    #[must_use]
    pub fn grant(&self, prefix: IpNet) -> GrantedPrefix {
        // In IPv6, the first address of a network is the anycast address of its routers (RFC 4291, 2.6.1).
        let first = || self.family.address(to_number(prefix.network()).saturating_add(1));
        GrantedPrefix {
            pool: self.spec.name.clone(),
            cidr: prefix,
            gateway: (self.spec.gateway == Some(PrefixGateway::FirstAddress)).then(first),
            nameservers: self.spec.nameservers.clone(),
            search_domains: self.spec.search_domains.clone(),
            mtu: self.spec.mtu,
        }
    }
}

/// Returns true if two networks have an address in common.
#[must_use]
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Returns true if the addresses of a pool are routed outside the tenants' networks (`routed: true`).
#[must_use]
pub fn is_routed(pool: &PrefixPool) -> bool {
    pool.routed == Some(true)
}

/// Returns the pools with which a pool conflicts: the CIDRs overlap, and at least one of the two pools is routed.
pub fn conflicting_pools<'a>(
    config: &'a InfraConfigSpec,
    pool: &PrefixPool,
) -> impl Iterator<Item = &'a PrefixPool> {
    config.address_pools.iter().filter(move |other| {
        other.name != pool.name
            && (is_routed(pool) || is_routed(other))
            && overlap(&pool.cidr, &other.cidr)
    })
}

/// Returns the problems of all pools, each as a message with field, value and problem.
#[must_use]
pub fn config_problems(config: &InfraConfigSpec) -> Vec<String> {
    let mut problems: Vec<String> = config.address_pools.iter().flat_map(find_problems).collect();
    for pool in &config.address_pools {
        let later = conflicting_pools(config, pool).filter(|other| other.name > pool.name);
        problems.extend(later.map(|other| {
            format!(
                "addressPools[{}] and addressPools[{}]: {} and {} overlap, and one of the pools is \
                 routed: no tenant gets a prefix of these pools; make the pools disjoint",
                pool.name, other.name, pool.cidr, other.cidr
            )
        }));
    }
    problems
}

fn find_problems(pool: &PrefixPool) -> Vec<String> {
    let PrefixPool { cidr, prefix_length, nameservers, search_domains, mtu, .. } = pool;
    let family = Family::of(cidr.addr());
    let field = format!("addressPools[{}]", pool.name);
    let check = PoolCheck { field: &field, family, cidr: *cidr };
    let mut problems: Vec<String> = check.find_problem_of_cidr().into_iter().collect();
    let (shortest, longest) = (cidr.prefix_len(), cidr.max_prefix_len().saturating_sub(2));
    if problems.is_empty() && !(shortest..=longest).contains(prefix_length) {
        let message =
            format!("is not from {shortest} to {longest}, the permitted prefix lengths in {cidr}");
        problems.push(check.problem("prefixLength", prefix_length, &message));
    }
    let has_ipv6 = family == Family::V6;
    problems.extend(check.find_problems_of_settings(nameservers, search_domains, *mtu, has_ipv6));
    problems
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
