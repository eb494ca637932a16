//! Outages of the API server, and objects that are deleted and created again.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, Version};
use serde_json::json;

use crate::agent::Agent;
use crate::apply_spec::{SLEEP_FILE, wait_until_ready};
use crate::tree::Tree;
use crate::{condition, read_file, read_infra_node, set_spec};

const SHORT_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn agent_continues_without_the_server(
    plane: &mut ControlPlane,
    tree: &Tree,
    agent: &mut Agent,
) {
    set_spec(plane, &json!({"ksm": {"sleepMillis": 55}}));
    wait_until_ready(plane, "True");
    plane.stop_server();
    let assert_drift_is_corrected = |plane: &ControlPlane| {
        tree.write_file(SLEEP_FILE, "1\n");
        plane
            .wait_until("the drift is corrected without the server", SHORT_TIMEOUT, |_| {
                (read_file(tree, SLEEP_FILE) == "55").then_some(())
            })
            .unwrap();
    };
    assert_drift_is_corrected(plane);
    // An agent that starts during the outage reads the last spec from its state folder.
    agent.restart(&[]);
    assert_drift_is_corrected(plane);
    plane.start_server().unwrap();
    set_spec(plane, &json!({"ksm": {"sleepMillis": 56}}));
    // The limit is a minute, because the requests that failed during the outage may still be in backoff.
    plane
        .wait_until("the agent applies the new spec", Duration::from_secs(60), |_| {
            (read_file(tree, SLEEP_FILE) == "56").then_some(())
        })
        .unwrap();
    wait_until_ready(plane, "True");
}

/// Tests that an agent whose credential expires continues with the next credential, without a restart.
pub(crate) fn expired_credential_is_replaced(
    plane: &ControlPlane,
    tree: &Tree,
    agent: &mut Agent,
    (kubeconfig, port): (&Path, u16),
) {
    let write_kubeconfig = |text: &str| {
        let new = kubeconfig.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, kubeconfig).unwrap();
    };
    let soon = Duration::from_secs(60);
    let credential_condition =
        |plane: &ControlPlane| condition(&read_infra_node(plane), "CredentialValid").clone();
    let expiry_metric = || {
        let address = format!("http://127.0.0.1:{port}/metrics");
        let text = Command::new("curl").args(["-sS", &address]).output().unwrap().stdout;
        let text = String::from_utf8(text).unwrap();
        let name = "berth_agent_client_certificate_expiration_timestamp_seconds";
        text.lines().find_map(|line| {
            line.strip_prefix(name)?.trim_start_matches("{}").trim().parse::<f64>().ok()
        })
    };
    let token = std::fs::read_to_string(kubeconfig).unwrap();
    assert!(credential_condition(plane).is_null() && expiry_metric().is_none());
    let (before, rest) = token.split_once("token: \"").unwrap();
    let rest = rest.split_once('"').unwrap().1;
    write_kubeconfig(&format!("{before}token: \"expired\"{rest}"));
    agent.restart(&[]);
    set_spec(plane, &json!({"ksm": {"sleepMillis": 54}}));
    let refused = plane.wait_until("the credential is refused", soon, |plane| {
        plane.log_tail("agent").contains("Unauthorized").then_some(())
    });
    assert!(refused.is_ok(), "{refused:?}");
    assert_ne!(read_file(tree, SLEEP_FILE), "54");

    let [certificate, key] = plane
        .create_certificate("agent-of-systemd", "berth:agent:rack1-a", "berth:agents")
        .unwrap();
    let (certificate, key) = (certificate.display(), key.display());
    let user = format!("client-certificate: \"{certificate}\", client-key: \"{key}\"");
    write_kubeconfig(&format!("{before}{user}{rest}"));
    plane
        .wait_until("the host has the desired state", soon, |_| {
            (read_file(tree, SLEEP_FILE) == "54").then_some(())
        })
        .unwrap();
    let credential = plane.wait_until("the condition reports the certificate", soon, |plane| {
        let credential = credential_condition(plane);
        (credential["reason"] == "Valid").then_some(credential)
    });
    let credential = credential.unwrap();
    assert_eq!(credential["status"], "True");
    assert!(credential["message"].as_str().unwrap().contains("valid until 2"), "{credential:#}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let remaining_seconds = expiry_metric().unwrap() - now.as_secs_f64();
    assert!(
        (86_400.0..=172_800.0).contains(&remaining_seconds),
        "{remaining_seconds} s remain of two days"
    );

    write_kubeconfig(&token);
    plane
        .wait_until("no expiry of the token is reported", soon, |plane| {
            (credential_condition(plane).is_null() && expiry_metric().is_none()).then_some(())
        })
        .unwrap();
}

pub(crate) fn deleted_objects_are_recreated(plane: &ControlPlane, tree: &Tree) {
    plane.kubectl(&["delete", "infranode", "rack1-a"]).unwrap();
    let wait_until_recreated = |plane: &ControlPlane, owner: &serde_json::Value| {
        plane
            .wait_until("a new InfraNode exists", SHORT_TIMEOUT, |plane| {
                let node = read_infra_node(plane);
                let ready = node["status"]["conditions"].is_array();
                (ready && node["metadata"]["ownerReferences"][0]["uid"] == *owner).then_some(())
            })
            .unwrap();
    };
    let uid = crate::read_node(plane)["metadata"]["uid"].clone();
    wait_until_recreated(plane, &uid);
    // The agent continues to apply the last valid spec, because the InfraNode that it creates has an empty spec.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(read_file(tree, SLEEP_FILE), "56");
    // The last applied generation belongs to the deleted object, so it must not appear in the new object.
    let status = read_infra_node(plane)["status"].take();
    assert!(status["observedGeneration"].is_null(), "{:#}", status["observedGeneration"]);
    let conditions = status["conditions"].as_array().unwrap();
    assert!(conditions.iter().all(|one| one["observedGeneration"].is_null()), "{conditions:#?}");

    // The Node is deleted, and its InfraNode is garbage-collected; then the test creates the Node again, and the agent
    // creates its InfraNode.
    plane.kubectl(&["delete", "node", "rack1-a"]).unwrap();
    plane
        // The garbage collector refreshes its list of kinds every 30 s, and waits longer after an outage of the
        // server.
        .wait_until("the InfraNode is garbage-collected", Duration::from_secs(180), |plane| {
            read_infra_node(plane).is_null().then_some(())
        })
        .unwrap();
    plane.create_node("rack1-a").unwrap();
    let new = crate::read_node(plane)["metadata"]["uid"].clone();
    assert_ne!(new, uid);
    wait_until_recreated(plane, &new);
    assert_eq!(read_file(tree, SLEEP_FILE), "56");
}

/// Runs the script of deploy/README.md literally: it removes the agent's fields and nothing else.
pub(crate) fn uninstall_restores_the_node(plane: &ControlPlane, agent: Agent) {
    if !plane.supports("kubectl --subresource", Version(1, 24)) {
        return;
    }
    drop(agent);
    let before = crate::read_node(plane);
    assert!(condition(&before, "berth.dev/HostTuned").is_object());
    let readme = std::fs::read_to_string(crate::repository().join("deploy/README.md")).unwrap();
    let script = readme
        .split("```sh\n")
        .filter_map(|block| block.split("```").next())
        .find(|block| block.contains("--subresource=status"))
        .unwrap();
    let path = std::env::var("PATH").unwrap();
    let done = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .env("PATH", format!("{}:{path}", plane.assets().display()))
        .env("KUBECONFIG", plane.kubeconfig())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let after = crate::read_node(plane);
    let labels = after["metadata"]["labels"].as_object().unwrap();
    assert!(!labels.keys().any(|key| key.starts_with("host.berth.dev/")), "{labels:#?}");
    assert!(after["status"]["capacity"]["berth.dev/pinnable-cpus"].is_null());
    assert!(condition(&after, "berth.dev/HostTuned").is_null(), "{after:#}");
    for part in ["cpu", "memory", "pods"] {
        assert_eq!(after["status"]["capacity"][part], before["status"]["capacity"][part]);
        assert_eq!(after["status"]["allocatable"][part], before["status"]["allocatable"][part]);
    }
    // Without a kubelet, the node controller sets this condition.
    assert!(condition(&after, "Ready").is_object());
    assert_eq!(after["metadata"]["labels"]["kubernetes.io/os"], "linux");
}
