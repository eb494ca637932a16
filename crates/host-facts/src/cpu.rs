//! CPU facts of the whole host, as in `capabilities.cpu` of the status.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::CpuSet;
use berth_api::infra_node::{CoreKind, CoreType, Cpu, UnknownReason};

use super::cpuinfo::CpuInfo;
use super::isolation;
use super::kernel::Kernel;
use super::kernel_files::{read_cpu_list, saturating_u32};
use super::topology::Topology;
use crate::notes::Notes;
use crate::root::Root;

const CPU_FOLDER: &str = "sys/devices/system/cpu";

/// Reads the CPU facts of the whole host.
pub fn observe(
    root: &Root,
    info: &CpuInfo,
    kernel: &Kernel,
    topology: &Topology,
    notes: &mut Notes,
) -> Cpu {
    let mut note_missing = |name: &str, value: Option<u32>, message: &str| {
        if value.is_none() {
            notes.add_unknown(format!("capabilities.cpu.{name}"), UnknownReason::NotFound, message);
        }
        value
    };
    let has_cpus = !topology.online.is_empty();
    let nonzero_count =
        |n: usize| (topology.are_core_ids_known && n > 0).then(|| saturating_u32(n));
    let no_topology =
        "neither /sys/devices/system/cpu/cpu*/topology nor /proc/cpuinfo shows this number";
    let sockets = note_missing("sockets", nonzero_count(topology.socket_count()), no_topology);
    let cores = note_missing("cores", nonzero_count(topology.core_count()), no_topology);
    let threads_per_core =
        note_missing("threadsPerCore", nonzero_count(topology.max_threads_per_core()), no_topology);
    let threads = note_missing(
        "threads",
        has_cpus.then(|| saturating_u32(topology.online.len())),
        "neither /sys/devices/system/cpu nor /proc/cpuinfo lists a CPU",
    );

    let core_kinds = read_core_kinds(root, topology);
    Cpu {
        vendor: text_or_unknown(
            notes,
            "vendor",
            info.vendor.clone(),
            "/proc/cpuinfo has no vendor_id",
        ),
        model: text_or_unknown(
            notes,
            "model",
            info.model.clone(),
            "/proc/cpuinfo has no model name",
        ),
        sockets,
        cores,
        threads,
        threads_per_core,
        online: cpus_or_unknown(notes, "online", has_cpus, &topology.online),
        offline: cpus_or_unknown(notes, "offline", has_cpus, &topology.offline),
        isolated: isolation::isolated_cpus(root, kernel, topology, notes),
        nohz_full: isolation::nohz_full_cpus(root, kernel, topology, notes),
        microcode: text_or_unknown(
            notes,
            "microcode",
            common_value_or_mixed(info.microcode.clone()),
            "/proc/cpuinfo has no microcode",
        ),
        governor: read_governor(root, topology, notes),
        hybrid: has_cpus.then_some(!core_kinds.is_empty()),
        core_kinds,
    }
}

fn text_or_unknown(
    notes: &mut Notes,
    name: &str,
    value: Option<String>,
    message: &str,
) -> Option<String> {
    let value = value.filter(|text| !text.is_empty());
    if value.is_none() {
        notes.add_unknown(format!("capabilities.cpu.{name}"), UnknownReason::NotFound, message);
    }
    value
}

fn cpus_or_unknown(notes: &mut Notes, name: &str, known: bool, value: &CpuSet) -> Option<CpuSet> {
    if !known {
        let message = "neither /sys/devices/system/cpu nor /proc/cpuinfo lists a CPU";
        notes.add_unknown(format!("capabilities.cpu.{name}"), UnknownReason::NotFound, message);
    }
    known.then(|| value.clone())
}

fn read_governor(root: &Root, topology: &Topology, notes: &mut Notes) -> Option<String> {
    // The cpufreq policies are read first, because one file covers many CPUs. Old kernels have the folder `cpufreq`
    // only below each CPU.
    let listed = root.list_numbered(&format!("{CPU_FOLDER}/cpufreq"), "policy");
    let policies = notes.value_or_warning(listed).unwrap_or_default();
    let files: Vec<String> = if policies.is_empty() {
        let file = |id| format!("{CPU_FOLDER}/cpu{id}/cpufreq/scaling_governor");
        topology.online.iter().map(file).collect()
    } else {
        let file =
            |(_, name): &(u32, String)| format!("{CPU_FOLDER}/cpufreq/{name}/scaling_governor");
        policies.iter().map(file).collect()
    };
    let mut governors = BTreeSet::new();
    for file in &files {
        match root.read(file) {
            Ok(governor) => _ = governors.insert(governor),
            // Without a cpufreq driver, no CPU has this file, so the other CPUs are not read if the first CPU lacks the
            // file.
            Err(error) if error.is_not_found() && governors.is_empty() => break,
            Err(_) => {}
        }
    }
    let found = common_value_or_mixed(governors);
    if found.is_none() {
        let message =
            "no cpufreq driver is loaded: the firmware or the hypervisor sets the frequency";
        notes.add_unknown("capabilities.cpu.governor", UnknownReason::NotFound, message);
    }
    found
}

fn common_value_or_mixed(values: BTreeSet<String>) -> Option<String> {
    let several = values.len() > 1;
    values.into_iter().next().map(|one| if several { "mixed".to_owned() } else { one })
}

/// Returns the CPUs of each kind of core (performance or efficiency); an empty list if all cores are of the same kind.
///
/// The first of three sources that shows two kinds is used: the PMU folders that Intel kernels have for hybrid CPUs;
/// `cpu_capacity` on Arm; and, for old kernels and captures without PMU folders, the size of the first-level data
/// cache, which differs between Intel's two kinds. Frequencies do not distinguish the kinds, because favoured cores
/// have a higher maximum frequency than other cores of the same kind.
fn read_core_kinds(root: &Root, topology: &Topology) -> Vec<CoreKind> {
    let pmu_cpus = |name: &str| {
        let set = read_cpu_list(root, &format!("sys/devices/{name}/cpus")).ok()?;
        Some(set.intersection(&topology.online)).filter(|set| !set.is_empty())
    };
    let kinds = match (pmu_cpus("cpu_core"), pmu_cpus("cpu_atom")) {
        (Some(fast), Some(efficient)) => vec![
            CoreKind { kind: CoreType::Performance, cpus: fast },
            CoreKind { kind: CoreType::Efficiency, cpus: efficient },
        ],
        _ => core_kinds_by_value(root, topology, "cpu_capacity")
            // Hybrid processors are not sold for servers with several sockets, so the cache sizes of such servers are
            // not read.
            .or_else(|| {
                let single_socket = topology.socket_count() < 2;
                single_socket
                    .then(|| core_kinds_by_value(root, topology, "cache/index0/size"))
                    .flatten()
            })
            .unwrap_or_default(),
    };
    if kinds.len() > 1 { kinds } else { Vec::new() }
}

/// Groups the CPUs by the number in the file `file` below each CPU's folder. The CPUs with the highest number are the
/// performance cores, all others the efficiency cores. Returns `None` if the first CPU has no such file, so that only
/// one file is read on an ordinary host.
fn core_kinds_by_value(root: &Root, topology: &Topology, file: &str) -> Option<Vec<CoreKind>> {
    let read_value = |id: u32| -> Option<u64> {
        let text = root.read(&format!("{CPU_FOLDER}/cpu{id}/{file}")).ok()?;
        text.trim_end_matches('K').parse().ok()
    };
    read_value(topology.online.first()?)?;
    let mut groups: BTreeMap<u64, CpuSet> = BTreeMap::new();
    for cores in topology.cores_with_cpus(&topology.online) {
        if let Some(value) = cores.first().and_then(read_value) {
            let group = groups.entry(value).or_default();
            *group = group.union(cores);
        }
    }
    let (_, fast) = groups.pop_last()?;
    let efficient = groups.into_values().fold(CpuSet::new(), |all, set| all.union(&set));
    let mut kinds = vec![CoreKind { kind: CoreType::Performance, cpus: fast }];
    if !efficient.is_empty() {
        kinds.push(CoreKind { kind: CoreType::Efficiency, cpus: efficient });
    }
    Some(kinds)
}
