//! Addresses of the infra API server, which are refused as the server of a tenant's kubeconfig.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use berth_runtime::untrusted::{RefusedAddress, effective_destination};
use k8s_openapi::api::core::v1::{Endpoints, Service};

/// Namespace and name of the Service and the Endpoints of the API server. Endpoints are read instead of EndpointSlices,
/// because all versions since 1.20 serve them.
pub const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// Addresses in canonical form, so that equal addresses compare as equal.
pub type Addresses = BTreeSet<SocketAddr>;

/// Converts addresses to their canonical form.
#[must_use]
pub fn canonical_addresses(addresses: impl Iterator<Item = SocketAddr>) -> Addresses {
    addresses.map(|one| SocketAddr::new(effective_destination(one.ip()), one.port())).collect()
}

/// Checks an address of a tenant's API server. `infra` contains the addresses of the infra API server.
///
/// # Errors
/// Returns the reason why the address is refused.
pub fn check_address<'a>(
    address: SocketAddr,
    infra: impl IntoIterator<Item = &'a Addresses>,
) -> Result<(), RefusedAddress> {
    RefusedAddress::check(address)?;
    let address = SocketAddr::new(effective_destination(address.ip()), address.port());
    let is_infra = infra.into_iter().any(|known| known.contains(&address));
    if is_infra { Err(RefusedAddress::InfraApiServer) } else { Ok(()) }
}

/// Returns the addresses of the Service of the API server.
#[must_use]
pub fn service_addresses(service: &Service) -> Addresses {
    let Some(spec) = &service.spec else { return Addresses::new() };
    let ips = spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten());
    let ips = ips.chain(spec.external_ips.iter().flatten());
    combine(ips, spec.ports.iter().flatten().map(|port| port.port))
}

/// Returns the addresses of the Endpoints of the API server.
#[must_use]
pub fn endpoint_addresses(endpoints: &Endpoints) -> Addresses {
    let subsets = endpoints.subsets.iter().flatten();
    let all = subsets.map(|subset| {
        let addresses = subset.addresses.iter().chain(&subset.not_ready_addresses).flatten();
        let ports = subset.ports.iter().flatten().map(|port| port.port);
        combine(addresses.map(|address| &address.ip), ports)
    });
    all.flatten().collect()
}

fn combine<'a>(
    ips: impl Iterator<Item = &'a String>,
    ports: impl Iterator<Item = i32> + Clone,
) -> Addresses {
    let ips = ips.filter_map(|ip| ip.parse::<IpAddr>().ok());
    let with_ports = |ip: IpAddr| {
        let ports = ports.clone().filter_map(|port| u16::try_from(port).ok());
        ports.map(move |port| SocketAddr::new(ip, port)).collect::<Vec<_>>()
    };
    canonical_addresses(ips.flat_map(with_ports))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_infra_api_server_is_refused_by_address_and_port() {
        let service = json!({"spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [{"port": 443}]}});
        let endpoints =
            json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 6443}]}]});
        let service: Service = serde_json::from_value(service).unwrap();
        let endpoints: Endpoints = serde_json::from_value(endpoints).unwrap();
        let own = canonical_addresses(["198.51.100.7:6443".parse().unwrap()].into_iter());
        let infra = [service_addresses(&service), endpoint_addresses(&endpoints), own];
        let check = |address: &str| check_address(address.parse().unwrap(), &infra);
        for refused in [
            "10.96.0.1:443",
            "[fd00::1]:443",
            "192.0.2.1:6443",
            "[::ffff:192.0.2.1]:6443",
            "[64:ff9b::192.0.2.1]:6443",
            "[2002:c000:201::1]:6443",
            "198.51.100.7:6443",
        ] {
            assert_eq!(check(refused), Err(RefusedAddress::InfraApiServer), "{refused}");
        }
        // The port is a NodePort on the host of the infra API server, so the tenant's API server may use this address.
        assert_eq!(check("192.0.2.1:30443"), Ok(()));
        assert_eq!(check("127.0.0.1:6443"), Err(RefusedAddress::Loopback));
    }
}
