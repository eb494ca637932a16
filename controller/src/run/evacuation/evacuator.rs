//! Clients and stores of the reconciler. Its steps are in the other files of this folder.

use std::sync::Arc;
use std::time::Duration;

use berth_runtime::watch::OptionalInformer;
use kube::Client;

use super::index::EvacuationIndex;
use super::informers::EvacuationInformers;
use crate::evacuation::targets::TargetFinder;
use crate::run::apply::Writer;
use crate::run::events::EventEmitter;
use crate::run::metrics::Metrics;

/// Reconciler that moves machines from hosts whose pods were evicted.
pub(super) struct Evacuator {
    pub(super) client: Client,
    pub(super) writer: Writer,
    pub(super) events: Arc<EventEmitter>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) informers: EvacuationInformers,
    /// VirtualMachines with the label [`berth_api::names::EVACUATING_LABEL`].
    pub(super) machines: OptionalInformer,
    pub(super) index: Arc<EvacuationIndex>,
    pub(super) targets: Option<Arc<dyn TargetFinder>>,
    pub(super) resync: Duration,
}
