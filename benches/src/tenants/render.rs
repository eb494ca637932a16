//! Measures `berth-controller render` for one MachineDeployment from spawn to exit, compared with kubectl commands
//! for the same file.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::ControlPlane;

use super::machines;
use crate::program::Program;

/// Number of runs before the measurement.
const WARM_UP_RUNS: u32 = 5;

/// Milliseconds of each run, by program. The fields have the order of the rows in the report.
#[derive(Debug)]
pub(super) struct RenderTimes {
    pub(super) rows: Vec<(String, Vec<f64>)>,
}

/// Runs each program in turn, so that other load on the machine affects all programs equally.
pub(super) fn measure(controller: &Path, plane: &ControlPlane, runs: u32) -> Result<RenderTimes> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let file = at("deployment.yaml");
    let object = serde_saphyr::to_string(&machines::deployment(1, 10))?;
    std::fs::write(&file, object).with_context(|| file.display().to_string())?;
    std::fs::write(at("kustomization.yaml"), "resources: [deployment.yaml]\n")?;
    let program = |label: &str, path: &Path, args: &[&str]| Program {
        label: label.to_owned(),
        path: path.as_os_str().to_owned(),
        args: args.iter().map(Into::into).collect(),
        env: Vec::new(),
        missing_hint: "build it with `cargo build --profile dist -p berth-controller`",
    };
    let text = |path: &Path| path.display().to_string();
    let (file, folder) = (text(&file), text(folder.path()));
    let (kubectl, kubeconfig) = (plane.assets().join("kubectl"), text(&plane.kubeconfig()));
    let cache = text(&plane.folder().join("cache"));
    let programs = [
        program("`berth-controller render -f FILE`", controller, &["render", "-f", &file]),
        program("`kubectl kustomize FOLDER`", &kubectl, &["kustomize", &folder]),
        program(
            "`kubectl create --dry-run=client -o yaml -f FILE`, with a filled discovery cache",
            &kubectl,
            &[
                "--kubeconfig",
                &kubeconfig,
                "--cache-dir",
                &cache,
                "create",
                "--dry-run=client",
                "--validate=false",
                "-o",
                "yaml",
                "-f",
                &file,
            ],
        ),
    ];
    let output = programs[0].stdout()?;
    ensure!(output.contains("kind: VirtualMachine"), "unexpected output of render: {output}");
    let mut rows: Vec<(String, Vec<f64>)> =
        programs.iter().map(|program| (program.label.clone(), Vec::new())).collect();
    for run in 0..WARM_UP_RUNS.saturating_add(runs) {
        for (program, (_, times)) in programs.iter().zip(&mut rows) {
            let millis = program.wall_ms()?;
            if run >= WARM_UP_RUNS {
                times.push(millis);
            }
        }
    }
    Ok(RenderTimes { rows })
}
