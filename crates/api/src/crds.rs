//! The CRDs as YAML: files in `deploy/crds/`, and output of `berth-controller crds`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::address_claim::AddressClaim;
use crate::host_leases::HostLeases;
use crate::host_profile::HostProfile;
use crate::infra_config::InfraConfig;
use crate::infra_node::InfraNode;
use crate::prefix_claim::PrefixClaim;
use crate::tenant_cluster::TenantCluster;
use crate::tenant_quota::TenantQuota;
use crate::tenant_request::TenantRequest;
use crate::vlan_claim::VlanClaim;

/// Returns all CRDs of Berth in the order in which they are applied.
#[must_use]
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    let all = [
        InfraNode::crd(),
        HostProfile::crd(),
        InfraConfig::crd(),
        TenantCluster::crd(),
        VlanClaim::crd(),
        PrefixClaim::crd(),
        AddressClaim::crd(),
        HostLeases::crd(),
        TenantQuota::crd(),
        TenantRequest::crd(),
    ];
    all.into_iter().map(adapt_integer_formats).collect()
}

/// Replaces the formats of Rust's unsigned types by `int32` or `int64` with an explicit maximum. API servers emit a
/// warning for other formats, and enforce only explicit limits.
fn adapt_integer_formats(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    fn adapt_schema(value: &mut serde_json::Value) {
        let bounds = match value.get("format").and_then(serde_json::Value::as_str) {
            Some("uint8") => Some(("int32", u64::from(u8::MAX))),
            Some("uint16") => Some(("int32", u64::from(u16::MAX))),
            Some("uint32") => Some(("int64", u64::from(u32::MAX))),
            Some("uint64") => Some(("int64", i64::MAX.unsigned_abs())),
            _ => None,
        };
        if let (Some((format, maximum)), Some(schema)) = (bounds, value.as_object_mut()) {
            schema.insert("format".into(), format.into());
            if !schema.contains_key("maximum") && maximum < i64::MAX.unsigned_abs() {
                schema.insert("maximum".into(), maximum.into());
            }
        }
        match value {
            serde_json::Value::Object(map) => map.values_mut().for_each(adapt_schema),
            serde_json::Value::Array(list) => list.iter_mut().for_each(adapt_schema),
            _ => {}
        }
    }
    /// Removes `nullable` from a schema. No field of a status is ever null, and `kubectl explain` omits the fields of
    /// nullable objects if the API server is older than 1.27.
    fn forbid_null(schema: &mut serde_json::Value) {
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("nullable");
            schema.values_mut().for_each(forbid_null);
        } else if let Some(list) = schema.as_array_mut() {
            list.iter_mut().for_each(forbid_null);
        }
    }
    let Ok(mut tree) = serde_json::to_value(&crd) else { return crd };
    adapt_schema(&mut tree);
    if let Some(status) =
        tree.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status")
    {
        forbid_null(status);
    }
    serde_json::from_value(tree).unwrap_or(crd)
}

/// Returns a CRD as the YAML in `deploy/crds/`.
///
/// # Errors
/// Returns an error if YAML cannot represent the schema, which would be a bug in the types.
pub fn crd_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser_error::Error> {
    let yaml = serde_saphyr::to_string(crd)?;
    Ok(format!("# Generated from the Rust types by `make crds`. Do not edit.\n{yaml}"))
}
