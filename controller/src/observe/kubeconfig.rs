//! Checks a tenant's kubeconfig before it is used on the machine of an operator.
//!
//! The author of the Secret is not trusted: a kubeconfig can name programs that are run (`exec`, `auth-provider`),
//! files that are sent as credentials, and proxies.

use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::check::KubeconfigProblem;

/// Returns a client for a tenant's API server. The errors contain no part of the kubeconfig.
pub(super) async fn create_client(text: &str) -> Result<Client, KubeconfigProblem> {
    let kubeconfig = parse(text)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.map_err(|_| KubeconfigProblem::Invalid)?;
    config.default_retry = false;
    Client::try_from(config).map_err(|_| KubeconfigProblem::NoClient)
}

/// Parses a kubeconfig that contains everything itself.
fn parse(text: &str) -> Result<Kubeconfig, KubeconfigProblem> {
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|_| KubeconfigProblem::Invalid)?;
    let clusters = || kubeconfig.clusters.iter().filter_map(|one| one.cluster.as_ref());
    let users = || kubeconfig.auth_infos.iter().filter_map(|one| one.auth_info.as_ref());
    if clusters().any(cluster_uses_machine) || users().any(user_uses_machine) {
        return Err(KubeconfigProblem::UsesMachine);
    }
    if !clusters().all(has_tls) {
        return Err(KubeconfigProblem::NoServer);
    }
    if !users().any(has_credential) {
        return Err(KubeconfigProblem::NoCredential);
    }
    Ok(kubeconfig)
}

fn has_tls(cluster: &Cluster) -> bool {
    cluster.server.as_deref().is_some_and(|server| server.starts_with("https://"))
}

/// Returns true if a user has a token, a client certificate or a password.
const fn has_credential(user: &AuthInfo) -> bool {
    user.token.is_some()
        || user.client_certificate_data.is_some() && user.client_key_data.is_some()
        || user.username.is_some() && user.password.is_some()
}

const fn cluster_uses_machine(cluster: &Cluster) -> bool {
    cluster.certificate_authority.is_some() || cluster.proxy_url.is_some()
}

const fn user_uses_machine(user: &AuthInfo) -> bool {
    user.exec.is_some()
        || user.auth_provider.is_some()
        || user.token_file.is_some()
        || user.client_certificate.is_some()
        || user.client_key.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts:\n- name: a\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    fn parse_with(cluster: &str, user: &str) -> Result<(), KubeconfigProblem> {
        parse(&kubeconfig(cluster, user)).map(drop)
    }

    #[tokio::test]
    async fn malformed_certificates_give_no_client() {
        let pair = "client-certificate-data: bm8=, client-key-data: bm8=";
        let text = kubeconfig("server: 'https://192.0.2.1:6443'", pair);
        let created = create_client(&text).await.map(drop);
        assert_eq!(created, Err(KubeconfigProblem::NoClient));
    }

    #[test]
    fn kubeconfig_must_not_use_the_machine() {
        let server = "server: 'https://192.0.2.1:6443'";
        assert_eq!(parse_with(server, "token: secret"), Ok(()));
        for user in [
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh}",
            "auth-provider: {name: gcp, config: {cmd-path: /bin/sh}}",
            "tokenFile: /etc/shadow",
            "client-certificate: /etc/shadow",
            "client-key: /etc/shadow",
        ] {
            assert_eq!(parse_with(server, user), Err(KubeconfigProblem::UsesMachine), "{user}");
        }
        for more in ["certificate-authority: /etc/shadow", "proxy-url: 'http://192.0.2.9'"] {
            let cluster = format!("{server}, {more}");
            let parsed = parse_with(&cluster, "token: secret");
            assert_eq!(parsed, Err(KubeconfigProblem::UsesMachine), "{more}");
        }
        for user in ["", "username: admin", "client-certificate-data: bm8="] {
            assert_eq!(parse_with(server, user), Err(KubeconfigProblem::NoCredential), "{user}");
        }
        let pair = "client-certificate-data: bm8=, client-key-data: bm8=";
        assert_eq!(parse_with(server, pair), Ok(()));
        let plain = parse_with("server: 'http://192.0.2.1'", "token: secret");
        assert_eq!(plain, Err(KubeconfigProblem::NoServer));
        assert_eq!(parse("- secret").map(drop), Err(KubeconfigProblem::Invalid));
    }

    #[test]
    fn problems_contain_no_content() {
        for problem in [parse("[SECRET").map(drop), parse_with("server: SECRET", "exec: SECRET")] {
            let problem = problem.unwrap_err();
            assert!(!format!("{problem} {problem:?}").contains("SECRET"), "{problem:?}");
        }
    }
}
