//! Validation of the address pools of a tenant's network.

use berth_api::mtu::machine_mtu;
use berth_api::{AddressPool, ConditionReason, GrantedPrefix, TenantCluster, TenantNetwork};

use super::checks::PoolCheck;
use super::family::Family;
use super::pool::ValidPool;
use super::resolved::{ResolvedPool, UnresolvedPool};
use crate::tenants::fault::Fault;

/// The address pools of a tenant's network: either one pool (IPv4 or IPv6), or one pool of each family.
#[derive(Clone, Debug)]
pub struct NetworkPools {
    pools: Vec<ValidPool>,
    /// MTU of the network, which applies to machines if no pool specifies an MTU.
    network_mtu: Option<u32>,
}

impl NetworkPools {
    /// Validates the address pools of a tenant's network. Returns `None` if the network has no pools.
    ///
    /// # Errors
    /// Returns a fault like [`Self::new`].
    pub fn of_tenant(tenant: &TenantCluster) -> Result<Option<Self>, Fault> {
        let Some(network) = &tenant.spec.network else { return Ok(None) };
        let status = tenant.status.as_ref();
        let prefixes = status.map(|status| status.prefixes.as_slice()).unwrap_or_default();
        let network_mtu = status.and_then(|status| status.mtu);
        let pools = Self::new(network, prefixes)?;
        Ok(pools.map(|pools| Self { network_mtu, ..pools }))
    }

    /// Validates the address pools of a network. `prefixes` are the prefixes that the network has from the pools in
    /// InfraConfig. Returns `None` if the network has no pools.
    ///
    /// # Errors
    /// Returns a fault with all problems of the pools, or a fault if the network has no prefix yet.
    pub fn new(network: &TenantNetwork, prefixes: &[GrantedPrefix]) -> Result<Option<Self>, Fault> {
        let specs = [(Family::V4, &network.ipv4), (Family::V6, &network.ipv6)];
        let specs = specs.map(|(family, spec)| spec.as_ref().map(|spec| (family, spec)));
        let specs: Vec<(Family, &AddressPool)> = specs.into_iter().flatten().collect();
        if specs.is_empty() {
            return Ok(None);
        }
        let has_ipv6 = network.ipv6.is_some();
        let (mut pools, mut problems, mut pending) = (Vec::new(), Vec::new(), Vec::new());
        for (family, spec) in specs {
            let pool = match ResolvedPool::new(family, spec, prefixes) {
                Ok(pool) => pool,
                Err(error) => {
                    let is_pending = matches!(error, UnresolvedPool::Pending(_));
                    let list = if is_pending { &mut pending } else { &mut problems };
                    list.push(format!("{}: {error}", family.field()));
                    continue;
                }
            };
            let found = find_problems(family, &pool, has_ipv6);
            if found.is_empty() {
                let pool = ValidPool::new(family, pool);
                if pool.is_empty() {
                    problems.push(format!(
                        "{}: no address of {} remains for machines: change ranges or exclude",
                        family.field(),
                        pool.config.cidr
                    ));
                }
                pools.push(pool);
            }
            problems.extend(found);
        }
        if !problems.is_empty() {
            return Err(Fault::new(ConditionReason::InvalidAddressPool, problems.join("; ")));
        }
        if !pending.is_empty() {
            return Err(Fault::new(ConditionReason::PrefixPending, pending.join("; ")));
        }
        Ok(Some(Self { pools, network_mtu: None }))
    }

    /// Returns the pools, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = &ValidPool> {
        self.pools.iter()
    }

    /// Returns the MTU that a pool specifies, with the family of this pool. If both pools specify an MTU, returns the
    /// smaller one.
    #[must_use]
    pub fn requested_mtu(&self) -> Option<(Family, u16)> {
        let all = self.iter().filter_map(|pool| Some((pool.family, pool.config.mtu?)));
        all.min_by_key(|(_, mtu)| *mtu)
    }

    /// Returns the MTU of the machines' interfaces: the MTU that the pools specify, or else that of the network.
    #[must_use]
    pub fn mtu(&self) -> Option<u16> {
        let has_ipv6 = self.iter().any(|pool| pool.family == Family::V6);
        machine_mtu(self.requested_mtu().map(|(_, mtu)| mtu), self.network_mtu, has_ipv6)
    }
}

/// Returns the problems of a pool, each with its field, value and remedy.
fn find_problems(family: Family, pool: &ResolvedPool, has_ipv6: bool) -> Vec<String> {
    let check = PoolCheck { field: family.field(), family, cidr: pool.cidr };
    if let Some(problem) = check.find_problem_of_cidr() {
        return vec![problem];
    }
    let gateway =
        pool.gateway.into_iter().flat_map(|gateway| check.find_problem_of_host("gateway", gateway));
    let next_hops = pool.routes.iter().flat_map(|route| {
        let destination = (Family::of(route.to.addr()) != family).then(|| {
            check.problem("routes", route.to, &format!("is not an {} network", family.name()))
        });
        destination.into_iter().chain(check.find_problem_of_host("routes: next hop", route.via))
    });
    let ranges = pool.ranges.iter().flat_map(|range| check.find_problem_of_range("ranges", *range));
    let exclude =
        pool.exclude.iter().flat_map(|range| check.find_problem_of_range("exclude", *range));
    let ResolvedPool { nameservers, search_domains, mtu, .. } = pool;
    let settings = check.find_problems_of_settings(nameservers, search_domains, *mtu, has_ipv6);
    gateway.chain(next_hops).chain(ranges).chain(exclude).chain(settings).collect()
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
