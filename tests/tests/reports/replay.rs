//! Replay of the events of a case: before each pod the test queries the engine, and compares the answer with the
//! kubelet's decision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use berth_api::{Class, PageSize};
use berth_kubelet_admission::pod;
use berth_placement::engine::{Engine, Reason, Request, VmRequirements};
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::{HostId, PodFields};
use k8s_openapi::api::core::v1;
use serde_json::json;

use super::agent::{self, RunningPod, parse_cpus};
use super::case::{
    AdmissionOutcome, Case, Container, ContainerAllocation, Event, KubeletState, MemoryBlock, Pod,
    ResourceAmounts,
};

/// Difference between the engine and the kubelet.
#[derive(Debug)]
pub(crate) struct Difference(String);

impl<S: Into<String>> From<S> for Difference {
    fn from(text: S) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Counts of the replayed events.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    case_count: usize,
    report_count: usize,
    admitted_pods: usize,
    refused_pods: usize,
    /// Admitted pods whose containers have memory blocks of different zones.
    pods_on_several_zones: usize,
    /// Admissions on a host that already runs a pod with memory blocks of different zones.
    admissions_beside_several_zones: usize,
    /// Pods with devices that are local to a zone.
    pods_with_devices: usize,
    /// Pods to which the kubelet would allocate CPUs that were in use; the engine does not place such pods on the
    /// host.
    refusals_for_cpus_in_use: usize,
    /// Cases that end early because policy best-effort broke up a group of NUMA zones: the kubelet then releases
    /// memory to the wrong zone, which the reported memory blocks do not show.
    broken_groups: usize,
    /// Different answers of the engine and the kubelet under policy best-effort on a host with a group of zones. The
    /// memory blocks do not show how much of a group's memory is in which zone of the group, and only this policy
    /// requests a single zone of a group.
    split_groups: usize,
    /// Cases that end early because devices of a plain init container stay allocated, but the kubelet does not list
    /// them.
    hidden_devices: usize,
    pub(crate) mismatches: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            case_count: cases,
            report_count: reports,
            admitted_pods: admitted,
            refused_pods: refused,
            ..
        } = self;
        writeln!(
            f,
            "{cases} cases, {reports} reports, {admitted} pods admitted, {refused} refused"
        )?;
        let Self {
            pods_on_several_zones: of_several_zones,
            admissions_beside_several_zones: beside_several_zones,
            pods_with_devices: with_devices,
            ..
        } = self;
        writeln!(
            f,
            "{of_several_zones} pods with containers on different zones, {beside_several_zones} admissions on a host that runs such a pod"
        )?;
        writeln!(f, "{with_devices} pods with devices of a zone")?;
        let Self { refusals_for_cpus_in_use: cpus_in_use, broken_groups, .. } = self;
        let Self { split_groups, hidden_devices, .. } = self;
        write!(
            f,
            "{cpus_in_use} pods that would get CPUs in use, {broken_groups} broken groups, {split_groups} different decisions in a split group, {hidden_devices} cases with unlisted devices"
        )
    }
}

impl Tally {
    /// Returns true if the files contain enough cases of each kind that this test covers.
    pub(crate) const fn is_representative(&self) -> bool {
        self.admitted_pods > 1000
            && self.refused_pods > 1000
            && self.admissions_beside_several_zones > 1000
            && self.pods_with_devices > 1000
            && self.split_groups * 500 < self.case_count
            && self.hidden_devices * 10 < self.case_count
    }
}

/// Replays a case. After a mismatch, the rest of the case is skipped.
pub(crate) fn replay(case: &Case, tally: &mut Tally) {
    tally.case_count += 1;
    let mut replay = Replay {
        case,
        facts_without_pods: agent::host_facts(case),
        engine: Engine::new(),
        running: BTreeMap::new(),
    };
    if let Err(difference) = replay.run(tally) {
        tally.mismatches.push(format!("{}{difference}", case.case_id));
    }
}

struct Replay<'c> {
    case: &'c Case,
    facts_without_pods: berth_host_facts::HostFacts,
    engine: Engine,
    running: BTreeMap<String, RunningPod>,
}

impl Replay<'_> {
    fn run(&mut self, tally: &mut Tally) -> Result<(), Difference> {
        let mut host = self.update_engine(&self.case.state_initial, tally)?;
        let is_best_effort =
            self.case.kubelet_configuration.topology_manager_policy == "best-effort";
        let mut has_group = false;
        for (index, event) in self.case.events.iter().enumerate() {
            let at_event =
                |difference: Difference| Difference(format!(" event {index}: {difference}"));
            let next_state = match event {
                Event::AdmitPod { pod, outcome, state_after } => {
                    let host_id = self.admit(host, pod, outcome, tally).map_err(at_event);
                    if host_id.is_err() && is_best_effort && has_group {
                        tally.split_groups += 1;
                        return Ok(());
                    }
                    host_id?;
                    state_after
                }
                Event::StartContainers { pod_uid, containers, state_after } => {
                    self.start_containers(pod_uid, containers);
                    state_after
                }
                Event::RemovePod { pod_uid, state_after } => {
                    self.running.remove(pod_uid);
                    self.engine.remove_pod(pod_uid);
                    state_after
                }
            };
            if has_broken_group(next_state) {
                tally.broken_groups += 1;
                return Ok(());
            }
            self.check_blocks(next_state).map_err(at_event)?;
            if self.running.values().any(RunningPod::has_hidden_devices) {
                tally.hidden_devices += 1;
                return Ok(());
            }
            has_group = next_state.memory.iter().any(|zone| zone.cells.len() > 1);
            host = self.update_engine(next_state, tally).map_err(at_event)?;
        }
        Ok(())
    }

    /// Creates the agent's report, and updates the engine from the report.
    fn update_engine(
        &mut self,
        state: &KubeletState,
        tally: &mut Tally,
    ) -> Result<HostId, Difference> {
        tally.report_count += 1;
        let infra = agent::report(self.case, &self.facts_without_pods, &self.running, state);
        let mut problems = Vec::new();
        let facts = ReportedHost::read(&infra, Some(&self.node_object()), &mut problems)
            .map_err(|problem| problem.to_string())?;
        if let Some(problem) = problems.first() {
            return Err(problem.to_string().into());
        }
        self.engine.set_host(facts, Class::Standard).map_err(|invalid| invalid.to_string().into())
    }

    fn node_object(&self) -> v1::Node {
        let from = &self.case.host.node_allocatable;
        let amounts = &from.amounts;
        let mut allocatable = BTreeMap::from([
            ("cpu".to_owned(), format!("{}m", amounts.cpu_millis)),
            ("memory".to_owned(), amounts.memory_bytes.to_string()),
            ("hugepages-2Mi".to_owned(), amounts.hugepages_2mi.to_string()),
            ("hugepages-1Gi".to_owned(), amounts.hugepages_1gi.to_string()),
            ("pods".to_owned(), from.pods.to_string()),
        ]);
        allocatable.extend(amounts.devices.iter().map(|(name, n)| (name.clone(), n.to_string())));
        serde_json::from_value(json!({
            "metadata": {"name": "rack1-a"},
            "status": {"allocatable": allocatable,
                "nodeInfo": {"kubeletVersion": self.case.kubernetes_version,
                    "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
                    "operatingSystem": "linux", "osImage": "", "systemUUID": ""}},
        }))
        .expect("the Node is valid")
    }

    fn admit(
        &mut self,
        host: HostId,
        pod: &Pod,
        outcome: &AdmissionOutcome,
        tally: &mut Tally,
    ) -> Result<(), Difference> {
        let request = self.compile_request(pod);
        let reasons = self.engine.rejection_reasons(&request, host);
        if reasons.contains(&Reason::CpusInUse) {
            tally.refusals_for_cpus_in_use += 1;
        } else if reasons.is_empty() != outcome.admitted {
            let (reason, message) = (&outcome.reason, &outcome.message);
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            return Err(format!(
                "kubelet: admitted {}, {reason:?} {message:?}; engine: {reasons:?}",
                outcome.admitted
            )
            .into());
        } else if outcome.admitted {
            self.compare_allocation(host, pod, outcome)?;
        }
        if self.running.values().any(|one| zone_sets(&one.allocations).len() > 1) {
            tally.admissions_beside_several_zones += 1;
        }
        if !outcome.admitted {
            tally.refused_pods += 1;
            return Ok(());
        }
        tally.admitted_pods += 1;
        tally.pods_on_several_zones += usize::from(zone_sets(&outcome.containers).len() > 1);
        let mut devices = outcome.containers.iter().flat_map(|allocation| &allocation.devices);
        tally.pods_with_devices += usize::from(devices.any(|one| !one.per_numa_node.is_empty()));
        drop(self.engine.add_bound_pod(&request, host));
        let running = RunningPod { pod: pod.clone(), allocations: outcome.containers.clone() };
        self.running.insert(pod.uid.clone(), running);
        // Containers after plain init containers start later; all other containers start immediately.
        if !pod.init_containers.iter().any(Container::is_plain_init) {
            let names: Vec<String> = outcome.containers.iter().map(|g| g.name.clone()).collect();
            self.start_containers(&pod.uid, &names);
        }
        Ok(())
    }

    /// Compares the allocation that the engine expects with the allocation by the kubelet.
    fn compare_allocation(
        &self,
        host: HostId,
        pod: &Pod,
        outcome: &AdmissionOutcome,
    ) -> Result<(), Difference> {
        let state = self.engine.kubelet_state(host).expect("the host exists");
        let expected = state.check(&to_pod(pod)).map_err(|refusal| {
            format!("the engine first admitted the pod, and then refused it: {refusal:?}")
        })?;
        if !expected.is_deterministic() {
            return Ok(());
        }
        for (allocation, placement) in
            outcome.containers.iter().zip(expected.placements(state.host()))
        {
            let mut predicted: Vec<MemoryBlock> = placement
                .memory
                .iter()
                .map(|block| MemoryBlock {
                    kind: block.kind.to_string(),
                    size_bytes: block.bytes,
                    numa_nodes: block.zones.clone(),
                })
                .collect();
            let mut recorded = allocation.memory_blocks.clone();
            predicted.sort();
            recorded.sort();
            let zones: BTreeSet<Option<u32>> =
                placement.devices.iter().map(|(_, zone, _)| *zone).collect();
            if predicted != recorded
                || zones != device_zones(allocation)
                || placement.cpus != parse_cpus(&allocation.exclusive_cpus)
            {
                let name = &allocation.name;
                let devices = device_zones(allocation);
                return Err(format!(
                    "{name}\n  kubelet  {recorded:?} {} {devices:?}\n  engine  {placement:?}",
                    allocation.exclusive_cpus
                )
                .into());
            }
        }
        Ok(())
    }

    /// Reproduces `AddContainer` of the Memory Manager: before a container starts, the kubelet deletes the entries
    /// of the plain init containers before this container.
    fn start_containers(&mut self, uid: &str, names: &[String]) {
        let Some(running) = self.running.get_mut(uid) else { return };
        let plain: Vec<&Container> =
            running.pod.init_containers.iter().filter(|one| one.is_plain_init()).collect();
        for name in names {
            let index = running.allocations.iter().position(|allocation| allocation.name == *name);
            for allocation in running.allocations.iter_mut().take(index.unwrap_or_default()) {
                if plain.iter().any(|init| init.name == allocation.name) {
                    allocation.memory_blocks.clear();
                }
            }
        }
    }

    /// Checks the memory blocks of the running pods: for each group of zones, their sum must match the free memory
    /// that the kubelet recorded.
    fn check_blocks(&self, state: &KubeletState) -> Result<(), Difference> {
        let mut used: BTreeMap<(BTreeSet<u32>, &str), i128> = BTreeMap::new();
        let group = |zones: &[u32]| zones.iter().copied().collect::<BTreeSet<u32>>();
        for (now, before) in state.memory.iter().zip(&self.case.state_initial.memory) {
            for ((kind, free), (_, all)) in now.free_bytes().into_iter().zip(before.free_bytes()) {
                *used.entry((group(&now.cells), kind)).or_default() +=
                    i128::from(all) - i128::from(free);
            }
        }
        let blocks = self.running.values().flat_map(|one| &one.allocations);
        for block in blocks.flat_map(|allocation| &allocation.memory_blocks) {
            *used.entry((group(&block.numa_nodes), &block.kind)).or_default() -=
                i128::from(block.size_bytes);
        }
        match used.into_iter().find(|(_, bytes)| *bytes != 0) {
            Some(((zones, kind), bytes)) => Err(format!(
                "the entries of the checkpoint lack {bytes} bytes of {kind} in zones {zones:?}"
            )
            .into()),
            None => Ok(()),
        }
    }

    fn compile_request(&mut self, from: &Pod) -> Request {
        let pod = to_pod(from);
        let parts = PodFields {
            namespace: "default",
            labels: None,
            is_terminating: false,
            node_selector: None,
            affinity: None,
            tolerations: &[],
            spread_constraints: &[],
            containers: &pod,
            claims: &[],
        };
        self.engine.compile_request(&parts, VmRequirements::default()).expect("the rules are valid")
    }
}

/// Returns true if a zone is in a group whose other zones do not list this zone.
fn has_broken_group(state: &KubeletState) -> bool {
    let cells =
        |zone: u32| state.memory.iter().find(|one| one.numa_node_id == zone).map(|one| &one.cells);
    state.memory.iter().any(|one| one.cells.iter().any(|zone| cells(*zone) != Some(&one.cells)))
}

/// Returns the sets of zones that blocks come from.
fn zone_sets(allocations: &[ContainerAllocation]) -> BTreeSet<&[u32]> {
    allocations.iter().flat_map(|one| &one.memory_blocks).map(|block| &*block.numa_nodes).collect()
}

fn device_zones(allocation: &ContainerAllocation) -> BTreeSet<Option<u32>> {
    let mut zones = BTreeSet::new();
    for devices in &allocation.devices {
        zones.extend(devices.per_numa_node.iter().map(|one| Some(one.numa_node_id)));
        if devices.without_numa_node > 0 {
            zones.insert(None);
        }
    }
    zones
}

fn to_pod(from: &Pod) -> pod::Pod {
    let containers = |all: &[Container]| {
        let all = all.iter().map(|one| pod::Container {
            name: one.name.clone(),
            is_sidecar: one.restart_policy.as_deref() == Some("Always"),
            requests: to_resources(&one.requests),
            limits: to_resources(&one.limits),
        });
        all.collect::<Vec<_>>()
    };
    pod::Pod {
        uid: from.uid.clone(),
        init_containers: containers(&from.init_containers),
        containers: containers(&from.containers),
        overhead: pod::Resources::default(),
    }
}

fn to_resources(from: &ResourceAmounts) -> pod::Resources {
    let pages = [(PageSize::MIB_2, from.hugepages_2mi), (PageSize::GIB_1, from.hugepages_1gi)];
    pod::Resources {
        cpu_millis: from.cpu_millis,
        memory: from.memory_bytes,
        hugepages: pages.into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
        extended: from.devices.clone(),
    }
}
