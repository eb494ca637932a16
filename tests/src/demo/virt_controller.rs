//! virt-controller of the demo: KubeVirt's own program with virt-api, if `KUBEVIRT_ASSETS` names a folder with both,
//! otherwise [`LauncherSimulation`].
//!
//! The real kubelets run the launcher pods of the real virt-controller unchanged. These parts are simulated, because an
//! emulated host cannot run guests: virt-launcher ([`prepare_host`]), virt-handler and CDI
//! ([`Simulation::start_without_kubelets`], [`EndedLaunchers`]), and the NFS server of CDI's volumes
//! ([`prepare_host`]).

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::runtime::Runtime;

use super::launchers::LauncherSimulation;
use super::manifests;
use crate::cluster::{ControlPlane, Version};
use crate::host::Host;
use crate::kubevirt::{
    ASSETS_VARIABLE, Assets, KubeVirt, Nodes, OLDEST_KUBERNETES, Simulation, define_cdi_kinds,
};
use crate::simulated::{create_client, create_runtime};

/// Time between two iterations of [`EndedLaunchers`].
const INTERVAL: Duration = Duration::from_secs(2);
/// Script that prepares a host; `IMAGE` is replaced with the name of the launcher image.
///
/// The image contains busybox, and a script in place of virt-launcher-monitor (container `compute`) and of virt-tail
/// (container `guest-console-log`). The kubelet's plugin for NFS volumes calls mount.nfs, which mounts an empty file
/// system here.
const PREPARE_HOST_SCRIPT: &str = r#"set -e
work=$(mktemp -d)
mkdir -p $work/layer/bin $work/layer/usr/bin $work/image /var/lib/kubelet-tests
cp /bin/busybox $work/layer/bin/busybox
ln -s busybox $work/layer/bin/sh
ln -s busybox $work/layer/bin/sleep
cat >$work/layer/usr/bin/virt-launcher-monitor <<'END'
#!/bin/sh
# The first process of a container ignores SIGTERM unless it handles the signal.
trap 'exit 0' TERM
/bin/sleep 1000000 &
wait
END
ln -s virt-launcher-monitor $work/layer/usr/bin/virt-tail
chmod -R a+rX,u+w $work/layer
chmod 755 $work/layer/usr/bin/virt-launcher-monitor
tar -C $work/layer --owner=0 --group=0 -cf $work/image/layer.tar .
sum=$(sha256sum $work/image/layer.tar | cut -d' ' -f1)
cat >$work/image/config.json <<END
{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/usr/bin/virt-launcher-monitor"]},"rootfs":{"type":"layers","diff_ids":["sha256:$sum"]}}
END
cat >$work/image/manifest.json <<'END'
[{"Config":"config.json","RepoTags":["IMAGE"],"Layers":["layer.tar"]}]
END
tar -C $work/image -cf /var/lib/kubelet-tests/virt-launcher.tar .
rm -r $work
cat >/sbin/mount.nfs <<'END'
#!/bin/sh
exec /bin/mount -t tmpfs -o size=1m "$1" "$2"
END
chmod 755 /sbin/mount.nfs
sync
"#;

/// virt-controller that the demo is to use.
#[derive(Debug)]
pub(super) enum Selection {
    /// KubeVirt's own program.
    Real(Assets),
    /// The simulation, and the reason for its selection.
    Simulated(String),
}

impl Selection {
    /// Selects KubeVirt's own program if `KUBEVIRT_ASSETS` is set.
    ///
    /// # Errors
    /// Fails if the folder is incomplete.
    pub(super) fn from_environment() -> Result<Self> {
        if std::env::var_os(ASSETS_VARIABLE).is_none() {
            return Ok(Self::Simulated(format!("{ASSETS_VARIABLE} is not set")));
        }
        Ok(Self::Real(Assets::find()?))
    }

    /// Selects the simulation if the server is too old for KubeVirt.
    fn for_server(self, server: Version) -> Self {
        match self {
            Self::Real(assets) if server < OLDEST_KUBERNETES => Self::Simulated(format!(
                "KubeVirt {} requires Kubernetes {OLDEST_KUBERNETES}, the server has {server}",
                assets.version()
            )),
            selection => selection,
        }
    }

    pub(super) const fn is_real(&self) -> bool {
        matches!(self, Self::Real(_))
    }
}

/// Running virt-controller, stopped on drop.
#[derive(Debug)]
pub(super) struct VirtController {
    // On drop, the parts are stopped in the order of the fields.
    _launchers: Option<LauncherSimulation>,
    _ended_launchers: Option<EndedLaunchers>,
    _simulation: Option<Simulation>,
    kubevirt: Option<KubeVirt>,
    /// Image of the launcher pods; `None` if virt-controller is simulated.
    launcher_image: Option<String>,
    /// Name of the program for the output of the demo.
    name: String,
    /// Progress message that is printed after the start.
    step: String,
}

impl VirtController {
    /// Installs KubeVirt's definitions and configuration, and starts KubeVirt's programs if they are selected.
    ///
    /// # Errors
    /// Fails if the server refuses an object, or if a program does not start.
    pub(super) fn start(plane: &ControlPlane, selection: Selection) -> Result<Self> {
        let this = Self {
            _launchers: None,
            _ended_launchers: None,
            _simulation: None,
            kubevirt: None,
            launcher_image: None,
            name: "the simulation of virt-controller".to_owned(),
            step: String::new(),
        };
        match selection.for_server(plane.version()) {
            Selection::Simulated(reason) => {
                manifests::apply_kubevirt_objects(plane)?;
                Ok(Self { step: format!("virt-controller is simulated: {reason}"), ..this })
            }
            Selection::Real(assets) => {
                let version = assets.version();
                Ok(Self {
                    kubevirt: Some(start_kubevirt(plane, &assets)?),
                    launcher_image: Some(assets.launcher_image(Nodes::Simulated)),
                    name: format!("virt-controller {version}"),
                    step: format!(
                        "virt-api and virt-controller of KubeVirt {version} are running \
                         ({ASSETS_VARIABLE}); virt-handler and CDI are simulated"
                    ),
                    ..this
                })
            }
        }
    }

    /// Starts the simulated parts.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub(super) fn start_simulations(&mut self, plane: &ControlPlane) -> Result<()> {
        match &self.kubevirt {
            Some(kubevirt) => {
                self._simulation = Some(Simulation::start_without_kubelets(plane, kubevirt)?);
                self._ended_launchers = Some(EndedLaunchers::start(kubevirt.kubeconfig())?);
            }
            None => {
                let object = manifests::kubevirt_object();
                self._launchers = Some(LauncherSimulation::start(&plane.kubeconfig(), &object)?);
            }
        }
        Ok(())
    }

    /// Returns the name of the program for the output of the demo.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the progress message that is printed after the start.
    pub(super) fn step(&self) -> &str {
        &self.step
    }

    /// Returns true for KubeVirt's own program.
    pub(super) const fn is_real(&self) -> bool {
        self.kubevirt.is_some()
    }

    /// Returns the image of the launcher pods, with which [`prepare_host`] must prepare each host; `None` if
    /// virt-controller is simulated.
    pub(super) fn launcher_image(&self) -> Option<&str> {
        self.launcher_image.as_deref()
    }

    /// Returns a kubeconfig with the permission to write the status of VirtualMachineInstances.
    pub(super) fn instance_kubeconfig(&self, plane: &ControlPlane) -> PathBuf {
        let kubevirt = self.kubevirt.as_ref();
        kubevirt.map_or_else(|| plane.kubeconfig(), |kubevirt| kubevirt.kubeconfig().to_owned())
    }
}

/// Starts virt-api and virt-controller with the configuration of the demo.
fn start_kubevirt(plane: &ControlPlane, assets: &Assets) -> Result<KubeVirt> {
    // The machines have disks that CDI would import, so CDI's kinds are needed. They must exist before KubeVirt's
    // programs start.
    define_cdi_kinds(plane)?;
    let kubevirt = KubeVirt::start(plane, assets, Nodes::Simulated)?;
    // Both programs use a changed configuration without a restart.
    let configuration = json!({"spec": manifests::kubevirt_object()["spec"]}).to_string();
    let patch = ["patch", "kubevirt", "kubevirt", "-n", "kubevirt", "--type=merge"];
    plane.kubectl(&[&patch[..], &["-p", &configuration]].concat())?;
    Ok(kubevirt)
}

/// Installs the image of the launcher pods on a host before its kubelet starts. Also installs a program that mounts
/// empty file systems in place of the volumes.
///
/// # Errors
/// Fails like [`Host::run_checked`].
pub(super) fn prepare_host(host: &mut Host, launcher_image: &str) -> Result<()> {
    host.run_checked(&PREPARE_HOST_SCRIPT.replace("IMAGE", launcher_image)).map(drop)
}

/// Part of virt-handler that [`Simulation`] lacks, because simulated kubelets end no containers: an instance whose
/// launcher pod has ended, for example because its host lost power, ends too.
#[derive(Debug)]
struct EndedLaunchers(Option<Runtime>);

impl EndedLaunchers {
    fn start(kubeconfig: &Path) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(kubeconfig))?;
        runtime.spawn(async move {
            loop {
                // After an error, such as a conflict or a busy server, the next iteration tries again.
                if let Err(error) = end_instances(&client).await {
                    writeln!(std::io::stderr(), "simulated virt-handler: {error:#}")
                        .unwrap_or_default();
                }
                tokio::time::sleep(INTERVAL).await;
            }
        });
        Ok(Self(Some(runtime)))
    }
}

impl Drop for EndedLaunchers {
    fn drop(&mut self) {
        self.0.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

/// Ends each instance whose launcher pod has ended. virt-controller itself handles pods that end before their instance
/// is scheduled, and pods that are deleted.
async fn end_instances(client: &Client) -> Result<()> {
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
    let resource = ApiResource::from_gvk(&kind);
    let pods: Api<Pod> = Api::all(client.clone());
    let params = ListParams::default().labels("kubevirt.io=virt-launcher");
    for pod in pods.list(&params).await?.items {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(phase @ ("Failed" | "Succeeded")) = phase else { continue };
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let Some(owner) = pod.owner_references().first() else { continue };
        let namespace = pod.namespace().unwrap_or_default();
        let instances: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &namespace, &resource);
        let Some(instance) = instances.get_opt(&owner.name).await? else { continue };
        let status = &instance.data["status"];
        let is_active = ["Scheduled", "Running"].into_iter().any(|one| status["phase"] == one);
        let is_owner = instance.uid().as_deref() == Some(owner.uid.as_str());
        let host = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if is_active && is_owner && status["nodeName"].as_str() == host {
            let patch = Patch::Merge(json!({"status": {"phase": phase}}));
            instances.patch(&owner.name, &PatchParams::default(), &patch).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulation_is_selected_with_a_reason() {
        let simulated = Selection::Simulated("KUBEVIRT_ASSETS is not set".to_owned());
        assert!(!simulated.is_real());
        let Selection::Simulated(reason) = simulated.for_server(Version(1, 36)) else {
            panic!("the selection has changed");
        };
        assert_eq!(reason, "KUBEVIRT_ASSETS is not set");
    }

    #[test]
    fn launcher_image_is_named_once() {
        assert_eq!(PREPARE_HOST_SCRIPT.matches("IMAGE").count(), 1);
    }
}
