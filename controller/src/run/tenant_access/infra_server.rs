//! Addresses of the infra API server, to which no tenant's kubeconfig may refer: those of its Service and endpoints, and
//! the one that the controller itself uses.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use berth_runtime::untrusted::{AddressPolicy, RefusedAddress, destination};
use berth_runtime::watch::watch_object;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::{Api, Client};
use tokio::net::lookup_host;
use tokio::sync::watch::Sender;

/// Namespace and name of the Service and the Endpoints of the API server. Unlike EndpointSlices, all releases since 1.20
/// serve Endpoints.
const API_SERVER: (&str, &str) = ("default", "kubernetes");
/// Interval between resolutions of the name of the server that the controller uses.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(300);
/// The same after a failure. Before the first success, no tenant is connected.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

type Addresses = BTreeSet<SocketAddr>;

/// Addresses of the infra API server, by their sources. `None` until the source has been read.
#[derive(Debug, Default)]
struct Sources {
    service: Option<Addresses>,
    endpoints: Option<Addresses>,
    own: Option<Addresses>,
}

/// Addresses of the infra API server.
#[derive(Clone, Debug, Default)]
pub(super) struct InfraServer {
    sources: Arc<RwLock<Sources>>,
    is_known: Sender<bool>,
}

impl InfraServer {
    /// Waits until all addresses are known. No tenant is connected before.
    pub(super) async fn wait_until_known(&self) {
        if self.is_known.subscribe().wait_for(|is_known| *is_known).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the policy for connections to tenants.
    pub(super) fn policy(&self) -> AddressPolicy {
        let sources = Arc::clone(&self.sources);
        Arc::new(move |address| {
            RefusedAddress::check(address)?;
            let address = SocketAddr::new(destination(address.ip()), address.port());
            let sources = sources.read().unwrap_or_else(PoisonError::into_inner);
            let all = [&sources.service, &sources.endpoints, &sources.own];
            if all.into_iter().flatten().any(|known| known.contains(&address)) {
                Err(RefusedAddress::InfraApiServer)
            } else {
                Ok(())
            }
        })
    }

    fn update(&self, change: impl FnOnce(&mut Sources)) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut sources);
        let all = [&sources.service, &sources.endpoints, &sources.own];
        if all.into_iter().all(Option::is_some) {
            self.is_known.send_replace(true);
        }
    }

    /// Watches the addresses until the future is dropped. `own` is the server that the controller uses.
    pub(super) async fn watch(&self, client: &Client, own: (String, u16)) {
        let (namespace, name) = API_SERVER;
        let services = Api::namespaced(client.clone(), namespace);
        let endpoints = Api::namespaced(client.clone(), namespace);
        tokio::join!(
            watch_object(services, "services", name.to_owned(), |service: Option<Service>| {
                let addresses = service.as_ref().map(service_addresses).unwrap_or_default();
                self.update(|sources| sources.service = Some(addresses));
            }),
            watch_object(endpoints, "endpoints", name.to_owned(), |one: Option<Endpoints>| {
                let addresses = one.as_ref().map(endpoint_addresses).unwrap_or_default();
                self.update(|sources| sources.endpoints = Some(addresses));
            }),
            self.resolve_own(own),
        );
    }

    async fn resolve_own(&self, (host, port): (String, u16)) {
        loop {
            let pause = match lookup_host((host.as_str(), port)).await {
                Ok(resolved) => {
                    let canonical = |address: SocketAddr| {
                        SocketAddr::new(destination(address.ip()), address.port())
                    };
                    let addresses = resolved.map(canonical).collect();
                    self.update(|sources| sources.own = Some(addresses));
                    RESOLVE_INTERVAL
                }
                // The controller uses the server, so a later attempt succeeds.
                Err(error) => {
                    tracing::warn!(host, %error, "failed to resolve the infra API server");
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

fn combine<'a>(
    ips: impl Iterator<Item = &'a String>,
    ports: impl Iterator<Item = i32> + Clone,
) -> Addresses {
    let ips = ips.filter_map(|ip| ip.parse::<IpAddr>().ok());
    let with_ports = |ip: IpAddr| {
        let ports = ports.clone().filter_map(|port| u16::try_from(port).ok());
        ports.map(move |port| SocketAddr::new(destination(ip), port)).collect::<Vec<_>>()
    };
    ips.flat_map(with_ports).collect()
}

fn service_addresses(service: &Service) -> Addresses {
    let Some(spec) = &service.spec else { return Addresses::new() };
    let ips = spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten());
    let ips = ips.chain(spec.external_ips.iter().flatten());
    combine(ips, spec.ports.iter().flatten().map(|port| port.port))
}

fn endpoint_addresses(endpoints: &Endpoints) -> Addresses {
    let subsets = endpoints.subsets.iter().flatten();
    let all = subsets.map(|subset| {
        let addresses = subset.addresses.iter().chain(&subset.not_ready_addresses).flatten();
        let ports = subset.ports.iter().flatten().map(|port| port.port);
        combine(addresses.map(|address| &address.ip), ports)
    });
    all.flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_infra_api_server_is_refused_by_address_and_port() {
        let server = InfraServer::default();
        let service = json!({"spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [{"port": 443}]}});
        let endpoints =
            json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 6443}]}]});
        let service: Service = serde_json::from_value(service).unwrap();
        let endpoints: Endpoints = serde_json::from_value(endpoints).unwrap();
        server.update(|sources| sources.service = Some(service_addresses(&service)));
        server.update(|sources| sources.endpoints = Some(endpoint_addresses(&endpoints)));
        assert!(!*server.is_known.borrow(), "the controller's own server is not resolved yet");
        let own = BTreeSet::from(["198.51.100.7:6443".parse().unwrap()]);
        server.update(|sources| sources.own = Some(own));
        assert!(*server.is_known.borrow());
        let policy = server.policy();
        let check = |address: &str| policy(address.parse().unwrap());
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
        // A NodePort of the host on which the infra API server runs.
        assert_eq!(check("192.0.2.1:30443"), Ok(()));
        assert_eq!(check("127.0.0.1:6443"), Err(RefusedAddress::Loopback));
    }
}
