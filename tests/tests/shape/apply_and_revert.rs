//! Test of the whole sequence: plan, apply, an empty second plan, revert.

use berth_tests::host::Host;
use serde_json::Value;

use super::{MANIFEST_PATH, assert_same, read_state, write_manifest, write_sample_manifest};

fn read_plan(host: &mut Host) -> Value {
    let result =
        host.run(&format!("berth-agent plan -f {MANIFEST_PATH} -o json 2>/dev/null")).unwrap();
    serde_json::from_str(&result.output)
        .unwrap_or_else(|error| panic!("{error}: {}", result.output))
}

fn read_value(host: &mut Host, file: &str) -> String {
    host.run_checked(&format!("cat {file}")).unwrap().trim().to_owned()
}

pub(super) fn invalid_manifest_changes_nothing(host: &mut Host) {
    let before = read_state(host);
    write_manifest(
        host,
        "  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 5, count: 8}]\n  cpu: {reserved: {cpus: '0'}}",
    );
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 2, "{}", result.output);
    for fault in [
        "spec.hugepages[0].zone: `5`: this host has no such zone; it has 0, 1",
        "spec.cpu.reserved.cpus: `0`: splits a physical core; with all siblings the CPUs are 0-1",
        "no change was applied",
    ] {
        assert!(result.output.contains(fault), "{}", result.output);
    }
    assert_same(&before, &read_state(host));
    host.run_checked("test ! -e /var/lib/berth/found.json").unwrap();
    let user =
        host.run("setpriv --reuid=65534 --regid=65534 --clear-groups berth-agent revert").unwrap();
    assert_eq!(user.code, 3);
    assert!(user.output.contains("only root can change the host"), "{}", user.output);
}

/// Applies and reverts the manifest of `examples/`, as the README shows.
pub(super) fn sample_is_applied_and_reverted(host: &mut Host) {
    write_sample_manifest(host);
    let before = read_state(host);
    let planned = read_plan(host);
    let table = host.run(&format!("berth-agent plan -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(table.code, 0, "{}", table.output);
    assert_same(&before, &read_state(host));
    let reserved = planned["reservedCPUs"].as_str().unwrap().to_owned();
    assert_eq!(reserved, "0-1,4-5", "one core of two threads in each zone");

    let applied = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(applied.code, 0, "{}", applied.output);
    for node in [0, 1] {
        let pool =
            format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
        assert_eq!(read_value(host, &pool), "128");
    }
    for unit in ["init.scope", "system.slice", "user.slice"] {
        let shown =
            host.run_checked(&format!("systemctl show {unit} -p AllowedCPUs --value")).unwrap();
        assert_eq!(shown.trim().replace(' ', ","), reserved, "{unit}");
    }
    assert_eq!(read_value(host, "/sys/fs/cgroup/system.slice/cpuset.cpus.effective"), reserved);
    assert_eq!(read_value(host, "/proc/irq/default_smp_affinity"), "33");
    assert_eq!(read_value(host, "/sys/devices/virtual/workqueue/cpumask"), "33");
    assert!(read_value(host, "/sys/kernel/mm/transparent_hugepage/enabled").contains("[madvise]"));
    let advisor = host.run("cat /sys/kernel/mm/ksm/advisor_mode").unwrap();
    if advisor.code == 0 {
        assert!(advisor.output.contains("[scan-time]"), "{}", advisor.output);
        assert_eq!(read_value(host, "/sys/kernel/mm/ksm/run"), "1");
    }
    // Every interrupt in use moves to the reserved CPUs, unless the kernel refuses to move it.
    let elsewhere = host
        .run_checked(
            "for i in /proc/irq/[0-9]*; do n=${i##*/}; [ -s /sys/kernel/irq/$n/actions ] || continue; \
             [ -n \"$(cat /sys/kernel/irq/$n/actions)\" ] || continue; a=$(cat $i/smp_affinity_list); \
             case $a in 0-1,4-5|0|1|4|5|0-1|4-5) ;; *) echo 0-1,4-5 2>/dev/null >$i/smp_affinity_list && echo $n;; esac; done; true",
        )
        .unwrap();
    assert_eq!(elsewhere, "", "the agent did not move these interrupts");

    let second = host.run(&format!("berth-agent plan -f {MANIFEST_PATH}")).unwrap();
    assert!(second.code == 0 && second.output.contains("nothing to do"), "{}", second.output);
    assert_eq!(read_plan(host)["changes"], serde_json::json!([]));
    let again = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert!(
        again.code == 0 && again.output.starts_with("the host has the desired state")
            || again.output.starts_with("note"),
        "{}",
        again.output
    );

    assert_revert_restores(host, &before);
}

/// Reverts, and asserts that the host has its former state.
pub(super) fn assert_revert_restores(host: &mut Host, before: &str) {
    let result = host.run("berth-agent revert").unwrap();
    assert_eq!(result.code, 0, "{}", result.output);
    assert_same(before, &read_state(host));
    host.run_checked("test ! -e /var/lib/berth/found.json || cat /var/lib/berth/found.json >&2; test ! -e /var/lib/berth/found.json")
        .unwrap();
    let second_revert = host.run("berth-agent revert").unwrap();
    assert!(
        second_revert.code == 0 && second_revert.output.contains("the host has its original state"),
        "{}",
        second_revert.output
    );
}

/// Tests a request that exceeds the memory: enough memory for the host itself stays free, and the output has the
/// numbers of requested and allocated pages.
pub(super) fn partial_allocation_is_reported(host: &mut Host) {
    let before = read_state(host);
    write_manifest(host, "  hugepages: [{size: 2Mi, zone: 0, count: 720}]");
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    let words: Vec<&str> = result.output.split_whitespace().collect();
    let words = words.join(" ");
    assert!(
        words.contains("Partial hugepages 2Mi zone 0")
            && words.contains(" of 720 pages reserved: "),
        "{words}"
    );
    assert!(words.contains("hugepagesz=2M hugepages=0:720"), "{words}");
    let pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    let allocated: u64 = read_value(host, pool).parse().unwrap();
    assert!(
        (1..720).contains(&allocated)
            && words.contains(&format!("{allocated} of 720 pages reserved")),
        "{allocated}: {words}"
    );
    let free = host
        .run_checked("awk '/MemFree/ {print $4}' /sys/devices/system/node/node0/meminfo")
        .unwrap();
    assert!(
        free.trim().parse::<u64>().unwrap() > 32 << 10,
        "too little memory is free: {free} KiB"
    );
    assert_revert_restores(host, &before);
}

/// Tests that a removed field gets its original value; pages in use are not removed, and the agent reports them.
pub(super) fn removed_values_are_restored(host: &mut Host) {
    let before = read_state(host);
    write_manifest(
        host,
        "  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 1, count: 64}]\n  ksm: {mode: 'On', pagesToScan: 250, mergeAcrossNodes: false}",
    );
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 0, "{}", result.output);
    assert_eq!(read_value(host, "/sys/kernel/mm/ksm/pages_to_scan"), "250");
    assert_eq!(read_value(host, "/sys/kernel/mm/ksm/merge_across_nodes"), "0");

    // A program uses 16 MiB of the pages on zone 1.
    host.run_checked(
        "mkdir -p /mnt/huge && mount -t hugetlbfs -o pagesize=2M none /mnt/huge && \
         numactl --membind=1 fallocate -l 16M /mnt/huge/used && \
         cat /sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages",
    )
    .unwrap();
    write_manifest(host, "  transparentHugepages: Never");
    let partial = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(partial.code, 1, "{}", partial.output);
    assert!(partial.output.contains("8 of the 64 pages are in use"), "{}", partial.output);
    assert_eq!(read_value(host, "/sys/kernel/mm/ksm/run"), "0");
    assert_eq!(read_value(host, "/sys/kernel/mm/ksm/merge_across_nodes"), "1");
    assert!(read_value(host, "/sys/kernel/mm/transparent_hugepage/enabled").contains("[never]"));
    host.run_checked("umount /mnt/huge; rmdir /mnt/huge").unwrap();
    assert_revert_restores(host, &before);
    write_sample_manifest(host);
}
