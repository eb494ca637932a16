//! A request that is reduced while its machines exist.

use serde_json::json;

use crate::bed::{Bed, texts};

/// Tests that the quota counts the machines of an earlier spec until they are deleted: otherwise a user could have them and the
/// same number in another tenant.
pub(crate) fn reduced_request_counts_until_its_machines_are_deleted(bed: &Bed) {
    let machines = ["one", "two", "three"];
    for name in machines {
        bed.apply(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": "cluster-shop"},
            "spec": {
                "runStrategy": "Halted", "instancetype": {"name": "standard-2", "kind": "VirtualMachineInstancetype"},
                "template": {"spec": {"domain": {"devices": {}}}},
            },
        }));
    }
    let before = bed.used("teams")["machines"].as_u64().unwrap();
    bed.patch("tenantrequests", "team-a", "shop", &json!({"spec": {"machines": {"count": 1}}}));
    let request = bed.wait_for("team-a", "shop", "UpToDate", "True Granted");
    assert!(texts(&request, "UpToDate").1.contains("earlier spec"), "{request:#}");
    bed.wait_until("the namespace has the smaller limit", |bed| {
        let (hard, used) = bed.counted("cluster-shop", "count/virtualmachines.kubevirt.io")?;
        (hard == "1" && used == "3").then_some(())
    });
    // An edit of the quota is planned at once.
    let edit = |bed: &Bed, machines: u32| {
        bed.patch(
            "tenantquotas",
            "",
            "teams",
            &json!({"spec": {"limits": {"machines": machines}}}),
        );
    };
    edit(bed, 41);
    bed.wait_until("the quota has been planned", |bed| {
        let quota = bed.plane.get_json(&["tenantquota", "teams"]).ok()?;
        (quota["status"]["observedGeneration"] == quota["metadata"]["generation"]).then_some(())
    });
    assert_eq!(bed.used("teams")["machines"], before);
    for name in &machines[1..] {
        bed.plane.kubectl(&["delete", "virtualmachine", name, "-n", "cluster-shop"]).unwrap();
    }
    bed.wait_until("the machines are not counted", |bed| {
        let (_, used) = bed.counted("cluster-shop", "count/virtualmachines.kubevirt.io")?;
        (used == "1").then_some(())
    });
    edit(bed, 40);
    bed.wait_until("the quota counts the smaller number", |bed| {
        (bed.used("teams")["machines"] == before - 3).then_some(())
    });
    bed.plane.kubectl(&["delete", "virtualmachine", "one", "-n", "cluster-shop"]).unwrap();
}
