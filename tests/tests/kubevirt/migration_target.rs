//! Terms that virt-controller adds to the target pod of a live migration, and to no other launcher pod, by
//! pkg/virt-controller/watch/migration/migration.go of KubeVirt v1.9.0.

use serde_json::{Value, json};

use crate::testbed::text;

/// Label with the UID of the migration (`createTargetPod`).
const JOB_LABEL: &str = "kubevirt.io/migrationJobUID";
/// Annotation with the name of the migration (`createTargetPod`).
const JOB_ANNOTATION: &str = "kubevirt.io/migrationJobName";
/// Node label with the CPU model of the source Node (`getHostCpuModelFromMap`), for VMs with the CPU model
/// `host-model`.
const MODEL_PREFIX: &str = "cpu-model-migration.node.kubevirt.io/";
/// Node labels with the CPU features that the model of the source Node needs (`getHostCpuModelFromMap`).
const FEATURE_PREFIX: &str = "cpu-feature.node.kubevirt.io/";
/// Node label with the CPU vendor of the source Node (`getCPUVendorLabelKey`).
const VENDOR_PREFIX: &str = "cpu-vendor.node.kubevirt.io/";
/// Label by which the anti-affinity selects the source pod (`createMigrationPodAntiAffinityRule`).
const CREATED_BY_LABEL: &str = "kubevirt.io/created-by";

/// Returns true if the pod was created as the target of a live migration. It is still marked as such after the
/// migration, when it is the only pod of its VM.
pub(crate) fn is_target(pod: &Value) -> bool {
    !pod["metadata"]["labels"][JOB_LABEL].is_null()
}

/// Returns a target pod without the terms that virt-controller adds to targets, and checks that the pod has them. The
/// rest of the pod is rendered like every launcher pod (`RenderMigrationManifest`). virt-controller also sets the
/// SELinux level of the pod, which predictions do not contain.
pub(crate) fn without_target_terms(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let uid = pod["metadata"]["labels"][CREATED_BY_LABEL].clone();
    remove(&mut pod["metadata"]["labels"], JOB_LABEL);
    remove(&mut pod["metadata"]["annotations"], JOB_ANNOTATION);
    remove_anti_affinity(&mut pod["spec"]["affinity"], &uid);
    let selector = pod["spec"]["nodeSelector"].as_object_mut().unwrap();
    for prefix in [MODEL_PREFIX, VENDOR_PREFIX] {
        let labels = selector.keys().filter(|label| label.starts_with(prefix));
        assert_eq!(labels.count(), 1, "{prefix}: {selector:#?}");
    }
    let prefixes = [MODEL_PREFIX, VENDOR_PREFIX, FEATURE_PREFIX];
    selector.retain(|label, _| !prefixes.iter().any(|prefix| label.starts_with(prefix)));
    pod
}

/// Removes a label or an annotation, which must have a value.
fn remove(fields: &mut Value, name: &str) {
    let removed = fields.as_object_mut().unwrap().remove(name);
    assert!(removed.as_ref().is_some_and(|value| !text(value).is_empty()), "{name}: {removed:?}");
}

/// Removes the anti-affinity against the source pod. virt-controller appends it to the other terms of the VM.
fn remove_anti_affinity(affinity: &mut Value, uid: &Value) {
    let against_source = json!({
        "labelSelector": {"matchLabels": {CREATED_BY_LABEL: uid}}, "topologyKey": "kubernetes.io/hostname",
    });
    let terms = &mut affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let last = terms.as_array_mut().and_then(Vec::pop);
    assert_eq!(last, Some(against_source));
}
