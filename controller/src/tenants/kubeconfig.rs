//! Reads the host of a tenant's API server from the tenant's kubeconfig.

use std::net::IpAddr;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kubeconfig {
    #[serde(rename = "current-context")]
    current_context: String,
    contexts: Vec<NamedContext>,
    clusters: Vec<NamedCluster>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: KubeconfigContext,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KubeconfigContext {
    cluster: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cluster {
    server: String,
}

/// Host in the URL of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiServerHost {
    Address(IpAddr),
    /// A host name, which cannot be used in a NetworkPolicy.
    Name(String),
}

/// Reason why the host of the API server cannot be read from a kubeconfig. The message contains no part of the
/// kubeconfig, because the kubeconfig is from a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKubeconfig {
    /// The kubeconfig cannot be parsed.
    #[error("is not a valid kubeconfig")]
    NotParsed,
    /// The cluster of the current context has no URL.
    #[error("contains no server: clusters[].cluster.server must be https://HOST:PORT")]
    NoServer,
}

/// Returns the host of the API server in the current context of a kubeconfig.
///
/// # Errors
/// Returns an error if the string is not a kubeconfig, or if the kubeconfig names no server.
pub fn parse_server(text: &str) -> Result<ApiServerHost, InvalidKubeconfig> {
    let config: Kubeconfig =
        serde_saphyr::from_str(text).map_err(|_| InvalidKubeconfig::NotParsed)?;
    let current = config.contexts.iter().find(|one| one.name == config.current_context);
    let cluster = match current {
        Some(context) => config.clusters.iter().find(|one| one.name == context.context.cluster),
        None => config.clusters.first(),
    };
    let url = cluster.map(|one| one.cluster.server.as_str()).unwrap_or_default();
    let host = url.strip_prefix("https://").and_then(host_in_url);
    let Some(host) = host.filter(|host| !host.is_empty()) else {
        return Err(InvalidKubeconfig::NoServer);
    };
    Ok(host.parse().map_or_else(|_| ApiServerHost::Name(host.to_owned()), ApiServerHost::Address))
}

/// Returns the host in `rest`, the part of a URL that follows `https://`.
fn host_in_url(rest: &str) -> Option<&str> {
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next(),
        None => host.split(':').next(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server_for_url(url: &str) -> Result<ApiServerHost, InvalidKubeconfig> {
        parse_server(&format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: b\ncontexts:\n- name: b\n  context: {{cluster: two}}\n\
             clusters:\n- name: one\n  cluster: {{server: https://192.0.2.1}}\n- name: two\n  cluster: {{server: '{url}'}}\n"
        ))
    }

    #[test]
    fn the_server_of_the_current_context_is_found() {
        let address = |text: &str| Ok(ApiServerHost::Address(text.parse().unwrap()));
        assert_eq!(server_for_url("https://10.1.2.3:6443"), address("10.1.2.3"));
        assert_eq!(server_for_url("https://[2001:db8::1]:6443/path"), address("2001:db8::1"));
        assert_eq!(
            server_for_url("https://api.example.org:6443"),
            Ok(ApiServerHost::Name("api.example.org".to_owned()))
        );
        for wrong in ["", "http://10.1.2.3", "https://", "https://:6443"] {
            assert_eq!(server_for_url(wrong), Err(InvalidKubeconfig::NoServer), "{wrong}");
        }
        assert_eq!(parse_server("- a"), Err(InvalidKubeconfig::NotParsed));
        assert!(parse_server("").is_err());
    }

    proptest! {
        #[test]
        fn any_text_gives_an_error_or_a_server(text in "\\PC{0,60}") {
            drop(parse_server(&text));
            drop(server_for_url(&text.replace('\'', "")));
        }
    }
}
