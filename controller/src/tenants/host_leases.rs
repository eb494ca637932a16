//! Desired HostLeases of a host: the addresses of its VMs, and the configuration that the VMs get with them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{
    AddressClaim, AddressPool, HostLeasesSpec, Lease, LeaseNetwork, LeaseOptions, MacAddress,
    TenantCluster,
};
use ipnet::IpNet;
use kube::ResourceExt as _;
use serde::Serialize;

/// Largest number of networks of a host, and of leases of a network, which the schema accepts.
const MAX_ENTRIES: usize = 4096;
/// Longest name of a network that the schema accepts.
const MAX_NETWORK_NAME: usize = 63;
/// Maximum length of the spec as JSON. etcd refuses requests of more than 1.5 MiB.
const MAX_BYTES: usize = 1 << 20;
/// Longest host name of a guest, which is one label of a domain name.
const MAX_HOSTNAME: usize = 63;

/// Desired HostLeases of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredHostLeases {
    /// Desired spec. The API server accepts it.
    pub spec: HostLeasesSpec,
    /// Number of leases that the object has no room for.
    pub omitted: usize,
}

/// Interface of a machine: its Ethernet address, and the machine as namespace/name.
type Interface = (MacAddress, String);
/// Leases of one network by interface, in the order of the object.
type Leases = BTreeMap<Interface, Lease>;

/// Returns the desired HostLeases of a host from the claims of the machines on it. `tenant` returns a TenantCluster by
/// its name. `previous` is the spec of the existing object: if a TenantCluster cannot be read, its machines keep the
/// configuration that they have.
pub fn desired_host_leases<'c>(
    claims: impl IntoIterator<Item = &'c AddressClaim>,
    tenant: impl Fn(&str) -> Option<Arc<TenantCluster>>,
    previous: Option<&HostLeasesSpec>,
) -> DesiredHostLeases {
    let mut networks: BTreeMap<String, Option<(LeaseNetwork, Leases)>> = BTreeMap::new();
    let mut claims: Vec<&AddressClaim> = claims.into_iter().filter(|one| is_active(one)).collect();
    // The order determines which of two addresses of one family an interface gets.
    claims.sort_by_key(|claim| claim.spec.address);
    for claim in claims {
        let name = &claim.spec.network;
        if *name != TenantCluster::namespace_of(&claim.spec.tenant) {
            continue;
        }
        let tenant = tenant(&claim.spec.tenant);
        // The claim belongs to an earlier tenant of the same name.
        if tenant
            .as_ref()
            .is_some_and(|tenant| tenant.uid().as_ref() != Some(&claim.spec.tenant_uid))
        {
            continue;
        }
        let network = networks.entry(name.clone()).or_insert_with(|| {
            let network = match &tenant {
                Some(tenant) => lease_network(name, tenant),
                None => previous_network(name, previous),
            };
            network.map(|network| (network, Leases::new()))
        });
        if let Some((network, leases)) = network {
            add_claim(leases, network, claim);
        }
    }
    fill_object(networks.into_values().flatten())
}

/// Returns true if the address of the claim is allocated and not released.
#[must_use]
pub fn is_active(claim: &AddressClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
        && claim.status.as_ref().is_none_or(|status| status.released_at.is_none())
}

/// Returns the network of a tenant without leases; `None` if the agents do not answer its machines.
fn lease_network(name: &str, tenant: &TenantCluster) -> Option<LeaseNetwork> {
    let network = tenant.spec.network.as_ref().filter(|network| network.dhcp != Some(false))?;
    let status = tenant.status.as_ref();
    let ipv4 = network.ipv4.as_ref().filter(|pool| matches!(pool.cidr, IpNet::V4(_)));
    let ipv6 = network.ipv6.as_ref().filter(|pool| matches!(pool.cidr, IpNet::V6(_)));
    ipv4.or(ipv6)?;
    Some(LeaseNetwork {
        name: name.to_owned(),
        vlan: status.and_then(|status| status.vlan),
        vni: status.and_then(|status| status.vni).filter(|vni| *vni > 0),
        mtu: [ipv4, ipv6].into_iter().flatten().filter_map(|pool| pool.mtu).min(),
        ipv4: ipv4.map(lease_options),
        ipv6: ipv6.map(lease_options),
        leases: Vec::new(),
    })
}

/// Returns the network of the existing object without leases.
fn previous_network(name: &str, previous: Option<&HostLeasesSpec>) -> Option<LeaseNetwork> {
    let network = previous?.networks.iter().find(|network| network.name == name)?;
    Some(LeaseNetwork { leases: Vec::new(), ..network.clone() })
}

/// Returns the configuration of a pool. Addresses of the other family are left out, because the family's protocol
/// cannot carry them.
fn lease_options(pool: &AddressPool) -> LeaseOptions {
    let is_same_family = |address: &IpAddr| address.is_ipv4() == pool.cidr.addr().is_ipv4();
    let routes = pool.routes.iter().copied();
    LeaseOptions {
        prefix_length: pool.cidr.prefix_len(),
        gateway: pool.gateway.filter(is_same_family),
        routes: routes
            .filter(|route| is_same_family(&route.via) && is_same_family(&route.to.addr()))
            .collect(),
        nameservers: pool.nameservers.iter().copied().filter(is_same_family).collect(),
        search_domains: pool.search_domains.clone(),
    }
}

/// Adds the address of a claim to the lease of its interface. An address without configuration of its family is left
/// out.
fn add_claim(leases: &mut Leases, network: &LeaseNetwork, claim: &AddressClaim) {
    let address = claim.spec.address;
    let has_options =
        if address.is_ipv4() { network.ipv4.is_some() } else { network.ipv6.is_some() };
    if !has_options {
        return;
    }
    let (mac, machine) = (claim.spec.mac, &claim.spec.machine);
    let machine_path = format!("{}/{}", machine.namespace, machine.name);
    let lease = leases.entry((mac, machine_path.clone())).or_insert_with(|| Lease {
        mac,
        machine: machine_path,
        hostname: hostname(&machine.name),
        ipv4: None,
        ipv6: None,
    });
    match address {
        IpAddr::V4(address) => _ = lease.ipv4.get_or_insert(address),
        IpAddr::V6(address) => _ = lease.ipv6.get_or_insert(address),
    }
}

/// Returns the host name of a machine: the first label of its name, as KubeVirt sets it.
fn hostname(machine: &str) -> Option<String> {
    let label = machine.split('.').next().unwrap_or_default();
    let label: String = label.chars().take(MAX_HOSTNAME).collect();
    let label = label.trim_end_matches('-');
    (!label.is_empty()).then(|| label.to_owned())
}

/// Returns the object with the leases that it has room for.
fn fill_object(networks: impl IntoIterator<Item = (LeaseNetwork, Leases)>) -> DesiredHostLeases {
    let mut desired = DesiredHostLeases::default();
    let mut length = 0_usize;
    let mut fits = |added: usize| {
        let sum = length.saturating_add(added);
        let fits = sum <= MAX_BYTES;
        if fits {
            length = sum;
        }
        fits
    };
    for (mut network, leases) in networks {
        if leases.is_empty() {
            continue;
        }
        let count = leases.len();
        let is_valid = network.name.len() <= MAX_NETWORK_NAME
            && desired.spec.networks.len() < MAX_ENTRIES
            && fits(json_length(&network));
        if is_valid {
            let leases = leases.into_values().take(MAX_ENTRIES);
            network.leases = leases.take_while(|lease| fits(json_length(lease))).collect();
        }
        desired.omitted = desired.omitted.saturating_add(count - network.leases.len());
        if !network.leases.is_empty() {
            desired.spec.networks.push(network);
        }
    }
    desired
}

/// Returns the length of a value as JSON, with the comma after it.
fn json_length(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(MAX_BYTES, |text| text.len().saturating_add(1))
}

#[cfg(test)]
#[path = "host_leases_tests.rs"]
mod tests;
