//! Facts of the captured tree. This code reads them independently of the agent, to compare them with its report.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::machine::{CapturedMachine, in_bytes, json_text};
use crate::units::{Cpus, format_cpu_list, parse_cpu_list, parse_cpu_mask};

/// Compares the reported zones with the NUMA nodes of the kernel: their numbers, memory and huge pages.
pub(crate) fn compare_zones(machine: &mut CapturedMachine) {
    let nodes = node_folders(&machine.root);
    if nodes.is_empty() {
        return;
    }
    let ids = format_cpu_list(&nodes.keys().copied().collect());
    machine.compare_values("zone ids (kernel)", ids, format_cpu_list(&machine.zone_ids()));

    let offline = offline_cpus(&machine.root);
    for (id, node) in &nodes {
        if let Some(cpus) = cpus_of_node(node) {
            // Some kernels also list the offline CPUs of the node.
            let online = cpus.difference(&offline).copied().collect();
            let field = format!("zone {id} cpus (kernel)");
            machine.compare_values(&field, format_cpu_list(&online), machine.zone(*id, "cpus"));
        }
        if let Some(memory) = memory_of_node(node) {
            let field = format!("zone {id} memory (kernel)");
            machine.compare_values(&field, memory, in_bytes(&machine.zone(*id, "memory")));
        }
        let pools = hugepages_of_node(node);
        if !pools.is_empty() {
            let berth: BTreeSet<_> = machine
                .zone_list(*id, "hugepages")
                .iter()
                .map(|pool| (in_bytes(&json_text(pool.get("size"))), json_text(pool.get("total"))))
                .collect();
            let field = format!("zone {id} huge pages, size and total (kernel)");
            machine.compare_values(&field, format_pools(&pools), format_pools(&berth));
        }
    }
    if nodes_overlap(&machine.root) && !machine.stderr.to_lowercase().contains("overlap") {
        machine.add_mismatch("nodes overlap, but there is no warning on stderr".to_owned());
    }
}

/// Compares the kinds of cores with the kernel's performance monitoring units: a hybrid x86 machine has a unit for
/// each kind.
pub(crate) fn compare_core_kinds(machine: &mut CapturedMachine) {
    let devices = machine.root.join("sys/devices");
    if let Some(online) = read_line(&devices.join("system/cpu/online")) {
        machine.compare_values(
            "online",
            format_cpu_list(&parse_cpu_list(&online)),
            machine.capability("cpu/online"),
        );
    }
    let kinds = [("Performance", "cpu_core/cpus"), ("Efficiency", "cpu_atom/cpus")]
        .map(|(kind, file)| (kind, read_line(&devices.join(file))));
    if kinds.iter().all(|(_, cpus)| cpus.is_some()) {
        machine.compare_values("hybrid", true, machine.capability("cpu/hybrid"));
        for (kind, cpus) in kinds {
            let cpus = parse_cpu_list(&cpus.unwrap_or_default());
            machine.compare_values(
                &format!("{kind} cores"),
                format_cpu_list(&cpus),
                reported_core_kind(machine, kind),
            );
        }
    }
}

/// Returns the CPUs of one kind in the report.
pub(crate) fn reported_core_kind(machine: &CapturedMachine, kind: &str) -> String {
    let kinds = machine.capabilities("cpu/coreKinds");
    json_text(kinds.iter().find(|entry| entry["kind"] == kind).and_then(|entry| entry.get("cpus")))
}

/// Returns the CPUs that are present but offline. A CPU that cannot be taken offline has no `online` file.
pub(crate) fn offline_cpus(root: &Path) -> Cpus {
    let cpus = numbered_folders(&root.join("sys/devices/system/cpu"), "cpu");
    cpus.into_iter()
        .filter(|(_, folder)| read_line(&folder.join("online")).as_deref() == Some("0"))
        .map(|(cpu, _)| cpu)
        .collect()
}

/// Returns true if two nodes contain the same CPU, which only faulty firmware causes.
pub(crate) fn nodes_overlap(root: &Path) -> bool {
    let mut seen = Cpus::new();
    node_folders(root)
        .values()
        .filter_map(|node| cpus_of_node(node))
        .flatten()
        .any(|cpu| !seen.insert(cpu))
}

/// Returns true if a node has no CPUs.
pub(crate) fn is_memory_only(root: &Path, id: u32) -> bool {
    node_folders(root)
        .get(&id)
        .and_then(|node| cpus_of_node(node))
        .is_some_and(|cpus| cpus.is_empty())
}

/// Returns the first value of a key in `/proc/cpuinfo`.
pub(crate) fn cpuinfo_value(root: &Path, key: &str) -> Option<String> {
    let file = fs::read_to_string(root.join("proc/cpuinfo")).ok()?;
    let mut pairs = file.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

fn node_folders(root: &Path) -> BTreeMap<u32, PathBuf> {
    numbered_folders(&root.join("sys/devices/system/node"), "node")
}

/// Returns the CPUs of a NUMA node. Older captures contain only the CPU mask.
fn cpus_of_node(node: &Path) -> Option<Cpus> {
    let list = read_line(&node.join("cpulist")).map(|list| parse_cpu_list(&list));
    list.or_else(|| read_line(&node.join("cpumap")).map(|mask| parse_cpu_mask(&mask)))
}

/// Returns the memory of a NUMA node, from a line such as `Node 0 MemTotal:     16772456 kB`.
fn memory_of_node(node: &Path) -> Option<u64> {
    let file = fs::read_to_string(node.join("meminfo")).ok()?;
    let total = file.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    Some(total.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok()? * 1024)
}

/// Returns the page size in bytes and the number of pages of each huge page pool of a NUMA node. Pools whose number
/// of pages was not captured are omitted.
fn hugepages_of_node(node: &Path) -> BTreeSet<(String, String)> {
    let entries = fs::read_dir(node.join("hugepages")).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some(((kib * 1024).to_string(), read_line(&entry.path().join("nr_hugepages"))?))
        })
        .collect()
}

fn format_pools(pools: &BTreeSet<(String, String)>) -> String {
    pools.iter().map(|(size, total)| format!("{size} x {total}")).collect::<Vec<_>>().join(", ")
}

/// Returns the folders that are named `prefix` and a number, keyed by the number.
fn numbered_folders(folder: &Path, prefix: &str) -> BTreeMap<u32, PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_prefix(prefix)?.parse().ok()?, entry.path()))
        })
        .filter(|(_, path)| path.is_dir())
        .collect()
}

fn read_line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|content| content.trim().to_owned())
}
