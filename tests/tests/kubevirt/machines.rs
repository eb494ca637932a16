//! MachineDeployments of `examples/tenants`: their VirtualMachines, the launcher pods, and rollouts.

use std::collections::BTreeSet;

use berth_tests::cluster::condition;
use berth_tests::repository;
use serde_json::{Value, json};

use crate::hosts::TENANT_HOSTS;
use crate::run_strategies::report_end;
use crate::testbed::{Testbed, text};

/// Namespace of a tenant whose machines have exclusive CPUs and huge pages.
pub(crate) const BANK_NAMESPACE: &str = "cluster-bank";
/// Namespace of a tenant whose machines have no instance type.
pub(crate) const SHOP_NAMESPACE: &str = "cluster-shop";
/// Instance type to which the machines of the bank are changed.
const SMALL_TYPE: &str = "performance-2";

/// Applies the examples, and tests that virt-api accepts each machine, and that each launcher pod is on a host whose
/// zones have room for it.
pub(crate) fn machines_are_accepted_and_placed(bed: &Testbed) {
    apply_examples(bed);
    for (tenant, namespace, deployment, count) in
        [("bank", BANK_NAMESPACE, "db", 2), ("shop", SHOP_NAMESPACE, "web", 3)]
    {
        let machines = wait_until_machines_run(bed, namespace, deployment, count);
        bed.wait_until(&format!("tenant {tenant} is ready"), &["tenantcluster", tenant], || {
            let tenant = bed.get("tenantcluster", "default", tenant);
            (condition(&tenant, "Ready")["status"] == "True").then_some(())
        });
        for machine in &machines {
            let pod = launcher_pod(bed, namespace, machine);
            let host = text(&pod["spec"]["nodeName"]);
            assert!(TENANT_HOSTS.contains(&host), "{namespace}: a pod is on {host}");
            assert_eq!(pod["spec"]["schedulerName"], "berth-scheduler");
            assert_eq!(machine["spec"]["runStrategy"], "Once");
        }
    }
    let mut hosts = BTreeSet::new();
    for machine in machines(bed, BANK_NAMESPACE, "db") {
        let pod = launcher_pod(bed, BANK_NAMESPACE, &machine);
        assert_eq!(pod["status"]["qosClass"], "Guaranteed");
        let zones = &wait_until_reported(bed, &pod)["zones"];
        assert_eq!(zones.as_array().unwrap().len(), 1, "the VM should use one zone");
        hosts.insert(text(&pod["spec"]["nodeName"]).to_owned());
    }
    assert_eq!(hosts.len(), 2, "the anti-affinity is ignored: {hosts:?}");
    bed.assert_kubelets_admit();
}

/// Tests the rollout after a change of the template: all machines are replaced.
pub(crate) fn changed_flavor_replaces_machines(bed: &Testbed) {
    let before = machine_names(bed, BANK_NAMESPACE, "db");
    let machine = json!({"virtualMachine": {"flavor": {"name": SMALL_TYPE}}});
    let value = json!({"cloudProviderSpec": machine});
    let template = json!({"spec": {"providerSpec": {"value": value}}});
    bed.patch("machinedeployment", BANK_NAMESPACE, "db", &json!({"spec": {"template": template}}));
    let after = wait_until_machines_run(bed, BANK_NAMESPACE, "db", 2);
    for machine in &after {
        assert!(!before.contains(text(&machine["metadata"]["name"])), "{machine:#}");
        assert_eq!(machine["spec"]["instancetype"]["name"], SMALL_TYPE);
        let compute = &launcher_pod(bed, BANK_NAMESPACE, machine)["spec"]["containers"][0];
        // The emulator's thread has an additional CPU.
        assert_eq!(compute["resources"]["requests"]["cpu"], "3", "{compute:#}");
    }
    bed.assert_kubelets_admit();
}

/// Tests that existing machines keep the size that they were created with: KubeVirt stores the instance type with each
/// VM, and the template of the MachineDeployment has not changed.
pub(crate) fn edited_instance_type_applies_to_new_machines(bed: &Testbed) {
    let kind = "virtualmachineclusterinstancetype";
    let set_memory = |guest: &str| {
        bed.patch(kind, "default", SMALL_TYPE, &json!({"spec": {"memory": {"guest": guest}}}));
    };
    let before = machine_names(bed, BANK_NAMESPACE, "db");
    let uids = || -> BTreeSet<String> {
        let instances = before.iter().map(|name| bed.get("vmi", BANK_NAMESPACE, name));
        instances.map(|instance| text(&instance["metadata"]["uid"]).to_owned()).collect()
    };
    let uids_before = uids();
    set_memory("6Gi");
    scale(bed, BANK_NAMESPACE, "db", 3);
    for machine in wait_until_machines_run(bed, BANK_NAMESPACE, "db", 3) {
        let name = text(&machine["metadata"]["name"]);
        let expected = if before.contains(name) { "8Gi" } else { "6Gi" };
        let instance = bed.get("vmi", BANK_NAMESPACE, name);
        assert_eq!(instance["spec"]["domain"]["memory"]["guest"], expected, "{name}");
    }
    assert_eq!(uids(), uids_before, "an existing VM was restarted");
    set_memory("8Gi");
    scale(bed, BANK_NAMESPACE, "db", 2);
    wait_until_machines_run(bed, BANK_NAMESPACE, "db", 2);
    assert_eq!(
        machine_names(bed, BANK_NAMESPACE, "db"),
        before,
        "the youngest machine must be deleted"
    );
    bed.assert_kubelets_admit();
}

/// Tests that a machine whose guest has shut down is replaced, because its run strategy does not restart the guest.
pub(crate) fn ended_machine_is_replaced(bed: &Testbed) {
    let name = machine_names(bed, SHOP_NAMESPACE, "web").pop_first().unwrap();
    report_end(bed, SHOP_NAMESPACE, &name, "Succeeded");
    wait_until_replaced(bed, SHOP_NAMESPACE, "web", &name);
    bed.assert_kubelets_admit();
}

/// Waits until a machine is deleted, and the same number of machines runs as before the deletion.
pub(crate) fn wait_until_replaced(bed: &Testbed, namespace: &str, deployment: &str, name: &str) {
    bed.wait_until(&format!("{name} is deleted"), &["vm", name, "-n", namespace], || {
        bed.get("vm", namespace, name).is_null().then_some(())
    });
    let deployment_object = bed.get("machinedeployment", namespace, deployment);
    let replicas = deployment_object["spec"]["replicas"].as_u64().unwrap();
    wait_until_machines_run(bed, namespace, deployment, replicas);
}

/// Waits until exactly this number of machines run, all with the current template, and returns them.
#[track_caller]
pub(crate) fn wait_until_machines_run(
    bed: &Testbed,
    namespace: &str,
    deployment: &str,
    count: u64,
) -> Vec<Value> {
    let object = ["machinedeployment", deployment, "-n", namespace];
    bed.wait_until(&format!("{count} machines of {namespace}/{deployment} run"), &object, || {
        let object = bed.get("machinedeployment", namespace, deployment);
        let status = &object["status"];
        let is_observed = status["observedGeneration"] == object["metadata"]["generation"];
        let counts = ["replicas", "updatedReplicas", "readyReplicas"];
        let are_ready = counts.iter().all(|field| status[field] == count);
        let machines = machines(bed, namespace, deployment);
        (is_observed && are_ready && machines.len() as u64 == count).then_some(machines)
    })
}

pub(crate) fn machines(bed: &Testbed, namespace: &str, deployment: &str) -> Vec<Value> {
    bed.list("virtualmachines", &["-n", namespace, "-l", &format!("md={deployment}")])
}

pub(crate) fn machine_names(bed: &Testbed, namespace: &str, deployment: &str) -> BTreeSet<String> {
    let machines = machines(bed, namespace, deployment).into_iter();
    machines.map(|machine| text(&machine["metadata"]["name"]).to_owned()).collect()
}

/// Returns the launcher pod of a machine that runs.
pub(crate) fn launcher_pod(bed: &Testbed, namespace: &str, machine: &Value) -> Value {
    let instance = bed.get("vmi", namespace, text(&machine["metadata"]["name"]));
    assert_eq!(instance["status"]["phase"], "Running", "{instance:#}");
    let mut pods = bed.pods_of(&instance);
    assert_eq!(pods.len(), 1, "{pods:#?}");
    pods.remove(0)
}

pub(crate) fn scale(bed: &Testbed, namespace: &str, deployment: &str, replicas: u32) {
    let replicas = json!({"spec": {"replicas": replicas}});
    bed.patch("machinedeployment", namespace, deployment, &replicas);
}

/// Waits until the report of a pod's host has the pod's allocation, and returns the allocation.
pub(crate) fn wait_until_reported(bed: &Testbed, pod: &Value) -> Value {
    let host = text(&pod["spec"]["nodeName"]);
    bed.wait_until("the report of the host contains the pod", &["infranode", host], || {
        let host = bed.get("infranode", "default", host);
        let mut allocations = host["status"]["allocations"].as_array()?.iter();
        allocations.find(|one| one["podUID"] == pod["metadata"]["uid"]).cloned()
    })
}

/// Applies `examples/tenants`. The machines of the shop have no instance type that names the scheduler, so the tenant
/// names the scheduler.
fn apply_examples(bed: &Testbed) {
    let folder = repository().join("examples/tenants");
    for file in ["config.yaml", "bank.yaml"] {
        bed.plane.apply_file(&folder.join(file)).unwrap();
    }
    let shop = std::fs::read_to_string(folder.join("shop.yaml")).unwrap();
    let spec = "  projectID: retail\n";
    assert_eq!(shop.matches(spec).count(), 1, "shop.yaml has another spec");
    let shop = shop.replace(spec, &format!("{spec}  schedulerName: berth-scheduler\n"));
    let apply = ["apply", "--validate=false", "-f", "-"];
    bed.plane.kubectl_with(&bed.plane.kubeconfig(), &apply, &shop).unwrap();
}
