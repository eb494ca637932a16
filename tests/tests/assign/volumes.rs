//! Volumes with `WaitForFirstConsumer`, with a real scheduler; the test takes the part of the provisioner.

use std::collections::BTreeMap;
use std::time::Instant;

use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use serde_json::json;

use crate::bed::{Bed, SOON, Vm};
use crate::calls::filter_on;

const CLAIMS: &str = "/api/v1/namespaces/vms/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const SELECTED: &str = "volume.kubernetes.io/selected-node";

/// Creates a StorageClass whose claims wait for their first pod.
fn class(bed: &Bed) {
    let class = json!({"metadata": {"name": "late"}, "provisioner": "example.com/late",
        "volumeBindingMode": "WaitForFirstConsumer"});
    bed.server.post("/apis/storage.k8s.io/v1/storageclasses", &class);
}

fn claim(bed: &Bed, name: &str) {
    let claim = json!({"metadata": {"name": name}, "spec": {"storageClassName": "late",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    bed.server.post(CLAIMS, &claim);
}

/// Waits until the scheduler has selected a node for a claim, and waits for the volume (`PreBind`).
fn selected(bed: &Bed, claim: &str) -> String {
    let begin = Instant::now();
    loop {
        let there = bed.server.get(&format!("{CLAIMS}/{claim}"));
        if let Some(node) = there["metadata"]["annotations"][SELECTED].as_str() {
            return node.to_owned();
        }
        assert!(begin.elapsed() < SOON, "no node is selected for {claim}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Creates a volume that only this host has and binds it to the claim, as the provisioner of the class and the
/// volume controller do.
fn provision(bed: &Bed, claim: &str, host: &str) {
    let path = format!("{CLAIMS}/{claim}");
    let mut there = bed.server.get(&path);
    let volume = format!("of-{claim}");
    bed.server.post(VOLUMES, &json!({"metadata": {"name": volume}, "spec": {
        "storageClassName": "late", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        "local": {"path": "/disk"},
        "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "vms", "name": claim,
            "uid": there["metadata"]["uid"]},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}},
    }}));
    there["spec"]["volumeName"] = volume.clone().into();
    there["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
    bed.server.put(&path, &there);
    for path in [path, format!("{VOLUMES}/{volume}")] {
        let mut there = bed.server.get(&path);
        there["status"]["phase"] = "Bound".into();
        bed.server.put(&format!("{path}/status"), &there);
    }
}

/// Tests that the VM's room stays reserved while its volume is created, even if the scheduler or the extender is
/// killed meanwhile.
pub(crate) fn killed_in_prebind(
    plane: &mut ControlPlane,
    bed: &mut Bed,
    mut extender: Controller,
) -> Controller {
    class(bed);
    for number in 0..2 {
        bed.host(&format!("disks-{number}"), "disks", &[]);
    }
    claim(bed, "disk");
    let vm = bed.vm(Vm { claim: Some("disk"), ..Vm::large("disks") });
    let host = selected(bed, "disk");
    // The scheduler has reserved the VM's room, and waits for the volume.
    plane.stop_scheduler();
    let others: Vec<String> = (0..4).map(|_| bed.vm(Vm::large("disks"))).collect();
    let file = plane.scheduler_configuration(Some(bed.port)).unwrap();
    plane.start_scheduler(Some(&file)).unwrap();
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    let mut waits = Vec::new();
    for other in &others {
        // The new scheduler first waits for the Lease of the old scheduler.
        let said = bed.server.scheduled(&format!("{}/{other}", crate::bed::PODS));
        match said["spec"]["nodeName"].as_str() {
            Some(host) => *on.entry(host.to_owned()).or_default() += 1,
            None => waits.push(other.clone()),
        }
    }
    assert_eq!((on.values().sum(), waits.len()), (3, 1), "{on:?}\n{}", plane.log("extender"));
    assert_eq!(on[&host], 1, "{on:?}: one zone of {host} is kept");
    bed.agents_report();
    extender.running.stop();
    extender = bed.extender(plane, "extender", "kube-system/berth-scheduler");
    let late = bed.vm(Vm::large("disks"));
    bed.refused(&late);
    assert_eq!(bed.host_of(&vm), None, "its volume is not there yet");
    provision(bed, "disk", &host);
    let took = bed.bound(&vm);
    eprintln!("bound {took:?} after its volume was made");
    assert_eq!(bed.host_of(&vm), Some(host), "{}", plane.log("extender"));
    assert!(bed.host_of(&waits[0]).is_none() && bed.host_of(&late).is_none());
    bed.kubelets_agree();
    extender
}

/// Tests the reservation for a VM while KubeVirt's first-consumer pod exists. KubeVirt creates this pod so that the
/// disk is created, and the VM's own pod after the first-consumer pod has ended.
pub(crate) fn the_place_of_a_first_consumer(plane: &ControlPlane, bed: &mut Bed) {
    bed.host("first-0", "first", &[]);
    claim(bed, "first");
    let own = Vm { claim: Some("first"), instance: Some("vmi-first"), ..Vm::large("first") };
    let first_consumer = bed.vm(Vm { is_first_consumer: true, ..own });
    let host = selected(bed, "first");
    provision(bed, "first", &host);
    bed.bound(&first_consumer);
    let neighbour = bed.vm(Vm::large("first"));
    bed.bound(&neighbour);
    bed.agents_report();
    let late = bed.vm(Vm::large("first"));
    bed.refused(&late);
    bed.ended(&first_consumer, "Succeeded");
    bed.agents_report();
    // The scheduler retries the pod, and the extender refuses the pod again.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(bed.host_of(&late), None, "{}", plane.log("extender"));
    let vm = bed.vm(own);
    bed.bound(&vm);
    assert_eq!(bed.host_of(&vm).as_deref(), Some("first-0"));
    assert_eq!(bed.host_of(&late), None);
    bed.kubelets_agree();
}

/// Creates an instance of a VM with five exclusive CPUs, and with this claim if there is one. Returns the uid.
fn instance(bed: &Bed, name: &str, claim: Option<&str>) -> String {
    let volumes: Vec<_> = claim
        .map(|claim| json!({"name": "disk", "persistentVolumeClaim": {"claimName": claim}}))
        .into_iter()
        .collect();
    let path = "/apis/kubevirt.io/v1/namespaces/vms/virtualmachineinstances";
    let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name},
        "spec": {"schedulerName": "berth-scheduler", "volumes": volumes,
            "domain": {"cpu": {"cores": 5, "dedicatedCpuPlacement": true}, "memory": {"guest": "64Mi"},
                "devices": {"autoattachPodInterface": false}}},
        "status": {"phase": "Pending"}});
    bed.server.post(path, &object);
    let there = bed.server.get(&format!("{path}/{name}"));
    there["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Tests the reservation for a VM without a pod: while its image is imported, a VM has no pod, but its volume is
/// already on a host.
pub(crate) fn the_place_of_a_vm_that_has_no_pod(plane: &ControlPlane, bed: &mut Bed) {
    class(bed);
    plane.define("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances").unwrap();
    bed.host("import-0", "import", &[]);
    claim(bed, "import");
    let imported = instance(bed, "imported", Some("import"));
    provision(bed, "import", "import-0");
    let others = ["other-a", "other-b"].map(|name| instance(bed, name, None));
    let mut extender = bed.extender(plane, "import", "");
    let vm = |instance, claim| Vm {
        by_hand: true,
        instance: Some(instance),
        claim,
        ..Vm::large("import")
    };
    let placed: Vec<bool> = others
        .each_ref()
        .map(|other| {
            let name = bed.vm(vm(other, None));
            let said = filter_on(bed, &name, "import-0");
            assert_eq!(said["Error"], "", "{said}\n{}", plane.log("import"));
            said["NodeNames"][0] == "import-0"
        })
        .into();
    assert_eq!(
        placed,
        [true, false],
        "one zone is the VM's that is imported\n{}",
        plane.log("import")
    );
    let own = bed.vm(vm(&imported, Some("import")));
    let said = filter_on(bed, &own, "import-0");
    assert_eq!(said["NodeNames"][0], "import-0", "{said}\n{}", plane.log("import"));
    extender.running.stop();
}
