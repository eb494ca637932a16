//! A manifest with its text, parsed once: thousands of tenants take a while to parse, and most cycles change none.

use std::sync::Arc;

use serde_json::Value;

use crate::manifest::{Fault, Manifest};

/// A manifest of an InfraNode; two are equal if their texts are.
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
    /// Parses YAML or JSON.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self { text: text.into(), manifest: Arc::new(Manifest::parse(text)) }
    }

    /// Reads an object of the API server.
    #[must_use]
    pub fn from_object(tree: &Value) -> Self {
        Self { text: tree.to_string().into(), manifest: Arc::new(Manifest::from_tree(tree)) }
    }

    /// Returns the text, for the disk.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the manifest.
    ///
    /// # Errors
    /// If the text is not one InfraNode.
    pub fn manifest(&self) -> &Result<Manifest, Fault> {
        &self.manifest
    }
}
