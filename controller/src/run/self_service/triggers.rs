//! Triggers reconciles of requests and quotas after changes.

use berth_api::names::TENANT_REQUEST_ANNOTATION;
use berth_api::{InfraConfig, TenantCluster, TenantQuota, TenantRequest};
use berth_runtime::watch::Change;
use futures::channel::mpsc::UnboundedSender;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::run::context::Context;

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
    pub(super) async fn trigger_reconciles(
        mut self,
        context: &Context,
        requests: UnboundedSender<ObjectRef<TenantRequest>>,
        quotas: UnboundedSender<ObjectRef<TenantQuota>>,
    ) {
        let mut affected = Affected::All;
        loop {
            match affected {
                Affected::Nothing => {}
                Affected::All => {
                    for quota in context.tenant_quotas.all() {
                        let reference = ObjectRef::from_obj(quota.as_ref());
                        quotas.unbounded_send(reference).unwrap_or_default();
                    }
                    for request in context.tenant_requests.all() {
                        let reference = ObjectRef::from_obj(request.as_ref());
                        requests.unbounded_send(reference).unwrap_or_default();
                    }
                }
                Affected::Request(reference) => {
                    requests.unbounded_send(reference).unwrap_or_default();
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

/// A deleted request may leave resources to others. Other changes affect only the request.
fn affected_by_request(change: Change<TenantRequest>) -> Affected {
    match change {
        Change::Object(_, Some(request)) => {
            Affected::Request(ObjectRef::from_obj(request.as_ref()))
        }
        Change::Object(_, None) | Change::Relisted => Affected::All,
    }
}

fn affected_by_quota(change: &Change<TenantQuota>) -> Affected {
    match change {
        Change::Object(Some(before), Some(after))
            if before.spec == after.spec && before.grants() == after.grants() =>
        {
            Affected::Nothing
        }
        Change::Object(..) | Change::Relisted => Affected::All,
    }
}

fn affected_by_tenant(change: Change<TenantCluster>) -> Affected {
    let tenant = match change {
        Change::Object(before, after) => after.or(before),
        Change::Relisted => return Affected::All,
    };
    let request = tenant.and_then(|tenant| {
        let annotation = tenant.annotations().get(TENANT_REQUEST_ANNOTATION)?;
        let (namespace, name) = annotation.split_once('/')?;
        Some(ObjectRef::new(name).within(namespace))
    });
    request.map_or(Affected::Nothing, Affected::Request)
}

fn affected_by_config(change: &Change<InfraConfig>) -> Affected {
    match change {
        Change::Object(Some(before), Some(after)) if before.spec == after.spec => Affected::Nothing,
        Change::Object(..) | Change::Relisted => Affected::All,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_tenant_triggers_the_request_in_its_annotation() {
        let tenant = |annotations: serde_json::Value| -> Change<TenantCluster> {
            let object = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                "metadata": {"name": "shop", "annotations": annotations}, "spec": {},
            });
            Change::Object(None, Some(Arc::new(serde_json::from_value(object).unwrap())))
        };
        let request = ObjectRef::new("shop").within("team-a");
        let annotations = json!({TENANT_REQUEST_ANNOTATION: "team-a/shop"});
        assert_eq!(affected_by_tenant(tenant(annotations)), Affected::Request(request));
        assert_eq!(affected_by_tenant(tenant(json!({}))), Affected::Nothing);
        let malformed = json!({TENANT_REQUEST_ANNOTATION: "shop"});
        assert_eq!(affected_by_tenant(tenant(malformed)), Affected::Nothing);
    }
}
