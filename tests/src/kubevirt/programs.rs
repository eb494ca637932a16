//! Processes of virt-api and virt-controller.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Nodes;
use super::assets::Assets;
use crate::cluster::{ControlPlane, start_program};
use crate::running::Running;
use crate::wait;

/// Time limit for a program to become ready.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts virt-api, and waits until it responds. `serving_certificate` is its certificate and the key of the
/// certificate.
///
/// # Errors
/// Fails if virt-api does not start; the error message has the end of its log.
pub(super) fn start_virt_api(
    plane: &ControlPlane,
    assets: &Assets,
    kubeconfig: &Path,
    serving_certificate: &[PathBuf; 2],
    port: u16,
) -> Result<Running> {
    let mut flags = common_flags(kubeconfig, port);
    let [certificate, key] = serving_certificate.each_ref().map(|file| file.display());
    flags.extend([
        format!("--tls-cert-file={certificate}"),
        format!("--tls-key-file={key}"),
        // virt-api presents this certificate to virt-handler for consoles, which no test uses.
        format!("--handler-cert-file={certificate}"),
        format!("--handler-key-file={key}"),
    ]);
    start(plane, assets, "virt-api", &flags, &format!("https://127.0.0.1:{port}/healthz"), |_| true)
}

/// Starts virt-controller, and waits until it is the leader. `serving_certificate` is its certificate and the key of
/// the certificate.
///
/// # Errors
/// Fails if virt-controller does not start; the error message has the end of its log.
pub(super) fn start_virt_controller(
    plane: &ControlPlane,
    assets: &Assets,
    nodes: Nodes,
    kubeconfig: &Path,
    serving_certificate: &[PathBuf; 2],
    port: u16,
) -> Result<Running> {
    let mut flags = common_flags(kubeconfig, port);
    let [certificate, key] = serving_certificate.each_ref().map(|file| file.display());
    let version = assets.version();
    flags.extend([
        format!("--prom-cert-file={certificate}"),
        format!("--prom-key-file={key}"),
        format!("--launcher-image={}", assets.launcher_image(nodes)),
        // No kubelet pulls this image.
        format!("--exporter-image=registry.invalid/virt-exportserver:{version}"),
        // QEMU starts slowly on an emulated host.
        "--launcher-qemu-timeout=900".to_owned(),
        // virt-controller exits if it does not renew its Lease in time, for example on a busy machine.
        "--leader-elect-lease-duration=120s".to_owned(),
        "--leader-elect-renew-deadline=90s".to_owned(),
    ]);
    let is_leader = |response: &str| {
        let response: Value = serde_json::from_str(response).unwrap_or_default();
        response["apiserver"]["leader"] == "true"
    };
    let address = format!("https://127.0.0.1:{port}/leader");
    start(plane, assets, "virt-controller", &flags, &address, is_leader)
}

fn common_flags(kubeconfig: &Path, port: u16) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        "--listen=127.0.0.1".to_owned(),
        format!("--port={port}"),
        "--v=2".to_owned(),
    ]
}

/// Starts a program, and waits until the response from `address` means that it is ready.
fn start(
    plane: &ControlPlane,
    assets: &Assets,
    name: &str,
    flags: &[String],
    address: &str,
    is_ready: impl Fn(&str) -> bool,
) -> Result<Running> {
    let mut program = start_program(assets.folder(), plane.folder(), name, flags)?;
    let is_running = wait::wait_until(&format!("{name} is ready"), READY_TIMEOUT, || {
        let response = https_get(plane, address);
        match response {
            Ok(response) if is_ready(&response) => Ok(true),
            _ if matches!(program.process.try_wait(), Ok(Some(_))) => Ok(false),
            Ok(response) => Err(response.into()),
            Err(error) => Err(format!("{error:#}").into()),
        }
    });
    let is_running = is_running.with_context(|| plane.log_tail(name))?;
    ensure!(is_running, "{name} exited at startup\n{}", plane.log_tail(name));
    Ok(program)
}

/// Returns the body of an HTTPS response of a program whose certificate the control plane's own CA has signed.
pub(crate) fn https_get(plane: &ControlPlane, address: &str) -> Result<String> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "--max-time", "10", "--cacert"]).arg(plane.authority());
    let output = curl.arg(address).output().context("curl (package curl)")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{address}: {}", stderr.trim());
    Ok(String::from_utf8(output.stdout)?)
}
