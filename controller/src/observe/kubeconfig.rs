//! Client for a tenant's API server on the machine of an operator, with the same limits and refusals as in the controller.

use std::sync::Arc;

use berth_runtime::call::with_timeout;
use berth_runtime::leader_election::LeaderGuard;
use berth_runtime::untrusted::{AddressPolicy, ConnectionSlots, UntrustedClient};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config};
use tokio::net::lookup_host;

use crate::check::KubeconfigProblem;
use crate::tenants::infra_addresses::{
    API_SERVER, Addresses, canonical_addresses, check_address, endpoint_addresses,
    service_addresses,
};
use crate::tenants::kubeconfig_rules::{RefusedKubeconfig, parse_kubeconfig};

/// Returns a client for a tenant's API server. The errors contain no part of the kubeconfig. With `permits_insecure`, the
/// kubeconfig may disable the verification of the server's certificate.
pub(super) async fn create_client(
    text: &str,
    permits_insecure: bool,
    policy: AddressPolicy,
) -> Result<UntrustedClient, KubeconfigProblem> {
    let kubeconfig =
        parse_kubeconfig(text, permits_insecure).map_err(KubeconfigProblem::Refused)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let invalid = KubeconfigProblem::Refused(RefusedKubeconfig::Invalid);
    let config = config.map_err(|_| invalid)?;
    // This process is never the leader, so the client refuses to write.
    let (slots, guard) = (ConnectionSlots::default(), LeaderGuard::default());
    UntrustedClient::new(&config, policy, slots, guard).map_err(|_| KubeconfigProblem::NoClient)
}

/// Returns the policy for addresses of tenants' API servers. `own` is the host and port of the infra API server in this
/// machine's kubeconfig. If the user may not read the Service and the Endpoints of the infra API server, the policy
/// refuses fewer addresses than that of the controller.
pub(super) async fn address_policy(client: &Client, own: &(String, u16)) -> AddressPolicy {
    let (namespace, name) = API_SERVER;
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let endpoints: Api<Endpoints> = Api::namespaced(client.clone(), namespace);
    let (service, endpoints, own) = tokio::join!(
        with_timeout(services.get(name)),
        with_timeout(endpoints.get(name)),
        lookup_host((own.0.as_str(), own.1))
    );
    let infra: Vec<Addresses> = [
        service.ok().as_ref().map(service_addresses),
        endpoints.ok().as_ref().map(endpoint_addresses),
        own.ok().map(canonical_addresses),
    ]
    .into_iter()
    .flatten()
    .collect();
    Arc::new(move |address| check_address(address, &infra))
}

#[cfg(test)]
mod tests {
    use berth_runtime::untrusted::{RefusedAddress, UntrustedError};
    use hyper::Request;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    fn kubeconfig(server: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts:\n- name: a\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster: {{server: '{server}', insecure-skip-tls-verify: true}}\n\
             users:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    async fn create(text: &str) -> Result<UntrustedClient, KubeconfigProblem> {
        let policy: AddressPolicy = Arc::new(|address| check_address(address, &[]));
        create_client(text, true, policy).await
    }

    #[tokio::test]
    async fn malformed_certificates_give_no_client() {
        let user = "client-certificate-data: bm8=, client-key-data: bm8=";
        let created = create(&kubeconfig("https://192.0.2.1:6443", user)).await.map(drop);
        assert_eq!(created, Err(KubeconfigProblem::NoClient));
        let refused = create("- a").await.map(drop);
        assert_eq!(refused, Err(KubeconfigProblem::Refused(RefusedKubeconfig::Invalid)));
    }

    #[tokio::test]
    async fn loopback_addresses_are_refused() {
        let client = create(&kubeconfig("https://127.0.0.1:1", "token: secret")).await.unwrap();
        let request = Request::get("/version").body(Body::empty()).unwrap();
        let answer = client.request::<Value>(request, 100).await;
        assert_eq!(answer, Err(UntrustedError::AddressRefused(RefusedAddress::Loopback)));
    }
}
