//! VMs whose volumes use storage that a CSI driver reports (CSIStorageCapacity), with a real scheduler. The test creates
//! the reports and the volumes itself, in place of the driver.
//!
//! kube-scheduler considers these reports since Kubernetes 1.21. With 1.20, which serves no CSIStorageCapacity, the other
//! tests of `tests/tests/assign.rs` show that the extender becomes ready without this kind.

use std::collections::BTreeMap;

use berth_tests::cluster::{ControlPlane, Version};
use berth_tests::controller::Controller;
use serde_json::{Value, json};

use crate::testbed::{Testbed, Vm};
use crate::volumes::{create_claim, provision_volume, wait_until_node_selected};

const CLASS: &str = "reported";
const DRIVER: &str = "reported.example.com";
/// First version whose kube-scheduler compares claims with the reported storage by default.
const MIN_VERSION: Version = Version(1, 21);
/// First version that serves `storage.k8s.io/v1` CSIStorageCapacity.
const V1_VERSION: Version = Version(1, 24);
/// Reason of kube-scheduler and of the extender for a host with too little storage.
const NO_SPACE: &str = "did not have enough free storage";
const HOSTS: [&str; 2] = ["storage-0", "storage-1"];
const CLAIMS: [&str; 5] = ["part-0", "part-1", "part-2", "part-3", "part-4"];

fn capacities_path(plane: &ControlPlane) -> String {
    let version = if plane.version() >= V1_VERSION { "v1" } else { "v1beta1" };
    format!("/apis/storage.k8s.io/{version}/namespaces/vms/csistoragecapacities")
}

/// Creates the driver and its StorageClass.
fn create_driver(bed: &Testbed) {
    let driver = json!({"metadata": {"name": DRIVER},
        "spec": {"attachRequired": false, "storageCapacity": true}});
    bed.client.post("/apis/storage.k8s.io/v1/csidrivers", &driver);
    let class = json!({"metadata": {"name": CLASS}, "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer"});
    bed.client.post("/apis/storage.k8s.io/v1/storageclasses", &class);
}

fn create_report(plane: &ControlPlane, bed: &Testbed, host: &str, size: &str) {
    let topology = json!({"matchLabels": {"kubernetes.io/hostname": host}});
    let capacity = json!({"metadata": {"name": host}, "storageClassName": CLASS,
        "nodeTopology": topology, "capacity": size});
    bed.client.post(&capacities_path(plane), &capacity);
}

fn update_report(plane: &ControlPlane, bed: &Testbed, host: &str, size: &str) {
    let path = format!("{}/{host}", capacities_path(plane));
    let mut capacity = bed.client.get(&path);
    capacity["capacity"] = size.into();
    bed.client.put(&path, &capacity);
}

fn create_vm(bed: &mut Testbed, claim: &str) -> String {
    bed.create_vm(Vm { cpus: 1, rack: Some("storage"), claim: Some(claim), ..Vm::default() })
}

/// Tests that VMs do not share the storage of a host while their volumes are provisioned, even if the extender is
/// killed. kube-scheduler alone would place all of them, because it compares each claim with the reported storage.
pub(crate) fn claims_use_reported_storage(
    plane: &ControlPlane,
    bed: &mut Testbed,
    mut extender: Controller,
) -> Controller {
    if !plane.supports("VMs whose volumes use storage that a CSI driver reports", MIN_VERSION) {
        return extender;
    }
    for host in HOSTS {
        bed.add_host(host, "storage", &[]);
    }
    create_driver(bed);
    for claim in CLAIMS {
        create_claim(bed, claim, CLASS, "4Gi");
    }
    // kube-scheduler's own rule: without a report, there is no storage.
    let first = create_vm(bed, CLAIMS[0]);
    let message = bed.wait_until_refused(&first);
    assert!(message.contains(NO_SPACE), "{message}");
    for host in HOSTS {
        create_report(plane, bed, host, "10Gi");
    }
    let mut vms = vec![first];
    vms.extend(CLAIMS[1..4].iter().map(|claim| create_vm(bed, claim)));
    let mut claims_by_host: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for claim in CLAIMS.iter().take(4) {
        let host = wait_until_node_selected(bed, claim);
        claims_by_host.entry(host).or_default().push(*claim);
    }
    let counts: Vec<usize> = claims_by_host.values().map(Vec::len).collect();
    assert_eq!(counts, [2, 2], "{claims_by_host:?}\n{}", plane.log_tail("extender"));

    // The fifth VM would fit according to the reports, but the volumes of the others are not provisioned yet.
    let late = create_vm(bed, CLAIMS[4]);
    let message = bed.wait_until_refused(&late);
    assert!(message.contains(NO_SPACE), "{message}\n{}", plane.log_tail("extender"));
    bed.write_all_reports();
    extender.running.stop();
    extender = bed.start_extender(plane, "extender", "kube-system/berth-scheduler");
    let another = create_vm(bed, CLAIMS[4]);
    let message = bed.wait_until_refused(&another);
    assert!(message.contains(NO_SPACE), "{message}\n{}", plane.log_tail("extender"));
    bed.client.delete(&format!("{}/{another}", crate::testbed::PODS_PATH));

    // A volume is provisioned, and the driver reports less free storage.
    let (host, claims) = claims_by_host.iter().next().unwrap();
    let provisioned = vm_of(&vms, claims[0]);
    update_report(plane, bed, host, "6Gi");
    provision_volume(bed, claims[0], host);
    bed.wait_until_bound(&provisioned);
    assert_eq!(bed.host_of(&provisioned).as_ref(), Some(host));
    // During this time the scheduler retries the waiting VM, and the extender refuses it again.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(selected_node(bed, CLAIMS[4]), Value::Null, "{}", plane.log_tail("extender"));
    // The administrator adds a drive. The scheduler retries the VM, because the extender changes the Node.
    update_report(plane, bed, host, "8Gi");
    assert_eq!(&wait_until_node_selected(bed, CLAIMS[4]), host, "{}", plane.log_tail("extender"));

    for (host, claims) in &claims_by_host {
        for claim in claims.iter().filter(|claim| vm_of(&vms, claim) != provisioned) {
            provision_volume(bed, claim, host);
            bed.wait_until_bound(&vm_of(&vms, claim));
        }
    }
    provision_volume(bed, CLAIMS[4], host);
    bed.wait_until_bound(&late);
    assert_eq!(bed.assert_kubelets_admit_on(&HOSTS), 5);
    bed.write_all_reports();
    extender
}

/// Returns the VM with this claim. The VMs were created in the order of [`CLAIMS`].
fn vm_of(vms: &[String], claim: &str) -> String {
    let at = CLAIMS.iter().position(|one| *one == claim).unwrap();
    vms[at].clone()
}

fn selected_node(bed: &Testbed, claim: &str) -> Value {
    let claim = bed.client.get(&format!("/api/v1/namespaces/vms/persistentvolumeclaims/{claim}"));
    claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].clone()
}
