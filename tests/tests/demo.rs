//! Tests of `make demo`: a real API server accepts the objects of the demo, and the simulation creates the
//! objects that KubeVirt is predicted to create for a VirtualMachine. On request, the whole demo runs with its faults.

#![expect(clippy::disallowed_methods, reason = "tests run programs")]

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::demo::hosts::HOSTS;
use berth_tests::demo::launchers::LauncherSimulation;
use berth_tests::demo::manifests;
use serde_json::{Value, json};

const SHORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a machine of an instance type on a tenant's network, as the controller renders it.
fn machine(name: &str, instancetype: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runStrategy": "Always",
            "instancetype": {"name": instancetype, "kind": "VirtualMachineClusterInstancetype"},
            "template": {"metadata": {"labels": {"md": "web"}}, "spec": {
                "domain": {"devices": {"interfaces": [
                    {"name": "default", "bridge": {}}, {"name": "tenant", "bridge": {}},
                ]}},
                "networks": [
                    {"name": "default", "pod": {}},
                    {"name": "tenant", "multus": {"networkName": "default/tenant-a"}},
                ],
            }},
        },
    })
}

#[test]
fn demo_manifests_are_accepted_by_the_server() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    manifests::apply_objects(&plane).unwrap();
    let controller =
        plane.get_json(&["deployment", "-n", "berth-system", "berth-controller"]).unwrap();
    let containers = controller["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let names: Vec<&str> = containers.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["berth-controller", "kube-scheduler"]);
    let apply = ["apply", "--validate=false", "-f", "-"];
    plane
        .kubectl_with(&plane.kubeconfig(), &apply, &manifests::tenant_manifests().unwrap())
        .unwrap();
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "tenant-a", "namespace": "default",
            "annotations": {"k8s.v1.cni.cncf.io/resourceName": "bridge.network.kubevirt.io/br-tenant"}},
        "spec": {"config": "{}"},
    });
    plane.apply(&definition.to_string()).unwrap();
    // The agent of this host runs from a package.
    plane.create_node(HOSTS[0].name).unwrap();
    let kubeconfig = manifests::create_agent_kubeconfig(&plane, &HOSTS[0]).unwrap();
    let kubeconfig = std::fs::read_to_string(kubeconfig).unwrap();
    assert!(kubeconfig.contains("client-certificate-data: "), "{kubeconfig}");
    let _launchers =
        LauncherSimulation::start(&plane.kubeconfig(), &manifests::kubevirt_object()).unwrap();
    for (name, kind) in [("db", "performance-small"), ("web", "density-small")] {
        plane.apply(&machine(name, kind).to_string()).unwrap();
    }
    let pod = |name: &str| {
        let label = format!("vm.kubevirt.io/name={name}");
        let found = plane.wait_until(&format!("a pod of {name} exists"), SHORT_TIMEOUT, |plane| {
            plane.get_json(&["pods", "-l", &label]).ok()?["items"].get(0).cloned()
        });
        found.unwrap()
    };
    let (db, web) = (pod("db"), pod("web"));
    // The status has no node until a scheduler has bound the pod.
    let scheduling = |plane: &ControlPlane| {
        (plane.get_json(&["vmi", "web"]).ok()?["status"]["phase"] == "Scheduling").then_some(())
    };
    plane
        .wait_until("the instance of web is in phase Scheduling", SHORT_TIMEOUT, scheduling)
        .unwrap();
    for (name, pod) in [("db", &db), ("web", &web)] {
        let instance = plane.get_json(&["vmi", name]).unwrap();
        let (meta, spec) = (&pod["metadata"], &pod["spec"]);
        assert_eq!(meta["labels"]["kubevirt.io"], "virt-launcher");
        assert_eq!(meta["labels"]["kubevirt.io/created-by"], instance["metadata"]["uid"]);
        assert_eq!(meta["ownerReferences"][0]["uid"], instance["metadata"]["uid"]);
        assert_eq!(spec["schedulerName"], "berth-scheduler");
        let limits = &spec["containers"][0]["resources"]["limits"];
        assert_eq!(limits["bridge.network.kubevirt.io/br-tenant"], "1", "{spec:#}");
        assert!(limits["devices.kubevirt.io/kvm"].is_null(), "{limits}");
    }
    assert_eq!(db["status"]["qosClass"], "Guaranteed", "{db:#}");
    let requests = &db["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(
        (requests["cpu"].as_str(), requests["hugepages-2Mi"].as_str()),
        (Some("2"), Some("67108864"))
    );
    assert_eq!(web["status"]["qosClass"], "Burstable", "{web:#}");
    // The deletion of the machine also deletes all objects that were created for the machine.
    plane.kubectl(&["delete", "vm", "db"]).unwrap();
    plane
        .wait_until("all objects of db are deleted", SHORT_TIMEOUT, |plane| {
            let pods = plane.get_json(&["pods", "-l", "vm.kubevirt.io/name=db"]).ok()?;
            let is_deleted = plane.get_json(&["vmi", "db"]).is_err();
            (is_deleted && pods["items"].as_array()?.is_empty()).then_some(())
        })
        .unwrap();
}

/// Takes about forty minutes on two cores.
#[test]
#[ignore = "slow: make faults"]
fn the_demo_recovers_from_all_faults() {
    let done = Command::new(env!("CARGO_BIN_EXE_berth-demo"))
        .args(["--once", "--faults"])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&done.stdout);
    writeln!(std::io::stderr(), "{output}").unwrap_or_default();
    assert!(done.status.success(), "{output}");
    for table in ["Hosts", "Zones", "Tenants", "VMs", "Pings between VMs", "Faults and outcomes"] {
        assert!(output.lines().any(|line| line == table), "no table {table}:\n{output}");
    }
    let (drain, loss) = ("Drain of rack1-32", "Loss of rack1-31");
    for table in [drain, loss] {
        assert!(output.lines().any(|line| line == table), "no table {table}:\n{output}");
    }
    for step in [
        "DrainBlocked: ",
        "PodDisruptionBudget shop permits no eviction",
        "minAvailable of PodDisruptionBudget shop: 6 -> 5",
        "kubectl drain: has ended with exit code 0",
        "berth.dev/removal: HostLost",
        ": has data disks (",
    ] {
        assert!(output.contains(step), "no step {step}:\n{output}");
    }
    let creator = "launcher pods created by ";
    assert!(output.lines().any(|line| line.starts_with(creator)), "no virt-controller:\n{output}");
}
