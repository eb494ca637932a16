//! Decides what happens to one machine on a lost host.

use berth_api::names::MACHINE_DEPLOYMENT_UID_ANNOTATION;
use berth_kubevirt_render::machines::hotplug::retained_claims;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::json;

use super::away_host_limit::MAX_AWAY_PERCENT;
use super::disks::data_disks;
use crate::removal::mark::{RemovalMark, RemovalReason};
use crate::tenants::fault::join_names_limited;

/// Decision about a machine on a lost host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The machine is to be marked for removal. Its MachineDeployment then replaces it.
    Replace,
    /// The machine already has the removal mark.
    Replaced,
    /// The machine waits for its host.
    Waits(WaitReason),
    /// The machine is not affected: it is being deleted or removed for another reason, or Berth does not own it.
    Unaffected,
}

/// Reason why a machine on a lost host is not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitReason {
    /// The machine has disks whose content a replacement would not have.
    #[error("has data disks ({})", join_names_limited(.0))]
    DataDisks(Vec<String>),
    /// The tenant's `replaceAfter` is zero, or is not known.
    #[error("spec.replaceAfter of its TenantCluster is 0, or the TenantCluster cannot be parsed")]
    NeverReplaced,
    #[error("{away} of {all} hosts are away, more than {} %", MAX_AWAY_PERCENT)]
    TooManyHostsAway {
        /// Number of hosts that are away.
        away: usize,
        /// Number of all hosts.
        all: usize,
    },
    /// A live migration to another host has not ended.
    #[error("its live migration to {0} has not ended")]
    Migration(String),
}

/// Returns the verdict on a VirtualMachine on a lost host.
#[must_use]
pub fn replacement_verdict(vm: &DynamicObject) -> Verdict {
    let is_owned = vm.annotations().contains_key(MACHINE_DEPLOYMENT_UID_ANNOTATION);
    if vm.metadata.deletion_timestamp.is_some() || !is_owned {
        return Verdict::Unaffected;
    }
    match RemovalMark::from_machine(vm) {
        Some(removal) if removal.reason == RemovalReason::HostLost => return Verdict::Replaced,
        Some(_) => return Verdict::Unaffected,
        None => {}
    }
    let mut disks = data_disks(&vm.name_any(), &vm.data);
    // The retained claims of removed disks are deleted with the machine.
    let metadata = json!({"name": vm.name_any(), "annotations": vm.annotations()});
    disks.extend(retained_claims(&json!({"metadata": metadata})));
    if disks.is_empty() { Verdict::Replace } else { Verdict::Waits(WaitReason::DataDisks(disks)) }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn vm(annotations: Value, volumes: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "annotations": annotations},
            "spec": {"template": {"spec": {"volumes": volumes}}},
        }))
        .unwrap()
    }

    fn owned() -> Value {
        json!({MACHINE_DEPLOYMENT_UID_ANNOTATION: "u"})
    }

    #[test]
    fn only_own_machines_without_data_disks_are_replaced() {
        let image = json!([{"name": "c", "containerDisk": {"image": "i"}}]);
        assert_eq!(replacement_verdict(&vm(owned(), image.clone())), Verdict::Replace);
        assert_eq!(replacement_verdict(&vm(json!({}), image.clone())), Verdict::Unaffected);
        let claim = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]);
        let Verdict::Waits(reason) = replacement_verdict(&vm(owned(), claim)) else {
            panic!("replaced")
        };
        assert_eq!(reason.to_string(), "has data disks (d)");
        let retained = json!({
            MACHINE_DEPLOYMENT_UID_ANNOTATION: "u", "berth.dev/retained-disks": "web-1-disk-a",
        });
        let Verdict::Waits(reason) = replacement_verdict(&vm(retained, image.clone())) else {
            panic!("replaced")
        };
        assert_eq!(reason.to_string(), "has data disks (web-1-disk-a)");
        for (reason, expected) in [
            (RemovalReason::HostLost, Verdict::Replaced),
            (RemovalReason::ScaleDown, Verdict::Unaffected),
        ] {
            let mut marked = vm(owned(), image.clone());
            let patch = RemovalMark { reason, since: Timestamp::UNIX_EPOCH }.patch();
            let added: std::collections::BTreeMap<String, String> =
                serde_json::from_value(patch["metadata"]["annotations"].clone()).unwrap();
            marked.annotations_mut().extend(added);
            assert_eq!(replacement_verdict(&marked), expected);
        }
    }

    proptest! {
        #[test]
        fn a_machine_with_a_data_disk_is_never_replaced(
            kinds in prop::collection::vec(prop::sample::select(vec![
                "secret", "containerDisk", "persistentVolumeClaim", "hostDisk", "dataVolume",
            ]), 0..6),
        ) {
            let volume = |(at, kind): (usize, &&str)| json!({"name": format!("v{at}"), *kind: {"name": "x"}});
            let volumes: Vec<Value> = kinds.iter().enumerate().map(volume).collect();
            let has_data = kinds.iter().any(|kind| !["secret", "containerDisk"].contains(kind));
            prop_assert_eq!(replacement_verdict(&vm(owned(), volumes.into())) != Verdict::Replace, has_data);
        }
    }
}
