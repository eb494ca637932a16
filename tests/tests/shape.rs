//! Tests that a host is configured and restored: `plan`, `apply`, `revert` and `run --standalone` on an emulated
//! two-socket host with systemd and its own kernel, booted once.
//!
//! `make test` runs these tests with a few kills; `make faults` runs them with many kills, power cuts, and more
//! severe faults.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "shape/apply_and_revert.rs"]
mod apply_and_revert;
#[path = "shape/daemon.rs"]
mod daemon;
#[path = "shape/faults.rs"]
mod faults;
#[path = "shape/other_tools.rs"]
mod other_tools;
#[path = "shape/package.rs"]
mod package;
#[path = "shape/vfio.rs"]
mod vfio;

use std::io::Write as _;

use berth_tests::host::{Host, HostOptions, Kernel, Machine};
use berth_tests::repository;

/// Path of the manifest on the host.
const MANIFEST_PATH: &str = "/etc/berth/infranode.yaml";

fn boot(number: u8, kernel: Kernel) -> Host {
    let agent = berth_tests::program("berth-agent");
    let options = HostOptions {
        agent: Some(&agent),
        number,
        machine: Machine::IntelSmt,
        kernel,
        ..HostOptions::default()
    };
    let mut host = Host::boot(&options).unwrap();
    host.run_checked("udevadm settle --timeout 100").unwrap();
    host.copy_file(&repository().join("tests/host/state.sh"), "/usr/local/bin/host-state").unwrap();
    host.copy_file(&repository().join("examples/infranode.yaml"), MANIFEST_PATH).unwrap();
    host
}

#[test]
fn host_is_configured_and_restored() {
    run_on_host(2, Kernel::Backports, |host| {
        other_tools::report_matches_other_tools(host);
        apply_and_revert::invalid_manifest_changes_nothing(host);
        apply_and_revert::sample_is_applied_and_reverted(host);
        apply_and_revert::removed_values_are_restored(host);
        apply_and_revert::partial_allocation_is_reported(host);
        vfio::drive_is_bound_and_released(host);
        faults::killed_commands_are_completed(host, 5);
        daemon::daemon_maintains_the_desired_state(host);
        package::package_is_installed_and_purged(host);
    });
}

/// Slow test of faults that are rare on ordinary hosts. Each scenario runs on a separate host, and all hosts run in
/// parallel.
#[test]
#[ignore = "slow: make faults"]
fn faults_of_kills_are_tolerated() {
    run_on_stable_host(3, |host| faults::killed_commands_are_completed(host, 50));
}

#[test]
#[ignore = "slow: make faults"]
fn faults_of_many_kinds_are_tolerated() {
    run_on_stable_host(4, |host| {
        apply_and_revert::sample_is_applied_and_reverted(host);
        faults::unwritable_state_folder_prevents_changes(host);
        faults::refused_write_is_reported(host);
        faults::second_agent_is_refused(host);
        faults::clock_jumps_have_no_effect(host);
        faults::values_reset_by_a_reboot_are_not_restored(host);
    });
}

#[test]
#[ignore = "slow: make faults"]
fn faults_of_power_cuts_are_tolerated() {
    run_on_stable_host(5, |host| faults::ledger_survives_power_cuts(host, 20));
}

fn run_on_stable_host(number: u8, scenario: fn(&mut Host)) {
    run_on_host(number, Kernel::Stable, scenario);
}

/// Boots a host and runs a scenario on it, and repeats both if the emulation itself failed.
fn run_on_host(number: u8, kernel: Kernel, scenario: fn(&mut Host)) {
    for last in [false, true] {
        let mut host = boot(number, kernel);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario(&mut host)));
        match result {
            Ok(()) => return,
            Err(_) if !last && host.failed_by_emulation() => {
                let message = format!(
                    "host {number}: the kernel failed because of the emulation; the test restarts"
                );
                writeln!(std::io::stderr(), "{message}").unwrap_or_default();
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Returns all values that Berth may change, and related values.
fn read_state(host: &mut Host) -> String {
    host.run_checked("host-state").unwrap()
}

/// Returns the lines that differ, for an error message.
fn difference(before: &str, after: &str) -> String {
    let missing = |state: &str, other: &str, sign: &str| {
        let other: std::collections::BTreeSet<&str> = other.lines().collect();
        let lines = state.lines().filter(|line| !other.contains(line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    missing(before, after, "-") + missing(after, before, "+").as_str()
}

#[track_caller]
fn assert_same(before: &str, after: &str) {
    assert!(
        before == after,
        "the host differs from its former state:\n{}",
        difference(before, after)
    );
}

fn write_manifest(host: &mut Host, spec: &str) {
    let text = format!(
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: rack1-a}}\nspec:\n{spec}\n"
    );
    // The file is written as an editor does: to a temporary file that is then renamed.
    host.run_checked(&format!(
        "cat > {MANIFEST_PATH}.new <<'END'\n{text}END\nmv {MANIFEST_PATH}.new {MANIFEST_PATH}"
    ))
    .unwrap();
}

fn write_sample_manifest(host: &mut Host) {
    host.copy_file(&repository().join("examples/infranode.yaml"), MANIFEST_PATH).unwrap();
}
