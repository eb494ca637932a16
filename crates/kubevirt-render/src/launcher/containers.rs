//! The containers of a launcher pod other than `compute`, in the order of the pod's manifest (`template.go`,
//! `renderLaunchManifest`).

use std::collections::BTreeSet;

use serde::Deserialize;

use super::configuration::Configuration;
use super::gate::Gate;
use super::invalid::Invalid;
use super::machine::Machine;
use super::overhead::is_pinned;
use super::spec::{Amounts, Present};
use super::version::Version;

/// Requests and limits of a container in the pod's manifest.
pub(super) struct ContainerSpec {
    pub(super) name: String,
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
    pub(super) is_sidecar: bool,
}

/// The launcher pod's containers other than `compute`: init containers, and containers that run concurrently with
/// `compute`.
pub(super) struct OtherContainers {
    pub(super) init: Vec<ContainerSpec>,
    pub(super) concurrent: Vec<ContainerSpec>,
}

/// Default request and limit of a container for one resource. If the guest's CPUs are dedicated or the pod has the QoS
/// class Guaranteed, the request is set to the limit.
#[derive(Clone, Copy)]
struct Amount {
    name: &'static str,
    request: Option<&'static str>,
    limit: Option<&'static str>,
}

const fn amounts(cpu: [&'static str; 2], memory: [&'static str; 2]) -> [Amount; 2] {
    [
        Amount { name: "cpu", request: Some(cpu[0]), limit: Some(cpu[1]) },
        Amount { name: "memory", request: Some(memory[0]), limit: Some(memory[1]) },
    ]
}

/// Default amounts of the container that logs the serial console (`resourcesForSerialConsoleLogContainer`).
const CONSOLE_AMOUNTS: [Amount; 2] = amounts(["5m", "15m"], ["35M", "60M"]);
/// Default amounts of container disks (`getMinimalInitContainerDiskResources`).
const DISK_AMOUNTS: [Amount; 2] = amounts(["1m", "10m"], ["1M", "40M"]);
/// Default amounts of the init container `container-disk-binary` (`initContainerMinimalRequests` and
/// `initContainerMinimalLimits`).
const DISK_BINARY_AMOUNTS: [Amount; 2] = amounts(["10m", "100m"], ["1M", "40M"]);
/// Default amounts of the init container `container-disk-binary` if the guest's CPUs are dedicated
/// (`initContainerDedicatedCPURequiredResources`).
const PINNED_DISK_BINARY_AMOUNTS: [Amount; 2] = amounts(["10m", "10m"], ["1M", "40M"]);
/// Default amounts of virtiofs containers (`ResourcesForVirtioFSContainer`).
const VIRTIOFS_AMOUNTS: [Amount; 2] = amounts(["10m", "100m"], ["1M", "80M"]);
/// Default amounts of hook sidecars if the guest's CPUs are not dedicated (`sidecarResources`): there are none.
const HOOK_AMOUNTS: [Amount; 2] = [
    Amount { name: "cpu", request: None, limit: None },
    Amount { name: "memory", request: None, limit: None },
];
/// Default amounts of hook sidecars if the guest's CPUs are dedicated (`sidecarResources`).
const PINNED_HOOK_AMOUNTS: [Amount; 2] = amounts(["200m", "200m"], ["64M", "64M"]);

/// Properties of the machine and the configuration that affect all containers.
struct ContainerRenderer<'a> {
    configuration: &'a Configuration,
    is_pinned: bool,
}

impl ContainerRenderer<'_> {
    /// Renders a container. `kind` is the container's type in the setting `supportContainerResources`, whose amounts
    /// take precedence over `default_amounts`.
    fn container(&self, name: String, kind: &str, default_amounts: [Amount; 2]) -> ContainerSpec {
        let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
        for Amount { name, request, limit } in default_amounts {
            let parse = |text: Option<&str>| text.and_then(|text| text.parse().ok());
            let configured =
                |is_limit| self.configuration.support_container_amount(kind, is_limit, name);
            let limit = configured(true).or_else(|| parse(limit));
            let request = configured(false).or_else(|| parse(request));
            let request = if self.is_pinned { limit } else { request };
            limits.extend(limit.map(|limit| (name.to_owned(), limit)));
            requests.extend(request.map(|request| (name.to_owned(), request)));
        }
        ContainerSpec { name, requests, limits, is_sidecar: false }
    }

    fn disk(&self, name: String) -> ContainerSpec {
        let mut container = self.container(name, "container-disk", DISK_AMOUNTS);
        if let Ok(storage) = "50M".parse() {
            container.requests.insert("ephemeral-storage".to_owned(), storage);
        }
        container
    }
}

/// Renders the containers other than `compute`.
///
/// # Errors
///
/// Returns an error if the annotation for hook sidecars is malformed, or if a binding plugin that the machine names
/// is unknown.
pub(super) fn other_containers(
    machine: &Machine,
    configuration: &Configuration,
) -> Result<OtherContainers, Invalid> {
    let (spec, version) = (&machine.spec, configuration.version);
    let renderer = ContainerRenderer { configuration, is_pinned: is_pinned(spec, version) };
    let (mut init, mut concurrent) = (Vec::new(), Vec::new());

    let has_kernel_boot = spec.domain.firmware.kernel_boot.container.is_some();
    let disks = spec.volumes.iter().filter(|volume| volume.container_disk.is_some());
    let disks =
        disks.map(|volume| volume.name.as_str()).filter(|name| *name != "kernel-boot-volume");
    let mut disks: Vec<String> = disks.map(|name| format!("volume{name}")).collect();
    disks.extend(has_kernel_boot.then(|| "volumekernel-boot-volume".to_owned()));
    let image_volumes = configuration.is_gate_enabled(Gate::ImageVolume);
    if !image_volumes {
        concurrent.extend(disks.iter().map(|name| renderer.disk(name.clone())));
    }
    let filesystems: BTreeSet<&String> =
        spec.domain.devices.filesystems.iter().map(|it| &it.name).collect();
    for volume in &spec.volumes {
        // If a volume has a `containerPath`, another webhook adds the virtiofs container.
        if filesystems.contains(&volume.name) && volume.container_path.is_none() {
            let name = format!("virtiofs-{}", volume.name);
            concurrent.push(renderer.container(name, "virtiofs", VIRTIOFS_AMOUNTS));
        }
    }
    if logs_console(machine, configuration) {
        let name = "guest-console-log".to_owned();
        let mut log = renderer.container(name, "guest-console-log", CONSOLE_AMOUNTS);
        log.is_sidecar = version.is_at_least(6, 0);
        if log.is_sidecar { init.push(log) } else { concurrent.push(log) }
    }
    let hook = if renderer.is_pinned { PINNED_HOOK_AMOUNTS } else { HOOK_AMOUNTS };
    let hooks = hook_sidecar_count(machine, configuration)?;
    concurrent.extend(
        (0..hooks).map(|i| renderer.container(format!("hook-sidecar-{i}"), "sidecar", hook)),
    );

    if image_volumes {
        // With image volumes, an init container for each container disk only resolves the digest of the disk's image.
        if !skips_digest_resolution(machine, version) {
            init.extend(disks.into_iter().map(|name| renderer.disk(name)));
        }
    } else if !disks.is_empty() {
        let default_amounts =
            if renderer.is_pinned { PINNED_DISK_BINARY_AMOUNTS } else { DISK_BINARY_AMOUNTS };
        init.push(renderer.container(
            "container-disk-binary".to_owned(),
            "container-disk",
            default_amounts,
        ));
        init.extend(disks.into_iter().map(|name| renderer.disk(format!("{name}-init"))));
    }
    Ok(OtherContainers { init, concurrent })
}

/// Returns true if an annotation of the machine disables the init containers that resolve image digests. The annotation
/// exists in KubeVirt's main branch after 1.9.
fn skips_digest_resolution(machine: &Machine, version: Version) -> bool {
    let annotation = "kubevirt.io/image-volume-skip-digest-resolution";
    version.is_at_least(10, 0)
        && machine.annotations.get(annotation).is_some_and(|text| text == "true")
}

/// Returns true if the pod has a container that logs the guest's serial console (`isSerialConsoleLogEnabled`).
fn logs_console(machine: &Machine, configuration: &Configuration) -> bool {
    let devices = &machine.spec.domain.devices;
    devices.autoattach_serial_console.unwrap_or(true)
        && devices.log_serial_console.unwrap_or(!configuration.serial_console_log_disabled)
}

#[derive(Deserialize)]
struct HookSidecar {
    #[serde(rename = "image")]
    _image: Option<String>,
    #[serde(rename = "configMap")]
    _config_map: Option<Present>,
}

const HOOK_SIDECARS_ANNOTATION: &str = "hooks.kubevirt.io/hookSidecars";

/// Returns the number of hook sidecars: those that the annotation for hook sidecars lists, and those of network binding
/// plugins (`netbinding.go`).
fn hook_sidecar_count(machine: &Machine, configuration: &Configuration) -> Result<usize, Invalid> {
    let listed = machine
        .annotations
        .get(HOOK_SIDECARS_ANNOTATION)
        .map(|text| serde_json::from_str::<Vec<HookSidecar>>(text));
    let listed = listed.transpose().map_err(|error| {
        let template = machine.spec_path.trim_end_matches(".spec").trim_end_matches("spec");
        let path_prefix = if template.is_empty() { String::new() } else { format!("{template}.") };
        Invalid::new(
            &machine.object,
            format!("{path_prefix}metadata.annotations[{HOOK_SIDECARS_ANNOTATION}]"),
            error.to_string(),
        )
    })?;
    let mut plugins = BTreeSet::new();
    for (index, interface) in machine.spec.domain.devices.interfaces.iter().enumerate() {
        let Some(binding) = &interface.binding else { continue };
        let plugin = configuration.bindings.get(&binding.name).ok_or_else(|| {
            let field = format!("domain.devices.interfaces[{index}].binding.name");
            machine.invalid(&field, format!("network binding plugin `{}` not found", binding.name))
        })?;
        if plugin.has_sidecar {
            plugins.insert(&binding.name);
        }
    }
    Ok(listed.map_or(0, |hooks| hooks.len()) + plugins.len())
}
