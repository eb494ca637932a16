//! Tests of `run --standalone`, which applies the manifest and corrects drift.

use std::time::Duration;

use berth_tests::host::Host;
use serde_json::Value;

use super::apply_and_revert::assert_revert_restores;
use super::{MANIFEST_PATH, read_state, write_manifest};

const TRANSPARENT_HUGEPAGE_FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const POOL_FILE: &str = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";

fn http_get(host: &mut Host, path: &str) -> (String, String) {
    let response = host
        .run_checked(&format!("curl -s -w '\\n%{{http_code}}' http://127.0.0.1:9477{path}"))
        .unwrap();
    let (body, code) = response.rsplit_once('\n').unwrap();
    (code.trim().to_owned(), body.to_owned())
}

fn read_report(host: &mut Host) -> Value {
    serde_json::from_str(&http_get(host, "/report").1).unwrap()
}

fn condition(report: &Value, name: &str) -> (String, String) {
    let all = report["status"]["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == name).unwrap();
    (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned())
}

/// Waits until a shell condition holds.
#[track_caller]
fn wait_until(host: &mut Host, condition: &str) {
    let explain = "cat /run/agent.log; curl -s http://127.0.0.1:9477/report | head -c 6000";
    host.wait_until(condition, Duration::from_secs(60), explain).unwrap();
}

pub(super) fn daemon_maintains_the_desired_state(host: &mut Host) {
    let before = read_state(host);
    host.run_checked(&format!("rm -f {MANIFEST_PATH}")).unwrap();
    start_agent(host);
    assert_eq!(http_get(host, "/healthz").0, "200");
    let (code, message) = http_get(host, "/readyz");
    assert!(
        code == "503"
            && message
                .contains("infranode.yaml: no such file or directory: the host is not changed"),
        "{message}"
    );

    write_manifest(
        host,
        "  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 1, count: 32}]",
    );
    wait_until(
        host,
        &format!("grep -q '\\[never\\]' {TRANSPARENT_HUGEPAGE_FILE} && grep -qx 32 {POOL_FILE}"),
    );
    wait_until(host, "curl -sf http://127.0.0.1:9477/readyz");
    let status_report = read_report(host);
    assert_eq!(condition(&status_report, "HostTuned"), ("True".into(), "Applied".into()));
    assert_eq!(status_report["status"]["zones"][1]["hugepages"][0]["total"], 32);
    let changes: Vec<&str> = status_report["status"]["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["what"].as_str().unwrap())
        .collect();
    assert!(changes.contains(&"hugepages 2Mi zone 1: 0 -> 32"), "{changes:?}");

    // A second agent refuses to start, and names the first agent.
    let second = host
        .run(&format!("berth-agent run --standalone {MANIFEST_PATH} --listen 127.0.0.1:9478"))
        .unwrap();
    assert!(
        second.code == 3 && second.output.contains("another berth-agent (process"),
        "{}",
        second.output
    );

    // The next cycle corrects drift; SIGHUP starts a cycle.
    host.run_checked(&format!(
        "echo 5 > {POOL_FILE}; echo always > {TRANSPARENT_HUGEPAGE_FILE}; kill -HUP $(cat /run/agent.pid)"
    ))
    .unwrap();
    wait_until(
        host,
        &format!("grep -q '\\[never\\]' {TRANSPARENT_HUGEPAGE_FILE} && grep -qx 32 {POOL_FILE}"),
    );
    // The metrics change at the end of the cycle, after the settings.
    wait_until(
        host,
        "curl -s http://127.0.0.1:9477/metrics | grep -q '^berth_agent_drift_total 2$'",
    );

    // One part of a manifest is invalid: the agent applies the other parts, and reverts nothing of the invalid
    // part.
    write_manifest(
        host,
        "  transparentHugepages: Always\n  hugepages: [{size: 2Mi, zone: one, count: 32}]",
    );
    wait_until(host, &format!("grep -q '\\[always\\]' {TRANSPARENT_HUGEPAGE_FILE}"));
    host.run_checked(&format!("grep -qx 32 {POOL_FILE}")).unwrap();
    wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q InvalidSpec");
    let seen = read_report(host);
    assert_eq!(condition(&seen, "HostTuned").1, "InvalidSpec");
    assert!(http_get(host, "/metrics").1.contains("berth_agent_manifest_faults 1"));

    // With `enforce: false`, the agent reports drift and does not change the value.
    write_manifest(
        host,
        "  enforce: false\n  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 1, count: 32}]",
    );
    wait_until(host, &format!("grep -q '\\[never\\]' {TRANSPARENT_HUGEPAGE_FILE}"));
    host.run_checked(&format!(
        "echo madvise > {TRANSPARENT_HUGEPAGE_FILE}; kill -HUP $(cat /run/agent.pid)"
    ))
    .unwrap();
    wait_until(
        host,
        "curl -s http://127.0.0.1:9477/report | grep -q '\"reason\": \"DriftDetected\"'",
    );
    host.run_checked(&format!("grep -q '\\[madvise\\]' {TRANSPARENT_HUGEPAGE_FILE}")).unwrap();

    cpu_hotplug_updates_the_plan(host);

    // Neither the removal of the manifest nor the end of the agent changes the configuration of the host.
    host.run_checked(&format!("rm {MANIFEST_PATH}")).unwrap();
    wait_until(
        host,
        "test \"$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:9477/readyz)\" = 503",
    );
    host.run_checked(&format!("grep -qx 32 {POOL_FILE}")).unwrap();
    host.run_checked(
        "kill $(cat /run/agent.pid); while [ -e /proc/$(cat /run/agent.pid) ]; do sleep 0.1; done",
    )
    .unwrap();
    host.run_checked(&format!(
        "grep -qx 32 {POOL_FILE}; grep -q 'the host is not changed' /run/agent.log"
    ))
    .unwrap();
    assert_revert_restores(host, &before);
}

/// Tests that the agent computes the plan again after the kernel's event about an offline CPU: the CPU's core is no
/// longer complete.
fn cpu_hotplug_updates_the_plan(host: &mut Host) {
    write_manifest(host, "  cpu: {reserved: {coresPerZone: 1}}");
    wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q '\"reservedCPUs\": \"4-5\"'");
    host.run_checked("echo 0 > /sys/devices/system/cpu/cpu5/online").unwrap();
    wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q '\"reservedCPUs\": \"4\"'");
    host.run_checked("echo 1 > /sys/devices/system/cpu/cpu5/online").unwrap();
    wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q '\"reservedCPUs\": \"4-5\"'");
    write_manifest(host, "  enforce: false\n  hugepages: [{size: 2Mi, zone: 1, count: 32}]");
    wait_until(host, &format!("grep -qx 32 {POOL_FILE}"));
}

fn start_agent(host: &mut Host) {
    // The timer has a long interval, so that the timer causes no change in this test.
    host.run_checked(&format!(
        "setsid berth-agent run --standalone {MANIFEST_PATH} --interval 3600 </dev/null >/run/agent.log 2>&1 & echo $! >/run/agent.pid"
    ))
    .unwrap();
    wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q capabilities");
}
