//! TenantClusters of requests that are being deleted.

use serde_json::json;

use crate::bed::{Bed, texts};

/// Tests that a machine that an administrator creates after the requester has deleted all machines is not deleted with the
/// TenantCluster.
pub(crate) fn machines_created_during_a_deletion_stay(bed: &Bed) {
    bed.apply(&json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "spec": {},
        "metadata": {"name": "emptied", "annotations": {"berth.dev/access-revoked": "2026-01-01T00:00:00Z"}},
    }));
    bed.wait_until("the namespace exists", |bed| {
        bed.plane.get_json(&["namespace", "cluster-emptied"]).ok()
    });
    bed.apply(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "late", "namespace": "cluster-emptied"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
    }));
    bed.plane.kubectl(&["delete", "tenantcluster", "emptied", "--wait=false"]).unwrap();
    bed.wait_until("the TenantCluster reports the machine", |bed| {
        let tenant = bed.plane.get_json(&["tenantcluster", "emptied"]).ok()?;
        let (reason, message) = texts(&tenant, "Ready");
        (reason == "False MachinesRemain" && message.contains("VirtualMachine late")).then_some(())
    });
    let machine = ["virtualmachine", "late", "-n", "cluster-emptied"];
    let machine = bed.plane.get_json(&machine).unwrap();
    assert!(machine["metadata"]["deletionTimestamp"].is_null(), "{machine:#}");
    bed.plane.kubectl(&["delete", "virtualmachine", "late", "-n", "cluster-emptied"]).unwrap();
    bed.wait_until("the TenantCluster is deleted", |bed| {
        (!bed.tenants().contains(&"emptied".to_owned())).then_some(())
    });
}
