//! Tests of faults: the agent is killed, the power is cut, the disk is full, another program changes the host.

use berth_tests::host::Host;

use super::whole::revert;
use super::{MANIFEST, assert_same, put_sample, state, write_manifest};

/// Returns delays in milliseconds after which `apply` is killed: spread over its whole duration, without
/// repetition.
fn moments(n: u32) -> impl Iterator<Item = u32> {
    // The stride is coprime to the range, so each moment occurs once, and early and late moments alternate.
    (0..n).map(move |i| (i * 617 + 31) % 1500)
}

/// Kills `apply` (and in every second round `revert`) at such a moment, runs it to its end, and reverts.
pub(super) fn kills(host: &mut Host, n: u32) {
    put_sample(host);
    let before = state(host);
    let mut cut_short = 0;
    for (round, millis) in moments(n).enumerate() {
        let seconds = f64::from(millis) / 1000.0;
        let kill = |command: &str| {
            format!("timeout --signal=KILL {seconds:.3} berth-agent {command} >/dev/null 2>&1")
        };
        let said = host.run(&kill(&format!("apply -f {MANIFEST}"))).unwrap();
        // Code 137: the command was killed; code 0: the command had ended before.
        cut_short += u32::from(said.code == 137);
        host.must(
            "test ! -e /var/lib/berth/found.json || grep -q bootID /var/lib/berth/found.json",
        )
        .unwrap();
        if round % 2 == 0 {
            let converged = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
            assert_eq!(converged.code, 0, "killed after {seconds} s: {}", converged.output);
            let plan = host.run(&format!("berth-agent plan -f {MANIFEST}")).unwrap();
            assert!(plan.output.contains("nothing to do"), "{}", plan.output);
        } else {
            host.run(&kill("revert")).unwrap();
        }
        revert(host, &before);
    }
    assert!(cut_short > 0, "no kill hit: apply is faster than the moments");
}

/// Returns the output without the line breaks for 80 columns.
fn flat(output: &str) -> String {
    output.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Tests a full and a read-only state folder: nothing is changed, because the rollback ledger cannot be saved.
pub(super) fn state_folder(host: &mut Host) {
    let before = state(host);
    for (options, why) in [("size=4k,nr_inodes=2", "ENOSPC"), ("ro", "EROFS")] {
        host.must(&format!("mount -t tmpfs -o {options} none /var/lib/berth")).unwrap();
        let said = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
        assert!(said.code == 3 && flat(&said.output).contains(why), "{options}: {}", said.output);
        assert_same(&before, &state(host));
        host.must("umount /var/lib/berth").unwrap();
    }
    host.must("echo garbage > /var/lib/berth/found.json").unwrap();
    let said = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    assert!(
        said.code == 3 && flat(&said.output).contains("not a rollback ledger"),
        "{}",
        said.output
    );
    assert_same(&before, &state(host));
    host.must("rm /var/lib/berth/found.json").unwrap();
}

/// Tests that a write which the kernel refuses is reported with its errno, and that the other changes are made.
pub(super) fn refused_writes(host: &mut Host) {
    let before = state(host);
    write_manifest(
        host,
        "  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 0, count: 32}]",
    );
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    host.must(&format!("cat {file} > /run/frozen && mount --bind /run/frozen {file} && mount -o remount,bind,ro {file}")).unwrap();
    let said = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    assert_eq!(said.code, 3, "{}", said.output);
    assert!(
        flat(&said.output).contains("EROFS") && flat(&said.output).contains("mounted read-only"),
        "{}",
        said.output
    );
    let pages = host
        .must("cat /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages")
        .unwrap();
    assert_eq!(pages.trim(), "32");
    host.must(&format!("umount {file}")).unwrap();
    revert(host, &before);
    put_sample(host);
}

/// Runs two agents at once: one agent works, and the other agent's error names the first agent.
pub(super) fn two_agents(host: &mut Host) {
    let before = state(host);
    let said = host
        .must(&format!(
            "for i in 1 2 3 4; do berth-agent apply -f {MANIFEST} >/run/two.$i 2>&1 & done; wait; cat /run/two.*"
        ))
        .unwrap();
    assert!(said.contains("another berth-agent (process"), "{said}");
    assert!(said.contains("the host has the desired state"), "{said}");
    revert(host, &before);
}

/// Tests that jumps of the clock have no effect.
pub(super) fn clock_jumps(host: &mut Host) {
    let before = state(host);
    host.must(&format!(
        "date -s 2001-01-01 && berth-agent apply -f {MANIFEST} && date -s 2040-01-01"
    ))
    .unwrap();
    revert(host, &before);
}

/// Tests that values which a reboot has reset are not restored again: an administrator's value of the later boot
/// stays.
pub(super) fn reboot_between(host: &mut Host) {
    host.must(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    host.reboot().unwrap();
    host.must("udevadm settle --timeout 100").unwrap();
    let pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    host.must(&format!("echo 7 > {pool}")).unwrap();
    let by_hand = state(host);
    let said = host.run("berth-agent revert").unwrap();
    assert_eq!(said.code, 0, "{}", said.output);
    assert_same(&by_hand, &state(host));
    // Apply in this boot records the administrator's value as the original value, which revert restores.
    host.must(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    revert(host, &by_hand);
    assert_eq!(host.must(&format!("cat {pool}")).unwrap().trim(), "7");
    host.must(&format!("echo 0 > {pool}")).unwrap();
}

/// Cuts the power at any moment; afterwards the rollback ledger is intact, and has only entries of the current
/// boot.
pub(super) fn power_cuts(host: &mut Host, n: u32) {
    for millis in moments(n) {
        let seconds = f64::from(millis) / 1000.0;
        host.start(&format!(
            "while berth-agent apply -f {MANIFEST} && berth-agent revert; do :; done"
        ))
        .unwrap();
        host.must(&format!("sleep {seconds:.3}")).unwrap();
        host.power_cycle().unwrap();
        host.must("udevadm settle --timeout 100").unwrap();
        let before = state(host);
        let said = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
        assert_eq!(said.code, 0, "{}", said.output);
        revert(host, &before);
    }
}
