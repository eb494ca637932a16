//! Checks of the fields of an address pool.

use std::net::IpAddr;

use berth_api::mtu::MIN_IPV6_MTU;
use berth_api::{AddressRange, excerpt, is_domain_name};
use ipnet::IpNet;

use super::family::Family;

/// Checks of the fields of one address pool. A problem names the field, the value and the remedy.
#[derive(Clone, Copy)]
pub(in crate::tenants) struct PoolCheck<'a> {
    /// Path of the field that contains the pool.
    pub(in crate::tenants) field: &'a str,
    /// Address family of the pool.
    pub(in crate::tenants) family: Family,
    /// Network of the pool.
    pub(in crate::tenants) cidr: IpNet,
}

impl PoolCheck<'_> {
    /// Returns the text of a problem of a field of the pool.
    pub(in crate::tenants) fn problem(
        self,
        field: &str,
        value: impl std::fmt::Display,
        message: &str,
    ) -> String {
        format!("{}.{field}: {value} {message}", self.field)
    }

    /// Returns the problem of the `cidr`. The other fields can be checked only if the `cidr` is valid.
    pub(in crate::tenants) fn find_problem_of_cidr(self) -> Option<String> {
        let Self { family, cidr, .. } = self;
        let problem = |message: &str| Some(self.problem("cidr", cidr, message));
        if Family::of(cidr.addr()) != family {
            return problem(&format!("is not an {} network", family.name()));
        }
        // RFC 3021 (IPv4) and RFC 6164 (IPv6) permit networks of two addresses. Berth refuses them: a network also
        // needs addresses for a gateway, name servers and replacements of machines.
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

    /// Returns the problem of an address that must belong to a router in the network. An IPv6 router may also have a
    /// link-local address.
    pub(super) fn find_problem_of_host(self, field: &str, address: IpAddr) -> Option<String> {
        let Self { family, cidr, .. } = self;
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

    /// Returns the problem of a range of addresses.
    pub(super) fn find_problem_of_range(self, field: &str, range: AddressRange) -> Option<String> {
        let is_inside = self.cidr.contains(&range.first()) && self.cidr.contains(&range.last());
        (!is_inside).then(|| self.problem(field, range, &format!("is not in {}", self.cidr)))
    }

    /// Returns the problems of name servers, search domains and MTU. `has_ipv6` is true if the network has IPv6
    /// addresses, which require a minimum MTU.
    pub(in crate::tenants) fn find_problems_of_settings(
        self,
        nameservers: &[IpAddr],
        search_domains: &[String],
        mtu: Option<u16>,
        has_ipv6: bool,
    ) -> Vec<String> {
        let family = self.family;
        let nameservers = nameservers.iter().filter(|server| Family::of(**server) != family);
        let nameservers = nameservers.map(|server| {
            let message =
                format!("is not an {} address: move it to the pool of its family", family.name());
            self.problem("nameservers", server, &message)
        });
        let domains = search_domains.iter().filter(|domain| !is_domain_name(domain)).map(|domain| {
            let message =
                "is not a domain name: use labels of letters, digits and dashes, separated by dots";
            self.problem("searchDomains", format!("`{}`", excerpt(domain)), message)
        });
        let mtu = mtu.filter(|mtu| has_ipv6 && u32::from(*mtu) < MIN_IPV6_MTU).map(|mtu| {
            let message = format!("is too small: IPv6 requires at least {MIN_IPV6_MTU}");
            self.problem("mtu", mtu, &message)
        });
        nameservers.chain(domains).chain(mtu).collect()
    }
}
