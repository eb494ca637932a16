//! Checks a tenant's kubeconfig before it is used on the machine of an operator.

use kube::config::KubeConfigOptions;
use kube::{Client, Config};

use crate::check::KubeconfigProblem;
use crate::tenants::kubeconfig_rules::{RefusedKubeconfig, parse_kubeconfig};

/// Returns a client for a tenant's API server. The errors contain no part of the kubeconfig. With `permits_insecure`, the
/// kubeconfig may disable the verification of the server's certificate.
pub(super) async fn create_client(
    text: &str,
    permits_insecure: bool,
) -> Result<Client, KubeconfigProblem> {
    let kubeconfig =
        parse_kubeconfig(text, permits_insecure).map_err(KubeconfigProblem::Refused)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let invalid = KubeconfigProblem::Refused(RefusedKubeconfig::Invalid);
    let mut config = config.map_err(|_| invalid)?;
    config.default_retry = false;
    Client::try_from(config).map_err(|_| KubeconfigProblem::NoClient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn malformed_certificates_give_no_client() {
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts:\n- name: a\n  context: {cluster: c, user: u}\n\
             clusters:\n- name: c\n  cluster: {server: 'https://192.0.2.1:6443'}\n\
             users:\n- name: u\n  user: {client-certificate-data: bm8=, client-key-data: bm8=}\n";
        let created = create_client(text, false).await.map(drop);
        assert_eq!(created, Err(KubeconfigProblem::NoClient));
        let refused = create_client("- a", false).await.map(drop);
        assert_eq!(refused, Err(KubeconfigProblem::Refused(RefusedKubeconfig::Invalid)));
    }
}
