//! State of the reconcilers of TenantQuotas and TenantRequests.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::run::context::Context;

/// State of the reconcilers.
pub(super) struct SelfService {
    pub(super) context: Arc<Context>,
    /// Held while grants are planned and written: in this process, no plan starts from grants that another plan is about to
    /// change. Between processes, the resource version of the quota is the lock.
    pub(super) ledger: Mutex<()>,
}

impl SelfService {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, ledger: Mutex::default() }
    }
}
