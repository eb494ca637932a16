//! Assigns TenantRequests to TenantQuotas.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{ConditionReason, TenantQuota, TenantRequest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use kube::core::{Selector, SelectorExt as _};

use crate::tenants::fault::{Fault, join_names_limited};

/// Labels of the namespaces of requests, by the name of the namespace.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// Returns true if a quota selects a namespace. A selector that is not valid selects nothing.
#[must_use]
pub fn selects(quota: &TenantQuota, namespace: &str, namespaces: &NamespaceLabels) -> bool {
    let selected = &quota.spec.namespaces;
    selected.names.contains(namespace)
        || selected.selector.as_ref().and_then(parse_selector).is_some_and(|selector| {
            namespaces.get(namespace).is_some_and(|labels| selector.matches(labels))
        })
}

/// Returns a parsed selector; `None` if it is not valid.
#[must_use]
pub fn parse_selector(selector: &LabelSelector) -> Option<Selector> {
    selector.clone().try_into().ok()
}

/// Returns the quota of a request: the one that has granted it, otherwise the one that selects its namespace.
///
/// # Errors
/// Returns a fault if no quota selects the namespace, or if several do and the request names none of them.
pub fn assigned_quota(
    request: &TenantRequest,
    quotas: &[Arc<TenantQuota>],
    namespaces: &NamespaceLabels,
) -> Result<Arc<TenantQuota>, Fault> {
    let uid = request.uid().unwrap_or_default();
    let has_granted = |quota: &&Arc<TenantQuota>| quota.grants().iter().any(|one| one.uid == uid);
    if let Some(quota) = quotas.iter().find(has_granted) {
        return Ok(Arc::clone(quota));
    }
    let namespace = request.namespace().unwrap_or_default();
    let named = request.spec.quota.as_deref();
    let mut candidates: Vec<&Arc<TenantQuota>> = quotas
        .iter()
        .filter(|quota| named.is_none_or(|name| quota.name_any() == name))
        .filter(|quota| selects(quota, &namespace, namespaces))
        .collect();
    candidates.sort_by_key(|quota| quota.name_any());
    match (candidates.as_slice(), named) {
        ([quota], _) => Ok(Arc::clone(quota)),
        ([], Some(name)) => {
            let message =
                format!("spec.quota: no TenantQuota {name} selects namespace {namespace}");
            Err(Fault::new(ConditionReason::QuotaNotFound, message))
        }
        ([], None) => {
            let message = format!("no TenantQuota selects namespace {namespace}");
            Err(Fault::new(ConditionReason::QuotaNotFound, message))
        }
        (several, _) => {
            let names: Vec<String> = several.iter().map(|quota| quota.name_any()).collect();
            let message = format!(
                "several TenantQuotas select namespace {namespace}: set spec.quota of a new TenantRequest to one of {}",
                join_names_limited(&names)
            );
            Err(Fault::new(ConditionReason::AmbiguousQuota, message))
        }
    }
}
