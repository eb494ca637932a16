//! Triggers reconciles of the StorageClasses in tenants' clusters.

use std::sync::Arc;

use berth_api::InfraStorageClass;

use super::infra_classes::InfraClasses;
use crate::run::context::Context;
use crate::run::tenant_access::TenantQueue;
use crate::tenant_storage::desired::DesiredClasses;

/// Handlers of changes, which add tenants to the queue of reconciles.
pub(super) struct TenantStorageTriggers {
    context: Arc<Context>,
    queue: TenantQueue,
    infra_classes: Arc<InfraClasses>,
}

/// Input that all tenants share: the StorageClasses in the InfraConfig, and the desired StorageClasses; `None` until
/// the StorageClasses of the infra cluster are listed.
type SharedInput = (Vec<InfraStorageClass>, Option<DesiredClasses>);

impl TenantStorageTriggers {
    pub(super) const fn new(
        context: Arc<Context>,
        queue: TenantQueue,
        infra_classes: Arc<InfraClasses>,
    ) -> Self {
        Self { context, queue, infra_classes }
    }

    fn shared_input(&self) -> SharedInput {
        let config = self.context.config();
        let infra_classes = self.infra_classes.read();
        let desired =
            infra_classes.map(|infra_classes| DesiredClasses::new(&config.spec, &infra_classes));
        (config.spec.infra_storage_classes.clone(), desired)
    }

    /// Triggers all tenants once, and then the tenants that are affected by changes, until this future is dropped.
    pub(super) async fn handle_changes(&self) {
        let mut tenants = self.context.tenants.subscribe();
        let mut configs = self.context.configs.subscribe();
        let mut input = self.shared_input();
        self.queue.trigger_all(&self.context);
        loop {
            let change = tokio::select! {
                Some(change) = tenants.recv() => Some(change),
                Some(_) = configs.recv() => None,
                () = self.infra_classes.changed() => None,
            };
            if let Some(change) = change {
                self.queue.handle_tenant(&change, &self.context);
                continue;
            }
            let current = self.shared_input();
            if current != input {
                input = current;
                self.queue.trigger_all(&self.context);
            }
        }
    }
}
