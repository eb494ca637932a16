//! The kubeconfig in a providerSpec, which Berth validates but does not use.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::Value;

use super::field_parser::{ProblemReporter, UnreadFields};

/// Checks that the kubeconfig is valid. Berth does not need the kubeconfig, because it runs in the cluster of the VMs,
/// but an invalid kubeconfig is a mistake of the user.
pub(super) fn check_kubeconfig(fields: &mut UnreadFields<'_>, reporter: &ProblemReporter<'_>) {
    let path = fields.field_path("kubeconfig");
    let Some(value) = fields.take_field("kubeconfig") else { return };
    // A kubeconfig in the object itself must be encoded as base64; a kubeconfig from a Secret or ConfigMap may be
    // plain text.
    let is_inline = value.is_string() || value.get("value").is_some_and(Value::is_string);
    let inner = BTreeMap::from([("kubeconfig".to_owned(), value)]).into_iter().collect();
    let mut kubeconfig_fields =
        UnreadFields::new(Value::Object(inner), path.trim_end_matches(".kubeconfig"), reporter);
    let text = kubeconfig_fields.read_variable("kubeconfig");
    if text.is_empty() {
        return;
    }
    if is_placeholder(&text) {
        reporter.report_warning(&path, &text, "is a placeholder; Berth does not use this field");
        return;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(text.trim());
    let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    if decoded.is_none() && is_inline {
        reporter.report_error(&path, "", "must be base64");
        return;
    }
    let plain = decoded.unwrap_or_else(|| text.into_plain_string());
    match serde_saphyr::from_str::<Kubeconfig>(&plain) {
        Ok(config) if !config.clusters.is_empty() => {}
        Ok(_) => reporter.report_error(&path, "", "is not a kubeconfig: it has no clusters"),
        // The parser's message would quote the value, which is a credential.
        Err(_) => reporter.report_error(&path, "", "is not a kubeconfig"),
    }
}

/// Returns true for a placeholder such as `<< KUBECONFIG >>`. Sample manifests often contain placeholders.
pub(super) fn is_placeholder(text: &str) -> bool {
    let text = text.trim();
    text.starts_with("<<") && text.ends_with(">>")
}

/// The fields of a kubeconfig that must be present.
#[derive(serde::Deserialize)]
struct Kubeconfig {
    #[serde(default)]
    clusters: Vec<NamedCluster>,
}

#[derive(serde::Deserialize)]
struct NamedCluster {
    #[serde(rename = "name")]
    _name: String,
}
