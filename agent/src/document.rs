//! A manifest together with its text. The text is parsed only once, because parsing thousands of tenants is slow,
//! and most cycles change no tenant.

use std::sync::Arc;

use serde_json::Value;

use crate::manifest::{Fault, Manifest};

/// A manifest of an InfraNode; two documents are equal if their texts are equal.
#[derive(Debug, Clone)]
pub struct Document {
    text: Arc<str>,
    manifest: Arc<Result<Manifest, Fault>>,
}

impl PartialEq for Document {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Document {}

impl Document {
    /// Parses the text of a manifest, which is YAML or JSON.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self { text: text.into(), manifest: Arc::new(Manifest::parse(text)) }
    }

    /// Converts an object of the API server.
    #[must_use]
    pub fn from_object(tree: &Value) -> Self {
        Self { text: tree.to_string().into(), manifest: Arc::new(Manifest::from_tree(tree)) }
    }

    /// Returns the text, to save it to disk.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the parsed manifest.
    ///
    /// # Errors
    /// If the text is not a single InfraNode.
    pub fn manifest(&self) -> &Result<Manifest, Fault> {
        &self.manifest
    }
}
