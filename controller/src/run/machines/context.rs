//! State shared by all reconciles of MachineDeployments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use berth_api::{InfraConfig, TenantCluster};
use kube::api::DynamicObject;
use kube::runtime::reflector::Store;
use kube::{Client, ResourceExt as _};

use super::disk_backoff::DiskBackoff;
use super::informers::{MachineInformers, OwnInformers};
use super::node_port_refusals::NodePortRefusals;
use super::triggers::MachineTriggers;
use crate::run::address_store::AddressStore;
use crate::run::events::EventEmitter;
use crate::run::image_table::ImageTable;
use crate::run::removal::RemovalTable;
use crate::run::removal_lock::RemovalLock;
use crate::run::tenant_access::Connections;
use berth_kubevirt_render::machines::rollout::ReplicaCounts;
use berth_runtime::watch::{Informer, OptionalInformer};

/// Stores and clients shared by all reconciles of MachineDeployments.
pub(super) struct MachineContext {
    pub(super) client: Client,
    pub(super) events: Arc<EventEmitter>,
    pub(super) deployments: OptionalInformer,
    pub(super) machines: OptionalInformer,
    pub(super) instances: OptionalInformer,
    pub(super) tenants: Informer<TenantCluster>,
    pub(super) configs: Informer<InfraConfig>,
    pub(super) addresses: AddressStore,
    pub(super) connections: Connections,
    /// Golden images that machines need.
    pub(super) images: Arc<ImageTable>,
    /// Reports of the removals of machines.
    pub(super) removals: Arc<RemovalTable>,
    /// Lock that this reconciler shares with the reconciler of evacuations.
    pub(super) removal_lock: RemovalLock,
    /// Machines of machine-controller. If the namespace of a MachineDeployment contains Machines, Berth does not
    /// reconcile the MachineDeployment, because machine-controller does.
    pub(super) machine_controller_machines: OptionalInformer,
    /// Webhook configurations. If they include the webhook of machine-controller, Berth reconciles no
    /// MachineDeployment.
    pub(super) webhooks: OptionalInformer,
    /// Services of machines that Berth created.
    pub(super) services: OptionalInformer,
    pub(super) triggers: Arc<MachineTriggers>,
    pub(super) in_memory_states: Mutex<BTreeMap<String, InMemoryState>>,
}

/// State of one MachineDeployment that is kept in memory only.
#[derive(Clone, Debug, Default)]
pub(super) struct InMemoryState {
    /// Number of consecutive machines that have failed. Because of these failures, no machine is created until
    /// `backoff_until`.
    pub(super) failure_count: u32,
    pub(super) backoff_until: Option<Instant>,
    /// Names of the machines whose Secret with user data is known to exist.
    pub(super) machines_with_secret: BTreeSet<String>,
    /// True if machine-controller reconciles the MachineDeployment.
    pub(super) uses_machine_controller: bool,
    /// Replica counts after their last change, and the time of this change.
    pub(super) last_progress: Option<(ReplicaCounts, Instant)>,
    pub(super) node_port_refusals: NodePortRefusals,
    /// Fault after which the disks of existing machines are not compared for a time.
    pub(super) disk_backoff: Option<DiskBackoff>,
    /// Name of the last machine of an incomplete update of disks; `None` if the last update was complete.
    pub(super) last_disk_machine: Option<String>,
    /// Time of the last list of DataVolumes for retained claims.
    pub(super) retention_checked: Option<Instant>,
    /// Name of the last machine whose retained claims were compared with this list.
    pub(super) last_checked: Option<String>,
}

impl MachineContext {
    pub(super) fn new(
        client: Client,
        events: Arc<EventEmitter>,
        shared: MachineInformers,
        own: OwnInformers,
        triggers: Arc<MachineTriggers>,
    ) -> Self {
        Self {
            client,
            events,
            deployments: own.deployments,
            machines: own.machines,
            instances: shared.instances.informer().clone(),
            tenants: shared.tenants,
            configs: shared.configs,
            addresses: shared.addresses,
            connections: shared.connections,
            images: shared.images,
            removals: shared.removals,
            removal_lock: shared.removal_lock,
            machine_controller_machines: own.machine_controller_machines,
            webhooks: own.webhooks,
            services: own.services,
            triggers,
            in_memory_states: Mutex::default(),
        }
    }

    /// Waits until all installed kinds are listed. Returns the store of MachineDeployments.
    pub(super) async fn wait_until_ready(&self) -> Store<DynamicObject> {
        let store = self.deployments.wait_until_listed().await;
        for kind in [
            &self.machines,
            &self.instances,
            &self.machine_controller_machines,
            &self.webhooks,
            &self.services,
        ] {
            kind.wait_until_ready().await;
        }
        tokio::join!(
            self.tenants.wait_until_ready(),
            self.configs.wait_until_ready(),
            self.addresses.wait_until_ready()
        );
        store
    }

    pub(super) fn with_state<T>(
        &self,
        object: &DynamicObject,
        change: impl FnOnce(&mut InMemoryState) -> T,
    ) -> T {
        let mut all = self.in_memory_states.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(object.uid().unwrap_or_default()).or_default())
    }

    pub(super) fn remove_state(&self, object: &DynamicObject) {
        let mut all = self.in_memory_states.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&object.uid().unwrap_or_default());
    }
}
