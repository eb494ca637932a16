//! Unschedulable pods that are scheduled later, with a real scheduler.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::infra_node::Allocation;
use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;

use crate::bed::{Bed, Vm};

/// Tests that zones fill up: nine VMs would fit by the sum of CPUs, but kubelets would refuse three of them.
pub(crate) fn zones_fill_up_and_the_rest_waits(plane: &ControlPlane, bed: &mut Bed) {
    let vms: Vec<String> = (0..6).map(|_| bed.vm(Vm::large("plain"))).collect();
    for vm in &vms {
        bed.bound(vm);
    }
    let late: Vec<String> = (0..2).map(|_| bed.vm(Vm::large("plain"))).collect();
    for vm in &late {
        let said = bed.refused(vm);
        assert!(said.contains("0/3 nodes are available: 3 "), "{said}");
        assert!(said.contains("zone"), "{said}");
    }
    assert_eq!(bed.kubelets_agree(), 6);
    let events = plane.get(&["events", "-n", "vms"]).unwrap();
    let of_late = events["items"].as_array().unwrap().iter().find(|event| {
        event["reason"] == "FailedScheduling" && event["involvedObject"]["name"] == late[0].as_str()
    });
    assert!(of_late.unwrap()["message"].as_str().unwrap().contains("zone"), "{of_late:?}");
    // After one VM has ended and its agent has reported this, one of the waiting VMs is scheduled.
    bed.agents_report();
    bed.server.delete(&format!("{}/{}", crate::bed::PODS, vms[0]));
    std::thread::sleep(Duration::from_secs(5));
    assert!(late.iter().all(|vm| bed.host_of(vm).is_none()), "its kubelet may have it still");
    bed.agents_report();
    let begin = std::time::Instant::now();
    while late.iter().all(|vm| bed.host_of(vm).is_none()) {
        assert!(begin.elapsed() < crate::bed::SOON, "{}", plane.log("extender"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = begin.elapsed();
    eprintln!("bound {took:?} after a report without the VM");
    // On an idle machine this takes a second; without a wake-up the scheduler retries only after five minutes.
    assert!(took < Duration::from_secs(150), "{took:?}");
    assert_eq!(bed.kubelets_agree(), 6);
}

/// Tests room that becomes free without an event of Kubernetes: an agent reports that the resources of a deleted
/// pod are free.
pub(crate) fn room_that_a_report_tells_of_is_used(
    plane: &ControlPlane,
    bed: &mut Bed,
    extender: &Controller,
) {
    bed.host("reported-0", "reported", &[]);
    let form = bed.hosts.get_mut("reported-0").unwrap();
    let zones = form.threads();
    let has = |uid: &str, zone: usize, but: usize| Allocation {
        pod_uid: uid.to_owned(),
        cpus: Some(zones[zone][0][but..].iter().copied().collect()),
        zones: vec![u32::try_from(zone).unwrap()],
        ..Allocation::default()
    };
    form.has = vec![has("gone-0", 0, 1), has("gone-1", 1, 0)];
    bed.report("reported-0");
    let heard = "CPUs of the new host are taken";
    plane
        .until(heard, crate::bed::SOON, |_| {
            let pods = bed.vm(Vm::large("reported"));
            let said = bed.server.scheduled(&format!("{}/{pods}", crate::bed::PODS));
            let waits = said["spec"]["nodeName"].is_null();
            bed.server.delete(&format!("{}/{pods}", crate::bed::PODS));
            waits.then_some(())
        })
        .unwrap();
    let vm = bed.vm(Vm::large("reported"));
    bed.refused(&vm);
    // The wait is longer than the first backoff of the scheduler, so the backoff is not measured.
    std::thread::sleep(Duration::from_secs(2));
    let wakes = extender.metric("berth_assignment_wakes_total");
    bed.hosts.get_mut("reported-0").unwrap().has.pop();
    bed.report("reported-0");
    let took = bed.bound(&vm);
    eprintln!("bound {took:?} after a report with free resources");
    // On an idle machine this takes a second; without a wake-up the scheduler retries only after five minutes.
    assert!(took < Duration::from_secs(150), "{took:?}\n{}", plane.log("extender"));
    assert!(extender.metric("berth_assignment_wakes_total") > wakes);
    bed.kubelets_agree();
    let marks = plane.kubectl(&["get", "node", "reported-0", "-o", "yaml"]).unwrap();
    assert!(marks.contains("berth.dev/capacity-generation"), "{marks}");
}

/// Tests that the extender only sees hosts that other plugins allow, and that it considers pod affinity itself.
pub(crate) fn taints_and_neighbours_count(bed: &mut Bed) {
    for number in 0..3 {
        let taints: &[&str] = if number == 2 { &["special:NoSchedule"] } else { &[] };
        bed.host(&format!("apart-{number}"), "apart", taints);
    }
    let vm = Vm { cpus: 1, rack: Some("apart"), apart: Some("web"), ..Vm::default() };
    let mut hosts = BTreeSet::new();
    for _ in 0..2 {
        let name = bed.vm(vm);
        bed.bound(&name);
        hosts.extend(bed.host_of(&name));
    }
    assert_eq!(hosts, BTreeSet::from(["apart-0".to_owned(), "apart-1".to_owned()]));
    let third = bed.vm(vm);
    let said = bed.refused(&third);
    assert!(said.contains("taint") && said.contains("anti-affinity"), "{said}");
    let tolerating = bed.vm(Vm { tolerates: Some("special"), ..vm });
    bed.bound(&tolerating);
    assert_eq!(bed.host_of(&tolerating).as_deref(), Some("apart-2"));
}

/// Tests that the extender counts the pods of all Nodes, as kube-scheduler does: otherwise a VM with an affinity to
/// a pod on a Node without a report would never be scheduled.
pub(crate) fn pods_on_nodes_without_a_report_count(plane: &ControlPlane, bed: &mut Bed) {
    bed.host("near-0", "near", &[]);
    bed.bare_node("bare-0", "near", "database");
    let vm = bed.vm(Vm { cpus: 1, beside: Some("database"), ..Vm::default() });
    let said = bed.server.scheduled(&format!("{}/{vm}", crate::bed::PODS));
    let why = crate::server::condition(&said)["message"].clone();
    assert_eq!(said["spec"]["nodeName"], "near-0", "{why}\n{}", plane.log("extender"));
    // No agent reports the resources of this pod; the following tests query all hosts that have pods.
    bed.server.delete(&format!("{}/on-bare-0", crate::bed::PODS));
}

/// Kills the extender at any point of a burst of pods: nothing is allocated twice, and all pods that fit are bound.
pub(crate) fn an_extender_that_is_killed_in_a_burst(
    plane: &ControlPlane,
    bed: &mut Bed,
    mut extender: Controller,
) -> Controller {
    for number in 0..6 {
        bed.host(&format!("burst-{number}"), "burst", &[]);
    }
    // Each host has room for four VMs: three in the second zone, and one in the first zone beside a VM of 5 CPUs.
    let of = |number: usize| if number.is_multiple_of(4) { 5 } else { 2 };
    let vms: Vec<String> = (0..24)
        .map(|number| {
            let vm = bed.vm(Vm { cpus: of(number), rack: Some("burst"), ..Vm::default() });
            if number == 9 || number == 17 {
                extender.running.stop();
                extender = bed.extender(plane, "extender", "kube-system/berth-scheduler");
            }
            vm
        })
        .collect();
    let begin = std::time::Instant::now();
    for vm in &vms {
        let timeout = Duration::from_secs(150);
        while bed.host_of(vm).is_none() {
            let said = bed.pod(vm)["status"]["conditions"].to_string();
            assert!(begin.elapsed() < timeout, "{vm}: {said}\n{}", plane.log("extender"));
            std::thread::sleep(Duration::from_millis(300));
            // Before agents report, a restarted extender does not know the resources of each pod of a host.
            bed.agents_report();
        }
    }
    eprintln!("24 VMs were bound {:?} after the second kill", begin.elapsed());
    assert!(bed.kubelets_agree() >= 24);
    extender
}
