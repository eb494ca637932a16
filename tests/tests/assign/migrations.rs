//! Live migrations: a second pod of the VM starts on another host, and one of the two pods ends.

use berth_tests::cluster::ControlPlane;

use crate::bed::{Bed, PODS, Vm};

/// Tests that a migration target needs room like any VM, and that the room of a failed target or of the source
/// after a successful migration is used again.
pub(crate) fn targets_take_room_and_leave_it(plane: &ControlPlane, bed: &mut Bed) {
    for number in 0..2 {
        bed.host(&format!("moves-{number}"), "moves", &[]);
    }
    let moving = Vm { instance: Some("vmi-moving"), ..Vm::large("moves") };
    let source = bed.vm(moving);
    bed.bound(&source);
    let from = bed.host_of(&source).unwrap();
    bed.agents_report();
    let target = bed.vm(Vm { migration: Some("first"), ..moving });
    bed.bound(&target);
    let to = bed.host_of(&target).unwrap();
    assert_ne!(from, to, "not beside its source");
    bed.agents_report();
    // With two more VMs both hosts are full.
    let others: Vec<String> = (0..2).map(|_| bed.vm(Vm::large("moves"))).collect();
    for other in &others {
        bed.bound(other);
    }
    bed.agents_report();
    assert_eq!(bed.kubelets_agree_on(&[&from, &to]), 4);
    let waits = bed.vm(Vm::large("moves"));
    bed.refused(&waits);
    assert_eq!(bed.host_of(&waits), None);

    bed.ended(&target, "Failed");
    bed.agents_report();
    bed.bound(&waits);
    assert_eq!(bed.host_of(&waits).as_deref(), Some(&*to), "{}", plane.log("extender"));
    bed.agents_report();

    let second = bed.vm(Vm { migration: Some("second"), ..moving });
    let said = bed.refused(&second);
    assert!(said.contains("anti-affinity") && said.contains("zone"), "{said}");
    bed.server.delete(&format!("{PODS}/{waits}"));
    bed.agents_report();
    bed.bound(&second);
    assert_eq!(bed.host_of(&second).as_deref(), Some(&*to));
    bed.agents_report();

    let last = bed.vm(Vm::large("moves"));
    bed.refused(&last);
    bed.ended(&source, "Succeeded");
    bed.agents_report();
    bed.bound(&last);
    assert_eq!(bed.host_of(&last).as_deref(), Some(&*from), "where the source was");
    assert_eq!(bed.kubelets_agree_on(&[&from, &to]), 4);
}
