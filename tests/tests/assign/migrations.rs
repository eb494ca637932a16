//! Live migrations: a second pod of the VM starts on another host, and one of the two pods ends.

use berth_tests::cluster::ControlPlane;

use crate::testbed::{PODS_PATH, Testbed, Vm};

/// Tests that a migration target needs resources like any VM. Also tests that the resources of a failed target, or of
/// the source after a successful migration, can be allocated again.
pub(crate) fn migration_targets_allocate_and_release_resources(
    plane: &ControlPlane,
    bed: &mut Testbed,
) {
    for number in 0..2 {
        bed.add_host(&format!("moves-{number}"), "moves", &[]);
    }
    let moving = Vm { instance: Some("vmi-moving"), ..Vm::large("moves") };
    let source = bed.create_vm(moving);
    bed.wait_until_bound(&source);
    let from = bed.host_of(&source).unwrap();
    bed.write_all_reports();
    let target = bed.create_vm(Vm { migration: Some("first"), ..moving });
    bed.wait_until_bound(&target);
    let target_host = bed.host_of(&target).unwrap();
    assert_ne!(from, target_host, "the target is on the host of the source");
    bed.write_all_reports();
    // With two more VMs both hosts are full.
    let others: Vec<String> = (0..2).map(|_| bed.create_vm(Vm::large("moves"))).collect();
    for other in &others {
        bed.wait_until_bound(other);
    }
    bed.write_all_reports();
    assert_eq!(bed.assert_kubelets_admit_on(&[&from, &target_host]), 4);
    let waiting = bed.create_vm(Vm::large("moves"));
    bed.wait_until_refused(&waiting);
    assert_eq!(bed.host_of(&waiting), None);

    bed.end_pod(&target, "Failed");
    bed.write_all_reports();
    bed.wait_until_bound(&waiting);
    assert_eq!(
        bed.host_of(&waiting).as_deref(),
        Some(&*target_host),
        "{}",
        plane.log_tail("extender")
    );
    bed.write_all_reports();

    let second = bed.create_vm(Vm { migration: Some("second"), ..moving });
    let message = bed.wait_until_refused(&second);
    assert!(message.contains("anti-affinity") && message.contains("zone"), "{message}");
    bed.client.delete(&format!("{PODS_PATH}/{waiting}"));
    bed.write_all_reports();
    bed.wait_until_bound(&second);
    assert_eq!(bed.host_of(&second).as_deref(), Some(&*target_host));
    bed.write_all_reports();

    let last = bed.create_vm(Vm::large("moves"));
    bed.wait_until_refused(&last);
    bed.end_pod(&source, "Succeeded");
    bed.write_all_reports();
    bed.wait_until_bound(&last);
    assert_eq!(
        bed.host_of(&last).as_deref(),
        Some(&*from),
        "the VM is not on the host of the source"
    );
    assert_eq!(bed.assert_kubelets_admit_on(&[&from, &target_host]), 4);
}
