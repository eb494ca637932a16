//! Captures of real machines, and what those machines' own tools said about them.
//!
//! No expectation is written down here: each is read from the tool's output, so a capture dropped
//! into the same folder is tested too. The captures are other projects' and not in this repository.
#![expect(
    clippy::disallowed_methods,
    reason = "the test unpacks trees, starts the agent, and reads on its own what the agent reads"
)]
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

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
#[path = "peers/units.rs"]
mod units;

use std::fs;
use std::io::Write as _;
use std::path::Path;

use machine::Machine;

#[test]
fn lscpu_agrees() {
    each_machine("lscpu", ".tar.gz", |folder, machine| {
        let said = read(&folder.join(format!("expected/{}.txt", machine.name)));
        lscpu::compare(&said, machine);
    });
}

#[test]
fn hwloc_agrees() {
    each_machine("hwloc", ".tar.bz2", |folder, machine| {
        let console = folder.join(format!("{}.console", machine.name));
        let topology = if console.exists() {
            hwloc::Topology::of_console(&read(&console))
        } else {
            hwloc::Topology::of_xml(&read(&folder.join(format!("{}.xml", machine.name))))
        };
        topology.compare(machine);
    });
}

#[test]
fn kubernetes_node_agrees() {
    each_machine("nto", ".sysinfo.tgz", |folder, machine| {
        node::compare_node(&read(&folder.join(format!("{}.node.yaml", machine.name))), machine);
        node::compare_machine_info(machine);
    });
}

#[test]
fn hybrid_kernel_agrees() {
    each_machine("nri", ".tar.xz", |_, machine| kernel::compare_core_kinds(machine));
}

/// Unpacks every capture of a family, checks what holds for any tree and then what `check` checks.
fn each_machine(family: &str, suffix: &str, check: fn(&Path, &mut Machine)) {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/peers");
    // More captures of the same kinds than the shared ones: see CONTRIBUTING.md.
    let peers = std::env::var_os("BERTH_PEERS").map_or(ours, Into::into);
    let folder = peers.join(family);
    if !folder.exists() {
        // Written to the stream itself, as the test harness keeps what a passing test prints.
        writeln!(std::io::stderr(), "skipped: ../shared/peers is not here").expect("stderr");
        return;
    }
    let mut archives: Vec<_> = fs::read_dir(&folder)
        .expect("the folder can be listed")
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    archives.sort();
    assert!(!archives.is_empty(), "no *{suffix} in {}", folder.display());

    let mut mismatches = Vec::new();
    for archive in archives {
        let mut machine = Machine::unpack(&archive, suffix);
        if machine.run_agent() {
            kernel::compare_zones(&mut machine);
            check(&folder, &mut machine);
        }
        mismatches.append(&mut machine.mismatches);
    }
    assert!(mismatches.is_empty(), "{} mismatches\n{}", mismatches.len(), mismatches.join("\n"));
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
