//! A status that says too much fits its schema after [`InfraNodeStatus::truncate_to_schema`]. The schema is the judge.

use std::collections::BTreeSet;

use berth_api::{InfraNode, InfraNodeStatus};
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// Longer than any limit for people's words.
fn long(text: &str) -> String {
    text.repeat(40_000)
}

fn status() -> Value {
    let many = |one: &Value| vec![one.clone(); 200];
    let unknown = json!({"path": long("p"), "reason": "NotFound", "message": long("ü")});
    let change = json!({"what": long("w"), "result": "Done", "message": long("m")});
    let tenant = json!({"tenant": "t", "state": "Failed", "message": long("m")});
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "R", "message": long("m"), "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let uplink = json!({"name": "eth0", "kind": "Physical"});
    let link = json!({"name": "br0", "kind": "Bridge"});
    let small = json!({
        "name": "compute", "memory": [{"size": "1Gi", "zones": [0]}],
        "devices": [{"resource": "intel.com/vf", "zone": 0, "count": 1}],
    });
    let with =
        |containers: Value| json!({"podUID": "u", "namespace": "n", "containers": containers});
    let mut named = small.clone();
    named["name"] = json!(long("n"));
    let mut wide = small.clone();
    wide["memory"] = json!(many(&small["memory"][0]));
    let device = json!({"resource": "intel.com/vf", "zone": 0, "total": 2, "free": 1});
    let mut odd = device.clone();
    odd["resource"] = json!(long("r"));
    json!({
        "allocations": [
            with(json!([small])), with(json!(many(&small))), with(json!([small, named])), with(json!([wide])),
        ],
        "devices": [device, odd],
        "unknown": [unknown],
        "changes": many(&change),
        "networks": [{"name": "n", "ready": 0, "pending": 0, "failed": 0, "notReady": many(&tenant)}],
        "conditions": [condition],
        "zones": [
            {"id": 0, "threads": many(&json!("0-3")), "caches": many(&json!("0-3")),
                "reservedHugepages": many(&json!({"size": "2Mi", "count": 1}))},
            {"id": 1, "caches": ["0-3"]},
        ],
        "capabilities": {
            "uplinks": many(&uplink), "links": many(&link),
            "kubelet": {"startedWith": {"current": false, "pendingRestart": many(&json!("f"))}},
        },
    })
}

/// Goes through a value beside its schema. `limited` is what has a limit and is no value type with a form of its own,
/// `there` what of it the value has.
fn walk(
    path: &str,
    schema: &Value,
    value: Option<&Value>,
    limited: &mut BTreeSet<String>,
    there: &mut BTreeSet<String>,
) {
    let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
    let length = limit("maxLength").filter(|_| schema.get("pattern").is_none());
    let most = length.or_else(|| limit("maxItems"));
    if let Some(most) = most.filter(|most| *most > 17 || schema["type"] == "array") {
        limited.insert(path.to_owned());
        let long = match value {
            Some(Value::String(text)) => Some(text.chars().count()),
            Some(Value::Array(items)) => Some(items.len()),
            _ => None,
        };
        if let Some(long) = long {
            assert!(long as u64 <= most, "{path}: {long}, and {most} are allowed");
            there.insert(path.to_owned());
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let value = value.and_then(|value| value.get(name));
        walk(&format!("{path}.{name}"), field, value, limited, there);
    }
    if let Some(items) = schema.get("items") {
        let all = value.and_then(Value::as_array).cloned().unwrap_or_default();
        let path = format!("{path}[]");
        walk(&path, items, None, limited, there);
        all.iter().for_each(|one| walk(&path, items, Some(one), limited, there));
    }
}

#[test]
fn whatever_a_host_says_fits_the_schema() {
    let crd = serde_json::to_value(InfraNode::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let mut status: InfraNodeStatus = serde_json::from_value(status()).unwrap();
    status.truncate_to_schema();
    let value = serde_json::to_value(&status).unwrap();
    let (mut limited, mut there) = (BTreeSet::new(), BTreeSet::new());
    walk("status", schema, Some(&value), &mut limited, &mut there);
    // Halves of siblings would be wrong, so none are there.
    limited.remove("status.zones[].threads");
    assert_eq!(limited, there, "a field with a limit is not tried here");
    // What placement would take for all is left out as a whole.
    let containers: Vec<usize> =
        status.allocations.iter().map(|one| one.containers.len()).collect();
    assert_eq!(containers, [1, 0, 0, 0]);
    assert_eq!((status.devices.len(), status.zones[0].caches.len()), (1, 0));
    let again = status.clone();
    status.truncate_to_schema();
    assert_eq!(status, again);
    assert!(status.unknown[0].message.as_ref().is_some_and(|text| text.ends_with("ü…")));
}
