//! Status of an admitted pod, as its kubelet writes it: the containers run until the pod is deleted, except in a
//! first-consumer pod, whose command ends at once.

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::simulation::current_time;

/// Returns the changed fields of the status of an admitted pod; `None` if nothing changes.
pub(super) fn next_status(pod: &Pod, is_first_consumer: bool) -> Option<Value> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if is_first_consumer && phase == Some("Running") {
        return ended_status(pod);
    }
    running_status(pod)
}

/// Returns the changed fields of the status of a pod whose containers run; `None` if nothing changes. The pod is ready
/// if its readiness gates are true.
fn running_status(pod: &Pod) -> Option<Value> {
    let spec = pod.spec.as_ref()?;
    let status = pod.status.clone().unwrap_or_default();
    let is_true = |type_: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|one| one.type_ == type_ && one.status == "True")
    };
    let gates = spec.readiness_gates.iter().flatten();
    let is_ready = gates.map(|gate| gate.condition_type.as_str()).all(is_true);
    if status.phase.as_deref() == Some("Running") && is_true("Ready") == is_ready {
        return None;
    }
    let now = current_time();
    let started = status.start_time.as_ref().map_or_else(|| json!(now), |time| json!(time));
    let container = |one: &Container, is_running: bool| {
        let running = json!({"running": {"startedAt": started}});
        let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        json!({
            "name": one.name, "image": one.image, "imageID": "", "ready": true, "started": is_running,
            "restartCount": 0, "state": if is_running { running } else { ended },
        })
    };
    let is_sidecar = |one: &Container| one.restart_policy.as_deref() == Some("Always");
    let init_containers = spec.init_containers.iter().flatten();
    let init_containers: Vec<Value> =
        init_containers.map(|one| container(one, is_sidecar(one))).collect();
    let containers: Vec<Value> = spec.containers.iter().map(|one| container(one, true)).collect();
    let conditions = [("Initialized", true), ("ContainersReady", true), ("Ready", is_ready)];
    let conditions = conditions.map(|(type_, is)| {
        let status = if is { "True" } else { "False" };
        json!({"type": type_, "status": status, "lastTransitionTime": now})
    });
    Some(json!({
        "phase": "Running", "startTime": started, "conditions": conditions,
        "initContainerStatuses": init_containers, "containerStatuses": containers,
    }))
}

/// Returns the changed fields of the status of a pod whose containers have ended without an error. The kubelet ends the
/// sidecars after the other containers.
fn ended_status(pod: &Pod) -> Option<Value> {
    let spec = pod.spec.as_ref()?;
    let now = current_time();
    let container = |one: &Container| {
        let ended =
            json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}});
        json!({
            "name": one.name, "image": one.image, "imageID": "", "ready": false, "started": false,
            "restartCount": 0, "state": ended,
        })
    };
    let init_containers: Vec<Value> =
        spec.init_containers.iter().flatten().map(container).collect();
    let containers: Vec<Value> = spec.containers.iter().map(container).collect();
    let conditions = ["ContainersReady", "Ready"].map(|type_| {
        json!({"type": type_, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now})
    });
    Some(json!({
        "phase": "Succeeded", "conditions": conditions,
        "initContainerStatuses": init_containers, "containerStatuses": containers,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(conditions: &Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "virt-launcher-a"},
            "spec": {
                "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
                "initContainers": [{"name": "guest-console-log", "restartPolicy": "Always"}],
                "containers": [{"name": "compute", "image": "launcher"}],
            },
            "status": {"phase": "Running", "conditions": conditions},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pods_are_ready_after_their_readiness_gates() {
        let gate = json!({"type": "kubevirt.io/virtual-machine-unpaused", "status": "True"});
        let ready = |is: &str| json!({"type": "Ready", "status": is});
        assert_eq!(running_status(&pod(&json!([ready("False")]))), None);
        assert_eq!(running_status(&pod(&json!([gate, ready("True")]))), None);
        let status = running_status(&pod(&json!([gate, ready("False")]))).unwrap();
        assert_eq!(status["conditions"][2]["status"], "True");
        assert!(status["initContainerStatuses"][0]["state"]["running"].is_object(), "{status}");
        assert_eq!(status["containerStatuses"][0]["name"], "compute");
    }

    #[test]
    fn first_consumer_pods_end() {
        let mut first_consumer = pod(&json!([]));
        assert_eq!(next_status(&first_consumer, false), None);
        let status = next_status(&first_consumer, true).unwrap();
        assert_eq!(status["phase"], "Succeeded");
        for containers in ["initContainerStatuses", "containerStatuses"] {
            assert_eq!(status[containers][0]["state"]["terminated"]["exitCode"], 0, "{status}");
        }
        first_consumer.status = None;
        assert_eq!(next_status(&first_consumer, true).unwrap()["phase"], "Running");
    }
}
