//! Validation of the pools of a tenant's network.

use std::net::IpAddr;

use berth_api::mtu::{MIN_IPV6_MTU, machine_mtu};
use berth_api::{AddressPool, AddressRange, ConditionReason, TenantCluster, TenantNetwork};
use ipnet::IpNet;

use super::family::Family;
use super::pool::ValidPool;
use crate::tenants::fault::Fault;

/// The pools of a tenant's network, at least one and at most one of each family.
#[derive(Clone, Debug)]
pub struct NetworkPools {
    pools: Vec<ValidPool>,
    /// MTU of the network, which machines get if the pools specify none.
    network_mtu: Option<u32>,
}

impl NetworkPools {
    /// Validates the pools of a tenant. Returns `None` if its network has none.
    ///
    /// # Errors
    /// Returns a fault with all problems of the pools.
    pub fn of_tenant(tenant: &TenantCluster) -> Result<Option<Self>, Fault> {
        let network_mtu = tenant.status.as_ref().and_then(|status| status.mtu);
        let pools = tenant.spec.network.as_ref().map_or(Ok(None), Self::new)?;
        Ok(pools.map(|pools| Self { network_mtu, ..pools }))
    }

    /// Validates the pools of a network. Returns `None` if the network has none.
    ///
    /// # Errors
    /// Returns a fault with all problems of the pools.
    pub fn new(network: &TenantNetwork) -> Result<Option<Self>, Fault> {
        let specs = [(Family::V4, &network.ipv4), (Family::V6, &network.ipv6)];
        let specs = specs.map(|(family, spec)| spec.as_ref().map(|spec| (family, spec)));
        let specs: Vec<(Family, &AddressPool)> = specs.into_iter().flatten().collect();
        if specs.is_empty() {
            return Ok(None);
        }
        let has_ipv6 = network.ipv6.is_some();
        let (mut pools, mut problems) = (Vec::new(), Vec::new());
        for (family, spec) in specs {
            let found = find_problems(family, spec, has_ipv6);
            if found.is_empty() {
                let pool = ValidPool::new(family, spec);
                if pool.is_empty() {
                    problems.push(format!(
                        "{}: no address of {} remains for machines: change ranges or exclude",
                        family.field(),
                        spec.cidr
                    ));
                }
                pools.push(pool);
            }
            problems.extend(found);
        }
        if problems.is_empty() {
            return Ok(Some(Self { pools, network_mtu: None }));
        }
        Err(Fault::new(ConditionReason::InvalidAddressPool, problems.join("; ")))
    }

    /// Returns the pools, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = &ValidPool> {
        self.pools.iter()
    }

    /// Returns the MTU that the pools specify, and the family of the pool: the smaller one if both families specify an
    /// MTU.
    #[must_use]
    pub fn requested_mtu(&self) -> Option<(Family, u16)> {
        let all = self.iter().filter_map(|pool| Some((pool.family, pool.spec.mtu?)));
        all.min_by_key(|(_, mtu)| *mtu)
    }

    /// Returns the MTU of the machines' interfaces: that of the pools, or else that of the network.
    #[must_use]
    pub fn mtu(&self) -> Option<u16> {
        let has_ipv6 = self.iter().any(|pool| pool.family == Family::V6);
        machine_mtu(self.requested_mtu().map(|(_, mtu)| mtu), self.network_mtu, has_ipv6)
    }
}

/// Returns the problems of a pool, each with field, value and remedy.
fn find_problems(family: Family, spec: &AddressPool, has_ipv6: bool) -> Vec<String> {
    let check = PoolCheck { family, cidr: spec.cidr };
    if let Some(problem) = check.find_problem_of_cidr() {
        // The other fields can be checked only against a valid network.
        return vec![problem];
    }
    let gateway =
        spec.gateway.into_iter().flat_map(|gateway| check.find_problem_of_host("gateway", gateway));
    let next_hops = spec.routes.iter().flat_map(|route| {
        let destination = (Family::of(route.to.addr()) != family).then(|| {
            check.problem("routes", route.to, &format!("is not an {} network", family.name()))
        });
        destination.into_iter().chain(check.find_problem_of_host("routes: next hop", route.via))
    });
    let nameservers =
        spec.nameservers.iter().filter(|server| Family::of(**server) != family).map(|server| {
            let message =
                format!("is not an {} address: move it to the pool of its family", family.name());
            check.problem("nameservers", server, &message)
        });
    let ranges = spec.ranges.iter().flat_map(|range| check.find_problem_of_range("ranges", *range));
    let exclude =
        spec.exclude.iter().flat_map(|range| check.find_problem_of_range("exclude", *range));
    let domains =
        spec.search_domains.iter().filter(|domain| !is_domain_name(domain)).map(|domain| {
            let shown: String = domain.chars().filter(|one| !one.is_control()).take(253).collect();
            let message =
                "is not a domain name: use labels of letters, digits and dashes, separated by dots";
            check.problem("searchDomains", format!("`{shown}`"), message)
        });
    let mtu = spec.mtu.filter(|mtu| has_ipv6 && u32::from(*mtu) < MIN_IPV6_MTU).map(|mtu| {
        check.problem("mtu", mtu, &format!("is too small: IPv6 requires at least {MIN_IPV6_MTU}"))
    });
    gateway
        .chain(next_hops)
        .chain(nameservers)
        .chain(ranges)
        .chain(exclude)
        .chain(domains)
        .chain(mtu)
        .collect()
}

#[derive(Clone, Copy)]
struct PoolCheck {
    family: Family,
    cidr: IpNet,
}

impl PoolCheck {
    fn problem(self, field: &str, value: impl std::fmt::Display, message: &str) -> String {
        format!("{}.{field}: {value} {message}", self.family.field())
    }

    fn find_problem_of_cidr(self) -> Option<String> {
        let Self { family, cidr } = self;
        let problem = |message: &str| Some(self.problem("cidr", cidr, message));
        if Family::of(cidr.addr()) != family {
            return problem(&format!("is not an {} network", family.name()));
        }
        // RFC 3021 and RFC 6164 allow networks of two hosts, but not with a gateway, name servers and replacements of
        // machines, so Berth refuses them.
        if cidr.max_prefix_len().saturating_sub(cidr.prefix_len()) < 2 {
            let shortest = cidr.max_prefix_len().saturating_sub(2);
            return problem(&format!(
                "is too small for machines: use a prefix of at most /{shortest}"
            ));
        }
        let is_unicast = |address: IpAddr| match address {
            IpAddr::V4(address) => {
                let [first, ..] = address.octets();
                (1..224).contains(&first) && !address.is_loopback()
            }
            IpAddr::V6(address) => {
                !(address.is_unspecified()
                    || address.is_loopback()
                    || address.is_multicast()
                    || address.is_unicast_link_local())
            }
        };
        if !is_unicast(cidr.network()) || !is_unicast(cidr.broadcast()) {
            return problem(
                "contains addresses that no machine can have: use a private network, \
                 such as 10.0.0.0/24 or fd00:120::/64",
            );
        }
        None
    }

    /// Returns the problem of an address that a router of the network has. An IPv6 router also has a link-local address.
    fn find_problem_of_host(self, field: &str, address: IpAddr) -> Option<String> {
        let Self { family, cidr } = self;
        let is_link_local =
            matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        if family == Family::V6 && is_link_local {
            return None;
        }
        if !cidr.contains(&address) {
            let or = if family == Family::V6 { ", and is not link-local (fe80::/10)" } else { "" };
            return Some(self.problem(field, address, &format!("is not in {cidr}{or}")));
        }
        let is_broadcast = family == Family::V4 && address == cidr.broadcast();
        (address == cidr.network() || is_broadcast).then(|| {
            self.problem(field, address, &format!("is not the address of a host in {cidr}"))
        })
    }

    fn find_problem_of_range(self, field: &str, range: AddressRange) -> Option<String> {
        let is_inside = self.cidr.contains(&range.first()) && self.cidr.contains(&range.last());
        (!is_inside).then(|| self.problem(field, range, &format!("is not in {}", self.cidr)))
    }
}

/// Returns true if the text is a domain name that resolvers and DHCP accept (RFC 1035, with underscores).
fn is_domain_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_valid)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
