//! Scenes in `scenarios/*.yaml`: hosts, what happens in order, and where each pod must end up or why it cannot.

#![expect(clippy::disallowed_methods, reason = "scenes are files beside the test")]

use std::collections::BTreeMap;
use std::path::Path;

use berth_placement::engine::Engine;
use serde::Deserialize;

use super::host::HostForm;
use super::pod::PodForm;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scene {
    /// What it shows.
    about: String,
    hosts: Vec<HostForm>,
    steps: Vec<Step>,
}

/// One of `place`, `bound`, `remove`, `report` and `free`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Step {
    /// Goes to the host in `on`, or nowhere: then to each host in `nowhere` for a reason that has these words.
    place: Option<PodForm>,
    on: Option<String>,
    nowhere: Option<BTreeMap<String, String>>,
    /// Is on the host in `on` already; `refused` are words of the kubelet's refusal.
    bound: Option<PodForm>,
    refused: Option<String>,
    remove: Option<String>,
    /// A newer report of a host.
    report: Option<HostForm>,
    /// CPUs of each zone that can still be pinned, by host.
    free: Option<BTreeMap<String, Vec<u32>>>,
}

#[test]
fn scenes_end_as_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let entries = std::fs::read_dir(&folder).expect("the folder of scenes");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a scene").path()).collect();
    paths.sort();
    assert!(paths.len() > 20, "{} scenes in {}", paths.len(), folder.display());
    let mut wrong = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a readable scene");
        let scene: Scene =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Err(message) = play(&scene) {
            wrong.push(format!("{name} ({}): {message}", scene.about));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

fn play(scene: &Scene) -> Result<(), String> {
    let mut engine = Engine::new();
    for form in &scene.hosts {
        set_host(&mut engine, form)?;
    }
    for (at, step) in scene.steps.iter().enumerate() {
        act(&mut engine, step).map_err(|message| format!("step {}: {message}", at + 1))?;
    }
    Ok(())
}

fn set_host(engine: &mut Engine, form: &HostForm) -> Result<(), String> {
    let (facts, problems) = form.facts().map_err(|problem| problem.to_string())?;
    if let Some(problem) = problems.first() {
        return Err(problem.to_string());
    }
    engine.set_host(facts, form.class).map_err(|invalid| invalid.to_string())?;
    Ok(())
}

fn act(engine: &mut Engine, step: &Step) -> Result<(), String> {
    match step {
        Step { place: Some(form), on, nowhere, .. } => {
            place(engine, form, on.as_deref(), nowhere.as_ref())
        }
        Step { bound: Some(form), on: Some(on), refused, .. } => {
            let host = engine.host(on).ok_or_else(|| format!("there is no host {on}"))?;
            let request = form.build().request(engine);
            match (engine.bound(&request, host), refused) {
                (Ok(()), None) => Ok(()),
                (Err(reason), Some(words)) if reason.to_string().contains(words) => Ok(()),
                (Err(reason), _) => Err(format!("{}: {reason}", form.name)),
                (Ok(()), Some(_)) => Err(format!("{}: is not refused", form.name)),
            }
        }
        Step { remove: Some(name), .. } => match engine.remove(name) {
            true => Ok(()),
            false => Err(format!("{name}: is not there")),
        },
        Step { report: Some(form), .. } => set_host(engine, form),
        Step { free: Some(by_host), .. } => {
            for (name, wanted) in by_host {
                let state = engine.host(name).and_then(|host| engine.state(host));
                let state = state.ok_or_else(|| format!("there is no host {name}"))?;
                let found: Vec<u32> = state.free_by_zone().map(|zone| zone.cpus).collect();
                if found != *wanted {
                    return Err(format!("{name}: {found:?} CPUs are free, not {wanted:?}"));
                }
            }
            Ok(())
        }
        _ => Err("says nothing".to_owned()),
    }
}

fn place(
    engine: &mut Engine,
    form: &PodForm,
    on: Option<&str>,
    nowhere: Option<&BTreeMap<String, String>>,
) -> Result<(), String> {
    let request = form.build().request(engine);
    let reasons = |engine: &Engine| -> BTreeMap<String, String> {
        let all = engine.hosts().map(|(host, facts)| {
            let reasons = engine.why_not(&request, host);
            let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            (facts.name.clone(), texts.join("; "))
        });
        all.collect()
    };
    let before = reasons(engine);
    let host = engine.place(&request, None);
    let host = host.and_then(|host| Some(engine.facts(host)?.name.clone()));
    match (host, on, nowhere) {
        (Some(host), Some(on), None) if host == on => Ok(()),
        (None, None, Some(wanted)) => {
            for (name, words) in wanted {
                let found = before.get(name).cloned().unwrap_or_default();
                if words.is_empty() || !found.contains(words) {
                    return Err(format!("{}: {name}: {found}", form.name));
                }
            }
            Ok(())
        }
        (host, ..) => Err(format!("{}: is on {host:?}; {before:?}", form.name)),
    }
}
