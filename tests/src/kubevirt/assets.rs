//! Folder `KUBEVIRT_ASSETS` with KubeVirt's programs and the manifests that virt-operator would apply.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use berth_kubevirt_render::launcher::Version;

use super::Nodes;
use super::webhooks::WebhookConfiguration;

/// Files in the folder.
const FILES: [&str; 5] =
    ["VERSION", "virt-api", "virt-controller", "manifests/crds.yaml", "manifests/webhooks.yaml"];
/// Program that runs VMs on a host.
pub const VIRT_HANDLER: &str = "virt-handler";
/// Program that virt-handler runs in the namespaces of a launcher pod.
pub const VIRT_CHROOT: &str = "virt-chroot";
/// Archive of the image of launcher pods, `docker.io/kubevirt/virt-launcher` with the release as its tag.
pub const LAUNCHER_IMAGE: &str = "launcher-image.tar";
/// Archive of the image `berth.test/guest:1` with the kernel and the initial RAM disk of a small guest.
pub const GUEST_IMAGE: &str = "guest-image.tar";
/// Permissions of KubeVirt's programs.
pub(super) const PERMISSIONS: &str = "manifests/rbac.yaml";
/// Further files in the folder, for VMs on hosts.
const HOST_FILES: [&str; 5] = [VIRT_HANDLER, VIRT_CHROOT, LAUNCHER_IMAGE, GUEST_IMAGE, PERMISSIONS];

/// Variable that names the folder.
pub(crate) const ASSETS_VARIABLE: &str = "KUBEVIRT_ASSETS";

/// Programs and manifests of a KubeVirt release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assets {
    folder: PathBuf,
    version: Version,
    crds: String,
    webhooks: Vec<WebhookConfiguration>,
}

impl Assets {
    /// Reads the folder that `KUBEVIRT_ASSETS` names.
    ///
    /// # Errors
    /// Fails if the variable is not set, or if a file is missing or malformed.
    pub fn find() -> Result<Self> {
        Self::find_with(&FILES)
    }

    /// Reads the folder like [`Self::find`]. The folder must also have the files for VMs on hosts.
    ///
    /// # Errors
    /// Fails like [`Self::find`].
    pub fn find_for_hosts() -> Result<Self> {
        let files = [&FILES[..], &HOST_FILES].concat();
        let assets = Self::find_with(&files)?;
        require_files(ASSETS_VARIABLE, &assets.folder, &HOST_FILES)?;
        Ok(assets)
    }

    /// Reads the folder that the variable names. `files` are the names of its files, for the error message.
    fn find_with(files: &[&str]) -> Result<Self> {
        Self::read(&find_folder(ASSETS_VARIABLE, files)?)
    }

    fn read(folder: &Path) -> Result<Self> {
        require_files(ASSETS_VARIABLE, folder, &FILES)?;
        let text = |name: &str| {
            let file = folder.join(name);
            fs::read_to_string(&file).with_context(|| file.display().to_string())
        };
        let in_file = |name: &str| folder.join(name).display().to_string();
        let [version, _, _, crds, webhooks] = FILES;
        Ok(Self {
            folder: folder.canonicalize()?,
            version: text(version)?.trim().parse().with_context(|| in_file(version))?,
            crds: text(crds)?,
            webhooks: WebhookConfiguration::parse_all(&text(webhooks)?)
                .with_context(|| in_file(webhooks))?,
        })
    }

    /// Returns the KubeVirt release.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the path of a file in the folder.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the name of the image in launcher pods.
    #[must_use]
    pub fn launcher_image(&self, nodes: Nodes) -> String {
        let registry = match nodes {
            // Nothing runs on simulated Nodes, so the image need not exist in any registry.
            Nodes::Simulated => "registry.invalid",
            Nodes::Real { .. } => "docker.io/kubevirt",
        };
        format!("{registry}/virt-launcher:{}", self.version)
    }

    /// Returns the folder of the programs.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns KubeVirt's CustomResourceDefinitions as YAML documents.
    pub(super) fn crds(&self) -> &str {
        &self.crds
    }

    /// Returns the webhook configurations of virt-api.
    pub(super) fn webhooks(&self) -> &[WebhookConfiguration] {
        &self.webhooks
    }
}

/// Returns the folder that a variable names. `files` are the names of its files, for the error message.
pub(crate) fn find_folder(variable: &str, files: &[&str]) -> Result<PathBuf> {
    let folder = std::env::var_os(variable).with_context(|| {
        format!("{variable} is not set: set it to a folder with {}", files.join(", "))
    })?;
    Ok(PathBuf::from(folder))
}

/// Checks that the folder that a variable names has these files.
pub(crate) fn require_files(variable: &str, folder: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        ensure!(
            folder.join(name).exists(),
            "{variable}={}: {name} is missing in this folder",
            folder.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_malformed_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = || format!("{:#}", Assets::read(folder.path()).unwrap_err());
        assert!(error().contains("VERSION is missing in this folder"), "{}", error());
        fs::create_dir(folder.path().join("manifests")).unwrap();
        for name in FILES {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert!(error().contains("VERSION: `` is not a supported KubeVirt release"), "{}", error());
        fs::write(folder.path().join("VERSION"), "v1.9.0\n").unwrap();
        assert!(error().contains("manifests/webhooks.yaml: "), "{}", error());
        fs::remove_file(folder.path().join("virt-controller")).unwrap();
        assert!(error().contains("virt-controller is missing in this folder"), "{}", error());
    }
}
