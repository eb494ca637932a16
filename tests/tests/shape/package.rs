//! Tests of the Debian package: installation, operation under systemd in its sandbox, a reboot, an upgrade, and a
//! purge without remains.

use berth_tests::host::Host;
use berth_tests::package::newest_package;

use super::{assert_same, read_state, write_sample_manifest};

/// Maximum exposure level by `systemd-analyze security`.
const MAX_EXPOSURE: f64 = 3.0;

fn wait_until_ready(host: &mut Host) {
    let waited = host.run("for i in $(seq 200); do curl -sf http://127.0.0.1:9477/readyz && exit 0; sleep 0.5; done; exit 1");
    if waited.unwrap().code != 0 {
        panic!("{}", host.run("journalctl -u berth-agent --no-pager | tail -40; curl -s http://127.0.0.1:9477/readyz").unwrap().output);
    }
    let output = host.run_checked("curl -s http://127.0.0.1:9477/report").unwrap();
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    let conditions = report["status"]["conditions"].as_array().unwrap();
    let tuned = conditions.iter().find(|condition| condition["type"] == "HostTuned").unwrap();
    assert_eq!(tuned["status"], "True", "{tuned:#} {:#}", report["status"]["changes"]);
}

pub(super) fn package_is_installed_and_purged(host: &mut Host) {
    host.run_checked("rm -rf /usr/local/bin/berth-agent /var/lib/berth").unwrap();
    write_sample_manifest(host);
    host.copy_file(&newest_package().unwrap(), "/root/berth-agent.deb").unwrap();
    let before = read_state(host);
    host.run_checked("apt-get install -y --no-install-recommends /root/berth-agent.deb 2>&1")
        .unwrap();
    wait_until_ready(host);
    host.run_checked(
        "berth-agent --version && zcat /usr/share/man/man1/berth-agent.1.gz | head -1",
    )
    .unwrap();

    let analysed = host
        .run_checked("systemd-analyze security --no-pager berth-agent.service | tail -1")
        .unwrap();
    // Example of the line: `→ Overall exposure level for berth-agent.service: 1.5 OK :-)`
    let exposure = analysed.split(": ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(exposure.parse::<f64>().unwrap() <= MAX_EXPOSURE, "{analysed}");
    host.run_checked("systemd-analyze verify --man=no berth-agent.service berth-hugepages.service")
        .unwrap();

    // An upgrade restarts the daemon and is a no-op for the host.
    let pid = host.run_checked("systemctl show -p MainPID --value berth-agent").unwrap();
    let configured = read_state(host);
    host.run_checked("dpkg -i /root/berth-agent.deb 2>&1").unwrap();
    wait_until_ready(host);
    assert_ne!(host.run_checked("systemctl show -p MainPID --value berth-agent").unwrap(), pid);
    assert_same(&configured, &read_state(host));

    // After a reboot, first the early unit and then the daemon configure the host again.
    host.run_checked("systemctl enable berth-hugepages.service 2>&1").unwrap();
    host.reboot().unwrap();
    wait_until_ready(host);
    let early = host.run_checked("journalctl -b -u berth-hugepages --no-pager -o cat").unwrap();
    assert!(early.contains("hugepages 2Mi zone 1: 0 -> 128"), "{early}");
    let failed = host.run_checked("systemctl --failed --no-legend --plain").unwrap();
    assert_eq!(failed, "", "failed units");

    // With `BERTH_REVERT=yes` the package restores the host before its removal.
    let purged = host.run_checked("BERTH_REVERT=yes apt-get purge -y berth-agent 2>&1").unwrap();
    assert!(purged.contains("the host has its original state"), "{purged}");
    let after = read_state(host);
    // Interrupts get other numbers and CPUs at each boot, and some sysctls depend on the available memory.
    let moved =
        |line: &&str| ["/proc/irq/", " /etc/", " = "].iter().all(|part| !line.contains(part));
    let settings = |state: &str| {
        state.lines().filter(moved).map(|line| format!("{line}\n")).collect::<String>()
    };
    assert_same(&settings(&before), &settings(&after));
    let remaining_files = host
        .run_checked("find / -xdev \\( -name '*berth-agent*' -o -name '*berth-huge*' -o -path /var/lib/berth -o -path /run/berth \\) -not -path '/proc/*' -not -path '/root/*' -not -path '/var/lib/dpkg/*' -not -path '/var/cache/*' -not -path '/var/log/*' -not -path '/sys/*'")
        .unwrap();
    assert_eq!(remaining_files, "", "files after the purge");
}
