//! Measures the time that the controller needs at its start to build an engine from InfraNodes as JSON and Pods as
//! typed objects.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use berth_api::{Class, InfraNode};
use berth_kubevirt_render::launcher::ExistingPod;
use berth_placement::engine::{Engine, VmRequirements};
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::PodFields;
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

use crate::fleet::infra_node;
use crate::full_fleet::{self, Launcher, PAGE_SIZE, VMS_OF_HOST, allocations};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RebuildCost {
    pub(super) pods: usize,
    /// Seconds of the whole rebuild, including parsing the InfraNodes and adding the pods.
    pub(super) seconds: f64,
    /// Seconds to add the hosts, which are included in `seconds`.
    pub(super) hosts_seconds: f64,
    /// Resident MiB after the rebuild.
    pub(super) resident_mib: f64,
}

/// Rebuilds the engine once. The input objects of each host are created before it is added and dropped afterwards,
/// so that only the engine stays resident. The time to create the input objects is not counted.
pub(super) fn rebuild(hosts: usize) -> Result<RebuildCost> {
    let mut engine = Engine::new();
    let (mut of_hosts, mut of_pods) = (Duration::ZERO, Duration::ZERO);
    let mut problems = Vec::new();
    for at in 0..hosts {
        let name = full_fleet::host_name(at);
        let (allocations, pods) = allocations_and_pods(at, &name)?;
        let text = infra_node(&name, PAGE_SIZE, &allocations).to_string();
        let node: v1::Node =
            serde_json::from_value(full_fleet::node(at)).context("parse the Node")?;
        let begin = Instant::now();
        let infra: InfraNode = serde_json::from_str(&text).context("parse the InfraNode")?;
        let facts = ReportedHost::read(&infra, Some(&node), &mut problems)
            .map_err(|problem| anyhow!("{problem}"))?;
        let id = engine.set_host(facts, Class::Performance)?;
        of_hosts += begin.elapsed();
        let begin = Instant::now();
        for pod in &pods {
            let existing = ExistingPod::read(pod).map_err(|invalid| anyhow!("{invalid}"))?;
            let needs =
                VmRequirements { is_vm: true, is_pinned: true, ..VmRequirements::default() };
            let request =
                engine.compile_request(&PodFields::from_pod(pod, &existing.pod), needs)?;
            engine.add_bound_pod(&request, id).map_err(|reason| anyhow!("{reason}"))?;
        }
        of_pods += begin.elapsed();
    }
    if let Some(problem) = problems.first() {
        return Err(anyhow!("{problem}"));
    }
    Ok(RebuildCost {
        pods: engine.pod_count(),
        seconds: (of_hosts + of_pods).as_secs_f64(),
        hosts_seconds: of_hosts.as_secs_f64(),
        resident_mib: process_resident_mib()?,
    })
}

/// Returns the resident MiB of this process.
fn process_resident_mib() -> Result<f64> {
    #[expect(clippy::disallowed_methods, reason = "reads the memory of this process")]
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib = line.trim().trim_end_matches(" kB");
    Ok(kib.parse::<f64>().with_context(|| format!("VmRSS: {line}"))? / 1024.0)
}

/// Returns the allocations that the agent of a host reports, and the pods to which they belong.
fn allocations_and_pods(host: usize, name: &str) -> Result<(Vec<Value>, Vec<v1::Pod>)> {
    let all: Vec<(Launcher, String)> = (0..VMS_OF_HOST.len())
        .map(|at| Launcher::new(host, at))
        .map(|launcher| (launcher.clone(), launcher.instance_uid))
        .collect();
    let pods = all.iter().map(|(launcher, uid)| {
        let mut pod = launcher.pod();
        pod["metadata"]["uid"] = uid.as_str().into();
        pod["spec"]["nodeName"] = name.into();
        pod["status"] = json!({"phase": "Running"});
        serde_json::from_value(pod).context("parse the Pod")
    });
    Ok((allocations(&all), pods.collect::<Result<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_objects_are_valid_and_counted() {
        let cost = rebuild(3).unwrap();
        assert_eq!(cost.pods, 30);
        assert!(cost.seconds > cost.hosts_seconds && cost.resident_mib > 1.0, "{cost:?}");
    }
}
