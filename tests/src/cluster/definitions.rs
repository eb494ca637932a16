//! CustomResourceDefinitions of other projects that tests need.

use std::fs::{self, File};
use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use flate2::read::GzDecoder;
use serde_json::json;

use super::ControlPlane;
use crate::repository;

impl ControlPlane {
    /// Defines a namespaced kind whose schema accepts any content.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn define_kind(&self, group: &str, version: &str, kind: &str, plural: &str) -> Result<()> {
        self.define_kind_in_scope(group, version, kind, plural, "Namespaced")
    }

    /// Defines a kind in the given scope whose schema accepts any content.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn define_kind_in_scope(
        &self,
        group: &str,
        version: &str,
        kind: &str,
        plural: &str,
        scope: &str,
    ) -> Result<()> {
        self.define_versions(group, &[version], kind, plural, scope)
    }

    /// Defines a kind with several versions. The first version is stored.
    fn define_versions(
        &self,
        group: &str,
        versions: &[&str],
        kind: &str,
        plural: &str,
        scope: &str,
    ) -> Result<()> {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let versions: Vec<_> = versions
            .iter()
            .enumerate()
            .map(|(index, version)| {
                json!({
                    "name": version, "served": true, "storage": index == 0, "schema": {"openAPIV3Schema": schema},
                })
            })
            .collect();
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{plural}.{group}"),
                // Required for groups below `k8s.io`.
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests only"},
            },
            "spec": {
                "group": group, "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": versions,
            },
        });
        self.apply(&crd.to_string())?;
        self.wait_until_served(&format!("{plural}.{group}"))
    }

    /// Defines the NetworkAttachmentDefinition kind, which configures the CNI plugins of tenant networks.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn define_network_attachments(&self) -> Result<()> {
        let plural = "network-attachment-definitions";
        self.define_kind("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition", plural)
    }

    /// Defines the MachineDeployment kind from the files of `deploy/`.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn define_machine_deployments(&self) -> Result<()> {
        let name = "machinedeployments.cluster.k8s.io";
        self.create_file(&repository().join(format!("deploy/overlays/machine-crds/{name}.yaml")))?;
        self.wait_until_served(name)
    }

    /// Installs the kinds that machines of tenants need: KubeVirt's kinds except cluster-scoped instance types,
    /// NetworkAttachmentDefinition and MachineDeployment.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn install_machine_kinds(&self) -> Result<()> {
        self.install_kubevirt_crds(&[
            "virtualmachines.kubevirt.io",
            "virtualmachineinstances.kubevirt.io",
            "virtualmachineinstancetypes.instancetype.kubevirt.io",
            "virtualmachinepreferences.instancetype.kubevirt.io",
        ])?;
        self.define_network_attachments()?;
        self.define_machine_deployments()
    }

    /// Creates the storage class that the machines of `examples/tenants` name.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn create_example_storage_class(&self) -> Result<()> {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "longhorn"},
            "provisioner": "driver.longhorn.io",
        });
        self.apply(&class.to_string()).map(drop)
    }

    /// Applies CustomResourceDefinitions, and waits until all kinds are served. A controller may wait forever for the list
    /// of a kind that is not served.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn apply_definitions(&self, definitions: &str, timeout: Duration) -> Result<()> {
        self.apply(definitions)?;
        let wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
        self.wait_until("all CRDs are established", timeout, |plane| plane.kubectl(&wait).ok())
            .map(drop)
    }

    /// Installs KubeVirt's own definitions of these kinds, with their whole schemas.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`], and if `tests/data/crds` does not contain a definition.
    pub fn install_kubevirt_crds(&self, names: &[&str]) -> Result<()> {
        self.install_crds(names)
    }

    /// Installs the kinds that MetalLB's controller reads: MetalLB's own definitions, with their whole schemas. The
    /// kinds of BGP have no schemas, because the tests create no objects of these kinds.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn install_metallb_crds(&self) -> Result<()> {
        self.install_crds(&[
            "ipaddresspools.metallb.io",
            "l2advertisements.metallb.io",
            "communities.metallb.io",
            "configurationstates.metallb.io",
        ])?;
        let of_bgp: [(&str, &str, &[&str]); 4] = [
            ("BFDProfile", "bfdprofiles", &["v1beta1"]),
            ("BGPAdvertisement", "bgpadvertisements", &["v1beta1"]),
            ("BGPPeer", "bgppeers", &["v1beta2", "v1beta1"]),
            ("ServiceBGPStatus", "servicebgpstatuses", &["v1beta1"]),
        ];
        of_bgp.iter().try_for_each(|(kind, plural, versions)| {
            self.define_versions("metallb.io", versions, kind, plural, "Namespaced")
        })
    }

    /// Installs definitions of `tests/data/crds`.
    fn install_crds(&self, names: &[&str]) -> Result<()> {
        for name in names {
            let file = repository().join(format!("tests/data/crds/{name}.json.gz"));
            let packed = File::open(&file).with_context(|| file.display().to_string())?;
            let mut text = String::new();
            GzDecoder::new(packed).read_to_string(&mut text)?;
            // Server-side apply of a large definition needs much more time than its creation.
            let definition = serde_json::from_str(&text)?;
            if !self.try_create(&definition) {
                self.apply(&text)?;
            }
        }
        names.iter().try_for_each(|name| self.wait_until_served(name))
    }

    /// Waits until the kind of a CRD is served, which may happen shortly after the CRD has the condition Established.
    pub(super) fn wait_until_served(&self, name: &str) -> Result<()> {
        self.wait_until(&format!("crd/{name} is served"), Duration::from_secs(30), |plane| {
            let kind = plane.kinds.find(&plane.client, |kind| kind.has_word(name))?;
            matches!(plane.client.get(&kind.path(None)), Some(Ok(_))).then_some(())
        })?;
        // kubectl caches the served kinds for ten minutes. The folder is missing before the first call of kubectl.
        fs::remove_dir_all(self.kubectl_cache()).unwrap_or_default();
        Ok(())
    }
}
