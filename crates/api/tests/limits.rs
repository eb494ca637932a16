//! Tests that [`InfraNodeStatus::truncate_to_schema`] makes an oversized status valid against the CRD schema.

use std::collections::BTreeSet;

use berth_api::{InfraNode, InfraNodeStatus};
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// Repeats a text until it is longer than every limit of the schema.
fn long_text(text: &str) -> String {
    text.repeat(40_000)
}

fn oversized_status() -> Value {
    let repeated = |one: &Value| vec![one.clone(); 200];
    let unknown = json!({"path": long_text("p"), "reason": "NotFound", "message": long_text("ü")});
    let change = json!({"what": long_text("w"), "result": "Done", "message": long_text("m")});
    let tenant = json!({"tenant": "t", "state": "Failed", "message": long_text("m")});
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "R", "message": long_text("m"), "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let uplink = json!({"name": "eth0", "kind": "Physical"});
    let link = json!({"name": "br0", "kind": "Bridge"});
    let container = json!({
        "name": "compute", "memory": [{"size": "1Gi", "zones": [0]}],
        "devices": [{"resource": "intel.com/vf", "zone": 0, "count": 1}],
    });
    let allocation =
        |containers: Value| json!({"podUID": "u", "namespace": "n", "containers": containers});
    let mut long_name = container.clone();
    long_name["name"] = json!(long_text("n"));
    let mut many_blocks = container.clone();
    many_blocks["memory"] = json!(repeated(&container["memory"][0]));
    let device = json!({"resource": "intel.com/vf", "zone": 0, "total": 2, "free": 1});
    let mut long_resource = device.clone();
    long_resource["resource"] = json!(long_text("r"));
    let vlans: Vec<String> = (1..2000).map(|id| (id * 2).to_string()).collect();
    let trunk = json!({
        "state": "Missing", "vlans": vlans.join(","), "from": repeated(&json!("rack1-b")), "message": long_text("m"),
    });
    let vlan = json!({"id": 120, "name": long_text("n")});
    let neighbor = json!({
        "uplink": "eth0", "chassis": long_text("c"), "systemName": long_text("s"), "port": long_text("p"),
        "description": long_text("d"), "vlans": repeated(&vlan),
    });
    let conflict =
        json!({"network": long_text("n"), "address": "10.0.0.7", "machine": long_text("m")});
    json!({
        "allocations": [
            allocation(json!([container])), allocation(json!(repeated(&container))), allocation(json!([container, long_name])), allocation(json!([many_blocks])),
        ],
        "devices": [device, long_resource],
        "unknown": [unknown],
        "changes": repeated(&change),
        "networks": [{"name": "n", "ready": 0, "pending": 0, "failed": 0, "notReady": repeated(&tenant), "trunk": trunk}],
        "neighbors": repeated(&neighbor),
        "addressConflicts": repeated(&conflict),
        "conditions": [condition],
        "zones": [
            {"id": 0, "threads": repeated(&json!("0-3")), "caches": repeated(&json!("0-3")),
                "reservedHugepages": repeated(&json!({"size": "2Mi", "count": 1}))},
            {"id": 1, "caches": ["0-3"]},
        ],
        "capabilities": {
            "uplinks": repeated(&uplink), "links": repeated(&link),
            "kubelet": {"startedWith": {"current": false, "pendingRestart": repeated(&json!("f"))}},
        },
    })
}

/// Walks a schema and a value in parallel, and asserts that no string or list of the value exceeds its limit.
///
/// Adds all paths with a limit to `limited_paths`, and the paths whose value is present to `present_paths`. Strings
/// with a `pattern` or with a `maxLength` of at most 17 are not checked: they have a fixed format, and are not
/// truncated.
fn check_limits(
    path: &str,
    schema: &Value,
    value: Option<&Value>,
    limited_paths: &mut BTreeSet<String>,
    present_paths: &mut BTreeSet<String>,
) {
    let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
    let length = limit("maxLength").filter(|_| schema.get("pattern").is_none());
    let max = length.or_else(|| limit("maxItems"));
    if let Some(max) = max.filter(|max| *max > 17 || schema["type"] == "array") {
        limited_paths.insert(path.to_owned());
        let actual_length = match value {
            Some(Value::String(text)) => Some(text.chars().count()),
            Some(Value::Array(items)) => Some(items.len()),
            _ => None,
        };
        if let Some(actual_length) = actual_length {
            assert!(
                actual_length as u64 <= max,
                "{path} has length {actual_length}, the maximum is {max}"
            );
            present_paths.insert(path.to_owned());
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let value = value.and_then(|value| value.get(name));
        check_limits(&format!("{path}.{name}"), field, value, limited_paths, present_paths);
    }
    if let Some(items) = schema.get("items") {
        let elements = value.and_then(Value::as_array).cloned().unwrap_or_default();
        let path = format!("{path}[]");
        check_limits(&path, items, None, limited_paths, present_paths);
        elements
            .iter()
            .for_each(|one| check_limits(&path, items, Some(one), limited_paths, present_paths));
    }
}

#[test]
fn truncated_status_fits_the_schema() {
    let crd = serde_json::to_value(InfraNode::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let mut status: InfraNodeStatus = serde_json::from_value(oversized_status()).unwrap();
    status.truncate_to_schema();
    let value = serde_json::to_value(&status).unwrap();
    let (mut limited_paths, mut present_paths) = (BTreeSet::new(), BTreeSet::new());
    check_limits("status", schema, Some(&value), &mut limited_paths, &mut present_paths);
    // `truncate_to_schema` removes a list of threads that is too long, because placement would treat a truncated list
    // as complete.
    limited_paths.remove("status.zones[].threads");
    assert_eq!(limited_paths, present_paths, "the test value lacks a field with a limit");
    // `truncate_to_schema` removes lists that are too long, because placement would treat truncated lists as complete.
    let containers: Vec<usize> =
        status.allocations.iter().map(|one| one.containers.len()).collect();
    assert_eq!(containers, [1, 0, 0, 0]);
    assert_eq!((status.devices.len(), status.zones[0].caches.len()), (1, 0));
    let truncated = status.clone();
    status.truncate_to_schema();
    assert_eq!(status, truncated);
    assert!(status.unknown[0].message.as_ref().is_some_and(|text| text.ends_with("ü…")));
}
