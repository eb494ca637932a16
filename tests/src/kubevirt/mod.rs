//! KubeVirt's own virt-api and virt-controller beside a test control plane, without virt-operator and without images.
//!
//! The programs come from the folder `KUBEVIRT_ASSETS` ([`Assets`]). [`KubeVirt`] starts them with the objects that
//! virt-operator would create. With [`Nodes::Simulated`], nothing runs on the Nodes: [`Simulation`] replaces the
//! kubelets with their agents, virt-handler, CDI, and provisioners.

#![expect(clippy::disallowed_methods, reason = "tests write and read files")]

mod agent;
mod assets;
mod cdi;
mod data_volume;
mod hotplug;
mod kubelet;
mod migration;
mod objects;
mod pod_status;
mod programs;
pub(crate) mod provisioner;
mod simulation;
mod subresources;
mod virt_handler;
mod webhooks;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::{ControlPlane, Version, free_ports};
use crate::running::Running;
pub(crate) use assets::{ASSETS_VARIABLE, find_folder, require_files};
pub use assets::{Assets, GUEST_IMAGE, LAUNCHER_IMAGE, VIRT_CHROOT, VIRT_HANDLER};
pub use cdi::define_kinds as define_cdi_kinds;
pub use kubelet::SimulatedHost;
pub(crate) use programs::https_get;
pub use simulation::Simulation;
pub(crate) use simulation::{current_time, finish_round};
pub use subresources::{SERVING_NAMES, publish_subresources};
pub(crate) use webhooks::WebhookConfiguration;

/// Oldest Kubernetes release that evaluates the `matchConditions` of KubeVirt's webhooks by default.
pub(crate) const OLDEST_KUBERNETES: Version = Version(1, 28);
/// File from which KubeVirt's programs read their namespace; without the file, the programs use the namespace
/// `kubevirt`. No flag sets the namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Folder of the certificates, below the control plane's folder. KubeVirt's programs load their certificates again
/// whenever any file in this folder is written, so no log may be there.
const CERTIFICATE_FOLDER: &str = "kubevirt-certificates";

/// Programs that run on the Nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// No programs: a simulation replaces them, and KubeVirt's images do not exist.
    Simulated,
    /// A kubelet and virt-handler, with KubeVirt's images on each host.
    Real {
        /// True if QEMU emulates the CPUs of the guests, without KVM.
        uses_emulation: bool,
    },
}

/// Running virt-api and virt-controller, stopped on drop.
#[derive(Debug)]
pub struct KubeVirt {
    // On drop, virt-controller is stopped first, because its writes need the webhooks of virt-api.
    _controller: Running,
    _api: Running,
    kubeconfig: PathBuf,
    api_port: u16,
}

impl KubeVirt {
    /// Starts KubeVirt beside a control plane with [`has_kubevirt`](crate::cluster::ControlPlaneOptions::has_kubevirt),
    /// and waits until virt-controller is the leader. Only one KubeVirt may run beside a control plane.
    ///
    /// If the test needs CDI's kinds, it must call [`define_cdi_kinds`] before: virt-api and virt-controller exit when
    /// these kinds appear later.
    ///
    /// # Errors
    /// Fails if the server is too old or refuses an object, or if a program does not start; the error message has the
    /// end of its log.
    pub fn start(plane: &ControlPlane, assets: &Assets, nodes: Nodes) -> Result<Self> {
        ensure!(
            plane.version() >= OLDEST_KUBERNETES,
            "KubeVirt {} requires Kubernetes {OLDEST_KUBERNETES}, the server has {}: set KUBEBUILDER_ASSETS to a \
             folder with a later release",
            assets.version(),
            plane.version()
        );
        ensure!(
            !Path::new(NAMESPACE_FILE).exists(),
            "{NAMESPACE_FILE} exists, and KubeVirt's programs read their namespace from it: run the test outside of a \
             pod"
        );
        objects::create_objects(plane, assets, nodes)?;
        let folder = plane.folder().join(CERTIFICATE_FOLDER);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let serving_certificate = plane
            .create_serving_certificate(&format!("{CERTIFICATE_FOLDER}/serving"), SERVING_NAMES)?;
        let [api_port, controller_port] = free_ports()?;
        let api_kubeconfig = write_kubeconfig(plane, "virt-api", "kubevirt-apiserver")?;
        let api = programs::start_virt_api(
            plane,
            assets,
            &api_kubeconfig,
            &serving_certificate,
            api_port,
        )?;
        let authority = fs::read(plane.authority())?;
        for configuration in assets.webhooks() {
            let address = format!("127.0.0.1:{api_port}");
            plane.apply(&configuration.for_address(&address, &authority).to_string())?;
        }
        webhooks::wait_until_called(plane).with_context(|| plane.log_tail("virt-api"))?;
        let kubeconfig = write_kubeconfig(plane, "virt-controller", "kubevirt-controller")?;
        let controller = programs::start_virt_controller(
            plane,
            assets,
            nodes,
            &kubeconfig,
            &serving_certificate,
            controller_port,
        )?;
        Ok(Self { _controller: controller, _api: api, kubeconfig, api_port })
    }

    /// Publishes virt-api's subresources in the API server, as virt-operator does, and waits until they are available.
    ///
    /// # Errors
    /// Fails if the server refuses an object, or does not reach virt-api.
    pub fn publish_subresources(&self, plane: &ControlPlane) -> Result<()> {
        publish_subresources(plane, self.api_port).with_context(|| plane.log_tail("virt-api"))
    }

    /// Returns the kubeconfig of virt-controller. virt-api reverts changes of a VirtualMachineInstance's status by
    /// other users, and exempts virt-controller from the check that virt-handler changes only instances of its own
    /// Node.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

/// Writes the kubeconfig of a program. virt-api recognizes KubeVirt's programs by the names of their ServiceAccounts.
/// The group of these accounts gets all permissions, in place of virt-operator's roles.
fn write_kubeconfig(plane: &ControlPlane, program: &str, account: &str) -> Result<PathBuf> {
    let user = format!("system:serviceaccount:{}:{account}", objects::NAMESPACE);
    let certificate = plane.create_certificate(
        &format!("{CERTIFICATE_FOLDER}/{program}"),
        &user,
        "system:masters",
    )?;
    plane.write_certificate_kubeconfig(program, &certificate)
}
