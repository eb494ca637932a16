//! Kubeconfig of a requester, and the time at which its token is replaced.

use berth_api::{IssuedKubeconfig, TenantCluster};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

/// Address and authority of the API server in a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// URL of the API server.
    pub url: String,
    /// Certificates of the authority, in PEM and in base64.
    pub authority: String,
}

/// Returns the key of a tenant's kubeconfig in the Secret of the namespace of its request.
#[must_use]
pub fn kubeconfig_key(tenant: &str) -> String {
    format!("{tenant}.kubeconfig")
}

/// Returns a kubeconfig with a token for the namespace of a tenant. It is JSON, which is also YAML.
#[must_use]
pub fn render_kubeconfig(tenant: &str, server: &ApiServer, token: &str) -> String {
    let name = TenantCluster::namespace_of(tenant);
    let cluster = json!({"server": server.url, "certificate-authority-data": server.authority});
    let context = json!({"cluster": name, "user": name, "namespace": name});
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    });
    format!("{kubeconfig:#}\n")
}

/// Returns the time at which the token of a kubeconfig is replaced: after half of its life, so that a controller that is
/// unavailable for hours leaves no requester without a valid token.
#[must_use]
pub fn rotation_time(issued: &IssuedKubeconfig) -> Timestamp {
    let (from, until) = (issued.issued_at.0.as_second(), issued.expires_at.0.as_second());
    let half = from.saturating_add(until.saturating_sub(from).max(0) / 2);
    Timestamp::from_second(half).unwrap_or(issued.issued_at.0)
}

#[cfg(test)]
mod tests {
    use berth_api::Time;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_kubeconfig_selects_the_namespace_of_the_tenant() {
        let server = ApiServer { url: "https://api:6443".to_owned(), authority: "Y2E=".to_owned() };
        let text = render_kubeconfig("shop", &server, "secret-token");
        let parsed: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(parsed["contexts"][0]["context"]["namespace"], "cluster-shop");
        assert_eq!(parsed["users"][0]["user"]["token"], "secret-token");
        assert_eq!(parsed["clusters"][0]["cluster"]["server"], "https://api:6443");
        assert_eq!(parsed["current-context"], "cluster-shop");
    }

    #[test]
    fn tokens_are_replaced_at_half_of_their_life() {
        let time = |seconds| Time(Timestamp::from_second(seconds).unwrap());
        let issued = |from, until| IssuedKubeconfig {
            secret: "s".to_owned(),
            key: "k".to_owned(),
            issued_at: time(from),
            expires_at: time(until),
            server_hash: String::new(),
        };
        assert_eq!(rotation_time(&issued(1000, 3000)), time(2000).0);
        assert_eq!(rotation_time(&issued(3000, 1000)), time(3000).0);
    }
}
