//! The API server of the agents with the objects of `deploy/` and the Nodes, and functions that send hundreds of
//! requests to it.

#![expect(clippy::disallowed_methods, reason = "this crate runs other programs")]

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_api::names::{AGENT_FIELD_MANAGER, NODE_CONDITION_PREFIX, label};
use berth_tests::cluster::{ADMIN_TOKEN, ControlPlane, ControlPlaneOptions, registered_node};
use serde_json::{Value, json};

/// Number of parallel requests.
const PARALLEL_REQUESTS: &str = "50";

/// Starts a control plane that writes all requests to the audit log, and applies the RBAC rules of the agents.
pub(super) fn start() -> Result<ControlPlane> {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_audit_log: true,
        ..ControlPlaneOptions::default()
    })?;
    plane.deploy(&[])?;
    Ok(plane)
}

/// Creates Nodes with the fields with which a kubelet registers its Node.
pub(super) fn create_nodes(plane: &ControlPlane, names: &[String]) -> Result<()> {
    let node = |name: &String| ("/api/v1/nodes".to_owned(), registered_node(name));
    let nodes: Vec<(String, Value)> = names.iter().map(node).collect();
    send_requests(plane, "POST", "application/json", &nodes)
}

/// Writes the same spec to each InfraNode.
pub(super) fn patch_all_specs(plane: &ControlPlane, names: &[String], spec: &Value) -> Result<()> {
    let patch = |name: &String| {
        (format!("/apis/berth.dev/v1alpha1/infranodes/{name}"), json!({"spec": spec}))
    };
    let patches: Vec<(String, Value)> = names.iter().map(patch).collect();
    send_requests(plane, "PATCH", "application/merge-patch+json", &patches)
}

/// Sends many requests as administrator with curl. kubectl would send only five requests per second (the default
/// `QPS` of client-go).
fn send_requests(
    plane: &ControlPlane,
    method: &str,
    content: &str,
    requests: &[(String, Value)],
) -> Result<()> {
    let authority = plane.folder().join("ca.crt");
    let request_config = |(path, body): &(String, Value)| {
        // A JSON string has the same syntax as a quoted string in the configuration file of curl.
        format!(
            "url = \"https://127.0.0.1:{}{path}\"\nrequest = {method}\ncacert = \"{}\"\n\
             header = \"Authorization: Bearer {ADMIN_TOKEN}\"\nheader = \"Content-Type: {content}\"\ndata = {}\n\
             output = \"/dev/null\"\nwrite-out = \"%{{http_code}}\\n\"\n",
            plane.port(),
            authority.display(),
            Value::String(body.to_string()),
        )
    };
    let config = requests.iter().map(request_config).collect::<Vec<_>>().join("next\n");
    let file = plane.folder().join("curl.config");
    fs::write(&file, config).with_context(|| file.display().to_string())?;
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--parallel", "--parallel-max", PARALLEL_REQUESTS]);
    let output = curl.arg("--config").arg(&file).output().context("curl (package curl)")?;
    let codes = String::from_utf8_lossy(&output.stdout);
    let succeeded = codes.lines().filter(|code| code.starts_with('2')).count();
    ensure!(
        succeeded == requests.len(),
        "{method}: the API server accepted {succeeded} of {} requests; other status codes: {}; curl: {}",
        requests.len(),
        codes.lines().filter(|code| !code.starts_with('2')).collect::<Vec<_>>().join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Sizes of objects as JSON, in bytes.
#[derive(Debug, Default)]
pub(super) struct ObjectSizes {
    pub(super) infra_node: Vec<f64>,
    pub(super) infra_node_without_managed_fields: Vec<f64>,
    /// Fields that the agent adds to a Node, without the agent's entry in `managedFields`.
    pub(super) node_agent_fields: Vec<f64>,
    /// The agent's entry in `managedFields` of a Node.
    pub(super) node_managed_fields: Vec<f64>,
}

/// Measures the sizes of all InfraNodes, and of the Nodes with these names.
pub(super) fn measure_sizes(plane: &ControlPlane, names: &[String]) -> Result<ObjectSizes> {
    let list = |path: &str| -> Result<Vec<Value>> {
        let mut list: Value = serde_json::from_str(&plane.kubectl(&["get", "--raw", path])?)?;
        serde_json::from_value(list["items"].take()).with_context(|| format!("items of {path}"))
    };
    let mut sizes = ObjectSizes::default();
    for mut object in list("/apis/berth.dev/v1alpha1/infranodes")? {
        sizes.infra_node.push(json_bytes(&object));
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        sizes.infra_node_without_managed_fields.push(json_bytes(&object));
    }
    for node in list("/api/v1/nodes")? {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        if !names.iter().any(|one| one == name) {
            continue;
        }
        let part = agent_fields(&node);
        ensure!(part["labels"] != json!({}), "Node {name} has no label of its agent");
        sizes.node_agent_fields.push(json_bytes(&part));
        sizes.node_managed_fields.push(json_bytes(&agent_managed_fields(&node)));
    }
    ensure!(
        sizes.infra_node.len() == names.len() && sizes.node_agent_fields.len() == names.len(),
        "found {} InfraNodes and {} Nodes, not {} of each",
        sizes.infra_node.len(),
        sizes.node_agent_fields.len(),
        names.len()
    );
    Ok(sizes)
}

fn json_bytes(value: &Value) -> f64 {
    value.to_string().len() as f64
}

/// Returns the labels, conditions and resources that the agent wrote.
fn agent_fields(node: &Value) -> Value {
    let ours = |part: &Value| -> Value {
        let fields = part.as_object().into_iter().flatten();
        let ours =
            |key: &str| key.starts_with(label::PREFIX) || key.starts_with(NODE_CONDITION_PREFIX);
        fields
            .filter(|(key, _)| ours(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<&Value> = conditions
        .filter(|one| {
            one["type"].as_str().is_some_and(|name| name.starts_with(NODE_CONDITION_PREFIX))
        })
        .collect();
    json!({
        "labels": ours(&node["metadata"]["labels"]),
        "conditions": conditions,
        "capacity": ours(&node["status"]["capacity"]),
        "allocatable": ours(&node["status"]["allocatable"]),
    })
}

/// Returns the agent's entry of `managedFields`.
fn agent_managed_fields(node: &Value) -> Value {
    let entries = node["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries.filter(|entry| entry["manager"] == AGENT_FIELD_MANAGER).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fields_of_the_agent_are_measured() {
        let node = json!({
            "metadata": {
                "labels": {"kubernetes.io/os": "linux", "host.berth.dev/smt": "true"},
                "managedFields": [{"manager": "kubelet"}, {"manager": "berth-agent"}],
            },
            "status": {
                "capacity": {"cpu": "96", "berth.dev/pinnable-cpus": "92"},
                "allocatable": {"berth.dev/pinnable-cpus": "92"},
                "conditions": [{"type": "Ready"}, {"type": "berth.dev/HostTuned"}],
            },
        });
        assert_eq!(
            agent_fields(&node),
            json!({
                "labels": {"host.berth.dev/smt": "true"},
                "conditions": [{"type": "berth.dev/HostTuned"}],
                "capacity": {"berth.dev/pinnable-cpus": "92"},
                "allocatable": {"berth.dev/pinnable-cpus": "92"},
            })
        );
        assert_eq!(agent_managed_fields(&node), json!([{"manager": "berth-agent"}]));
    }
}
