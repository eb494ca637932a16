//! Tests of volumes with `WaitForFirstConsumer` and a real scheduler. The tests create the volumes themselves, in place
//! of a provisioner.

use std::collections::BTreeMap;
use std::time::Instant;

use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use serde_json::json;

use crate::calls::call_filter_on;
use crate::testbed::{SHORT_TIMEOUT, Testbed, Vm};

const CLAIMS_PATH: &str = "/api/v1/namespaces/vms/persistentvolumeclaims";
const VOLUMES_PATH: &str = "/api/v1/persistentvolumes";
const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";

/// Creates a StorageClass whose claims wait for their first pod.
fn create_storage_class(bed: &Testbed) {
    let class = json!({"metadata": {"name": "late"}, "provisioner": "example.com/late",
        "volumeBindingMode": "WaitForFirstConsumer"});
    bed.client.post("/apis/storage.k8s.io/v1/storageclasses", &class);
}

pub(crate) fn create_claim(bed: &Testbed, name: &str, class: &str, size: &str) {
    let claim = json!({"metadata": {"name": name}, "spec": {"storageClassName": class,
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
    bed.client.post(CLAIMS_PATH, &claim);
}

/// Waits until the scheduler has selected a node for a claim, and returns the node. The scheduler then waits for the
/// volume (`PreBind`).
pub(crate) fn wait_until_node_selected(bed: &Testbed, claim: &str) -> String {
    let begin = Instant::now();
    loop {
        let claim_object = bed.client.get(&format!("{CLAIMS_PATH}/{claim}"));
        if let Some(node) =
            claim_object["metadata"]["annotations"][SELECTED_NODE_ANNOTATION].as_str()
        {
            return node.to_owned();
        }
        assert!(begin.elapsed() < SHORT_TIMEOUT, "no node is selected for {claim}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Creates a volume that only this host can reach, and binds the volume to the claim, as the provisioner of the class
/// and the volume controller do.
pub(crate) fn provision_volume(bed: &Testbed, claim: &str, host: &str) {
    let path = format!("{CLAIMS_PATH}/{claim}");
    let mut claim_object = bed.client.get(&path);
    let spec = claim_object["spec"].clone();
    let volume = format!("of-{claim}");
    bed.client.post(VOLUMES_PATH, &json!({"metadata": {"name": volume}, "spec": {
        "storageClassName": spec["storageClassName"], "accessModes": ["ReadWriteOnce"],
        "capacity": spec["resources"]["requests"],
        "local": {"path": "/disk"},
        "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "vms", "name": claim,
            "uid": claim_object["metadata"]["uid"]},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}},
    }}));
    claim_object["spec"]["volumeName"] = volume.clone().into();
    claim_object["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
    bed.client.put(&path, &claim_object);
    for path in [path, format!("{VOLUMES_PATH}/{volume}")] {
        let mut current = bed.client.get(&path);
        current["status"]["phase"] = "Bound".into();
        bed.client.put(&format!("{path}/status"), &current);
    }
}

/// Tests that the VM's resources stay reserved while its volume is created, even if the scheduler or the extender is
/// killed during this time.
pub(crate) fn reservation_survives_a_kill_in_prebind(
    plane: &mut ControlPlane,
    bed: &mut Testbed,
    mut extender: Controller,
) -> Controller {
    create_storage_class(bed);
    for number in 0..2 {
        bed.add_host(&format!("disks-{number}"), "disks", &[]);
    }
    create_claim(bed, "disk", "late", "1Gi");
    let vm = bed.create_vm(Vm { claim: Some("disk"), ..Vm::large("disks") });
    let host = wait_until_node_selected(bed, "disk");
    // The scheduler has reserved the VM's resources, and waits for the volume.
    plane.stop_scheduler();
    let others: Vec<String> = (0..4).map(|_| bed.create_vm(Vm::large("disks"))).collect();
    let file = plane.scheduler_configuration(Some(bed.port)).unwrap();
    plane.start_scheduler(Some(&file)).unwrap();
    let mut vms_by_host: BTreeMap<String, usize> = BTreeMap::new();
    let mut waiting = Vec::new();
    for other in &others {
        // The new scheduler first waits until the Lease of the killed scheduler has expired.
        let pod =
            bed.client.wait_until_scheduled(&format!("{}/{other}", crate::testbed::PODS_PATH));
        match pod["spec"]["nodeName"].as_str() {
            Some(host) => *vms_by_host.entry(host.to_owned()).or_default() += 1,
            None => waiting.push(other.clone()),
        }
    }
    assert_eq!(
        (vms_by_host.values().sum(), waiting.len()),
        (3, 1),
        "{vms_by_host:?}\n{}",
        plane.log_tail("extender")
    );
    assert_eq!(vms_by_host[&host], 1, "{vms_by_host:?}: one zone of {host} must stay reserved");
    bed.write_all_reports();
    extender.running.stop();
    extender = bed.start_extender(plane, "extender", "kube-system/berth-scheduler");
    let late = bed.create_vm(Vm::large("disks"));
    bed.wait_until_refused(&late);
    assert_eq!(bed.host_of(&vm), None, "the VM was bound before its volume exists");
    provision_volume(bed, "disk", &host);
    let took = bed.wait_until_bound(&vm);
    eprintln!("the VM was bound {took:?} after its volume was created");
    assert_eq!(bed.host_of(&vm), Some(host), "{}", plane.log_tail("extender"));
    assert!(bed.host_of(&waiting[0]).is_none() && bed.host_of(&late).is_none());
    bed.assert_kubelets_admit();
    extender
}

/// Tests the reservation for a VM while KubeVirt's first-consumer pod exists. KubeVirt creates this pod so that the
/// disk is created, and the VM's own pod after the first-consumer pod has ended.
pub(crate) fn reservation_is_kept_after_the_first_consumer_pod(
    plane: &ControlPlane,
    bed: &mut Testbed,
) {
    bed.add_host("first-0", "first", &[]);
    create_claim(bed, "first", "late", "1Gi");
    let own = Vm { claim: Some("first"), instance: Some("vmi-first"), ..Vm::large("first") };
    let first_consumer = bed.create_vm(Vm { is_first_consumer: true, ..own });
    let host = wait_until_node_selected(bed, "first");
    provision_volume(bed, "first", &host);
    bed.wait_until_bound(&first_consumer);
    let neighbour = bed.create_vm(Vm::large("first"));
    bed.wait_until_bound(&neighbour);
    bed.write_all_reports();
    let late = bed.create_vm(Vm::large("first"));
    bed.wait_until_refused(&late);
    bed.end_pod(&first_consumer, "Succeeded");
    bed.write_all_reports();
    // During this time the scheduler retries the pod `late`, and the extender refuses the pod again.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(bed.host_of(&late), None, "{}", plane.log_tail("extender"));
    let vm = bed.create_vm(own);
    bed.wait_until_bound(&vm);
    assert_eq!(bed.host_of(&vm).as_deref(), Some("first-0"));
    assert_eq!(bed.host_of(&late), None);
    bed.assert_kubelets_admit();
}

/// Creates an instance of a VM with five exclusive CPUs, and with this claim if there is one. Returns the uid.
fn create_instance(bed: &Testbed, name: &str, claim: Option<&str>) -> String {
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
    bed.client.post(path, &object);
    let created = bed.client.get(&format!("{path}/{name}"));
    created["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Tests the reservation for a VM that has no pod yet: during the import of the VM's image, its volume is already on a
/// host.
pub(crate) fn reservation_exists_for_a_vm_without_pod(plane: &ControlPlane, bed: &mut Testbed) {
    create_storage_class(bed);
    plane
        .define_kind("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances")
        .unwrap();
    bed.add_host("import-0", "import", &[]);
    create_claim(bed, "import", "late", "1Gi");
    let imported = create_instance(bed, "imported", Some("import"));
    provision_volume(bed, "import", "import-0");
    let others = ["other-a", "other-b"].map(|name| create_instance(bed, name, None));
    let mut extender = bed.start_extender(plane, "import", "");
    let vm = |instance, claim| Vm {
        bypasses_scheduler: true,
        instance: Some(instance),
        claim,
        ..Vm::large("import")
    };
    let placed: Vec<bool> = others
        .each_ref()
        .map(|other| {
            let name = bed.create_vm(vm(other, None));
            let response = call_filter_on(bed, &name, "import-0");
            assert_eq!(response["Error"], "", "{response}\n{}", plane.log_tail("import"));
            response["NodeNames"][0] == "import-0"
        })
        .into();
    assert_eq!(
        placed,
        [true, false],
        "one zone must stay reserved for the imported VM\n{}",
        plane.log_tail("import")
    );
    let own = bed.create_vm(vm(&imported, Some("import")));
    let response = call_filter_on(bed, &own, "import-0");
    assert_eq!(response["NodeNames"][0], "import-0", "{response}\n{}", plane.log_tail("import"));
    extender.running.stop();
}
