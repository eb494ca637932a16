//! Validates the removal mark of a machine, and cancels a removal whose mark was removed.

use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::Action;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::context::Remover;
use super::delays::MAX_DELAY;
use crate::removal::mark::{ParsedMark, RemovalMark};
use crate::removal::progress;
use crate::run::api_requests::RequestError;

impl Remover {
    /// Returns the mark of a machine if it is valid, and otherwise the action that ends the reconcile.
    pub(super) async fn validate_mark(
        &self,
        machine: &DynamicObject,
    ) -> Result<Result<RemovalMark, Action>, RequestError> {
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        match ParsedMark::read(machine, Timestamp::now()) {
            ParsedMark::Absent => match progress::reason_of_begun_deletion(machine) {
                None => Ok(Err(self.cancel(machine, &namespace, &name).await)),
                Some(reason) => {
                    tracing::info!(%namespace, machine = %name, "the Node of a machine has been deleted; writing the removal mark again");
                    self.write_mark(machine, RemovalMark::new(reason, Timestamp::now())).await?;
                    Ok(Err(Action::await_change()))
                }
            },
            ParsedMark::Malformed(removal) => {
                tracing::warn!(%namespace, machine = %name, "a removal mark is malformed; writing it again");
                self.write_mark(machine, removal).await?;
                Ok(Err(Action::await_change()))
            }
            ParsedMark::Valid(removal) => Ok(Ok(removal)),
        }
    }

    /// Uncordons the Node of a machine without a mark, if Berth has cordoned it.
    async fn cancel(&self, machine: &DynamicObject, namespace: &str, name: &str) -> Action {
        self.context.table.remove(namespace, name);
        let Some(tenant) = self.context.draining_tenant(namespace) else {
            return Action::await_change();
        };
        // When a connection to the tenant is established, a reconcile is triggered.
        let Ok(connection) = self.context.tenant_connection(&tenant, &machine.name_any()) else {
            return Action::await_change();
        };
        let Some(node) = connection.node.as_ref().filter(|node| node.is_cordoned_by_berth) else {
            return Action::await_change();
        };
        match self.cordon(&connection, node, false).await {
            Ok(()) => Action::await_change(),
            Err(failure) => {
                tracing::debug!(node = %node.name, error = %failure, "failed to uncordon a tenant's Node");
                Action::requeue(add_jitter(MAX_DELAY).max(failure.error.retry_after()))
            }
        }
    }
}
