//! Tests that a host is configured and restored: `plan`, `apply`, `revert` and `run --standalone` on an emulated
//! two-socket host with systemd and its own kernel, booted once.
//!
//! `make test` runs these tests with a few kills; `make faults` runs them with many kills, power cuts, and more
//! severe faults.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "shape/agreement.rs"]
mod agreement;
#[path = "shape/daemon.rs"]
mod daemon;
#[path = "shape/faults.rs"]
mod faults;
#[path = "shape/package.rs"]
mod package;
#[path = "shape/whole.rs"]
mod whole;

use std::io::Write as _;

use berth_tests::host::{Host, Kernel, Machine, Options};
use berth_tests::repository;

/// Path of the manifest on the host.
const MANIFEST: &str = "/etc/berth/infranode.yaml";

fn boot(number: u8, kernel: Kernel) -> Host {
    let agent = repository().join("target/release/berth-agent");
    let options = Options {
        agent: Some(&agent),
        number,
        machine: Machine::Smt,
        kernel,
        memory_mib: None,
        trunk: None,
        cluster: false,
    };
    let mut host = Host::boot(&options).unwrap();
    host.must("udevadm settle --timeout 100").unwrap();
    host.put(&repository().join("tests/host/state.sh"), "/usr/local/bin/host-state").unwrap();
    host.put(&repository().join("examples/infranode.yaml"), MANIFEST).unwrap();
    host
}

#[test]
fn a_host_is_shaped_as_asked_and_put_back() {
    on_a_host(2, Kernel::Backports, |host| {
        agreement::with_other_tools(host);
        whole::faults_change_nothing(host);
        whole::sample_there_and_back(host);
        whole::values_taken_away_go_back(host);
        whole::partial_is_said(host);
        faults::kills(host, 5);
        daemon::keeps_the_host(host);
        package::installs_and_leaves(host);
    });
}

/// Slow test of faults that occur once in years on ordinary hosts. Each scenario runs on a separate host, and all
/// hosts run in parallel.
#[test]
#[ignore = "slow: make faults"]
fn faults_kills() {
    on_a_host_with_faults(3, |host| faults::kills(host, 50));
}

#[test]
#[ignore = "slow: make faults"]
fn faults_of_many_kinds() {
    on_a_host_with_faults(4, |host| {
        whole::sample_there_and_back(host);
        faults::state_folder(host);
        faults::refused_writes(host);
        faults::two_agents(host);
        faults::clock_jumps(host);
        faults::reboot_between(host);
    });
}

#[test]
#[ignore = "slow: make faults"]
fn faults_power_cuts() {
    on_a_host_with_faults(5, |host| faults::power_cuts(host, 20));
}

fn on_a_host_with_faults(number: u8, scenario: fn(&mut Host)) {
    on_a_host(number, Kernel::Stable, scenario);
}

/// Boots a host and runs a scenario on it, and repeats both if the emulation itself failed.
fn on_a_host(number: u8, kernel: Kernel, scenario: fn(&mut Host)) {
    for last in [false, true] {
        let mut host = boot(number, kernel);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario(&mut host)));
        match result {
            Ok(()) => return,
            Err(_) if !last && host.failed_by_emulation() => {
                let why =
                    format!("host {number}: its kernel fell over the emulation; from the start");
                writeln!(std::io::stderr(), "{why}").unwrap_or_default();
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Returns all values that Berth may change, and related values.
fn state(host: &mut Host) -> String {
    host.must("host-state").unwrap()
}

/// Returns the lines that differ, for an error message.
fn difference(before: &str, after: &str) -> String {
    let missing = |of: &str, other: &str, sign: &str| {
        let other: std::collections::BTreeSet<&str> = other.lines().collect();
        let lines = of.lines().filter(|line| !other.contains(line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    missing(before, after, "-") + &missing(after, before, "+")
}

#[track_caller]
fn assert_same(before: &str, after: &str) {
    assert!(before == after, "the host is not as it was:\n{}", difference(before, after));
}

fn write_manifest(host: &mut Host, spec: &str) {
    let text = format!(
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: rack1-a}}\nspec:\n{spec}\n"
    );
    // The file is written as an editor does: to a temporary file that is then renamed.
    host.must(&format!("cat > {MANIFEST}.new <<'END'\n{text}END\nmv {MANIFEST}.new {MANIFEST}"))
        .unwrap();
}

fn put_sample(host: &mut Host) {
    host.put(&repository().join("examples/infranode.yaml"), MANIFEST).unwrap();
}
