//! Replays the events of a recorded case, and compares every answer of the kubelet with the prediction.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{bail, ensure};
use berth_api::{CpuSet, PageSize};
use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{
    Admission, HostState, MemoryKind, Placement, Refusal, ReportedContainer, ReportedPod,
    RestartPrediction,
};

use super::format::{
    BlockRecord, Case, ContainerAllocation, CountRecord, DeviceRecord, Event, MemoryRecord,
    OutcomeRecord, StateRecord, parse_cpus,
};

/// Results of the replay.
#[derive(Default)]
pub(crate) struct ReplayCounts {
    pub(crate) cases: usize,
    pub(crate) events: usize,
    pub(crate) restarts: usize,
    pub(crate) restarts_refused: usize,
    pub(crate) nondeterministic_restarts: usize,
    /// Number of admissions, by policy, scope and outcome.
    pub(crate) outcomes: BTreeMap<(String, String, String), usize>,
    /// Number of admissions for which the kubelet selects CPUs or devices at random.
    pub(crate) nondeterministic_admissions: usize,
    /// Number of [`nondeterministic_admissions`](Self::nondeterministic_admissions) for which the recorded answer
    /// differs from the prediction.
    pub(crate) nondeterministic_mismatches: usize,
    /// Number of refusals in which the kubelet names another device than the predictor, because several devices are
    /// insufficient.
    pub(crate) other_devices_named: usize,
    pub(crate) mismatches: Vec<String>,
}

impl ReplayCounts {
    pub(crate) fn admissions(&self) -> usize {
        self.outcomes.values().sum()
    }
}

/// Replays a case. After a mismatch, the rest of the case is skipped.
pub(crate) fn replay(case: &Case, counts: &mut ReplayCounts) {
    counts.cases += 1;
    let mut replay = Replay {
        case,
        state: HostState::new(&Arc::new(case.host())),
        // CPU numbers are not comparable in Kubernetes 1.20, whose kubelet sorts CPUs with an incomplete order: see
        // `take_legacy`.
        compares_cpu_numbers: case.kubelet().version.minor > 22,
    };
    if let Err(difference) = replay.compare_state(&case.state_initial) {
        counts.mismatches.push(format!("{} before the first event: {difference}", case.case_id));
        return;
    }
    for (index, event) in case.events.iter().enumerate() {
        counts.events += 1;
        if let Err(difference) = replay.replay_event(event, counts) {
            counts.mismatches.push(format!("{} event {index}: {difference}", case.case_id));
            return;
        }
    }
    if let Some(expected) = &case.memory_manager_restart {
        counts.restarts += 1;
        let predicted = match replay.state.predict_restart() {
            RestartPrediction::Accepted => "ok",
            RestartPrediction::Refused(error) => error,
            RestartPrediction::Nondeterministic => {
                counts.nondeterministic_restarts += 1;
                expected
            }
        };
        counts.restarts_refused += usize::from(expected != "ok");
        if predicted != expected {
            let id = &case.case_id;
            counts.mismatches.push(format!(
                "{id} restart: the kubelet returns {expected}, predicted: {predicted}"
            ));
        }
    }
}

struct Replay<'c> {
    case: &'c Case,
    state: HostState,
    compares_cpu_numbers: bool,
}

impl Replay<'_> {
    fn replay_event(&mut self, event: &Event, counts: &mut ReplayCounts) -> anyhow::Result<()> {
        match event {
            Event::AdmitPod { pod, outcome, state_after } => {
                let pod = pod.pod();
                let kubelet = &self.case.kubelet_configuration;
                let key = (
                    kubelet.topology_manager_policy.clone(),
                    kubelet.topology_manager_scope.clone(),
                    outcome.reason.clone().unwrap_or_else(|| "admitted".to_owned()),
                );
                *counts.outcomes.entry(key).or_default() += 1;
                let checked = self.state.check(&pod);
                let answer = self.state.admit(&pod).cloned();
                ensure!(
                    checked == answer,
                    "check returns {checked:?}, but admit returns {answer:?}"
                );
                self.compare_outcome(&pod, outcome, answer, counts)?;
                self.compare_state(state_after)
            }
            Event::StartContainers { pod_uid, containers, state_after } => {
                self.state.start_containers(pod_uid, containers.iter().map(String::as_str));
                self.compare_state(state_after)
            }
            Event::RemovePod { pod_uid, state_after } => {
                self.state.remove(pod_uid);
                self.compare_state(state_after)
            }
        }
    }

    fn compare_outcome(
        &mut self,
        pod: &Pod,
        outcome: &OutcomeRecord,
        answer: Result<Admission, Refusal>,
        counts: &mut ReplayCounts,
    ) -> anyhow::Result<()> {
        let admission = match answer {
            Ok(admission) => admission,
            Err(refusal) => {
                let same = !outcome.admitted
                    && outcome.refused_by == Some(refusal.refused_by.to_string())
                    && outcome.reason.as_ref() == Some(&refusal.reason)
                    && outcome.message.as_ref() == Some(&refusal.message);
                if !same && !self.names_other_devices(pod, outcome, &refusal) {
                    bail!(describe_difference(outcome, &refusal));
                }
                counts.other_devices_named += usize::from(!same);
                return Ok(());
            }
        };
        let host = self.state.host();
        let placements = admission.placements(host);
        if !outcome.admitted || outcome.containers.len() != placements.len() {
            bail!(describe_difference(outcome, &placements));
        }
        counts.nondeterministic_admissions += usize::from(!admission.is_deterministic());
        let mut same_numbers = true;
        for (allocation, placement) in outcome.containers.iter().zip(&placements) {
            if !has_same_zones_and_memory(allocation, placement) {
                bail!(describe_difference(allocation, placement));
            }
            let (recorded, mine) = (recorded_devices(allocation), placement_devices(placement));
            if recorded != mine {
                if admission.is_deterministic()
                    || count_by_resource(&recorded) != count_by_resource(&mine)
                {
                    bail!(describe_difference(allocation, placement));
                }
                counts.nondeterministic_mismatches += 1;
            }
            let recorded = parse_cpus(&allocation.exclusive_cpus);
            if recorded == placement.cpus {
                continue;
            }
            let same_zones = self.count_by_zone(&recorded) == self.count_by_zone(&placement.cpus);
            if self.compares_cpu_numbers || (!same_zones && admission.is_deterministic()) {
                bail!(describe_difference(allocation, placement));
            }
            counts.nondeterministic_mismatches += usize::from(!same_zones);
            same_numbers = false;
        }
        if !same_numbers {
            self.restore_recorded(pod, outcome);
        }
        Ok(())
    }

    /// Returns true if the kubelet names another resource than the predictor, and both resources are insufficient:
    /// the kubelet iterates over the resources of a container in the order of a Go map, and stops at the first
    /// insufficient resource. If the resource that the predictor names is removed, the predicted refusal is the
    /// recorded refusal.
    fn names_other_devices(&self, pod: &Pod, outcome: &OutcomeRecord, refusal: &Refusal) -> bool {
        let Some(named) = insufficient_resource(&refusal.message) else { return false };
        let mut without = pod.clone();
        let init = without.init_containers.iter_mut();
        for container in init.chain(&mut without.containers) {
            container.limits.extended.remove(named);
            container.requests.extended.remove(named);
        }
        let Err(other) = self.state.check(&without) else { return false };
        let is_recorded = outcome.message.as_ref() == Some(&other.message)
            && outcome.reason.as_ref() == Some(&other.reason);
        !outcome.admitted
            && insufficient_resource(&other.message).is_some()
            && (is_recorded || self.names_other_devices(&without, outcome, &other))
    }

    /// Restores the pod with the CPUs that the kubelet allocated, because the kubelet may allocate other CPUs than the
    /// prediction.
    fn restore_recorded(&mut self, pod: &Pod, outcome: &OutcomeRecord) {
        let containers = outcome.containers.iter().map(|allocation| ReportedContainer {
            cpus: parse_cpus(&allocation.exclusive_cpus),
            ..ReportedContainer::default()
        });
        let requests = pod_requests(pod);
        let containers = containers.collect();
        self.state.restore(&pod.uid, &ReportedPod { containers, requests });
    }

    fn count_by_zone(&self, cpus: &CpuSet) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for cpu in cpus.iter() {
            *counts.entry(self.case.zone_of(cpu)).or_default() += 1;
        }
        counts
    }

    fn compare_state(&self, recorded: &StateRecord) -> anyhow::Result<()> {
        let predicted = StateRecord {
            // If a recorded state has no default CPU set, the kubelet has no CPU Manager policy.
            default_cpu_set: recorded
                .default_cpu_set
                .as_ref()
                .map(|_| self.state.shared_cpus().to_string()),
            memory: predicted_memory(&self.state, recorded),
        };
        let is_equal = predicted == *recorded;
        ensure!(
            is_equal,
            "the states differ:\n  kubelet   {recorded:?}\n  predicted {predicted:?}"
        );
        Ok(())
    }
}

fn predicted_memory(state: &HostState, recorded: &StateRecord) -> Vec<MemoryRecord> {
    let views = state.memory_by_zone().into_iter().enumerate();
    let records = views.map(|(place, view)| {
        let kept = recorded.memory.get(place);
        let free = |kind: MemoryKind| {
            view.free.iter().find(|(known, _)| *known == kind).map_or(0, |&(_, bytes)| bytes)
        };
        // The kubelet omits huge page sizes of which no zone has pages.
        let pages = |shown: Option<u64>, size| {
            let bytes = free(MemoryKind::HugePages(size));
            (shown.is_some() || bytes > 0).then_some(bytes)
        };
        MemoryRecord {
            numa_node_id: view.zone,
            number_of_assignments: view.assignments,
            cells: view.group,
            free_memory_bytes: free(MemoryKind::Memory),
            free_hugepages_2mi: pages(kept.and_then(|k| k.free_hugepages_2mi), PageSize::MIB_2),
            free_hugepages_1gi: pages(kept.and_then(|k| k.free_hugepages_1gi), PageSize::GIB_1),
        }
    });
    records.collect()
}

fn has_same_zones_and_memory(allocation: &ContainerAllocation, placement: &Placement) -> bool {
    let mut blocks: Vec<BlockRecord> = placement
        .memory
        .iter()
        .map(|block| BlockRecord {
            kind: block.kind.to_string(),
            size_bytes: block.bytes,
            numa_nodes: block.zones.clone(),
        })
        .collect();
    let mut recorded = allocation.memory_blocks.clone();
    blocks.sort();
    recorded.sort();
    allocation.numa_affinity == placement.affinity
        && allocation.preferred == placement.is_preferred
        && recorded == blocks
}

type DeviceCounts = BTreeMap<(String, Option<u32>), u32>;

fn recorded_devices(allocation: &ContainerAllocation) -> DeviceCounts {
    let each = |device: &DeviceRecord| {
        let name = device.resource_name.clone();
        let near = device.per_numa_node.iter();
        let near = near.map(|CountRecord { numa_node_id, count }| (Some(*numa_node_id), *count));
        let all = near.chain([(None, device.without_numa_node)]);
        all.map(|(zone, count)| ((name.clone(), zone), count)).collect::<Vec<_>>()
    };
    allocation.devices.iter().flat_map(each).filter(|&(_, count)| count > 0).collect()
}

fn placement_devices(placement: &Placement) -> DeviceCounts {
    let all = placement.devices.iter();
    all.map(|(name, zone, count)| ((name.clone(), *zone), *count)).collect()
}

fn count_by_resource(devices: &DeviceCounts) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for ((name, _), count) in devices {
        *counts.entry(name.as_str()).or_default() += count;
    }
    counts
}

/// Returns the requests of a pod of a Kubernetes version without sidecars, computed as `PodRequests` does.
fn pod_requests(pod: &Pod) -> Resources {
    let max_request = |of: &dyn Fn(&Resources) -> u64| {
        let apps: u64 = pod.containers.iter().map(|container| of(&container.requests)).sum();
        let inits = pod.init_containers.iter().map(|container| of(&container.requests));
        inits.max().unwrap_or(0).max(apps)
    };
    let pages = [PageSize::MIB_2, PageSize::GIB_1];
    Resources {
        cpu_millis: max_request(&|from| from.cpu_millis),
        memory: max_request(&|from| from.memory),
        hugepages: pages
            .map(|size| {
                (size, max_request(&|from| from.hugepages.get(&size).copied().unwrap_or(0)))
            })
            .into(),
        extended: BTreeMap::new(),
    }
}

/// Returns the name of the resource in the kubelet's message that devices are insufficient.
fn insufficient_resource(message: &str) -> Option<&str> {
    let rest = message.split_once("requested number of devices unavailable for ")?.1;
    rest.split_once(". Requested").map(|(name, _)| name)
}

fn describe_difference(kubelet: &impl std::fmt::Debug, predicted: &impl std::fmt::Debug) -> String {
    format!("\n  kubelet   {kubelet:?}\n  predicted {predicted:?}")
}
