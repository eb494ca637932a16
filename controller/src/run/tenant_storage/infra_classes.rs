//! Watch of the StorageClasses of the infra cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_runtime::watch::{OptionalInformer, OptionalKind};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::Notify;

use crate::api_resource::api_resource;
use crate::tenant_storage::infra_class::{InfraClass, read_infra_classes};

/// The StorageClasses of the infra cluster.
pub(super) struct InfraClasses {
    informer: OptionalInformer,
    is_listed: AtomicBool,
    changed: Arc<Notify>,
}

impl InfraClasses {
    /// Returns the StorageClasses, and a future that updates them and never ends.
    pub(super) fn start(client: &Client) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let kind = OptionalKind {
            resource: api_resource("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
            label_selector: None,
            trim: InfraClass::trim,
        };
        let changed = Arc::new(Notify::new());
        let notify = Arc::clone(&changed);
        let (informer, watch) =
            OptionalInformer::start(client, kind, move |_, _| notify.notify_one());
        let classes = Arc::new(Self { informer, is_listed: AtomicBool::new(false), changed });
        let listed = Arc::clone(&classes);
        let run = async move {
            let record_list = async {
                listed.wait_until_listed().await;
                listed.is_listed.store(true, Ordering::Relaxed);
                listed.changed.notify_one();
            };
            tokio::join!(watch, record_list);
        };
        (classes, run.boxed())
    }

    /// Waits until the StorageClasses are listed.
    pub(super) async fn wait_until_listed(&self) {
        drop(self.informer.wait_until_listed().await);
    }

    /// Waits for a change of the StorageClasses. At most one task may wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the StorageClasses by name; `None` if they are not listed yet.
    pub(super) fn read(&self) -> Option<BTreeMap<String, InfraClass>> {
        let all = self.is_listed.load(Ordering::Relaxed).then(|| self.informer.all())?;
        Some(read_infra_classes(all.iter().map(AsRef::as_ref)))
    }
}
