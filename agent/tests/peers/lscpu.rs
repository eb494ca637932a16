//! Parses the output of lscpu (the summary, followed by `lscpu --parse`), and compares it with the report.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::machine::CapturedMachine;
use crate::units::{Cpus, format_cpu_list, parse_cpu_list};

pub(crate) fn is_installed() -> bool {
    Command::new("lscpu").arg("--version").output().is_ok()
}

/// Runs lscpu on a captured tree. Returns `None` for a tree that lscpu cannot read: lscpu needs the file `possible`,
/// which Linux 2.6.33 and later have.
pub(crate) fn run_on_tree(root: &Path) -> Option<String> {
    if !root.join("sys/devices/system/cpu/possible").exists() {
        return None;
    }
    let run = |options: &[&str]| {
        let output = Command::new("lscpu").arg("--sysroot").arg(root).args(options).output();
        let output = output.expect("lscpu should start");
        assert!(output.status.success(), "lscpu --sysroot {}: {output:?}", root.display());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    Some(format!("{}\n{}", run(&[]), run(&["--parse=CPU,Core,Socket,Node"])))
}

pub(crate) fn compare(output: &str, machine: &mut CapturedMachine) {
    let summary = Summary::new(output);

    let online = parse_cpu_list(summary.first_value("On-line CPU(s) list").unwrap_or_default());
    machine.compare_values("online", format_cpu_list(&online), machine.capability("cpu/online"));
    let offline = parse_cpu_list(summary.first_value("Off-line CPU(s) list").unwrap_or_default());
    machine.compare_values("offline", format_cpu_list(&offline), machine.capability("cpu/offline"));
    machine.compare_values("threads", online.len(), machine.capability("cpu/threads"));

    // `lscpu --parse` prints the columns `CPU,Core,Socket,Node`, with one line for each online CPU.
    let table: Vec<Vec<&str>> = output
        .lines()
        .skip_while(|line| !line.starts_with("# CPU,"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split(',').collect())
        .collect();
    for (column, field) in [(1, "cores"), (2, "sockets")] {
        let ids: BTreeSet<_> = table.iter().filter_map(|row| row.get(column)).collect();
        if ids.iter().all(|id| id.parse::<u32>().is_ok()) {
            machine.compare_values(field, ids.len(), machine.capability(&format!("cpu/{field}")));
        }
    }

    // If the machine has several models of cores, the summary has these lines once for each model.
    if let Some(max_threads) = summary.numbers("Thread(s) per core").max() {
        machine.compare_values(
            "threadsPerCore",
            max_threads,
            machine.capability("cpu/threadsPerCore"),
        );
    }
    // On a machine with books (s390x), the summary describes the whole machine, and not only the logical partition.
    let sockets: Vec<_> = summary.numbers("Socket(s)").collect();
    let cores: Vec<_> = summary.numbers("Core(s) per socket").collect();
    if let ([sockets], [cores], None) = (&*sockets, &*cores, summary.first_value("Book(s)")) {
        machine.compare_values("sockets (summary)", sockets, machine.capability("cpu/sockets"));
        // If some CPUs are offline, sockets may have different numbers of CPUs, which the summary cannot express.
        if offline.is_empty() {
            machine.compare_values(
                "cores (summary)",
                sockets * cores,
                machine.capability("cpu/cores"),
            );
        }
    }

    // On other architectures, lscpu takes the names from built-in tables.
    if matches!(summary.first_value("Vendor ID"), Some("GenuineIntel" | "AuthenticAMD")) {
        for (key, field) in [("Vendor ID", "vendor"), ("Model name", "model")] {
            if let Some(value) = summary.first_value(key).filter(|value| *value != "-") {
                let berth = collapse_spaces(&machine.capability(&format!("cpu/{field}")));
                machine.compare_values(field, collapse_spaces(value), berth);
            }
        }
    }

    compare_zones(&summary.zones(), &online, machine);
}

fn compare_zones(zones: &BTreeMap<u32, Cpus>, online: &Cpus, machine: &mut CapturedMachine) {
    // If lscpu shows no NUMA nodes, the agent may report a single zone with all CPUs.
    let without_numa = BTreeMap::from([(0, online.clone())]);
    let zones = match (zones.is_empty(), machine.zones().next().is_some()) {
        (true, true) => &without_numa,
        _ => zones,
    };
    let ids = format_cpu_list(&zones.keys().copied().collect());
    machine.compare_values("zone ids", ids, format_cpu_list(&machine.zone_ids()));
    for (id, cpus) in zones {
        machine.compare_values(
            &format!("zone {id} cpus"),
            format_cpu_list(cpus),
            machine.zone(*id, "cpus"),
        );
    }
}

/// The lines of the summary as pairs of key and value.
struct Summary<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Summary<'a> {
    fn new(output: &'a str) -> Self {
        let lines = output.lines().take_while(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.split_once(':'));
        Self(pairs.map(|(key, value)| (key.trim(), value.trim())).collect())
    }

    fn values(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |pair| pair.0 == key).map(|pair| pair.1)
    }

    fn first_value(&self, key: &str) -> Option<&'a str> {
        self.values(key).next()
    }

    fn numbers(&self, key: &str) -> impl Iterator<Item = u32> {
        self.values(key).filter_map(|value| value.parse().ok())
    }

    /// Returns the zones, from lines such as `NUMA node0 CPU(s):   0-62:2`.
    fn zones(&self) -> BTreeMap<u32, Cpus> {
        let id = |key: &str| key.strip_prefix("NUMA node")?.strip_suffix(" CPU(s)")?.parse().ok();
        self.0.iter().filter_map(|(key, list)| Some((id(key)?, parse_cpu_list(list)))).collect()
    }
}

fn collapse_spaces(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
