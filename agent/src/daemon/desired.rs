//! Desired state of the host, from a file or from the InfraNode in the cluster.

use std::sync::Arc;

use berth_api::HostLeasesSpec;
use berth_api::infra_node::InfraNodeSpec;

use super::settings::Source;
use crate::cluster::{Generation, Store};
use crate::document::Document;
use crate::manifest::{Fault, Manifest, SpecPart, UnparsedParts};
use crate::state_folder;
use berth_host_facts::root::{ReadError, Root};

/// Desired state for one cycle.
#[derive(Debug)]
pub(super) struct HostDesiredState {
    pub(super) spec: InfraNodeSpec,
    pub(super) unparsed: UnparsedParts,
    pub(super) faults: Vec<Fault>,
    /// Reason why no part of the desired state is applied.
    pub(super) not_applied_reason: Option<String>,
    /// Generation of the InfraNode that contains the desired state.
    pub(super) generation: Option<Generation>,
    /// Leases of a manifest in a file; `None` if they are unknown, or come from the cluster.
    pub(super) leases: Option<Arc<HostLeasesSpec>>,
}

impl HostDesiredState {
    /// Returns an empty desired state that neither changes nor restores anything: the host keeps
    /// its last valid state.
    fn empty(generation: Option<Generation>) -> Self {
        Self {
            spec: InfraNodeSpec::default(),
            unparsed: UnparsedParts::all_except(&[]),
            faults: Vec::new(),
            not_applied_reason: None,
            generation,
            leases: None,
        }
    }

    /// Returns the empty desired state, with the reason why the desired state is not available.
    fn from_unavailable_reason(error: &UnavailableReason) -> Self {
        Self { not_applied_reason: Some(format_not_applied_reason(error)), ..Self::empty(None) }
    }

    /// Returns the empty desired state, because the manifest as a whole has a fault.
    fn from_fault(location: &str, fault: Fault, generation: Option<Generation>) -> Self {
        let reason = format_not_applied_reason(&format!("{location}: {fault}"));
        Self { not_applied_reason: Some(reason), faults: vec![fault], ..Self::empty(generation) }
    }

    /// Returns the fields of the desired state about networks; all other parts count as unparsed.
    pub(super) fn restrict_to_networks(&self) -> (InfraNodeSpec, UnparsedParts) {
        let spec = InfraNodeSpec {
            enforce: self.spec.enforce,
            networks: self.spec.networks.clone(),
            tenant_networks: self.spec.tenant_networks.clone(),
            ..InfraNodeSpec::default()
        };
        let mut unparsed = self.unparsed.clone();
        unparsed.parts.extend(UnparsedParts::all_except(&[SpecPart::Networks]).parts);
        (spec, unparsed)
    }
}

fn format_not_applied_reason(reason: &dyn std::fmt::Display) -> String {
    format!("{reason}: the host is not changed")
}

/// Reason why the desired state is unknown.
#[derive(Debug, thiserror::Error)]
enum UnavailableReason {
    #[error(transparent)]
    File(#[from] ReadError),
    #[error("the agent has not contacted the cluster yet")]
    NotConnected,
    #[error("the API server has not answered yet")]
    NoAnswer,
}

/// A manifest that was parsed, but not yet checked for the name of this node.
#[derive(Debug)]
pub(super) struct ManifestCandidate {
    location: String,
    manifest: Manifest,
    generation: Option<Generation>,
}

impl ManifestCandidate {
    /// Returns a fault if the manifest is meant for another node.
    pub(super) fn node_mismatch(&self, node: Option<&str>) -> Option<Fault> {
        self.manifest.node_mismatch(node)
    }

    /// Returns the desired state. `mismatch` is the fault of a manifest for another node; with this fault, returns the
    /// empty desired state.
    pub(super) fn into_desired(self, mismatch: Option<Fault>) -> HostDesiredState {
        match mismatch {
            Some(fault) => HostDesiredState::from_fault(&self.location, fault, self.generation),
            None => HostDesiredState {
                spec: self.manifest.spec,
                unparsed: self.manifest.unparsed,
                faults: self.manifest.faults,
                not_applied_reason: None,
                generation: self.generation,
                leases: self.manifest.leases,
            },
        }
    }
}

/// Reads the desired state, and stores the last document, so that it is parsed only if it changes.
#[derive(Debug)]
pub(super) struct DesiredReader {
    source: Source,
    /// True if the desired state of the cluster is saved on disk. An agent with `--observe` has no state folder.
    save_to_disk: bool,
    store: Option<Arc<Store>>,
    /// The document of the last read of a file.
    last_document: Option<Document>,
    /// The document that is saved on disk, for a start of the agent while the API server is unreachable.
    saved_document: Option<Document>,
}

/// Location of a manifest (a path or the name of an object), its document if there is one, and its generation.
type LocatedDocument = (String, Option<Document>, Option<Generation>);

impl DesiredReader {
    pub(super) const fn new(source: Source, save_to_disk: bool) -> Self {
        Self { source, save_to_disk, store: None, last_document: None, saved_document: None }
    }

    pub(super) fn connect_to_cluster(&mut self, root: &Root, store: Arc<Store>) {
        if let Ok(saved) = root.read_large(state_folder::LAST_MANIFEST_FILE) {
            let document = Document::parse(&saved);
            store.restore_desired(document.clone());
            self.saved_document = Some(document);
        }
        self.store = Some(store);
    }

    /// Returns the manifest. If there is no manifest yet, or if it cannot be read, returns an error with the empty
    /// desired state; for a manifest that cannot be read, this state contains the reason.
    pub(super) fn read(&mut self, root: &Root) -> Result<ManifestCandidate, Box<HostDesiredState>> {
        let (location, document, generation) = match self.read_document(root) {
            Ok((location, Some(document), generation)) => (location, document, generation),
            // No spec has been written yet, which does not mean that all changes must be reverted.
            Ok((_, None, generation)) => return Err(HostDesiredState::empty(generation).into()),
            Err(error) => return Err(HostDesiredState::from_unavailable_reason(&error).into()),
        };
        match document.manifest() {
            Ok(manifest) => {
                Ok(ManifestCandidate { location, manifest: manifest.clone(), generation })
            }
            Err(fault) => {
                Err(HostDesiredState::from_fault(&location, fault.clone(), generation).into())
            }
        }
    }

    fn read_document(&mut self, root: &Root) -> Result<LocatedDocument, UnavailableReason> {
        let (store, cluster) = match (&self.source, &self.store) {
            (Source::File(path), _) => {
                let path = path.to_string_lossy().into_owned();
                let text = root.read_large(&path)?;
                let last = self.last_document.take().filter(|last| last.text() == text);
                let document = last.unwrap_or_else(|| Document::parse(&text));
                self.last_document = Some(document.clone());
                return Ok((path, Some(document), None));
            }
            (Source::Cluster(cluster), Some(store)) => (store, cluster),
            (Source::Cluster(_), None) => return Err(UnavailableReason::NotConnected),
        };
        let name = &cluster.node;
        let desired = store.desired_state().ok_or(UnavailableReason::NoAnswer)?;
        let location = format!("InfraNode {name}");
        let Some(document) = desired.document else {
            return Ok((location, None, desired.generation));
        };
        if self.save_to_disk
            && desired.generation.is_some()
            && self.saved_document.as_ref() != Some(&document)
        {
            // Without the file, an agent that starts while the API server is unreachable applies no change, but also
            // corrects no drift.
            match state_folder::save_last_manifest(root, document.text()) {
                Ok(()) => self.saved_document = Some(document.clone()),
                Err(error) => tracing::warn!(
                    %error,
                    infra_node = %name,
                    "failed to persist the desired state, which is needed after a restart without the API server"
                ),
            }
        }
        Ok((location, Some(document), desired.generation))
    }
}
