//! Content and frequency of the agent's reports about a host.

use std::time::Duration;

use berth_tests::cluster::ControlPlane;
use serde_json::Value;

use crate::{condition, read_node};

const SHORT_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn host_is_reported(plane: &ControlPlane) {
    let infra_node = crate::apply_spec::wait_until_ready(plane, "True");
    let owner = &infra_node["metadata"]["ownerReferences"][0];
    assert_eq!(
        (owner["kind"].as_str(), &owner["uid"]),
        (Some("Node"), &read_node(plane)["metadata"]["uid"])
    );
    assert_eq!(infra_node["status"]["capabilities"]["cpu"]["cores"], 48);
    assert!(!infra_node["status"]["allocations"].as_array().unwrap().is_empty());

    let node = plane
        .wait_until("the Node has labels", SHORT_TIMEOUT, |plane| {
            Some(read_node(plane))
                .filter(|node| node["metadata"]["labels"]["host.berth.dev/smt"] == "true")
        })
        .unwrap();
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["host.berth.dev/cpu-vendor"], "amd");
    assert_eq!(labels["host.berth.dev/numa-zones"], "2");
    assert_eq!(labels["kubernetes.io/os"], "linux");
    assert_eq!(condition(&node, "berth.dev/HostTuned")["status"], "True");
    assert_eq!(condition(&node, "Ready")["status"], "True");
    // The value is the number of CPUs that the zones report as pinnable.
    let pinnable = &node["status"]["capacity"]["berth.dev/pinnable-cpus"];
    assert_eq!(pinnable, "92", "{node:#}");
    assert_eq!(&node["status"]["allocatable"]["berth.dev/pinnable-cpus"], pinnable);
    let columns = plane.kubectl(&["get", "inode"]).unwrap();
    assert!(
        columns.contains("rack1-a") && columns.contains("True") && columns.contains("48"),
        "{columns}"
    );
    // The server publishes the schema of a new kind with a delay.
    plane
        .wait_until("kubectl explain shows the fields", SHORT_TIMEOUT, |plane| {
            let explained = plane.kubectl(&["explain", "infranodes.status.zones"]).ok()?;
            (explained.contains("NUMA") && explained.contains("pinnableCPUs")).then_some(())
        })
        .unwrap();
}

/// Tests that an idle host only renews its Lease. `BERTH_SOAK` makes the test run for ten minutes, and names the
/// file for the result.
pub(crate) fn idle_host_causes_no_writes(plane: &ControlPlane) {
    // The agent's cycles are two seconds apart in this test.
    let soak = std::env::var_os("BERTH_SOAK").map(std::path::PathBuf::from);
    let time = Duration::from_secs(if soak.is_some() { 600 } else { 7 });
    let lines = agent_requests(plane).len();
    std::thread::sleep(time);
    let (leases, others): (Vec<Value>, Vec<Value>) = agent_requests(plane)
        .split_off(lines)
        .into_iter()
        .partition(|line| line["objectRef"]["resource"] == "leases");
    // The agent restarts a watch that the server has ended after its timeout. Such a request is not a write.
    let writes: Vec<&Value> = others.iter().filter(|line| line["verb"] != "watch").collect();
    assert!(writes.is_empty(), "{writes:#?}");
    let lease = plane.get_json(&["lease", "-n", "berth-system", "rack1-a"]).unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "rack1-a");
    assert_eq!(lease["metadata"]["ownerReferences"][0]["kind"], "Node");
    let Some(results) = soak else { return };
    // The agent renews its Lease every 30 s, with jitter.
    assert!(
        (15..=30).contains(&leases.len()),
        "the agent should renew its Lease every 30 s, found {} renewals in ten minutes",
        leases.len()
    );
    let text = format!(
        "# An idle agent under audit\n\nCommand: `make soak`. Kubernetes {}, every request logged (level Metadata), ten minutes \
         with a cycle every two seconds.\n\n| requests of the agent | |\n|---|---|\n| Lease renewals | {} |\n| restarted watches | {} |\n\
         | other requests | 0 |\n",
        plane.version(),
        leases.len(),
        others.len(),
    );
    std::fs::write(results, text).unwrap();
}

/// Returns the agent's requests from the audit log.
pub(crate) fn agent_requests(plane: &ControlPlane) -> Vec<Value> {
    let log = std::fs::read_to_string(plane.folder().join("audit.log")).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| {
            line["user"]["username"].as_str().unwrap_or_default().ends_with(":berth-agent")
        })
        .collect()
}

/// Tests that the agent restores fields that are removed when a kubelet registers its Node again.
pub(crate) fn removed_fields_are_restored(plane: &ControlPlane) {
    let patch = r#"[{"op":"remove","path":"/status/capacity/berth.dev~1pinnable-cpus"}]"#;
    patch_status(plane, "", "json-patch", patch);
    plane.kubectl(&["label", "node", "rack1-a", "host.berth.dev/smt-"]).unwrap();
    plane
        .wait_until("label and resource are restored", SHORT_TIMEOUT, |plane| {
            let node = read_node(plane);
            let is_restored = node["status"]["capacity"]["berth.dev/pinnable-cpus"] == "92"
                && node["metadata"]["labels"]["host.berth.dev/smt"] == "true";
            is_restored.then_some(())
        })
        .unwrap();
}

/// Tests that the agent restores fields that a kubelet with an empty device-plugin folder sets to zero at
/// registration (`reconcileExtendedResource`). The kubelet sends a strategic merge patch as manager `kubelet`, and
/// becomes the owner of the fields.
pub(crate) fn fields_zeroed_by_a_kubelet_are_restored(plane: &ControlPlane) {
    let zero = r#"{"berth.dev/pinnable-cpus": "0"}"#;
    let patch = format!(r#"{{"status": {{"capacity": {zero}, "allocatable": {zero}}}}}"#);
    // The test checks the response of the patch, because the agent may restore the field before a later read.
    let zeroed = patch_status(plane, "?fieldManager=kubelet", "strategic-merge-patch", &patch);
    assert_eq!(zeroed["status"]["capacity"]["berth.dev/pinnable-cpus"], "0");
    let restored = plane.wait_until("the resource is restored", SHORT_TIMEOUT, |plane| {
        let status = read_node(plane)["status"].take();
        let is_back = |part: &str| status[part]["berth.dev/pinnable-cpus"] == "92";
        (is_back("capacity") && is_back("allocatable")).then_some(())
    });
    assert!(restored.is_ok(), "{restored:?}: {:#}", read_node(plane)["status"]["capacity"]);
}

/// Patches the status of the Node, and returns the Node from the response.
fn patch_status(plane: &ControlPlane, query: &str, kind: &str, patch: &str) -> Value {
    use std::process::Command;
    // kubectl supports `--subresource` only since 1.24.
    let token = berth_tests::cluster::ADMIN_TOKEN;
    let address = format!("https://127.0.0.1:{}/api/v1/nodes/rack1-a/status{query}", plane.port());
    let curl = Command::new("curl")
        .args(["-sSf", "-X", "PATCH", "--cacert"])
        .arg(plane.folder().join("ca.crt"))
        .args([
            "-H",
            &format!("Authorization: Bearer {token}"),
            "-H",
            &format!("Content-Type: application/{kind}+json"),
        ])
        .args(["-d", patch, &address])
        .output()
        .unwrap();
    assert!(curl.status.success(), "{}", String::from_utf8_lossy(&curl.stderr));
    serde_json::from_slice(&curl.stdout).unwrap()
}

pub(crate) fn fields_of_other_managers_are_kept(plane: &ControlPlane) {
    plane
        .kubectl(&["label", "--overwrite", "node", "rack1-a", "host.berth.dev/cpu-vendor=mine"])
        .unwrap();
    plane
        .wait_until("the agent logs the conflict", SHORT_TIMEOUT, |plane| {
            let log = std::fs::read_to_string(plane.folder().join("agent.log")).ok()?;
            let refused = |line: &str| {
                line.contains("other managers own these fields")
                    && line.contains("fields=.metadata.labels.host.berth.dev/cpu-vendor")
            };
            log.lines().any(refused).then_some(())
        })
        .unwrap();
    // The agent still applies the fields that it owns.
    plane.kubectl(&["label", "node", "rack1-a", "host.berth.dev/smt-"]).unwrap();
    plane
        .wait_until("the label is restored", SHORT_TIMEOUT, |plane| {
            (read_node(plane)["metadata"]["labels"]["host.berth.dev/smt"] == "true").then_some(())
        })
        .unwrap();
    assert_eq!(read_node(plane)["metadata"]["labels"]["host.berth.dev/cpu-vendor"], "mine");
}
