//! VMs with ResourceClaims (dynamic resource allocation), with a real scheduler: kube-scheduler chooses the host by the
//! devices of the claim, and the extender counts the VM's resources on this host. The test publishes the devices
//! itself, in place of a driver.

use berth_tests::cluster::{ControlPlane, Version};
use berth_tests::controller::Controller;
use serde_json::json;

use crate::testbed::{PODS_PATH, Testbed, Vm};

const API_PATH: &str = "/apis/resource.k8s.io/v1";
const CLAIMS_PATH: &str = "/apis/resource.k8s.io/v1/namespaces/vms/resourceclaims";
const CLASS: &str = "test-devices";
const DRIVER: &str = "devices.example.com";
/// Metric of the `filter` calls that are answered without a reservation.
const UNRESERVED_CALLS: &str =
    "berth_assignment_decisions_total{call=\"filter\",result=\"unreserved\"}";

/// Creates the DeviceClass of all devices of the driver.
fn create_device_class(bed: &Testbed) {
    let expression = format!("device.driver == \"{DRIVER}\"");
    let class = json!({"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
    bed.client.post(&format!("{API_PATH}/deviceclasses"), &class);
}

/// Creates the ResourceSlice of a host with one device, as the driver on this host does.
fn publish_device(bed: &Testbed, host: &str) {
    let slice = json!({"metadata": {"name": format!("{host}-devices")}, "spec": {
        "driver": DRIVER, "nodeName": host, "devices": [{"name": "device-0"}],
        "pool": {"name": host, "generation": 1, "resourceSliceCount": 1}}});
    bed.client.post(&format!("{API_PATH}/resourceslices"), &slice);
}

/// Creates a claim of one device.
fn create_claim(bed: &Testbed, name: &str) {
    let request = json!({"name": "device", "exactly": {"deviceClassName": CLASS}});
    let claim = json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}});
    bed.client.post(CLAIMS_PATH, &claim);
}

/// Asserts that a claim is allocated on this host, and reserved for this pod.
#[track_caller]
fn assert_allocated(bed: &Testbed, claim: &str, host: &str, pod: &str) {
    let claim = bed.client.get(&format!("{CLAIMS_PATH}/{claim}"));
    let results = &claim["status"]["allocation"]["devices"]["results"];
    assert_eq!(results[0]["driver"], DRIVER, "{claim:#}");
    assert_eq!(results[0]["pool"], host, "{claim:#}");
    assert_eq!(claim["status"]["reservedFor"][0]["name"], pod, "{claim:#}");
}

/// Tests a VM whose device is on a host that Berth alone would not choose: the VM is bound to this host, its CPUs are
/// counted there, and a VM whose claim cannot be allocated waits for a device.
pub(crate) fn vm_gets_the_host_of_its_device(
    plane: &ControlPlane,
    bed: &mut Testbed,
    extender: &Controller,
) {
    if !plane.supports("a VM with a ResourceClaim", Version(1, 34)) {
        return;
    }
    for number in 0..2 {
        bed.add_host(&format!("devices-{number}"), "devices", &[]);
    }
    // Berth prefers the fuller of the two hosts, whose other zone has room for one more VM of 5 CPUs.
    let first = bed.create_vm(Vm::large("devices"));
    bed.wait_until_bound(&first);
    let fuller = bed.host_of(&first).unwrap();
    bed.write_all_reports();
    let small = bed.create_vm(Vm { cpus: 2, rack: Some("devices"), ..Vm::default() });
    bed.wait_until_bound(&small);
    assert_eq!(bed.host_of(&small).as_ref(), Some(&fuller), "{}", plane.log_tail("extender"));
    bed.write_all_reports();
    let other = if fuller == "devices-0" { "devices-1" } else { "devices-0" };

    create_device_class(bed);
    publish_device(bed, other);
    create_claim(bed, "first-device");
    let calls = extender.metric(UNRESERVED_CALLS);
    let claiming =
        bed.create_vm(Vm { resource_claim: Some("first-device"), ..Vm::large("devices") });
    bed.wait_until_bound(&claiming);
    assert_eq!(bed.host_of(&claiming).as_deref(), Some(other), "{}", plane.log_tail("extender"));
    assert_allocated(bed, "first-device", other, &claiming);
    assert!(extender.metric(UNRESERVED_CALLS) > calls);

    // Each of the two hosts has one zone left. A third VM would get the CPUs of the claiming VM if the CPUs of the
    // claiming VM were not counted.
    let others = [0, 1].map(|_| bed.create_vm(Vm::large("devices")));
    for vm in &others {
        bed.wait_until_bound(vm);
    }
    let late = bed.create_vm(Vm::large("devices"));
    let message = bed.wait_until_refused(&late);
    assert!(message.contains("zone"), "{message}");
    bed.client.delete(&format!("{PODS_PATH}/{late}"));
    assert_eq!(bed.assert_kubelets_admit_on(&["devices-0", "devices-1"]), 5);
    bed.write_all_reports();

    create_claim(bed, "second-device");
    let waiting = bed.create_vm(Vm {
        cpus: 1,
        rack: Some("devices"),
        resource_claim: Some("second-device"),
        ..Vm::default()
    });
    let message = bed.wait_until_refused(&waiting);
    assert!(message.contains("cannot allocate all claims"), "{message}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(bed.host_of(&waiting), None);
    publish_device(bed, &fuller);
    bed.wait_until_bound(&waiting);
    assert_eq!(bed.host_of(&waiting).as_ref(), Some(&fuller));
    assert_allocated(bed, "second-device", &fuller, &waiting);
    assert_eq!(bed.assert_kubelets_admit_on(&["devices-0", "devices-1"]), 6);
    bed.write_all_reports();
}
