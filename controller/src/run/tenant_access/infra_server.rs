//! Addresses of the infra API server, which are refused as the server of a tenant's kubeconfig: the addresses of its
//! Service and endpoints, and the address to which the controller itself connects.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use berth_runtime::untrusted::AddressPolicy;
use berth_runtime::watch::watch_object;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::{Api, Client};
use tokio::net::lookup_host;
use tokio::sync::watch::Sender;

use crate::tenants::infra_addresses::{
    API_SERVER, Addresses, canonical_addresses, check_address, endpoint_addresses,
    service_addresses,
};

/// Interval between DNS lookups of the host name to which the controller itself connects.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(300);
/// Interval between DNS lookups after a failure. It is short, because no tenant is connected before the first success.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Addresses of the infra API server, by source. `None` until the source has been read.
#[derive(Debug, Default)]
struct AddressSources {
    service: Option<Addresses>,
    endpoints: Option<Addresses>,
    own_server: Option<Addresses>,
}

/// Addresses of the infra API server.
#[derive(Clone, Debug, Default)]
pub(super) struct InfraServer {
    sources: Arc<RwLock<AddressSources>>,
    is_known: Sender<bool>,
}

impl AddressSources {
    const fn all(&self) -> [&Option<Addresses>; 3] {
        [&self.service, &self.endpoints, &self.own_server]
    }
}

impl InfraServer {
    /// Waits until all addresses are known. Until then, no tenant is connected.
    pub(super) async fn wait_until_known(&self) {
        if self.is_known.subscribe().wait_for(|is_known| *is_known).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the address policy for connections to tenants' API servers.
    pub(super) fn policy(&self) -> AddressPolicy {
        let sources = Arc::clone(&self.sources);
        Arc::new(move |address| {
            let sources = sources.read().unwrap_or_else(PoisonError::into_inner);
            check_address(address, sources.all().into_iter().flatten())
        })
    }

    fn update(&self, change: impl FnOnce(&mut AddressSources)) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut sources);
        if sources.all().into_iter().all(Option::is_some) {
            self.is_known.send_replace(true);
        }
    }

    /// Watches the addresses until this future is dropped. `own_server` is host and port to which the controller itself
    /// connects.
    pub(super) async fn watch(&self, client: &Client, own_server: (String, u16)) {
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
            self.resolve_own_server(own_server),
        );
    }

    async fn resolve_own_server(&self, (host, port): (String, u16)) {
        loop {
            let delay = match lookup_host((host.as_str(), port)).await {
                Ok(resolved) => {
                    let addresses = canonical_addresses(resolved);
                    self.update(|sources| sources.own_server = Some(addresses));
                    RESOLVE_INTERVAL
                }
                // The controller is connected to this host name, so a later lookup will succeed.
                Err(error) => {
                    tracing::warn!(host, %error, "failed to resolve the name of the infra API server; trying again");
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(delay).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_runtime::untrusted::RefusedAddress;

    use super::*;

    #[test]
    fn addresses_of_all_sources_are_refused() {
        let server = InfraServer::default();
        let addresses = |text: &str| Some(canonical_addresses([text.parse().unwrap()].into_iter()));
        server.update(|sources| sources.service = addresses("10.96.0.1:443"));
        server.update(|sources| sources.endpoints = addresses("192.0.2.1:6443"));
        assert!(!*server.is_known.borrow(), "the controller's own server is not resolved yet");
        server.update(|sources| sources.own_server = addresses("198.51.100.7:6443"));
        assert!(*server.is_known.borrow());
        let policy = server.policy();
        for refused in ["10.96.0.1:443", "192.0.2.1:6443", "198.51.100.7:6443"] {
            let checked = policy(refused.parse().unwrap());
            assert_eq!(checked, Err(RefusedAddress::InfraApiServer), "{refused}");
        }
        assert_eq!(policy("192.0.2.1:30443".parse().unwrap()), Ok(()));
    }
}
