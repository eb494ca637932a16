//! Computes the desired HostLeases of a host: the addresses of the host's VMs, and the configuration that the VMs
//! receive with them by DHCP.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{
    AddressClaim, HostLeasesSpec, Lease, LeaseNetwork, LeaseOptions, MacAddress, TenantCluster,
};
use berth_kubevirt_render::machines::TENANT_INTERFACE;
use ipnet::IpNet;
use kube::ResourceExt as _;
use serde::Serialize;

use super::addresses::family::Family;
use super::addresses::pool::ValidPool;
use super::addresses::pools::NetworkPools;
use super::addresses::release::is_released;
use super::addresses::resolved::ResolvedPool;

/// Maximum number of networks of a host, and maximum number of leases of a network, as in the CRD.
const MAX_ENTRIES: usize = 4096;
/// Maximum length of the name of a network, in characters, as in the CRD.
const MAX_NETWORK_NAME: usize = 63;
/// Maximum length of the spec as JSON, in bytes. etcd refuses requests of more than 1.5 MiB.
const MAX_BYTES: usize = 1 << 20;
/// Maximum length of a guest's host name, which is one label of a domain name.
const MAX_HOSTNAME: usize = 63;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredHostLeases {
    /// Desired spec, within the limits of the API server.
    pub spec: HostLeasesSpec,
    /// Number of leases that do not fit into the object.
    pub omitted: usize,
}

/// Interface of a machine: its Ethernet address, and the machine as `namespace/name`.
type Interface = (MacAddress, String);
/// Leases of one network by interface, sorted as in the object.
type Leases = BTreeMap<Interface, Lease>;

/// The tenant of a network, if the TenantCluster can be parsed, and the claims of the tenant's machines on the host.
type TenantClaims<'c> = (Option<Arc<TenantCluster>>, Vec<&'c AddressClaim>);

/// Configuration of one address family, and the network of the addresses for which it is valid.
struct FamilyOptions {
    cidr: IpNet,
    options: LeaseOptions,
    /// True if the configuration is copied from the existing HostLeases.
    is_previous: bool,
}

/// Returns the desired HostLeases of a host from the claims of the machines on it. `tenant` returns a TenantCluster by
/// its name. `previous` is the spec of the existing HostLeases: machines retain the configuration in it if their
/// TenantCluster cannot be parsed, if its pools are invalid, or if the pools do not contain the machines' addresses any
/// more.
pub fn desired_host_leases<'c>(
    claims: impl IntoIterator<Item = &'c AddressClaim>,
    tenant: impl Fn(&str) -> Option<Arc<TenantCluster>>,
    previous: Option<&HostLeasesSpec>,
) -> DesiredHostLeases {
    let mut networks: BTreeMap<&str, TenantClaims<'_>> = BTreeMap::new();
    let mut claims: Vec<&AddressClaim> = claims.into_iter().filter(|one| is_active(one)).collect();
    // The order determines which of two addresses of the same family an interface gets.
    claims.sort_by_key(|claim| claim.spec.address);
    for claim in claims {
        let name = &claim.spec.network;
        if *name != TenantCluster::namespace_of(&claim.spec.tenant) {
            continue;
        }
        let tenant = tenant(&claim.spec.tenant);
        // The claim belongs to an earlier TenantCluster of the same name.
        if tenant
            .as_ref()
            .is_some_and(|tenant| tenant.uid().as_ref() != Some(&claim.spec.tenant_uid))
        {
            continue;
        }
        networks.entry(name).or_insert_with(|| (tenant, Vec::new())).1.push(claim);
    }
    fill_object(networks.into_iter().filter_map(|(name, (tenant, claims))| {
        let networks = previous.map(|previous| &previous.networks);
        let previous = networks.into_iter().flatten().find(|network| network.name == name);
        lease_network(name, tenant.as_deref(), previous, &claims)
    }))
}

/// Returns true if a claim is neither in quarantine nor being deleted.
#[must_use]
pub fn is_active(claim: &AddressClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none() && !is_released(claim)
}

/// Returns the network of a tenant and its leases; `None` if agents do not answer the DHCP requests of the tenant's
/// machines.
fn lease_network(
    name: &str,
    tenant: Option<&TenantCluster>,
    previous: Option<&LeaseNetwork>,
    claims: &[&AddressClaim],
) -> Option<(LeaseNetwork, Leases)> {
    let (pools, vlan, vni) = match tenant {
        Some(tenant) => {
            let network = tenant.spec.network.as_ref();
            network.filter(|network| network.dhcp != Some(false))?;
            let status = tenant.status.as_ref();
            let vni = status.and_then(|status| status.vni).filter(|vni| *vni > 0);
            // Problems of invalid pools are reported in the condition AddressesReady.
            let pools = NetworkPools::of_tenant(tenant).unwrap_or_default();
            (pools, status.and_then(|status| status.vlan), vni)
        }
        None => (None, previous?.vlan, previous?.vni),
    };
    let [ipv4, ipv6] = [Family::V4, Family::V6]
        .map(|family| family_options(family, pools.as_ref(), previous, claims));
    let mut leases = Leases::new();
    for claim in claims {
        let address = claim.spec.address;
        let family = if address.is_ipv4() { &ipv4 } else { &ipv6 };
        if family.as_ref().is_some_and(|family| family.cidr.contains(&address)) {
            add_claim(&mut leases, claim);
        }
    }
    let keeps_previous = [&ipv4, &ipv6].into_iter().flatten().any(|family| family.is_previous);
    let mtu = if keeps_previous {
        previous.and_then(|previous| previous.mtu)
    } else {
        pools.as_ref().and_then(NetworkPools::mtu)
    };
    let network = LeaseNetwork {
        name: name.to_owned(),
        vlan,
        vni,
        mtu,
        ipv4: ipv4.map(|family| family.options),
        ipv6: ipv6.map(|family| family.options),
        leases: Vec::new(),
    };
    Some((network, leases))
}

/// Returns the configuration of one address family. If a machine on the host has an address that is in the previous
/// network but not in the pool, all machines of the tenant on this host retain the previous configuration: the
/// HostLeases contain only one configuration for each network, and a running guest whose DHCP requests are no longer
/// answered loses its address.
fn family_options(
    family: Family,
    pools: Option<&NetworkPools>,
    previous: Option<&LeaseNetwork>,
    claims: &[&AddressClaim],
) -> Option<FamilyOptions> {
    let pool = pools.and_then(|pools| pools.iter().find(|pool| pool.family == family));
    let previous = previous.and_then(|previous| previous_options(family, previous));
    let is_outside = |address: &IpAddr| pool.is_none_or(|pool| !pool.cidr.contains(address));
    let is_kept = |previous: &FamilyOptions| {
        let mut addresses = claims.iter().map(|claim| claim.spec.address);
        addresses.any(|address| previous.cidr.contains(&address) && is_outside(&address))
    };
    let current = |pool: &ValidPool| FamilyOptions {
        cidr: pool.cidr,
        options: lease_options(&pool.config),
        is_previous: false,
    };
    previous.filter(is_kept).or_else(|| pool.map(current))
}

/// Returns the configuration in the existing HostLeases. All leases of a network have addresses in the same IP network,
/// so the IP network is derived from any of these leases.
fn previous_options(family: Family, previous: &LeaseNetwork) -> Option<FamilyOptions> {
    let address = |lease: &Lease| match family {
        Family::V4 => lease.ipv4.map(IpAddr::V4),
        Family::V6 => lease.ipv6.map(IpAddr::V6),
    };
    let options = match family {
        Family::V4 => previous.ipv4.clone()?,
        Family::V6 => previous.ipv6.clone()?,
    };
    let address = previous.leases.iter().find_map(address)?;
    let cidr = IpNet::new(address, options.prefix_length).ok()?.trunc();
    Some(FamilyOptions { cidr, options, is_previous: true })
}

/// Returns the lease configuration of a valid pool.
fn lease_options(pool: &ResolvedPool) -> LeaseOptions {
    LeaseOptions {
        prefix_length: pool.cidr.prefix_len(),
        gateway: pool.gateway,
        routes: pool.routes.clone(),
        nameservers: pool.nameservers.clone(),
        search_domains: pool.search_domains.clone(),
    }
}

/// Adds the address of a claim to the lease of the claim's interface.
fn add_claim(leases: &mut Leases, claim: &AddressClaim) {
    let (mac, machine) = (claim.spec.mac, &claim.spec.machine);
    let machine_path = format!("{}/{}", machine.namespace, machine.name);
    let lease = leases.entry((mac, machine_path.clone())).or_insert_with(|| Lease {
        mac,
        machine: machine_path,
        hostname: hostname(&machine.name),
        ipv4: None,
        ipv6: None,
        // The default gateway of a machine is in its own tenant's network.
        default_route: (claim.spec.interface != TENANT_INTERFACE).then_some(false),
    });
    match claim.spec.address {
        IpAddr::V4(address) => _ = lease.ipv4.get_or_insert(address),
        IpAddr::V6(address) => _ = lease.ipv6.get_or_insert(address),
    }
}

/// Returns the host name that KubeVirt sets in the guest of a machine: the first label of the machine's name.
fn hostname(machine: &str) -> Option<String> {
    let label = machine.split('.').next().unwrap_or_default();
    let label: String = label.chars().take(MAX_HOSTNAME).collect();
    let label = label.trim_end_matches('-');
    (!label.is_empty()).then(|| label.to_owned())
}

/// Returns the object with those leases that fit into it.
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

/// Returns the length of a value as JSON, including the comma that follows it.
fn json_length(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(MAX_BYTES, |text| text.len().saturating_add(1))
}

#[cfg(test)]
#[path = "host_leases_tests.rs"]
mod tests;
