//! Comparison of the launcher pods that virt-controller creates with their predictions.

use berth_kubelet_admission::pod::Pod;
use berth_kubevirt_render::launcher::{
    ClusterObjects, Configuration, ExistingPod, Launcher, Machine, predict,
};
use serde_json::{Map, Value, json};

use crate::migration_target::{is_target, without_target_terms};
use crate::testbed::{Testbed, text};

/// Kinds on which launcher pods depend.
const KINDS: [&str; 6] = [
    "namespaces",
    "network-attachment-definitions",
    "virtualmachineclusterinstancetypes",
    "virtualmachineclusterpreferences",
    "virtualmachineinstancetypes",
    "virtualmachinepreferences",
];
/// Label that virt-controller adds to a pod that runs already.
const NODE_LABEL: &str = "kubevirt.io/nodeName";
const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// Tests the launcher pod of each VM: the predictions from the VirtualMachine and from its instance equal the pod.
pub(crate) fn launcher_pods_equal_their_predictions(bed: &Testbed) {
    let (started, _) = compare_pods(bed);
    assert!(started >= 5, "too few pods were compared: {started}");
}

/// Tests the same after a live migration: a target pod equals the predictions, except for the terms of
/// [`without_target_terms`].
pub(crate) fn target_pods_equal_their_predictions(bed: &Testbed) {
    let (_, targets) = compare_pods(bed);
    assert!(targets >= 1, "no target pod of a live migration was compared");
}

/// Compares all launcher pods with their predictions. Returns the number of pods that KubeVirt created to start a VM,
/// and the number of targets of live migrations.
fn compare_pods(bed: &Testbed) -> (usize, usize) {
    let kubevirt = bed.get("kubevirt", "kubevirt", "kubevirt");
    let configuration = Configuration::from_kubevirt(&kubevirt).unwrap();
    let mut objects = ClusterObjects::default();
    for object in KINDS.iter().flat_map(|kind| bed.list(kind, &["-A"])) {
        assert!(objects.add(&object).unwrap(), "{object:#}");
    }
    let (mut started, mut targets) = (0, 0);
    for vm in bed.list("virtualmachines", &["-A"]) {
        let (namespace, name) = (text(&vm["metadata"]["namespace"]), text(&vm["metadata"]["name"]));
        let instance = bed.get("vmi", namespace, name);
        for pod in bed.pods_of(&instance) {
            let pod = if is_target(&pod) {
                targets += 1;
                without_target_terms(&pod)
            } else {
                started += 1;
                pod
            };
            for machine in [&vm, &instance] {
                let read = Machine::read(machine).unwrap().unwrap();
                let launcher = predict(&read, &configuration, &objects);
                let launcher = launcher.unwrap_or_else(|invalid| panic!("{invalid}"));
                assert_equal(&format!("{} {namespace}/{name}", machine["kind"]), &launcher, &pod);
            }
        }
    }
    (started, targets)
}

fn assert_equal(name: &str, launcher: &Launcher, pod: &Value) {
    let existing = ExistingPod::read(&serde_json::from_value(pod.clone()).unwrap()).unwrap();
    let requests = Pod { uid: String::new(), ..existing.pod };
    assert_eq!(launcher.pod, requests, "{name}");
    assert_eq!(launcher.ephemeral_storage, existing.ephemeral_storage, "{name}");
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    for (field, predicted) in [
        ("schedulerName", json!(launcher.scheduler_name)),
        ("nodeSelector", json!(launcher.node_selector)),
        ("affinity", json!(launcher.affinity)),
        ("topologySpreadConstraints", json!(launcher.spread)),
    ] {
        let actual = without_empty(spec[field].clone());
        assert_eq!(without_empty(predicted), actual, "{name}: {field}");
    }
    // An admission plugin adds tolerations.
    let tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for toleration in &launcher.tolerations {
        assert!(tolerations.contains(&json!(toleration)), "{name}: {toleration:?}");
    }
    for (label, value) in launcher.labels.iter().filter(|(label, _)| *label != NODE_LABEL) {
        assert_eq!(
            metadata["labels"][label], *value,
            "{name}: label {label} differs from the prediction"
        );
    }
    let networks = launcher.annotations.get(NETWORKS_ANNOTATION);
    let actual = metadata["annotations"][NETWORKS_ANNOTATION].as_str();
    assert_eq!(networks.map(String::as_str), actual, "{name}");
}

/// Returns a value without empty fields, which the server may omit.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let fields = map.into_iter().map(|(key, value)| (key, without_empty(value)));
            let kept: Map<_, _> = fields.filter(|(_, value)| !value.is_null()).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(items) if items.is_empty() => Value::Null,
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}
