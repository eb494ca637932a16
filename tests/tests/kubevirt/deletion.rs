//! Deletion of machines and of tenants.

use serde_json::Value;

use crate::instances::NAMESPACE;
use crate::machines::{BANK_NAMESPACE, SHOP_NAMESPACE};
use crate::testbed::Testbed;

/// Objects of machines, as arguments of `kubectl get`.
const OBJECTS_OF_MACHINES: [&[&str]; 10] = [
    &["virtualmachines", "-A"],
    &["virtualmachineinstances", "-A"],
    &["virtualmachineinstancemigrations", "-A"],
    &["pods", "-A", "-l", "kubevirt.io=virt-launcher"],
    &["poddisruptionbudgets", "-A"],
    &["controllerrevisions", "-A"],
    &["datavolumes", "-A"],
    &["persistentvolumeclaims", "-A"],
    &["persistentvolumes"],
    &["secrets", "-A", "-l", "berth.dev/machine"],
];
/// Objects of tenants, as arguments of `kubectl get`.
const OBJECTS_OF_TENANTS: [&[&str]; 5] = [
    &["tenantclusters"],
    &["namespaces", "-l", "berth.dev/tenant"],
    &["network-attachment-definitions", "-A"],
    &["virtualmachineinstancetypes", "-A"],
    &["virtualmachinepreferences", "-A"],
];

/// Tests that no object of a machine remains after its MachineDeployment is deleted.
pub(crate) fn deleted_machines_leave_no_objects(bed: &Testbed) {
    for (namespace, deployment) in [(BANK_NAMESPACE, "db"), (SHOP_NAMESPACE, "web")] {
        let delete = ["delete", "machinedeployment", deployment, "-n", namespace, "--wait=false"];
        bed.plane.kubectl(&delete).unwrap();
    }
    bed.plane.kubectl(&["delete", "vm", "--all", "-n", NAMESPACE, "--wait=false"]).unwrap();
    wait_until_absent(bed, &OBJECTS_OF_MACHINES);
    bed.wait_until("no host reports an allocation", &["infranodes"], || {
        let hosts = bed.list("infranodes", &[]);
        hosts.iter().all(|host| is_empty(&host["status"]["allocations"])).then_some(())
    });
    assert!(!bed.list("network-attachment-definitions", &["-A"]).is_empty());
}

/// Tests that no object of a tenant remains, except the claim of its VLAN, which is in quarantine.
pub(crate) fn deleted_tenants_leave_no_objects(bed: &Testbed) {
    bed.plane.kubectl(&["delete", "tenantclusters", "--all", "--wait=false"]).unwrap();
    wait_until_absent(bed, &OBJECTS_OF_TENANTS);
    for host in bed.list("infranodes", &[]) {
        assert!(is_empty(&host["spec"]["tenantNetworks"]), "{:#}", host["spec"]);
    }
    for claim in bed.list("vlanclaims", &[]) {
        assert!(claim["status"]["releasedAt"].is_string(), "{claim:#}");
    }
}

/// Waits until none of these objects exist. `kinds` has the arguments of `kubectl get` of each kind.
pub(crate) fn wait_until_absent(bed: &Testbed, kinds: &[&[&str]]) {
    for arguments in kinds {
        let (kind, arguments) = arguments.split_first().unwrap();
        let object = [&[*kind], arguments].concat();
        bed.wait_until(&format!("no {kind} remain"), &object, || {
            bed.list(kind, arguments).is_empty().then_some(())
        });
    }
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}
