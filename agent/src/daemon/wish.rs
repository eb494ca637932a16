//! What the host is asked to be, from a file or from the cluster, as far as it is clear.

use std::sync::Arc;

use berth_api::infra_node::InfraNodeSpec;

use super::Source;
use crate::cluster::{Generation, Seen};
use crate::ledger;
use crate::manifest::{Fault, Manifest, Part, Unclear};
use crate::root::Root;

/// What is wanted.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) spec: InfraNodeSpec,
    pub(super) unclear: Unclear,
    pub(super) faults: Vec<Fault>,
    /// Why nothing of it is carried out.
    pub(super) waiting: Option<String>,
    /// The InfraNode that it comes from.
    pub(super) generation: Option<Generation>,
}

impl Wish {
    /// Nothing is changed and nothing put back: the host keeps its last good shape.
    pub(super) fn nothing(why: &str, faults: Vec<Fault>) -> Self {
        Self {
            spec: InfraNodeSpec::default(),
            unclear: Unclear::all_but(&[]),
            faults,
            waiting: Some(format!("{why}: the host stays as it is")),
            generation: None,
        }
    }

    /// Nothing is changed, as what is asked for as a whole is a mistake.
    fn fault(place: &str, fault: Fault, generation: Option<Generation>) -> Self {
        let why = format!("{place}: {fault}");
        Self { generation, ..Self::nothing(&why, vec![fault]) }
    }

    /// Only what it says of networks.
    pub(super) fn of_networks(&self) -> (InfraNodeSpec, Unclear) {
        let spec = InfraNodeSpec {
            enforce: self.spec.enforce,
            networks: self.spec.networks.clone(),
            tenant_networks: self.spec.tenant_networks.clone(),
            ..InfraNodeSpec::default()
        };
        let mut unclear = self.unclear.clone();
        unclear.parts.extend(Unclear::all_but(&[Part::Networks]).parts);
        (spec, unclear)
    }
}

/// A manifest that can be read.
#[derive(Debug)]
pub(super) struct Wanted {
    place: String,
    manifest: Manifest,
    generation: Option<Generation>,
}

impl Wanted {
    /// Why it is not this node's, if it is another's.
    pub(super) fn meant_for_another(&self, node: Option<&str>) -> Option<Fault> {
        self.manifest.meant_for_another(node)
    }

    /// What it asks for, unless it is another's.
    pub(super) fn unless(self, another: Option<Fault>) -> Wish {
        match another {
            Some(fault) => Wish::fault(&self.place, fault, self.generation),
            None => Wish {
                spec: self.manifest.spec,
                unclear: self.manifest.unclear,
                faults: self.manifest.faults,
                waiting: None,
                generation: self.generation,
            },
        }
    }
}

/// Where wishes come from, and what was read last.
#[derive(Debug)]
pub(super) struct Wishes {
    source: Source,
    /// Whether what the cluster asked for is kept on disk; who only observes has no place there.
    keeps: bool,
    seen: Option<Arc<Seen>>,
    /// The manifest that was read last: thousands of tenants take a while to read, and most cycles change none.
    read: Option<(String, Result<Manifest, Fault>)>,
    /// What the cluster asked for last is on disk, for a start while it is away.
    saved: Option<Arc<str>>,
}

/// Where a manifest comes from, its text if there is one, and its generation.
type Found = (String, Option<Arc<str>>, Option<Generation>);

impl Wishes {
    pub(super) const fn new(source: Source, keeps: bool) -> Self {
        Self { source, keeps, seen: None, read: None, saved: None }
    }

    /// From now on the cluster says.
    pub(super) fn join(&mut self, root: &Root, seen: Arc<Seen>) {
        if let Ok(saved) = root.read_large(ledger::ASKED_LAST) {
            seen.remember(&saved);
            self.saved = Some(saved.into());
        }
        self.seen = Some(seen);
    }

    /// What is asked for now; or, if that is nothing or not clear, what to do then.
    pub(super) fn read(&mut self, root: &Root) -> Result<Wanted, Box<Wish>> {
        let (place, text, generation) = match self.text(root) {
            Ok((place, Some(text), generation)) => (place, text, generation),
            // Nobody has asked for anything, which is not to ask for all to be put back.
            Ok((_, None, generation)) => {
                let nothing = Wish { waiting: None, generation, ..Wish::nothing("", Vec::new()) };
                return Err(nothing.into());
            }
            Err(why) => return Err(Wish::nothing(&why, Vec::new()).into()),
        };
        let known = self.read.take().filter(|(known, _)| *known == *text);
        let (text, parsed) = known.unwrap_or_else(|| {
            let parsed = Manifest::parse(&text);
            (text.to_string(), parsed)
        });
        self.read = Some((text, parsed.clone()));
        match parsed {
            Ok(manifest) => Ok(Wanted { place, manifest, generation }),
            Err(fault) => Err(Wish::fault(&place, fault, generation).into()),
        }
    }

    /// The manifest's text, where it comes from, and its generation; or why there is none.
    fn text(&mut self, root: &Root) -> Result<Found, String> {
        let (seen, cluster) = match (&self.source, &self.seen) {
            (Source::File(path), _) => {
                let path = path.to_string_lossy().into_owned();
                let text = root.read_large(&path).map_err(|error| error.to_string())?;
                return Ok((path, Some(text.into()), None));
            }
            (Source::Cluster(cluster), Some(seen)) => (seen, cluster),
            (Source::Cluster(_), None) => return Err("the cluster was not asked yet".to_owned()),
        };
        let name = &cluster.node;
        let asked = seen.asked().ok_or("the API server has not answered yet")?;
        let place = format!("InfraNode {name}");
        let Some(text) = asked.manifest else { return Ok((place, None, asked.generation)) };
        if self.keeps && asked.generation.is_some() && self.saved.as_ref() != Some(&text) {
            // Without it a start while the cluster is away keeps the shape, but repairs nothing.
            match ledger::keep_asked(root, &text) {
                Ok(()) => self.saved = Some(Arc::clone(&text)),
                Err(error) => tracing::warn!(
                    "{error}; what is asked for is not kept for a start without the cluster"
                ),
            }
        }
        Ok((place, Some(text), asked.generation))
    }
}
