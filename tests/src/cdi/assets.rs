//! Folder `CDI_ASSETS` with CDI's programs and the manifests that cdi-operator would apply.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::kubevirt::{WebhookConfiguration, find_folder, require_files};

/// Program with CDI's controllers.
pub(super) const CONTROLLER: &str = "cdi-controller";
/// Program that serves CDI's webhooks.
pub(super) const API_SERVER: &str = "cdi-apiserver";
/// Files in the folder.
const FILES: [&str; 5] =
    ["VERSION", CONTROLLER, API_SERVER, "manifests/crds.yaml", "manifests/webhooks.yaml"];
/// Variable that names the folder.
const VARIABLE: &str = "CDI_ASSETS";

/// Programs and manifests of a CDI release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assets {
    folder: PathBuf,
    version: String,
    definitions: String,
    webhooks: Vec<WebhookConfiguration>,
}

impl Assets {
    /// Reads the folder that `CDI_ASSETS` names.
    ///
    /// # Errors
    /// Fails if the variable is not set, or if a file is missing or malformed.
    pub fn find() -> Result<Self> {
        Self::read(&find_folder(VARIABLE, &FILES)?)
    }

    fn read(folder: &Path) -> Result<Self> {
        require_files(VARIABLE, folder, &FILES)?;
        let text = |name: &str| {
            let file = folder.join(name);
            fs::read_to_string(&file).with_context(|| file.display().to_string())
        };
        let [version, _, _, definitions, webhooks] = FILES;
        Ok(Self {
            folder: folder.canonicalize()?,
            version: text(version)?.trim().to_owned(),
            definitions: text(definitions)?,
            webhooks: WebhookConfiguration::parse_all(&text(webhooks)?)
                .with_context(|| folder.join(webhooks).display().to_string())?,
        })
    }

    /// Returns the CDI release, such as `v1.66.0`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the folder of the programs.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns CDI's CustomResourceDefinitions as YAML documents.
    pub(super) fn definitions(&self) -> &str {
        &self.definitions
    }

    /// Returns the webhook configurations of cdi-apiserver.
    pub(super) fn webhooks(&self) -> &[WebhookConfiguration] {
        &self.webhooks
    }
}
