//! `schedulerName` of a machine: set in the VM (from the TenantCluster) or in the instance type, but not in both,
//! because KubeVirt rejects a VM if both the VM and its instance type set a scheduler.
//!
//! The tests derive this rule from recorded answers of KubeVirt's own code (`tests/data/kubevirt`).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};

use berth_controller::fleet::stream;
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use super::{base_provider_spec, data, machine_deployment, render_deployment, set_value};

/// Returns whether KubeVirt rejects a VM because of a field. The key has two flags: true if the instance type sets the
/// field, and true if the VM sets the field.
fn recorded_rejections(field: &str) -> BTreeMap<(bool, bool), bool> {
    let (mut all, mut answers) = (BTreeMap::new(), 0);
    for path in data::files("kubevirt", ".jsonl.gz") {
        let file = std::fs::File::open(&path).unwrap();
        for line in BufReader::new(GzDecoder::new(file)).lines() {
            let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
            // At these stages, KubeVirt rejected the VM before it applied the instance type.
            let stage = answer["error"]["stage"].as_str().unwrap_or_default();
            if answer["instancetype"].is_null() || ["read", "vm-mutate"].contains(&stage) {
                continue;
            }
            let has = |pointer: &str| {
                let value = answer.pointer(&format!("{pointer}/{field}"));
                value.is_some_and(|value| !value.is_null() && *value != json!({}) && *value != "")
            };
            let path = format!("spec.template.spec.{field}");
            let causes = answer["error"]["causes"].as_array().into_iter().flatten();
            let is_refused = causes.filter(|cause| cause["field"] == path.as_str()).count() > 0;
            let sides = (has("/instancetype/spec"), has("/vm/spec/template/spec"));
            let before = all.insert(sides, is_refused);
            assert!(before.is_none_or(|before| before == is_refused), "{}", answer["id"]);
            answers += 1;
        }
    }
    assert!(answers > 1000, "{answers} answers");
    all
}

/// Returns the instance types in `deploy/instancetypes`, and two others: one without scheduler, one with another
/// scheduler than Berth's.
fn shipped_and_test_instancetypes() -> Vec<Value> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/instancetypes");
    let mut all = Vec::new();
    for file in ["performance.yaml", "density.yaml"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let mut problems = Vec::new();
        all.extend(stream::for_each_object(file, &text, &mut problems, |found| found.object));
        assert!(problems.is_empty(), "{problems:?}");
    }
    assert!(all.len() > 8, "{}", all.len());
    let own = |name: &str, spec: Value| {
        json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": name}, "spec": spec})
    };
    all.push(own("plain", json!({"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}})));
    all.push(own(
        "elsewhere",
        json!({"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}, "schedulerName": "own"}),
    ));
    all
}

#[test]
fn only_one_of_vm_and_instance_type_sets_the_scheduler() {
    let refuses = recorded_rejections("schedulerName");
    assert!(
        refuses[&(true, true)],
        "the records contain a VM and an instance type that both set the field"
    );
    let (mut rendered_count, mut refused) = (0, 0);
    for instancetype in shipped_and_test_instancetypes() {
        for asked in [None, Some("berth-scheduler"), Some("own")] {
            // If the manifests do not contain the instance type, the shipped instance type of the same name applies,
            // which is compiled into the controller.
            for is_known in [true, false] {
                let name = instancetype["metadata"]["name"].as_str().unwrap();
                let theirs = instancetype["spec"]["schedulerName"].as_str();
                if !is_known && ["plain", "elsewhere"].contains(&name) {
                    continue;
                }
                let mut provider = base_provider_spec();
                set_value(
                    &mut provider,
                    "/cloudProviderSpec/virtualMachine/flavor",
                    json!({"name": name}),
                );
                let mut other_objects =
                    vec![json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                    "metadata": {"name": "cluster-name"}, "spec": {"schedulerName": asked}})];
                other_objects.extend(is_known.then(|| instancetype.clone()));
                let mut deployment = machine_deployment(&provider);
                deployment["metadata"]["namespace"] = json!("cluster-cluster-name");
                let case = format!("{name} ({theirs:?}), tenant {asked:?}, known: {is_known}");
                match render_deployment(&deployment, &other_objects, "vm") {
                    Ok(rendered) => {
                        let spec = &rendered.machine["spec"]["template"]["spec"];
                        let ours = spec["schedulerName"].as_str();
                        assert!(
                            !refuses[&(theirs.is_some(), ours.is_some())],
                            "{case}: KubeVirt would refuse the VM"
                        );
                        let scheduler = ours.or(theirs);
                        assert_eq!(scheduler, asked.or(theirs), "{case}");
                        let tolerations = json!([{"key": "berth.dev/vms", "operator": "Exists"}]);
                        let expected = if scheduler == Some("berth-scheduler") {
                            tolerations
                        } else {
                            Value::Null
                        };
                        assert_eq!(spec["tolerations"], expected, "{case}");
                        rendered_count += 1;
                    }
                    Err(report) => {
                        assert!(
                            asked.is_some() && theirs.is_some() && asked != theirs,
                            "{case}: {report}"
                        );
                        for words in [name, "spec.schedulerName", "`berth-scheduler`", "`own`"] {
                            assert!(report.contains(words), "{case}: {report}");
                        }
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(rendered_count > 30 && refused > 10, "{rendered_count} rendered, {refused} refused");
}

#[test]
fn vm_and_instance_type_cannot_both_set_a_node_selector() {
    assert!(recorded_rejections("nodeSelector")[&(true, true)]);
    let mut provider = base_provider_spec();
    set_value(&mut provider, "/cloudProviderSpec/nodeSelector", json!({"pool": "fast"}));
    set_value(&mut provider, "/cloudProviderSpec/virtualMachine/flavor", json!({"name": "picky"}));
    let picky = |spec: Value| {
        json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": "picky"}, "spec": spec})
    };
    assert!(render_deployment(&machine_deployment(&provider), &[picky(json!({}))], "vm").is_ok());
    let report = render_deployment(
        &machine_deployment(&provider),
        &[picky(json!({"nodeSelector": {"pool": "slow"}}))],
        "vm",
    );
    let report = report.unwrap_err();
    assert!(
        report.contains("cloudProviderSpec.nodeSelector") && report.contains("picky"),
        "{report}"
    );
}
