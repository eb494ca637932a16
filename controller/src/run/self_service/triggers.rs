//! Triggers reconciles of requests and quotas after changes.

use std::sync::Arc;

use berth_api::names::TENANT_REQUEST_ANNOTATION;
use berth_api::names::condition::READY;
use berth_api::{InfraConfig, TenantCluster, TenantGrant, TenantQuota, TenantRequest};
use berth_runtime::watch::Change;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedReceiver;

use super::service::SelfService;
use crate::run::context::Context;
use crate::self_service::objects::request_uid;

/// Prefix of the annotations of Berth.
const ANNOTATION_PREFIX: &str = "berth.dev/";

/// Changes of the kinds on which grants and tenants depend.
pub(super) struct Changes {
    requests: UnboundedReceiver<Change<TenantRequest>>,
    quotas: UnboundedReceiver<Change<TenantQuota>>,
    tenants: UnboundedReceiver<Change<TenantCluster>>,
    configs: UnboundedReceiver<Change<InfraConfig>>,
}

/// Objects that a change affects.
#[derive(Debug, PartialEq, Eq)]
enum Affected {
    Nothing,
    All,
    Request(ObjectRef<TenantRequest>),
    /// The quotas that have granted or planned the request with this UID, and, if its TenantCluster names one, a request.
    QuotasOf(String, Option<ObjectRef<TenantRequest>>),
    /// Requests whose grants have changed. `is_replanned` is true if the quota may have resources for others.
    Grants {
        quota: ObjectRef<TenantQuota>,
        requests: Vec<ObjectRef<TenantRequest>>,
        is_replanned: bool,
    },
}

impl Changes {
    pub(super) fn subscribe(context: &Context) -> Self {
        Self {
            requests: context.tenant_requests.subscribe(),
            quotas: context.tenant_quotas.subscribe(),
            tenants: context.tenants.subscribe(),
            configs: context.configs.subscribe(),
        }
    }

    /// Triggers reconciles until the watches end, which happens only if the program is ending.
    pub(super) async fn trigger_reconciles(mut self, service: &SelfService) {
        let mut affected = Affected::All;
        loop {
            match affected {
                Affected::Nothing => {}
                Affected::All => {
                    for quota in service.context.tenant_quotas.all() {
                        service.trigger_quota(ObjectRef::from_obj(quota.as_ref()));
                    }
                    for request in service.context.tenant_requests.all() {
                        service.trigger_request(ObjectRef::from_obj(request.as_ref()));
                    }
                }
                Affected::Request(reference) => service.trigger_request(reference),
                Affected::QuotasOf(uid, request) => {
                    for quota in service.quotas_of(&uid) {
                        service.trigger_quota(ObjectRef::from_obj(quota.as_ref()));
                    }
                    request.into_iter().for_each(|reference| service.trigger_request(reference));
                }
                Affected::Grants { quota, requests, is_replanned } => {
                    if is_replanned {
                        service.trigger_quota(quota);
                    }
                    requests.into_iter().for_each(|reference| service.trigger_request(reference));
                }
            }
            affected = tokio::select! {
                Some(change) = self.requests.recv() => affected_by_request(change),
                Some(change) = self.quotas.recv() => affected_by_quota(&change),
                Some(change) = self.tenants.recv() => affected_by_tenant(change),
                Some(change) = self.configs.recv() => affected_by_config(&change),
                else => return,
            };
        }
    }
}

/// A deleted request may leave resources to others, or a grant without a request. Other changes affect only the request.
fn affected_by_request(change: Change<TenantRequest>) -> Affected {
    match change {
        Change::Object(Some(before), Some(after)) if !request_differs(&before, &after) => {
            Affected::Nothing
        }
        Change::Object(_, Some(request)) => {
            Affected::Request(ObjectRef::from_obj(request.as_ref()))
        }
        Change::Object(Some(before), None) => {
            Affected::QuotasOf(before.uid().unwrap_or_default(), None)
        }
        Change::Object(None, None) => Affected::Nothing,
        Change::Relisted => Affected::All,
    }
}

/// Returns true if the reconcilers read a field of a request that differs. A user may write other metadata, such as labels, and each
/// reconcile sends many requests.
fn request_differs(one: &TenantRequest, other: &TenantRequest) -> bool {
    let identity = |request: &TenantRequest| {
        (request.uid(), request.metadata.generation, request.metadata.deletion_timestamp.clone())
    };
    identity(one) != identity(other)
        || one.finalizers() != other.finalizers()
        || one.status != other.status
}

fn affected_by_quota(change: &Change<TenantQuota>) -> Affected {
    let (before, after) = match change {
        Change::Object(Some(before), Some(after)) if before.spec == after.spec => (before, after),
        Change::Object(..) | Change::Relisted => return Affected::All,
    };
    let differing = |some: &TenantQuota, others: &TenantQuota| -> Vec<TenantGrant> {
        let is_new = |grant: &&TenantGrant| !others.grants().contains(grant);
        some.grants().iter().filter(is_new).cloned().collect()
    };
    // Each grant of `removed` was removed or changed, and each of `added` was added or changed.
    let (removed, added) = (differing(before, after), differing(after, before));
    if removed.is_empty() && added.is_empty() {
        return Affected::Nothing;
    }
    let reference = |grant: &TenantGrant| -> ObjectRef<TenantRequest> {
        ObjectRef::new(&grant.name).within(&grant.namespace)
    };
    let mut requests: Vec<ObjectRef<TenantRequest>> = added.iter().map(reference).collect();
    let is_changed = |grant: &&TenantGrant| added.iter().any(|one| one.uid == grant.uid);
    requests.extend(removed.iter().filter(|grant| !is_changed(grant)).map(reference));
    Affected::Grants {
        quota: ObjectRef::from_obj(after.as_ref()),
        requests,
        is_replanned: !removed.is_empty(),
    }
}

fn affected_by_tenant(change: Change<TenantCluster>) -> Affected {
    let (before, after) = match change {
        Change::Object(before, after) => (before, after),
        Change::Relisted => return Affected::All,
    };
    if let (Some(before), Some(after)) = (&before, &after)
        && !tenant_differs(before, after)
    {
        return Affected::Nothing;
    }
    let uid = |tenant: &Option<Arc<TenantCluster>>| {
        tenant.as_deref().and_then(request_uid).map(str::to_owned)
    };
    // The TenantCluster was deleted, or an administrator has attached it to another request.
    let released = uid(&before).filter(|before| Some(before) != uid(&after).as_ref());
    let tenant = after.or(before);
    let request = tenant.and_then(|tenant| {
        let annotation = tenant.annotations().get(TENANT_REQUEST_ANNOTATION)?;
        let (namespace, name) = annotation.split_once('/')?;
        Some(ObjectRef::new(name).within(namespace))
    });
    match (released, request) {
        (Some(uid), request) => Affected::QuotasOf(uid, request),
        (None, Some(request)) => Affected::Request(request),
        (None, None) => Affected::Nothing,
    }
}

/// Returns true if the reconcilers read or write a field of a TenantCluster that differs. Most writes of its status change none.
fn tenant_differs(one: &TenantCluster, other: &TenantCluster) -> bool {
    let identity = |tenant: &TenantCluster| {
        (tenant.uid(), tenant.metadata.deletion_timestamp.clone(), tenant.labels().clone())
    };
    let ready = |tenant: &TenantCluster| {
        let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|one| one.type_ == READY).cloned()
    };
    let is_own = |(key, _): &(&String, &String)| key.starts_with(ANNOTATION_PREFIX);
    let annotations = one.annotations().iter().filter(is_own);
    identity(one) != identity(other)
        || annotations.ne(other.annotations().iter().filter(is_own))
        || one.spec != other.spec
        || ready(one) != ready(other)
}

fn affected_by_config(change: &Change<InfraConfig>) -> Affected {
    match change {
        Change::Object(Some(before), Some(after)) if before.spec == after.spec => Affected::Nothing,
        Change::Object(..) | Change::Relisted => Affected::All,
    }
}

#[cfg(test)]
mod tests {
    use berth_api::names::TENANT_REQUEST_UID_ANNOTATION;
    use serde_json::json;

    use super::*;

    fn tenant_with(annotations: &serde_json::Value) -> Option<Arc<TenantCluster>> {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "shop", "annotations": annotations}, "spec": {},
        });
        Some(Arc::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn an_attached_or_deleted_tenant_triggers_the_quota_of_its_grant() {
        let of_request = |uid: &str| {
            tenant_with(&json!({
                TENANT_REQUEST_ANNOTATION: "team-a/shop", TENANT_REQUEST_UID_ANNOTATION: uid,
            }))
        };
        let request = || Some(ObjectRef::new("shop").within("team-a"));
        let quotas = || Affected::QuotasOf("old".to_owned(), request());
        let attached = Change::Object(of_request("old"), of_request("new"));
        assert_eq!(affected_by_tenant(attached), quotas());
        assert_eq!(affected_by_tenant(Change::Object(of_request("old"), None)), quotas());
    }

    #[test]
    fn a_tenant_triggers_the_request_in_its_annotation() {
        let tenant = |annotations: serde_json::Value| -> Change<TenantCluster> {
            Change::Object(None, tenant_with(&annotations))
        };
        let request = ObjectRef::new("shop").within("team-a");
        let annotations = json!({TENANT_REQUEST_ANNOTATION: "team-a/shop"});
        assert_eq!(affected_by_tenant(tenant(annotations)), Affected::Request(request));
        assert_eq!(affected_by_tenant(tenant(json!({}))), Affected::Nothing);
        let malformed = json!({TENANT_REQUEST_ANNOTATION: "shop"});
        assert_eq!(affected_by_tenant(tenant(malformed)), Affected::Nothing);
    }
    #[test]
    fn only_fields_that_reconcilers_read_trigger_a_request() {
        let request = |generation: i64, metadata: serde_json::Value, status: serde_json::Value| {
            let mut object = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantRequest",
                "metadata": {"name": "shop", "namespace": "team-a", "uid": "u", "generation": generation},
                "spec": {"machines": {"count": 1, "flavors": ["small"]}}, "status": status,
            });
            let fields = object["metadata"].as_object_mut().unwrap();
            fields.extend(metadata.as_object().unwrap().clone());
            Some(Arc::new(serde_json::from_value(object).unwrap()))
        };
        let before = || request(1, json!({}), json!({}));
        let affected =
            |after| affected_by_request(Change::Object(before(), after)) != Affected::Nothing;
        let labelled =
            json!({"labels": {"a": "b"}, "annotations": {"a": "b"}, "resourceVersion": "7"});
        assert!(!affected(request(1, labelled, json!({}))));
        assert!(affected(request(2, json!({}), json!({}))));
        assert!(affected(request(1, json!({"uid": "other"}), json!({}))));
        assert!(affected(request(1, json!({"finalizers": ["berth.dev/cleanup"]}), json!({}))));
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert!(affected(request(1, deleted, json!({}))));
        let approval = json!({"decision": "Approved", "generation": 1, "uid": "u"});
        assert!(affected(request(1, json!({}), json!({ "approval": approval }))));
    }

    #[test]
    fn only_fields_that_reconcilers_read_trigger_the_request_of_a_tenant() {
        let tenant = |annotations: serde_json::Value, spec: serde_json::Value, ready: &str| {
            let mut all = json!({TENANT_REQUEST_ANNOTATION: "team-a/shop"});
            all.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
            let condition = |type_: &str, status: &str| {
                json!({
                    "type": type_, "status": status, "reason": "Ready", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            };
            let object = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                "metadata": {"name": "shop", "annotations": all}, "spec": spec,
                "status": {"conditions": [condition("Ready", ready)]},
            });
            Some(Arc::new(serde_json::from_value(object).unwrap()))
        };
        let before = || tenant(json!({}), json!({}), "True");
        let affected =
            |after| affected_by_tenant(Change::Object(before(), after)) != Affected::Nothing;
        assert!(!affected(tenant(json!({"example.com/a": "b"}), json!({}), "True")));
        assert!(affected(tenant(json!({}), json!({}), "False")));
        assert!(affected(tenant(json!({}), json!({"allowedFlavors": ["small"]}), "True")));
        assert!(affected(tenant(json!({"berth.dev/tenant-grant": "{}"}), json!({}), "True")));
    }

    #[test]
    fn a_quota_triggers_the_requests_whose_grants_changed() {
        let quota = |grants: serde_json::Value| -> Option<Arc<TenantQuota>> {
            let object = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "q"},
                "spec": {"limits": {"tenants": 9, "machines": 9}}, "status": {"grants": grants},
            });
            Some(Arc::new(serde_json::from_value(object).unwrap()))
        };
        let grant = |name: &str, generation: i64| {
            json!({
                "uid": name, "namespace": "team-a", "name": name, "tenant": name, "generation": generation,
                "resources": {"machines": {"count": 1, "flavors": ["small"]}},
                "amounts": serde_json::to_value(berth_api::QuotaAmounts::default()).unwrap(),
            })
        };
        let affected = |before: serde_json::Value, after: serde_json::Value| match affected_by_quota(
            &Change::Object(quota(before), quota(after)),
        ) {
            Affected::Grants { requests, is_replanned, .. } => {
                let names: Vec<String> = requests.into_iter().map(|one| one.name).collect();
                Some((names.join(" "), is_replanned))
            }
            _ => None,
        };
        let (a, b) = (grant("a", 1), grant("b", 1));
        assert_eq!(affected(json!([a]), json!([a])), None);
        assert_eq!(affected(json!([a]), json!([a, b])), Some(("b".to_owned(), false)));
        assert_eq!(affected(json!([a, b]), json!([b])), Some(("a".to_owned(), true)));
        let changed = grant("b", 2);
        assert_eq!(affected(json!([a, b]), json!([a, changed])), Some(("b".to_owned(), true)));
    }
}
