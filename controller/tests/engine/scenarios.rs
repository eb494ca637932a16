//! Runs the scenarios in `scenarios/*.yaml`. A scenario contains hosts, events in order, and for each pod the
//! expected host or the reason why no host fits.

#![expect(clippy::disallowed_methods, reason = "scenarios are files in the folder of the test")]

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail, ensure};
use berth_placement::engine::Engine;
use serde::Deserialize;

use super::host::HostDescription;
use super::pod::PodDescription;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    #[serde(rename = "about")]
    description: String,
    hosts: Vec<HostDescription>,
    steps: Vec<Step>,
}

/// A step with exactly one of `place`, `bound`, `remove`, `report` and `free`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Step {
    /// Pod to be placed. `on` is the expected host. Without `on`, the pod must fit on no host, and `nowhere` contains a
    /// part of the reason of each host.
    place: Option<PodDescription>,
    #[serde(rename = "on")]
    expected_host: Option<String>,
    #[serde(rename = "nowhere")]
    expected_reasons: Option<BTreeMap<String, String>>,
    /// Pod that is already bound to the host in the field `on`. The field `refused` contains a part of the message with
    /// which the kubelet is expected to refuse the pod.
    bound: Option<PodDescription>,
    #[serde(rename = "refused")]
    expected_refusal: Option<String>,
    remove: Option<String>,
    /// Newer report of a host.
    report: Option<HostDescription>,
    /// Number of CPUs that are free for exclusive allocation in each zone, by host.
    #[serde(rename = "free")]
    expected_free_cpus: Option<BTreeMap<String, Vec<u32>>>,
}

#[test]
fn scenarios_have_the_expected_results() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let entries = std::fs::read_dir(&folder).expect("the folder of scenarios should be readable");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("the entry of the folder should be readable").path())
        .collect();
    paths.sort();
    assert!(paths.len() > 20, "{} scenarios in {}", paths.len(), folder.display());
    let mut failures = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("the scenario should be readable");
        let scenario: Scenario =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Err(error) = run_scenario(&scenario) {
            failures.push(format!("{name} ({}): {error:#}", scenario.description));
        }
    }
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

fn run_scenario(scenario: &Scenario) -> anyhow::Result<()> {
    let mut engine = Engine::new();
    for description in &scenario.hosts {
        set_host(&mut engine, description)?;
    }
    for (at, step) in scenario.steps.iter().enumerate() {
        run_step(&mut engine, step).with_context(|| format!("step {} failed", at + 1))?;
    }
    Ok(())
}

fn set_host(engine: &mut Engine, description: &HostDescription) -> anyhow::Result<()> {
    let (facts, problems) = description.reported_host().map_err(|problem| anyhow!("{problem}"))?;
    if let Some(problem) = problems.first() {
        bail!("{problem}");
    }
    engine.set_host(facts, description.class)?;
    Ok(())
}

fn run_step(engine: &mut Engine, step: &Step) -> anyhow::Result<()> {
    match step {
        Step { place: Some(description), expected_host, expected_reasons, .. } => {
            place(engine, description, expected_host.as_deref(), expected_reasons.as_ref())
        }
        Step {
            bound: Some(description),
            expected_host: Some(on),
            expected_refusal: refused,
            ..
        } => {
            let host = engine.host(on).with_context(|| format!("the scenario has no host {on}"))?;
            let request = description.build().request(engine);
            match (engine.add_bound_pod(&request, host), refused) {
                (Ok(()), None) => Ok(()),
                (Err(reason), Some(words)) if reason.to_string().contains(words) => Ok(()),
                (Err(reason), _) => bail!("pod {}: unexpected refusal: {reason}", description.name),
                (Ok(()), Some(_)) => bail!("pod {} is not refused", description.name),
            }
        }
        Step { remove: Some(name), .. } => {
            ensure!(engine.remove_pod(name), "pod {name} is not on a host");
            Ok(())
        }
        Step { report: Some(description), .. } => set_host(engine, description),
        Step { expected_free_cpus: Some(by_host), .. } => {
            for (name, wanted) in by_host {
                let state = engine.host(name).and_then(|host| engine.kubelet_state(host));
                let state = state.with_context(|| format!("the scenario has no host {name}"))?;
                let found: Vec<u32> = state.free_by_zone().map(|zone| zone.cpus).collect();
                ensure!(
                    found == *wanted,
                    "host {name} has {found:?} free CPUs by zone, expected {wanted:?}"
                );
            }
            Ok(())
        }
        _ => bail!("the step has no action"),
    }
}

fn place(
    engine: &mut Engine,
    description: &PodDescription,
    expected_host: Option<&str>,
    expected_reasons: Option<&BTreeMap<String, String>>,
) -> anyhow::Result<()> {
    let request = description.build().request(engine);
    let reasons = |engine: &Engine| -> BTreeMap<String, String> {
        let all = engine.hosts().map(|(host, facts)| {
            let reasons = engine.rejection_reasons(&request, host);
            let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            (facts.name.clone(), texts.join("; "))
        });
        all.collect()
    };
    let before = reasons(engine);
    let host = engine.place_pod(&request, None);
    let host = host.and_then(|host| Some(engine.reported_host(host)?.name.clone()));
    match (host, expected_host, expected_reasons) {
        (Some(host), Some(expected), None) if host == expected => Ok(()),
        (None, None, Some(wanted)) => {
            for (name, words) in wanted {
                let found = before.get(name).cloned().unwrap_or_default();
                let is_expected = !words.is_empty() && found.contains(words);
                ensure!(
                    is_expected,
                    "pod {} on host {name}: unexpected reason: {found}",
                    description.name
                );
            }
            Ok(())
        }
        (host, ..) => bail!("pod {} is on host {host:?}; reasons: {before:?}", description.name),
    }
}
