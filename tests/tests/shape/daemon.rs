//! Tests of `run --standalone`, which keeps the host in the state of its manifest.

use std::time::Duration;

use berth_tests::host::Host;
use serde_json::Value;

use super::whole::revert;
use super::{MANIFEST, state, write_manifest};

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const POOL: &str = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";

fn get(host: &mut Host, path: &str) -> (String, String) {
    let said =
        host.must(&format!("curl -s -w '\\n%{{http_code}}' http://127.0.0.1:9477{path}")).unwrap();
    let (body, code) = said.rsplit_once('\n').unwrap();
    (code.trim().to_owned(), body.to_owned())
}

fn report(host: &mut Host) -> Value {
    serde_json::from_str(&get(host, "/report").1).unwrap()
}

fn condition(report: &Value, name: &str) -> (String, String) {
    let all = report["status"]["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == name).unwrap();
    (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned())
}

/// Waits until a shell condition holds.
#[track_caller]
fn until(host: &mut Host, condition: &str) {
    let explain = "cat /run/agent.log; curl -s http://127.0.0.1:9477/report | head -c 6000";
    host.until(condition, Duration::from_secs(60), explain).unwrap();
}

pub(super) fn keeps_the_host(host: &mut Host) {
    let before = state(host);
    host.must(&format!("rm -f {MANIFEST}")).unwrap();
    start(host);
    assert_eq!(get(host, "/healthz").0, "200");
    let (code, why) = get(host, "/readyz");
    assert!(
        code == "503" && why.contains("infranode.yaml: not there: the host stays as it is"),
        "{why}"
    );

    write_manifest(
        host,
        "  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 1, count: 32}]",
    );
    until(host, &format!("grep -q '\\[never\\]' {THP} && grep -qx 32 {POOL}"));
    until(host, "curl -sf http://127.0.0.1:9477/readyz");
    let seen = report(host);
    assert_eq!(condition(&seen, "HostTuned"), ("True".into(), "Applied".into()));
    assert_eq!(seen["status"]["zones"][1]["hugepages"][0]["total"], 32);
    let what: Vec<&str> = seen["status"]["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["what"].as_str().unwrap())
        .collect();
    assert!(what.contains(&"hugepages 2Mi zone 1: 0 -> 32"), "{what:?}");

    // A second agent refuses to start, and names the first agent.
    let second = host
        .run(&format!("berth-agent run --standalone {MANIFEST} --listen 127.0.0.1:9478"))
        .unwrap();
    assert!(
        second.code == 3 && second.output.contains("another berth-agent (process"),
        "{}",
        second.output
    );

    // The next cycle corrects drift; SIGHUP starts a cycle.
    host.must(&format!("echo 5 > {POOL}; echo always > {THP}; kill -HUP $(cat /run/agent.pid)"))
        .unwrap();
    until(host, &format!("grep -q '\\[never\\]' {THP} && grep -qx 32 {POOL}"));
    assert!(
        get(host, "/metrics").1.contains("berth_agent_drift_total 2"),
        "{}",
        get(host, "/metrics").1
    );

    // One part of a manifest is invalid: the agent applies the other parts, and reverts nothing of the invalid
    // part.
    write_manifest(
        host,
        "  transparentHugepages: Always\n  hugepages: [{size: 2Mi, zone: one, count: 32}]",
    );
    until(host, &format!("grep -q '\\[always\\]' {THP}"));
    host.must(&format!("grep -qx 32 {POOL}")).unwrap();
    let seen = report(host);
    assert_eq!(condition(&seen, "HostTuned").1, "InvalidSpec");
    assert!(get(host, "/metrics").1.contains("berth_agent_manifest_faults 1"));

    // The agent reports the value and leaves it unchanged.
    write_manifest(
        host,
        "  enforce: false\n  transparentHugepages: Never\n  hugepages: [{size: 2Mi, zone: 1, count: 32}]",
    );
    until(host, &format!("grep -q '\\[never\\]' {THP}"));
    host.must(&format!("echo madvise > {THP}; kill -HUP $(cat /run/agent.pid)")).unwrap();
    until(host, "curl -s http://127.0.0.1:9477/report | grep -q '\"reason\": \"DriftDetected\"'");
    host.must(&format!("grep -q '\\[madvise\\]' {THP}")).unwrap();

    hotplug(host);

    // Without a manifest the host keeps its configuration. It also keeps the configuration when the agent ends.
    host.must(&format!("rm {MANIFEST}")).unwrap();
    until(
        host,
        "test \"$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:9477/readyz)\" = 503",
    );
    host.must(&format!("grep -qx 32 {POOL}")).unwrap();
    host.must(
        "kill $(cat /run/agent.pid); while [ -e /proc/$(cat /run/agent.pid) ]; do sleep 0.1; done",
    )
    .unwrap();
    host.must(&format!("grep -qx 32 {POOL}; grep -q 'the host stays as it is' /run/agent.log"))
        .unwrap();
    revert(host, &before);
}

/// Tests that the agent computes the plan again after the kernel's event about an offline CPU: the CPU's core is no
/// longer complete.
fn hotplug(host: &mut Host) {
    write_manifest(host, "  cpu: {reserved: {coresPerZone: 1}}");
    until(host, "curl -s http://127.0.0.1:9477/report | grep -q '\"reservedCPUs\": \"4-5\"'");
    host.must("echo 0 > /sys/devices/system/cpu/cpu5/online").unwrap();
    until(host, "curl -s http://127.0.0.1:9477/report | grep -q '\"reservedCPUs\": \"4\"'");
    host.must("echo 1 > /sys/devices/system/cpu/cpu5/online").unwrap();
    until(host, "curl -s http://127.0.0.1:9477/report | grep -q '\"reservedCPUs\": \"4-5\"'");
    write_manifest(host, "  enforce: false\n  hugepages: [{size: 2Mi, zone: 1, count: 32}]");
    until(host, &format!("! grep -q '\\[madvise\\]' {THP} || grep -qx 32 {POOL}"));
}

fn start(host: &mut Host) {
    // The timer has a long interval on purpose, so that no change here comes from the timer.
    host.must(&format!(
        "setsid berth-agent run --standalone {MANIFEST} --interval 3600 </dev/null >/run/agent.log 2>&1 & echo $! >/run/agent.pid"
    ))
    .unwrap();
    until(host, "curl -s http://127.0.0.1:9477/report | grep -q capabilities");
}
