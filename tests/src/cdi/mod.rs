//! CDI's own cdi-controller and cdi-apiserver beside a test control plane, without cdi-operator and without images.
//!
//! The programs come from the folder `CDI_ASSETS` ([`Assets`]). [`Cdi`] starts them with the objects that cdi-operator would
//! create. [`Simulation`] replaces what runs on hosts and in the storage: kubelets with CDI's importer and cloner,
//! virt-controller, and CSI drivers. The content of each volume is recorded, so that a test knows what a disk contains.

#![expect(clippy::disallowed_methods, reason = "tests write and read files")]

mod assets;
mod kubelet;
mod machines;
mod sandbox;
mod simulation;
mod storage;

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::cluster::ControlPlane;
use crate::kubevirt::https_get;
use crate::running::Running;
use assets::{API_SERVER, CONTROLLER};
use sandbox::{KEY_FOLDER, PLANE_FOLDER, Place};

pub use assets::Assets;
pub use simulation::Simulation;
pub use storage::{Origin, Volume};

/// Namespace of CDI. Outside of a pod, its programs use this name.
const NAMESPACE: &str = "cdi";
/// ServiceAccount of CDI's programs in the tests.
const ACCOUNT: &str = "cdi-sa";
/// ServiceAccount of the pods that ask registries for new images.
const POLLER_ACCOUNT: &str = "cdi-cronjob";
/// ConfigMaps with the CAs of the servers and the clients that copy volumes.
const CA_CONFIG_MAPS: [&str; 2] =
    ["cdi-uploadserver-signer-bundle", "cdi-uploadserver-client-signer-bundle"];
/// Secret in which cdi-apiserver stores the key with which it signs tokens of clones.
const SIGNING_KEY: &str = "cdi-api-signing-key";
/// Names in the Secret, and of the files that cdi-controller reads.
const SIGNING_KEY_FILES: [&str; 2] = ["id_rsa", "id_rsa.pub"];
/// Time limit for a program to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Running cdi-apiserver and cdi-controller, stopped on drop.
#[derive(Debug)]
pub struct Cdi {
    // On drop, cdi-controller is stopped first, because its writes need the webhooks of cdi-apiserver.
    _controller: Running,
    _api: Running,
}

impl Cdi {
    /// Starts CDI beside a control plane with [`has_kubevirt`](crate::cluster::ControlPlaneOptions::has_kubevirt) whose
    /// API server has another address than the loopback, and waits until its controllers run. The kinds of snapshots must
    /// exist.
    ///
    /// # Errors
    /// Fails if the server refuses an object, or if a program does not start; the error message has the end of its log.
    pub fn start(plane: &ControlPlane, assets: &Assets) -> Result<Self> {
        create_objects(plane, assets)?;
        let [authority, authority_key] = plane.create_rsa_authority("cdi-signer")?;
        let bundle = fs::read_to_string(&authority)?;
        for name in CA_CONFIG_MAPS {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE},
                "data": {"ca-bundle.crt": bundle},
            });
            plane.apply(&map.to_string())?;
        }
        let token = plane.create_token_in(NAMESPACE, ACCOUNT)?;
        plane.write_kubeconfig("cdi", &token, false)?;
        let api = start_api_server(plane, assets, Place::new("cdi-api", 0))?;
        save_signing_key(plane)?;
        let in_sandbox = |name: &str| format!("{PLANE_FOLDER}/{name}");
        let [certificate, key] =
            [&authority, &authority_key].map(|file| file.file_name().unwrap_or_default());
        let [certificate, key] = [certificate, key].map(|name| in_sandbox(&name.to_string_lossy()));
        let image = |name: &str| format!("registry.invalid/{name}:{}", assets.version());
        let variables = [
            ("IMPORTER_IMAGE", image("cdi-importer")),
            ("CLONER_IMAGE", image("cdi-cloner")),
            ("UPLOADSERVER_IMAGE", image("cdi-uploadserver")),
            ("OVIRT_POPULATOR_IMAGE", image("ovirt-populator")),
            ("UPLOADPROXY_SERVICE", "cdi-uploadproxy".to_owned()),
            ("UPLOAD_SERVER_CERT_FILE", certificate.clone()),
            ("UPLOAD_SERVER_KEY_FILE", key.clone()),
            ("UPLOAD_CLIENT_CERT_FILE", certificate),
            ("UPLOAD_CLIENT_KEY_FILE", key),
        ];
        let place = Place::new("cdi-controller", 1);
        let controller = sandbox::start(plane, assets, CONTROLLER, place, &variables)?;
        let cdi = Self { _controller: controller, _api: api };
        // cdi-controller creates this object when it is the leader.
        let config = ["cdiconfig", "config"];
        plane
            .wait_until("cdi-controller runs", READY_TIMEOUT, |plane| plane.get_json(&config).ok())
            .with_context(|| plane.log_tail(CONTROLLER))?;
        Ok(cdi)
    }
}

/// Creates the objects that cdi-operator would create before it starts the programs.
fn create_objects(plane: &ControlPlane, assets: &Assets) -> Result<()> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    plane.apply(&namespace.to_string())?;
    plane
        .apply_definitions(assets.definitions(), READY_TIMEOUT)
        .context("CDI_ASSETS: manifests/crds.yaml")?;
    for name in [ACCOUNT, POLLER_ACCOUNT] {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE},
        });
        plane.apply(&account.to_string())?;
    }
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    });
    plane.apply(&binding.to_string())?;
    let cdi = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDI", "metadata": {"name": "cdi"},
        "spec": {"config": {"featureGates": ["HonorWaitForFirstConsumer"]}},
    });
    plane.apply(&cdi.to_string()).map(drop)
}

/// Starts cdi-apiserver, and configures its webhooks when it responds.
fn start_api_server(plane: &ControlPlane, assets: &Assets, place: Place) -> Result<Running> {
    let names = format!("IP:{}", place.address());
    plane.create_serving_certificate("cdi-serving", &names)?;
    let variables = [
        ("CERT_FILE", format!("{PLANE_FOLDER}/cdi-serving.crt")),
        ("KEY_FILE", format!("{PLANE_FOLDER}/cdi-serving.key")),
    ];
    let program = sandbox::start(plane, assets, API_SERVER, place, &variables)?;
    let address = format!("https://{}/healthz", place.server());
    plane
        .wait_until("cdi-apiserver responds", READY_TIMEOUT, |plane| {
            https_get(plane, &address).ok()
        })
        .with_context(|| plane.log_tail(API_SERVER))?;
    let authority = fs::read(plane.authority())?;
    for configuration in assets.webhooks() {
        let configuration = configuration.for_address(&place.server(), &authority);
        plane.apply(&configuration.to_string())?;
    }
    // The API server calls the webhooks some time after their configurations exist.
    let refused = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": {"name": "without-source", "namespace": "default"}, "spec": {},
    });
    plane
        .wait_until("the API server calls cdi-apiserver", READY_TIMEOUT, |plane| {
            let error = plane.create_dry_run(&refused).err()?;
            format!("{error:#}").contains("denied the request").then_some(())
        })
        .with_context(|| plane.log_tail(API_SERVER))?;
    Ok(program)
}

/// Writes the key of cdi-apiserver to the files that cdi-controller reads. In a cluster, its pod mounts the Secret.
fn save_signing_key(plane: &ControlPlane) -> Result<()> {
    let secret = plane.get_json(&["secret", SIGNING_KEY, "-n", NAMESPACE])?;
    let folder = plane.folder().join(KEY_FOLDER);
    fs::create_dir_all(&folder)?;
    for name in SIGNING_KEY_FILES {
        let encoded = secret["data"][name]
            .as_str()
            .with_context(|| format!("Secret {NAMESPACE}/{SIGNING_KEY}: {name}: is missing"))?;
        fs::write(folder.join(name), STANDARD.decode(encoded)?)?;
    }
    Ok(())
}
