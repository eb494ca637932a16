//! Tests of the migration of load balancers.

use serde_json::{Value, json};

use super::*;
use crate::fleet::RenderInput;
use berth_kubevirt_render::machines::{RenderOptions, render_machine};

const OLD_LABEL: &str = "cloud.kubevirt.io/xyz";

fn service(name: &str, namespace: &str, selector: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "LoadBalancer", "selector": selector, "ports": [{"port": 80}]},
    })
}

fn machine(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": "cluster-xyz"},
        "spec": {"template": {"metadata": {"labels": labels}}},
    })
}

/// Plans the migration of these objects, in addition to TenantCluster `xyz` and one MachineDeployment of this tenant.
fn plan(objects: &[Value]) -> Migration {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "xyz"}, "spec": {},
    });
    let deployment = json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "web", "namespace": "cluster-xyz"},
        "spec": {"template": {"spec": {"providerSpec": {"value": {
            "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
            "cloudProviderSpec": {"virtualMachine": {"template": {
                "cpus": "2", "memory": "2Gi",
                "primaryDisk": {"osImage": "http://images.example/ubuntu.img", "size": "10Gi", "storageClassName": "x"},
            }}},
        }}}}},
    });
    let all = objects
        .iter()
        .chain([&tenant, &deployment])
        .map(|object| InputObject { location: "test".to_owned(), object: object.clone() });
    let input = RenderInput::new(all.collect(), Vec::new());
    assert_eq!(input.problems, []);
    let options =
        RenderOptions { machine_name: Some("web-1".to_owned()), ..RenderOptions::default() };
    let rendered = input
        .deployments
        .iter()
        .map(|one| render_machine(one, &input.render_context, &options).unwrap());
    Migration::plan(MigrationInput {
        tenants: &input.render_context.tenants,
        services: &input.services,
        machines: &input.machines,
        rendered: &rendered.collect::<Vec<_>>(),
    })
}

#[test]
fn selectors_change_and_old_machines_get_the_new_label() {
    let migration = plan(&[
        service("a1", "cluster-xyz", json!({OLD_LABEL: "true"})),
        service("new", "cluster-xyz", json!({CLUSTER_NAME_LABEL: "xyz"})),
        service("none", "cluster-xyz", Value::Null),
        machine("old-1", json!({OLD_LABEL: "true"})),
        machine("other", json!({OLD_LABEL: "false"})),
        machine("both", json!({OLD_LABEL: "true", CLUSTER_NAME_LABEL: "xyz"})),
    ]);
    assert_eq!(migration.problems, []);
    let [changed] = migration.services.as_slice() else { panic!("{migration:?}") };
    assert_eq!(changed.selected, ["web-1"], "the selector selects machines of Berth");
    assert_eq!(
        migration.patches(),
        [
            json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": "old-1", "namespace": "cluster-xyz"},
                "spec": {"template": {"metadata": {"labels": {CLUSTER_NAME_LABEL: "xyz"}}}},
            }),
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a1", "namespace": "cluster-xyz"},
                "spec": {"selector": {OLD_LABEL: null, CLUSTER_NAME_LABEL: "xyz"}},
            }),
        ]
    );
}

#[test]
fn other_labels_of_a_selector_stay_and_are_checked() {
    let selector = json!({OLD_LABEL: "true", "cluster.x-k8s.io/role": "worker"});
    let migration = plan(&[service("a1", "cluster-xyz", selector)]);
    assert_eq!(migration.services[0].after.len(), 2);
    assert_eq!(migration.services[0].selected, ["web-1"]);
    let migration =
        plan(&[service("a1", "cluster-xyz", json!({OLD_LABEL: "true", "pool": "ingress"}))]);
    assert!(migration.services[0].selected.is_empty());
    let problem = migration.problems[0].to_string();
    assert!(problem.contains("web-1, which lack the label pool=ingress"), "{problem}");
}

#[test]
fn hostile_and_unknown_objects_are_not_migrated() {
    for (object, words) in [
        (
            service("a1", "cluster-other", json!({OLD_LABEL: "true"})),
            "Service cluster-other/a1: metadata.namespace: `cluster-other`: is not the namespace of a TenantCluster",
        ),
        (service("a1", "default", json!({OLD_LABEL: "true"})), "metadata.namespace: `default`"),
        (
            service("a;reboot", "cluster-xyz", json!({OLD_LABEL: "true"})),
            "metadata.name: `a;reboot`",
        ),
        (service("a1", "cluster-xyz", json!({OLD_LABEL: "$(id)"})), "spec.selector: `$(id)`"),
        (service("a1", "cluster-xyz", json!(7)), "Service a1: spec.selector: "),
    ] {
        let migration = plan(std::slice::from_ref(&object));
        assert!(migration.patches().is_empty(), "{object}");
        let [problem] = migration.problems.as_slice() else { panic!("{migration:?}") };
        assert!(problem.is_fatal && problem.to_string().contains(words), "{problem}");
    }
    let migration = plan(&[
        service("a1", "cluster-xyz", json!({OLD_LABEL: "true"})),
        machine("$(id)", json!({OLD_LABEL: "true"})),
    ]);
    assert!(migration.machines.is_empty() && migration.problems.len() == 1, "{migration:?}");
}
