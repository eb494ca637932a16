//! The CRDs as YAML, for `deploy/crds/` and for `berth-controller crds`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::InfraNode;

/// Every CRD Berth owns, in the order they are applied.
#[must_use]
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    vec![InfraNode::crd()]
}

/// One CRD as the YAML that is kept in `deploy/crds/`.
///
/// # Errors
/// If the schema has something YAML cannot say, which would be a bug in the types.
pub fn crd_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser_error::Error> {
    let yaml = serde_saphyr::to_string(crd)?;
    Ok(format!("# Generated from the Rust types by `make crds`. Do not edit.\n{yaml}"))
}
