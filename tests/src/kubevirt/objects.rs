//! Objects that virt-operator would create before it starts virt-api and virt-controller.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Nodes;
use super::assets::{Assets, PERMISSIONS};
use crate::cluster::ControlPlane;

/// Namespace of KubeVirt.
pub(super) const NAMESPACE: &str = "kubevirt";
/// ConfigMaps with the CAs of KubeVirt's programs. virt-controller lists all of them.
const CA_CONFIG_MAPS: [&str; 3] = ["kubevirt-ca", "kubevirt-export-ca", "kubevirt-backup-ca"];
/// Time limit for the API server to publish an object.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Creates the objects, and waits until virt-api can start.
///
/// # Errors
/// Fails if the server refuses an object, or does not publish the CA of front proxies.
pub(super) fn create_objects(plane: &ControlPlane, assets: &Assets, nodes: Nodes) -> Result<()> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    plane.apply(&namespace.to_string())?;
    plane
        .apply_definitions(assets.crds(), TIMEOUT)
        .context("KUBEVIRT_ASSETS: manifests/crds.yaml")?;
    let authority = fs::read_to_string(plane.authority())?;
    for name in CA_CONFIG_MAPS {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE},
            "data": {"ca-bundle": authority},
        });
        plane.apply(&map.to_string())?;
    }
    if let Nodes::Real { .. } = nodes {
        // virt-handler uses the token of its ServiceAccount.
        plane.apply(&fs::read_to_string(assets.file(PERMISSIONS))?).context(PERMISSIONS)?;
    }
    create_configuration(plane, assets, nodes)?;
    // virt-api exits without the CA of front proxies, which the API server publishes some time after it is ready.
    plane.wait_until("the authority of front proxies is published", TIMEOUT, |plane| {
        let map = ["configmap", "extension-apiserver-authentication", "-n", "kube-system"];
        let map = plane.get_json(&map).ok()?;
        map["data"]["requestheader-client-ca-file"].is_string().then_some(())
    })
}

/// Creates the KubeVirt object. KubeVirt ignores this object until its status has a phase, and refuses VMs without an
/// architecture until its status has a default architecture.
fn create_configuration(plane: &ControlPlane, assets: &Assets, nodes: Nodes) -> Result<()> {
    let mut gates = vec!["CPUManager"];
    if !assets.version().is_at_least(9, 0) {
        // Gates of hotplugged disks, which are enabled by default since 1.9.
        gates.extend(["DeclarativeHotplugVolumes", "ExpandDisks"]);
    }
    let mut configuration = json!({"developerConfiguration": {"featureGates": gates}});
    if let Nodes::Real { uses_emulation } = nodes {
        // No registry has the images, so the kubelets must not pull the images that their hosts have.
        configuration["imagePullPolicy"] = "IfNotPresent".into();
        let developer = &mut configuration["developerConfiguration"];
        developer["useEmulation"] = uses_emulation.into();
        // containerd 1.6 cannot mount an image as a volume.
        developer["disabledFeatureGates"] = json!(["ImageVolume"]);
    }
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": NAMESPACE},
        "spec": {"configuration": configuration},
    });
    plane.apply(&object.to_string())?;
    let version = assets.version().to_string();
    let status: Value = json!({"status": {
        "phase": "Deployed", "defaultArchitecture": "amd64",
        "observedKubeVirtVersion": version, "targetKubeVirtVersion": version,
        "conditions": [{"type": "Available", "status": "True", "reason": "AllComponentsReady"}],
    }});
    let status = status.to_string();
    let patch = ["patch", "kubevirt", "kubevirt", "-n", NAMESPACE, "--subresource=status"];
    plane.kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat()).map(drop)
}
