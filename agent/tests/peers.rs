//! Compares the agent's reports of captured machines with the output of other programs on these machines.
//!
//! Expected values are read from the output of these programs, so a capture that is added to the folder is tested
//! without further changes. `tests/data/README.md` lists the captures, their origin and licences.
#![expect(
    clippy::disallowed_methods,
    reason = "the test unpacks trees, starts the agent, and reads the trees without the agent's code"
)]
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/src/data.rs"]
mod data;
#[path = "peers/hwloc.rs"]
mod hwloc;
#[path = "peers/kernel.rs"]
mod kernel;
#[path = "peers/lscpu.rs"]
mod lscpu;
#[path = "peers/machine.rs"]
mod machine;
#[path = "peers/node.rs"]
mod node;
#[path = "../../tests/src/skip.rs"]
mod skip;
#[path = "peers/units.rs"]
mod units;

use std::fs;
use std::path::{Path, PathBuf};

use machine::CapturedMachine;

/// Compares with the installed lscpu, which reads the captured trees as the agent does, and with recorded output of
/// lscpu.
#[test]
fn cpus_match_lscpu() {
    if !lscpu::is_installed() {
        return skip::skip("lscpu_agrees", "lscpu is not installed");
    }
    // Only the captures of hwloc contain the files that lscpu needs.
    compare_each_machine(&capture_archives("hwloc", ".tar.bz2"), ".tar.bz2", |_, machine| {
        if let Some(output) = lscpu::run_on_tree(&machine.root) {
            lscpu::compare(&output, machine);
        }
    });
    compare_each_machine(&data::files("lscpu", ".tar.gz"), ".tar.gz", |folder, machine| {
        let output = read_file(&folder.join(format!("expected/{}.txt", machine.name)));
        lscpu::compare(&output, machine);
    });
}

#[test]
fn topology_matches_hwloc() {
    compare_each_machine(&capture_archives("hwloc", ".tar.bz2"), ".tar.bz2", |folder, machine| {
        let console = folder.join(format!("{}.console", machine.name));
        let topology = if console.exists() {
            hwloc::Topology::from_console(&read_file(&console))
        } else {
            hwloc::Topology::from_xml(&read_file(&folder.join(format!("{}.xml", machine.name))))
        };
        topology.compare(machine);
    });
}

#[test]
fn capacity_matches_kubernetes_node() {
    compare_each_machine(
        &capture_archives("nto", ".sysinfo.tgz"),
        ".sysinfo.tgz",
        |folder, machine| {
            node::compare_node(
                &read_file(&folder.join(format!("{}.node.yaml", machine.name))),
                machine,
            );
            node::compare_machine_info(machine);
        },
    );
}

#[test]
fn core_kinds_match_kernel() {
    compare_each_machine(&capture_archives("nri", ".tar.xz"), ".tar.xz", |_, machine| {
        kernel::compare_core_kinds(machine)
    });
}

fn capture_archives(family: &str, suffix: &str) -> Vec<PathBuf> {
    let archives = data::files(family, suffix);
    assert!(!archives.is_empty(), "no *{suffix} in tests/data/{family}");
    archives
}

/// Unpacks every capture, and runs `compare` and the agent's `check` for each.
fn compare_each_machine(
    archives: &[PathBuf],
    suffix: &str,
    check: fn(&Path, &mut CapturedMachine),
) {
    let mut mismatches = Vec::new();
    for archive in archives {
        let mut machine = CapturedMachine::unpack(archive, suffix);
        if machine.run_agent() {
            kernel::compare_zones(&mut machine);
            check(archive.parent().expect("the file should have a folder"), &mut machine);
        }
        mismatches.append(&mut machine.mismatches);
    }
    assert!(mismatches.is_empty(), "{} mismatches\n{}", mismatches.len(), mismatches.join("\n"));
}

fn read_file(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
