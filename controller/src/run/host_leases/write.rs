//! Writes the HostLeases of a host if they differ from the desired ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_api::{EventReason, HostLeases, InfraNode};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::core::ApiResource;
use serde_json::json;

use super::informers::LeaseInformers;
use super::triggers::SharedIndex;
use crate::run::apply::{ApplyTarget, FieldConflictPolicy, Writer};
use crate::run::events::EventEmitter;
use crate::run::reconcile::ReconcileFailure;
use crate::tenants::host_leases::{DesiredHostLeases, desired_host_leases};

pub(super) struct HostLeasesWriter {
    writer: Writer,
    events: Arc<EventEmitter>,
    informers: LeaseInformers,
    index: SharedIndex,
    /// Number of omitted leases in the last Event of each host whose HostLeases have no room for all leases.
    omitted: Mutex<BTreeMap<String, usize>>,
}

impl HostLeasesWriter {
    pub(super) fn new(
        writer: Writer,
        events: Arc<EventEmitter>,
        informers: LeaseInformers,
        index: SharedIndex,
    ) -> Self {
        Self { writer, events, informers, index, omitted: Mutex::default() }
    }

    /// Writes the HostLeases of a host if they differ from the desired ones. An object without leases is not created.
    pub(super) async fn reconcile(
        &self,
        infra_node: Arc<InfraNode>,
    ) -> Result<(), ReconcileFailure> {
        let host = infra_node.name_any();
        // Without a Node there is no owner. The API server deletes the HostLeases of a deleted Node.
        let Some(node) = self.informers.nodes.get(&host) else { return Ok(()) };
        let stored = self.informers.host_leases.get(&host);
        let desired = self.desired_leases(&host, stored.as_deref());
        self.report_omitted(&infra_node, desired.omitted).await;
        let target = match &stored {
            None if desired.spec.networks.is_empty() => return Ok(()),
            // The deletion of the object triggers another reconcile.
            Some(stored) if stored.metadata.deletion_timestamp.is_some() => return Ok(()),
            Some(stored) if stored.spec == desired.spec && is_owned(stored, &node) => return Ok(()),
            Some(stored) => ApplyTarget::from_object(stored.as_ref()),
            None => ApplyTarget::new_target(ApiResource::erase::<HostLeases>(&()), None, &host),
        };
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": host, "uid": node.uid()});
        let body = json!({"metadata": {"ownerReferences": [owner]}, "spec": desired.spec});
        // The apply is forced: an agent answers DHCP requests from this object, so each lease in the object must have a
        // claim.
        let written = self.writer.apply(&target, body, FieldConflictPolicy::Force).await;
        let request = format!("apply spec of HostLeases {host}");
        written.map(drop).map_err(ReconcileFailure::with_request(request))
    }

    fn desired_leases(&self, host: &str, stored: Option<&HostLeases>) -> DesiredHostLeases {
        let claims = self.index.lock().unwrap_or_else(PoisonError::into_inner).claims_on(host);
        desired_host_leases(
            claims.iter().map(Arc::as_ref),
            |name| self.informers.tenants.get(name),
            stored.map(|stored| &stored.spec),
        )
    }

    /// Reports the number of leases that the HostLeases of a host have no room for, if this number has changed.
    async fn report_omitted(&self, infra_node: &InfraNode, omitted: usize) {
        let host = infra_node.name_any();
        let before = {
            let mut all = self.omitted.lock().unwrap_or_else(PoisonError::into_inner);
            if omitted == 0 { all.remove(&host) } else { all.insert(host.clone(), omitted) }
        };
        if omitted == 0 || before == Some(omitted) {
            return;
        }
        tracing::warn!(host, omitted, "HostLeases have no room for all leases of the host");
        let note = format!(
            "HostLeases {host}: no room for {omitted} leases; the agent does not answer DHCP requests of these \
             interfaces: move VMs to other hosts"
        );
        self.events.warn(infra_node, EventReason::LeasesOmitted.as_str(), &note).await;
    }
}

/// Returns true if the Node owns the object, and not an earlier Node of the same name.
fn is_owned(leases: &HostLeases, node: &Node) -> bool {
    let owners = leases.metadata.owner_references.iter().flatten();
    let mut owners = owners.map(|owner| Some(&owner.uid));
    owners.any(|uid| uid == node.metadata.uid.as_ref())
}
