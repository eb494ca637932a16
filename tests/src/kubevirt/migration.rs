//! Steps of virt-handler in a live migration, in `status.migrationState` of the VirtualMachineInstance. virt-controller
//! waits for each of these steps (`processMigrationPhase` of pkg/virt-controller/watch/migration/migration.go).

use serde_json::{Value, json};

use super::simulation::current_time;

/// Address of the target Node. No program connects to it.
const TARGET_ADDRESS: &str = "192.0.2.1";

/// Returns true if the instance has been migrated.
pub(super) fn is_complete(instance: &Value) -> bool {
    let state = &instance["status"]["migrationState"];
    state["completed"] == true && state["failed"] != true
}

/// Changes a running instance to the next step of its migration. Returns false if virt-controller has not handed a
/// target pod over to virt-handler, or if nothing changes.
pub(super) fn advance(instance: &mut Value, completes: bool) -> bool {
    let state = &mut instance["status"]["migrationState"];
    let Some(target) = state["targetNode"].as_str().map(str::to_owned) else { return false };
    if target.is_empty() || state["completed"] == true || state["failed"] == true {
        return false;
    }
    if state["targetNodeAddress"].is_null() {
        // virt-handler on the target Node listens for the source.
        state["targetNodeAddress"] = TARGET_ADDRESS.into();
        state["targetDirectMigrationNodePorts"] = json!({"49152": 49152});
    } else if state["startTimestamp"].is_null() {
        // virt-handler on the source Node starts to copy the memory.
        state["startTimestamp"] = current_time().into();
        state["mode"] = "PreCopy".into();
    } else if !completes {
        return false;
    } else if state["targetNodeDomainReadyTimestamp"].is_null() {
        // The guest runs on the target Node.
        state["targetNodeDomainDetected"] = true.into();
        state["targetNodeDomainReadyTimestamp"] = current_time().into();
    } else {
        // virt-handler on the target Node takes over the instance (`ackMigrationCompletion`, `finalCleanup`).
        state["endTimestamp"] = current_time().into();
        state["completed"] = true.into();
        instance["status"]["nodeName"] = target.as_str().into();
        instance["metadata"]["labels"]["kubevirt.io/nodeName"] = target.into();
        remove(&mut instance["status"], "evacuationNodeName");
        remove(&mut instance["metadata"]["labels"], "kubevirt.io/migrationTargetNodeName");
    }
    true
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migration_steps_end_on_the_target_node() {
        let labels =
            json!({"kubevirt.io/nodeName": "a", "kubevirt.io/migrationTargetNodeName": "b"});
        let mut instance = json!({"metadata": {"labels": labels}, "status": {"nodeName": "a"}});
        assert!(!advance(&mut instance, true), "there is no migration");
        instance["status"]["migrationState"] = json!({"sourceNode": "a", "targetNode": "b"});
        let mut steps =
            |completes| (0..9).take_while(|_| advance(&mut instance, completes)).count();
        assert_eq!(steps(false), 2, "the migration must not complete yet");
        assert_eq!(steps(true), 2);
        assert!(is_complete(&instance));
        assert_eq!(instance["status"]["nodeName"], "b");
        assert_eq!(instance["metadata"]["labels"], json!({"kubevirt.io/nodeName": "b"}));
    }
}
