//! Webhook configurations of virt-api and of other programs, which call an address in place of a Service.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::programs::READY_TIMEOUT;
use crate::cluster::ControlPlane;

/// Webhook configuration as an operator creates it: each webhook names a Service and a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookConfiguration(Value);

impl WebhookConfiguration {
    /// Parses YAML documents with one configuration each.
    ///
    /// # Errors
    /// Fails if there is no configuration, or if a webhook names no Service with a path.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<Self>> {
        let objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
        ensure!(!objects.is_empty(), "the text contains no webhook configuration");
        for object in &objects {
            let name = &object["metadata"]["name"];
            let webhooks = object["webhooks"].as_array().filter(|webhooks| !webhooks.is_empty());
            for webhook in webhooks.with_context(|| format!("{name}: webhooks: is missing"))? {
                ensure!(
                    webhook["clientConfig"]["service"]["path"].is_string(),
                    "{name}: webhook {}: clientConfig.service.path: is missing",
                    webhook["name"]
                );
            }
        }
        Ok(objects.into_iter().map(Self).collect())
    }

    /// Returns the configuration whose webhooks call this address, such as `127.0.0.1:8443`. `authority` is the PEM
    /// certificate of the CA that has signed the certificate of the server.
    pub(crate) fn for_address(&self, address: &str, authority: &[u8]) -> Value {
        let authority = STANDARD.encode(authority);
        let mut object = self.0.clone();
        for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
            let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default();
            let url = format!("https://{address}{path}");
            webhook["clientConfig"] = json!({"url": url, "caBundle": authority});
        }
        object
    }
}

/// Waits until the API server calls the webhooks. The API server receives their configurations through watches; until
/// then it accepts VMs that virt-api refuses.
///
/// # Errors
/// Fails if the API server does not call the webhooks in time.
pub(super) fn wait_until_called(plane: &ControlPlane) -> Result<()> {
    let create = |plane: &ControlPlane, spec: Value| {
        let vm = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "probe", "namespace": "default"}, "spec": spec,
        });
        let create = ["create", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-"];
        plane.kubectl_with(&plane.kubeconfig(), &create, &vm.to_string())
    };
    let template = json!({"spec": {"domain": {"devices": {}}}});
    plane.wait_until("the API server calls the webhooks of virt-api", READY_TIMEOUT, |plane| {
        let valid = create(plane, json!({"runStrategy": "Halted", "template": template})).ok()?;
        let valid: Value = serde_json::from_str(&valid).ok()?;
        // virt-api refuses this VM because it has no run strategy, which the schema does not require.
        let is_refused = create(plane, json!({"template": template})).is_err();
        let uuid = &valid["spec"]["template"]["spec"]["domain"]["firmware"]["uuid"];
        (uuid.is_string() && is_refused).then_some(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURATION: &str = "---\nkind: MutatingWebhookConfiguration\nmetadata: {name: mutator}\n\
        webhooks:\n- name: a\n  failurePolicy: Fail\n  clientConfig: {service: {name: virt-api, path: /a}}\n";

    #[test]
    fn services_are_replaced_by_addresses() {
        let all = WebhookConfiguration::parse_all(CONFIGURATION).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(
            all[0].for_address("127.0.0.1:8443", b"pem")["webhooks"],
            json!([{"name": "a", "failurePolicy": "Fail",
                "clientConfig": {"url": "https://127.0.0.1:8443/a", "caBundle": "cGVt"}}])
        );
    }

    #[test]
    fn webhooks_without_a_path_are_refused() {
        for (text, words) in [
            (CONFIGURATION.replace("path", "port"), "webhook \"a\": clientConfig.service.path"),
            (CONFIGURATION.replace("webhooks", "hooks"), "\"mutator\": webhooks: is missing"),
        ] {
            let error = WebhookConfiguration::parse_all(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
