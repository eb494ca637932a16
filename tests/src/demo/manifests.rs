//! Objects that the demo applies: `deploy/` with the scheduler in the controller's pod, KubeVirt's kinds, profiles,
//! and two tenants of `examples/tenants` with machines that fit on small hosts.

#![expect(
    clippy::disallowed_methods,
    reason = "the demo reads files of the repository and runs its scripts"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::hosts::DemoHost;
use crate::cluster::{ADMIN_TOKEN, ControlPlane, HOST_GATEWAY, Version};
use crate::repository;

/// Image of an unmodified kube-scheduler, built from the control plane's program.
const SCHEDULER_IMAGE: &str = "berth.test/kube-scheduler:1";
/// CRDs of KubeVirt that the simulation of virt-controller uses.
const KUBEVIRT_CRDS: [&str; 7] = [
    "kubevirts.kubevirt.io",
    "virtualmachines.kubevirt.io",
    "virtualmachineinstances.kubevirt.io",
    "virtualmachineinstancetypes.instancetype.kubevirt.io",
    "virtualmachinepreferences.instancetype.kubevirt.io",
    "virtualmachineclusterinstancetypes.instancetype.kubevirt.io",
    "virtualmachineclusterpreferences.instancetype.kubevirt.io",
];
/// Replacements in examples that are written for larger hosts: file, original text, new text.
const EXAMPLE_REPLACEMENTS: [(&str, &str, &str); 2] = [
    (
        "bank.yaml",
        "flavor: {name: performance-4}\n              template:\n                primaryDisk: {size: 100Gi}\n",
        // A machine with a data disk is not replaced when its host is lost.
        "flavor: {name: performance-small}\n              template:\n                primaryDisk: {size: 100Gi}\n                \
         secondaryDisks:\n                - {size: 1Gi, source: blank}\n",
    ),
    (
        "shop.yaml",
        "template:\n                cpus: \"2\"\n                memory: 4Gi\n",
        "flavor: {name: density-small}\n              template:\n",
    ),
];

/// Builds the images of the pods, and returns their archives.
///
/// # Errors
/// Fails if a program is missing.
pub fn build_images(plane: &ControlPlane) -> Result<Vec<PathBuf>> {
    let scheduler = plane.assets().join("kube-scheduler");
    ensure!(scheduler.exists(), "no kube-scheduler in {}", plane.assets().display());
    let images = [
        (crate::program("berth-agent"), "berth-agent:0.1.0", "/"),
        (crate::program("berth-controller"), "berth-controller:0.1.0", "/"),
        // Kubernetes' own image of kube-scheduler has the program in this folder.
        (scheduler, SCHEDULER_IMAGE, "/usr/local/bin"),
    ];
    let archives = images.into_iter().map(|(program, tag, folder)| {
        let name = program.file_name().context("the program has no file name")?;
        let archive = plane.folder().join(name).with_extension("tar");
        run_command(
            Command::new(repository().join("deploy/image.sh"))
                .arg(&program)
                .arg(tag)
                .arg(&archive)
                .arg(folder)
                .env("BERTH_LIBRARIES", "1"),
        )
        .with_context(|| format!("{}: run `make demo` to build it", program.display()))?;
        anyhow::Ok(archive)
    });
    archives.collect()
}

/// Applies all objects for the simulation of virt-controller, except the agents, which need the labels of their hosts
/// first.
///
/// # Errors
/// Fails if the server refuses an object.
pub fn apply_objects(plane: &ControlPlane) -> Result<()> {
    apply_kubevirt_objects(plane)?;
    apply_berth_objects(plane)
}

/// Installs KubeVirt's definitions and configuration, for the simulation of virt-controller.
///
/// # Errors
/// Fails if the server refuses an object.
pub(super) fn apply_kubevirt_objects(plane: &ControlPlane) -> Result<()> {
    plane.install_kubevirt_crds(&KUBEVIRT_CRDS)?;
    plane.apply(&kubevirt_object().to_string()).map(drop)
}

/// Applies all objects except KubeVirt's, which must exist, and the agents.
///
/// # Errors
/// Fails if the server refuses an object.
pub(super) fn apply_berth_objects(plane: &ControlPlane) -> Result<()> {
    plane.define_network_attachments()?;
    plane.define_machine_deployments()?;
    plane.deploy(&["base/rbac-controller.yaml", "instancetypes/preferences.yaml"])?;
    let scheduler = Path::new("deploy/components/scheduler");
    for file in ["rbac.yaml", "lease.yaml"] {
        plane.apply_file(&repository().join(scheduler).join(file))?;
    }
    let old = plane.version() < Version(1, 25);
    let component = if old { Path::new("deploy/components/scheduler-1.20") } else { scheduler };
    let configuration = read_text(&component.join("config.yaml"))?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "berth-scheduler", "namespace": "berth-system"},
        "data": {"config.yaml": configuration},
    });
    plane.apply(&map.to_string())?;
    plane.apply(&controller_deployment()?.to_string())?;
    plane.create_example_storage_class()?;
    for file in ["demo/instancetypes.yaml", "demo/profiles.yaml", "tenants/config.yaml"] {
        plane.apply_file(&repository().join("examples").join(file))?;
    }
    Ok(())
}

/// Returns KubeVirt's configuration with emulation, because these hosts have no KVM.
#[must_use]
pub fn kubevirt_object() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "default"},
        // Without this feature gate, virt-controller itself adds the requests for network resources to launcher pods.
        // With it, a webhook must add these requests, and the demo has no such webhook.
        "spec": {"configuration": {"developerConfiguration":
            {"useEmulation": true, "disabledFeatureGates": ["ExternalNetResourceInjection"]}}},
    })
}

/// Returns the Deployment of `deploy/base` with the additions of `deploy/components/scheduler`, like the output of
/// kustomize; the kubectl of Kubernetes 1.20 does not support components.
///
/// # Errors
/// Fails if these files do not have the expected content.
pub fn controller_deployment() -> Result<Value> {
    let mut deployment: Value = read_yaml(Path::new("deploy/base/controller.yaml"))?;
    let pod = &mut deployment["spec"]["template"]["spec"];
    let more: Value = read_yaml(Path::new("deploy/components/scheduler/volume.yaml"))?;
    let volumes = &more["spec"]["template"]["spec"]["volumes"];
    ensure!(volumes.is_array(), "deploy/components/scheduler/volume.yaml: no volumes");
    pod["volumes"] = volumes.clone();
    let steps: Vec<Value> = read_yaml(Path::new("deploy/components/scheduler/container.yaml"))?;
    for step in steps {
        let path = step["path"].as_str().unwrap_or_default();
        let place = path.strip_prefix("/spec/template/spec/").unwrap_or_default();
        let (field, at) = place.rsplit_once('/').unwrap_or_default();
        let list = pod.pointer_mut(&format!("/{field}")).and_then(Value::as_array_mut);
        let list = list.with_context(|| {
            format!("the Deployment has no list at {} of container.yaml", step["path"])
        })?;
        let mut value = step["value"].clone();
        if value["name"] == "kube-scheduler" {
            value["image"] = SCHEDULER_IMAGE.into();
        }
        let at = at.parse().ok().filter(|at| *at < list.len()).unwrap_or(list.len());
        ensure!(step["op"] == "add", "container.yaml: op is {}, not add", step["op"]);
        list.insert(at, value);
    }
    let containers = pod["containers"].as_array().context("the pod has no containers")?;
    ensure!(
        containers.iter().any(|one| one["image"] == SCHEDULER_IMAGE),
        "deploy/components/scheduler/container.yaml: no container kube-scheduler"
    );
    Ok(deployment)
}

/// Returns the two tenants, with machines that fit on these hosts.
///
/// # Errors
/// Fails if the examples do not have the expected content.
pub fn tenant_manifests() -> Result<String> {
    let mut all = Vec::new();
    for (file, original, replacement) in EXAMPLE_REPLACEMENTS {
        let example = read_text(&Path::new("examples/tenants").join(file))?;
        ensure!(
            example.matches(original).count() == 1,
            "examples/tenants/{file}: the text does not occur exactly once: {original}"
        );
        all.push(example.replace(original, replacement));
    }
    Ok(all.join("\n---\n"))
}

/// Returns a third tenant with one machine, derived from the example `shop`.
///
/// # Errors
/// Fails if the example does not have the expected content.
pub fn added_tenant_manifest(name: &str) -> Result<String> {
    let (_, original, replacement) = EXAMPLE_REPLACEMENTS[1];
    let example = read_text(Path::new("examples/tenants/shop.yaml"))?;
    let count = "replicas: 3";
    for expected in [original, count] {
        ensure!(
            example.matches(expected).count() == 1,
            "shop.yaml: the text does not occur exactly once: {expected}"
        );
    }
    let small = example.replace(original, replacement).replace(count, "replicas: 1");
    Ok(small.replace("shop", name))
}

/// Creates a kubeconfig, with the script of `deploy/`, for the agent of a host that runs the agent from a package.
///
/// # Errors
/// Fails if the script fails.
pub fn create_agent_kubeconfig(plane: &ControlPlane, demo_host: &DemoHost) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let with = std::iter::once(plane.assets().to_path_buf()).chain(std::env::split_paths(&path));
    let mut script = Command::new(repository().join("deploy/agent-kubeconfig.sh"));
    script.arg(demo_host.name).arg("1").env("PATH", std::env::join_paths(with)?);
    let kubeconfig = run_command(script.env("KUBECONFIG", plane.kubeconfig()))?;
    ensure!(
        !kubeconfig.contains(ADMIN_TOKEN),
        "the agent's kubeconfig contains the administrator's token"
    );
    // Hosts reach the API server at this address.
    let kubeconfig = kubeconfig.replace("https://127.0.0.1:", &format!("https://{HOST_GATEWAY}:"));
    let file = plane.folder().join(format!("agent-{}.kubeconfig", demo_host.name));
    fs::write(&file, kubeconfig)?;
    Ok(file)
}

fn run_command(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().with_context(|| program.clone())?;
    let stderr = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{program}: {}", stderr.trim());
    Ok(String::from_utf8(done.stdout)?)
}

fn read_text(file: &Path) -> Result<String> {
    let path = repository().join(file);
    fs::read_to_string(&path).with_context(|| file.display().to_string())
}

fn read_yaml<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    serde_saphyr::from_str(&read_text(file)?).with_context(|| file.display().to_string())
}
