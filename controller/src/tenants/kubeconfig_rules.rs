//! Rules for the kubeconfigs of tenants.
//!
//! The author of the Secret is not trusted: a kubeconfig can name programs to be run (`exec`, `auth-provider`), files
//! whose content is sent as a credential, and proxies.

use hyper::header::HeaderValue;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use secrecy::ExposeSecret as _;

/// Maximum length of `server` in bytes. kube appends the path of each request, and panics if the URL has 64 KiB.
const MAX_SERVER_LENGTH: usize = 2048;

/// Reason why a kubeconfig is refused. The message contains no part of the kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedKubeconfig {
    /// The entry of the Secret is not a kubeconfig.
    #[error("the entry is not a valid kubeconfig")]
    Invalid,
    /// The kubeconfig has no user with a credential.
    #[error("users[].user must have a token, a client certificate with its key, or a password")]
    NoCredential,
    /// The token contains characters that an HTTP header must not contain.
    #[error(
        "users[].user.token contains a line break or another character that no HTTP header may contain"
    )]
    InvalidToken,
    /// The kubeconfig names no server with an `https` URL.
    #[error("clusters[].cluster.server must be https://HOST:PORT, with at most 2048 bytes")]
    NoServer,
    /// The kubeconfig would run a program, or read files of this machine.
    #[error(
        "the kubeconfig names a program (exec, auth-provider), a file or a proxy of the machine that uses it; \
         certificates, keys and tokens must be in the kubeconfig itself"
    )]
    UsesMachine,
    /// The kubeconfig disables the verification of the server.
    #[error(
        "insecure-skip-tls-verify is set: use certificate-authority-data, or set spec.insecureSkipTLSVerify of the \
         TenantCluster"
    )]
    Insecure,
}

/// Parses a kubeconfig that refers to no files and programs. If `permits_insecure` is true, the kubeconfig may disable
/// the verification of the server's certificate.
///
/// # Errors
/// Returns the reason why the kubeconfig is refused.
pub fn parse_kubeconfig(
    text: &str,
    permits_insecure: bool,
) -> Result<Kubeconfig, RefusedKubeconfig> {
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|_| RefusedKubeconfig::Invalid)?;
    let clusters = || kubeconfig.clusters.iter().filter_map(|one| one.cluster.as_ref());
    let users = || kubeconfig.auth_infos.iter().filter_map(|one| one.auth_info.as_ref());
    if clusters().any(cluster_uses_machine) || users().any(user_uses_machine) {
        return Err(RefusedKubeconfig::UsesMachine);
    }
    if clusters().any(|cluster| cluster.insecure_skip_tls_verify == Some(true)) && !permits_insecure
    {
        return Err(RefusedKubeconfig::Insecure);
    }
    if !clusters().all(has_tls) {
        return Err(RefusedKubeconfig::NoServer);
    }
    if !users().any(has_credential) {
        return Err(RefusedKubeconfig::NoCredential);
    }
    if !users().all(has_valid_token) {
        return Err(RefusedKubeconfig::InvalidToken);
    }
    Ok(kubeconfig)
}

fn has_tls(cluster: &Cluster) -> bool {
    let server = cluster.server.as_deref().unwrap_or_default();
    server.starts_with("https://") && server.len() <= MAX_SERVER_LENGTH
}

/// Returns false if the token contains characters with which kube would panic when it creates the HTTP header.
fn has_valid_token(user: &AuthInfo) -> bool {
    let token = user.token.as_ref();
    token.is_none_or(|token| HeaderValue::from_str(token.expose_secret()).is_ok())
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

    fn parse_with(cluster: &str, user: &str) -> Result<(), RefusedKubeconfig> {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts:\n- name: a\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        );
        parse_kubeconfig(&text, false).map(drop)
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
            assert_eq!(parse_with(server, user), Err(RefusedKubeconfig::UsesMachine), "{user}");
        }
        for more in ["certificate-authority: /etc/shadow", "proxy-url: 'http://192.0.2.9'"] {
            let cluster = format!("{server}, {more}");
            let parsed = parse_with(&cluster, "token: secret");
            assert_eq!(parsed, Err(RefusedKubeconfig::UsesMachine), "{more}");
        }
        for user in ["", "username: admin", "client-certificate-data: bm8="] {
            assert_eq!(parse_with(server, user), Err(RefusedKubeconfig::NoCredential), "{user}");
        }
        let pair = "client-certificate-data: bm8=, client-key-data: bm8=";
        assert_eq!(parse_with(server, pair), Ok(()));
        let plain = parse_with("server: 'http://192.0.2.1'", "token: secret");
        assert_eq!(plain, Err(RefusedKubeconfig::NoServer));
        assert_eq!(parse_kubeconfig("- secret", false).map(drop), Err(RefusedKubeconfig::Invalid));
    }

    #[test]
    fn values_at_which_kube_panics_are_refused() {
        let server = "server: 'https://192.0.2.1:6443'";
        for token in [r#""a\n""#, r#""a\x01b""#, r#""\x7f""#] {
            let parsed = parse_with(server, &format!("token: {token}"));
            assert_eq!(parsed, Err(RefusedKubeconfig::InvalidToken), "{token}");
        }
        let long = format!("server: 'https://192.0.2.1/{}'", "a".repeat(65_000));
        assert_eq!(parse_with(&long, "token: secret"), Err(RefusedKubeconfig::NoServer));
    }

    #[test]
    fn servers_are_verified_unless_the_tenant_permits_otherwise() {
        let cluster = "server: 'https://192.0.2.1', insecure-skip-tls-verify: true";
        assert_eq!(parse_with(cluster, "token: secret"), Err(RefusedKubeconfig::Insecure));
        let text = "{clusters: [{name: c, cluster: {server: 'https://192.0.2.1', insecure-skip-tls-verify: true}}], \
                    users: [{name: u, user: {token: secret}}]}";
        assert!(parse_kubeconfig(text, true).is_ok());
    }

    #[test]
    fn refusals_contain_no_content() {
        let invalid = parse_kubeconfig("[SECRET", false).map(drop);
        for problem in [invalid, parse_with("server: SECRET", "exec: SECRET")] {
            let problem = problem.unwrap_err();
            assert!(!format!("{problem} {problem:?}").contains("SECRET"), "{problem:?}");
        }
    }
}
