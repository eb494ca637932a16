//! Tests that `report` and `check` match the output of other tools on the same host.

use berth_tests::host::Host;
use berth_tests::lscpu;
use serde_json::Value;

pub(super) fn report_matches_other_tools(host: &mut Host) {
    let report = host.run_checked("berth-agent report -o json 2>/dev/null").unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let cpu = &report["status"]["capabilities"]["cpu"];
    let counts = lscpu::read_counts(host).unwrap();
    assert_eq!(cpu["threads"], counts.threads);
    assert_eq!((&cpu["cores"], &cpu["sockets"]), (&counts.cores.into(), &counts.sockets.into()));
    assert_eq!(cpu["threadsPerCore"], 2);

    let numactl = host.run_checked("numactl -H").unwrap();
    let zones = report["status"]["zones"].as_array().unwrap();
    assert_eq!(zones.len(), 2);
    for zone in zones {
        let start = format!("node {} cpus: ", zone["id"]);
        let cpus = numactl.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
        let theirs: berth_api::CpuSet = cpus.trim().replace(' ', ",").parse().unwrap();
        assert_eq!(zone["cpus"].as_str().unwrap().parse(), Ok(theirs));
    }

    // Each check is compared separately: pass or fail. Newer releases of virt-host-validate write paths in quotation
    // marks.
    let theirs = host.run("virt-host-validate qemu").unwrap().output.replace('\'', "");
    let findings = host.run("berth-agent check kvm -o json 2>/dev/null").unwrap().output;
    let ours: Value = serde_json::from_str(&findings).unwrap();
    for (words, id) in [
        ("hardware virtualization", "kvm.hardware"),
        ("/dev/kvm exists", "kvm.device"),
        ("/dev/vhost-net exists", "kvm.vhost-net"),
        ("/dev/net/tun exists", "kvm.tun"),
    ] {
        let line = theirs.lines().find(|line| line.contains(words)).unwrap();
        let checks = ours["checks"].as_array().unwrap();
        let finding = checks.iter().find(|finding| finding["id"] == id).unwrap();
        assert_eq!(line.contains(": PASS"), finding["status"] == "PASS", "{line}\n{finding}");
    }
}
