//! Tests of faults: the agent is killed, the power is cut, the disk is full, another program changes the host.

use berth_tests::host::Host;

use super::apply_and_revert::assert_revert_restores;
use super::{MANIFEST_PATH, assert_same, read_state, write_manifest, write_sample_manifest};

/// Returns delays in milliseconds after which `apply` is killed: spread over its whole duration, without
/// repetition.
fn kill_delays(count: u32) -> impl Iterator<Item = u32> {
    // The stride is coprime to the range, so each moment occurs once, and early and late moments alternate.
    (0..count).map(move |i| (i * 617 + 31) % 1500)
}

/// Kills `apply` (and in every second round also `revert`) after these delays, then runs the same command without a
/// kill, and asserts that `revert` restores the former state.
pub(super) fn killed_commands_are_completed(host: &mut Host, count: u32) {
    write_sample_manifest(host);
    let before = read_state(host);
    let mut cut_short = 0;
    for (round, millis) in kill_delays(count).enumerate() {
        let seconds = f64::from(millis) / 1000.0;
        let kill = |command: &str| {
            format!("timeout --signal=KILL {seconds:.3} berth-agent {command} >/dev/null 2>&1")
        };
        let result = host.run(&kill(&format!("apply -f {MANIFEST_PATH}"))).unwrap();
        // Code 137: the command was killed; code 0: the command had ended before.
        cut_short += u32::from(result.code == 137);
        host.run_checked(
            "test ! -e /var/lib/berth/found.json || grep -q bootID /var/lib/berth/found.json",
        )
        .unwrap();
        if round % 2 == 0 {
            let converged = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
            assert_eq!(converged.code, 0, "killed after {seconds} s: {}", converged.output);
            let plan = host.run(&format!("berth-agent plan -f {MANIFEST_PATH}")).unwrap();
            assert!(plan.output.contains("nothing to do"), "{}", plan.output);
        } else {
            host.run(&kill("revert")).unwrap();
        }
        assert_revert_restores(host, &before);
    }
    assert!(cut_short > 0, "no kill interrupted apply: apply is faster than the delays");
}

/// Returns the output without the line breaks for 80 columns.
fn join_lines(output: &str) -> String {
    output.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Tests a full and a read-only state folder: nothing is changed, because the rollback ledger cannot be saved.
pub(super) fn unwritable_state_folder_prevents_changes(host: &mut Host) {
    let before = read_state(host);
    for (options, errno) in [("size=4k,nr_inodes=2", "ENOSPC"), ("ro", "EROFS")] {
        host.run_checked(&format!("mount -t tmpfs -o {options} none /var/lib/berth")).unwrap();
        let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
        assert!(
            result.code == 3 && join_lines(&result.output).contains(errno),
            "{options}: {}",
            result.output
        );
        assert_same(&before, &read_state(host));
        host.run_checked("umount /var/lib/berth").unwrap();
    }
    host.run_checked("echo garbage > /var/lib/berth/found.json").unwrap();
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert!(
        result.code == 3 && join_lines(&result.output).contains("not a rollback ledger"),
        "{}",
        result.output
    );
    assert_same(&before, &read_state(host));
    host.run_checked("rm /var/lib/berth/found.json").unwrap();
}

/// Tests that a write which the kernel refuses is reported with its errno, and that all other changes are applied.
pub(super) fn refused_write_is_reported(host: &mut Host) {
    let before = read_state(host);
    write_manifest(
        host,
        "  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 0, count: 32}]",
    );
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    host.run_checked(&format!("cat {file} > /run/frozen && mount --bind /run/frozen {file} && mount -o remount,bind,ro {file}")).unwrap();
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 3, "{}", result.output);
    assert!(
        join_lines(&result.output).contains("EROFS")
            && join_lines(&result.output).contains("mounted read-only"),
        "{}",
        result.output
    );
    let pages = host
        .run_checked("cat /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages")
        .unwrap();
    assert_eq!(pages.trim(), "32");
    host.run_checked(&format!("umount {file}")).unwrap();
    assert_revert_restores(host, &before);
    write_sample_manifest(host);
}

/// Runs two agents at once: one agent works, and the other agent's error names the first agent.
pub(super) fn second_agent_is_refused(host: &mut Host) {
    let before = read_state(host);
    let output = host
        .run_checked(&format!(
            "for i in 1 2 3 4; do berth-agent apply -f {MANIFEST_PATH} >/run/two.$i 2>&1 & done; wait; cat /run/two.*"
        ))
        .unwrap();
    assert!(output.contains("another berth-agent (process"), "{output}");
    assert!(output.contains("the host has the desired state"), "{output}");
    assert_revert_restores(host, &before);
}

/// Tests that jumps of the clock have no effect.
pub(super) fn clock_jumps_have_no_effect(host: &mut Host) {
    let before = read_state(host);
    host.run_checked(&format!(
        "date -s 2001-01-01 && berth-agent apply -f {MANIFEST_PATH} && date -s 2040-01-01"
    ))
    .unwrap();
    assert_revert_restores(host, &before);
}

/// Tests that values which a reboot has reset are not restored again: a value that an administrator sets after the
/// reboot is kept.
pub(super) fn values_reset_by_a_reboot_are_not_restored(host: &mut Host) {
    host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    host.reboot().unwrap();
    host.run_checked("udevadm settle --timeout 100").unwrap();
    let pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    host.run_checked(&format!("echo 7 > {pool}")).unwrap();
    let by_hand = read_state(host);
    let result = host.run("berth-agent revert").unwrap();
    assert_eq!(result.code, 0, "{}", result.output);
    assert_same(&by_hand, &read_state(host));
    // Apply in this boot records the administrator's value as the original value, which revert restores.
    host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_revert_restores(host, &by_hand);
    assert_eq!(host.run_checked(&format!("cat {pool}")).unwrap().trim(), "7");
    host.run_checked(&format!("echo 0 > {pool}")).unwrap();
}

/// Cuts the power after various delays; afterwards the rollback ledger is intact, and has only entries of the current
/// boot.
pub(super) fn ledger_survives_power_cuts(host: &mut Host, count: u32) {
    for millis in kill_delays(count) {
        let seconds = f64::from(millis) / 1000.0;
        host.start_command(&format!(
            "while berth-agent apply -f {MANIFEST_PATH} && berth-agent revert; do :; done"
        ))
        .unwrap();
        host.run_checked(&format!("sleep {seconds:.3}")).unwrap();
        host.power_cycle().unwrap();
        host.run_checked("udevadm settle --timeout 100").unwrap();
        let before = read_state(host);
        let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
        assert_eq!(result.code, 0, "{}", result.output);
        assert_revert_restores(host, &before);
    }
}
