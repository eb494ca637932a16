//! Unschedulable pods that are scheduled later, with a real scheduler.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::infra_node::Allocation;
use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;

use crate::testbed::{Testbed, Vm};

/// Tests that VMs stay pending when the zones of all hosts are full. The sum of the CPUs is sufficient for nine VMs,
/// but kubelets would refuse three of them.
pub(crate) fn pods_wait_when_zones_are_full(plane: &ControlPlane, bed: &mut Testbed) {
    let vms: Vec<String> = (0..6).map(|_| bed.create_vm(Vm::large("plain"))).collect();
    for vm in &vms {
        bed.wait_until_bound(vm);
    }
    let late: Vec<String> = (0..2).map(|_| bed.create_vm(Vm::large("plain"))).collect();
    for vm in &late {
        let message = bed.wait_until_refused(vm);
        assert!(message.contains("0/3 nodes are available: 3 "), "{message}");
        assert!(message.contains("zone"), "{message}");
    }
    assert_eq!(bed.assert_kubelets_admit(), 6);
    let events = plane.get_json(&["events", "-n", "vms"]).unwrap();
    let failure_event = events["items"].as_array().unwrap().iter().find(|event| {
        event["reason"] == "FailedScheduling" && event["involvedObject"]["name"] == late[0].as_str()
    });
    assert!(
        failure_event.unwrap()["message"].as_str().unwrap().contains("zone"),
        "{failure_event:?}"
    );
    // One of the waiting VMs is scheduled after another VM has ended and the agent has reported the free resources.
    bed.write_all_reports();
    bed.client.delete(&format!("{}/{}", crate::testbed::PODS_PATH, vms[0]));
    std::thread::sleep(Duration::from_secs(5));
    assert!(
        late.iter().all(|vm| bed.host_of(vm).is_none()),
        "a VM was bound before the agent reported the free resources"
    );
    bed.write_all_reports();
    let begin = std::time::Instant::now();
    while late.iter().all(|vm| bed.host_of(vm).is_none()) {
        assert!(begin.elapsed() < crate::testbed::SHORT_TIMEOUT, "{}", plane.log_tail("extender"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = begin.elapsed();
    eprintln!("the VM was bound {took:?} after a report without the other VM");
    // On an idle machine, the VM is bound within a second. Without a wake-up, the scheduler would retry only after five
    // minutes.
    assert!(took < Duration::from_secs(150), "{took:?}");
    assert_eq!(bed.assert_kubelets_admit(), 6);
}

/// Tests that a waiting pod is scheduled when resources become free without a Kubernetes event: an agent reports that
/// the resources of a deleted pod are free.
pub(crate) fn reported_free_resources_are_used(
    plane: &ControlPlane,
    bed: &mut Testbed,
    extender: &Controller,
) {
    bed.add_host("reported-0", "reported", &[]);
    let description = bed.hosts.get_mut("reported-0").unwrap();
    let zones = description.cpus_by_zone_and_thread();
    let allocation = |uid: &str, zone: usize, skipped_cpus: usize| Allocation {
        pod_uid: uid.to_owned(),
        cpus: Some(zones[zone][0][skipped_cpus..].iter().copied().collect()),
        zones: vec![u32::try_from(zone).unwrap()],
        ..Allocation::default()
    };
    description.allocations = vec![allocation("gone-0", 0, 1), allocation("gone-1", 1, 0)];
    bed.write_report("reported-0");
    let condition = "the CPUs of the new host are allocated";
    plane
        .wait_until(condition, crate::testbed::SHORT_TIMEOUT, |_| {
            let pod_name = bed.create_vm(Vm::large("reported"));
            let pod = bed
                .client
                .wait_until_scheduled(&format!("{}/{pod_name}", crate::testbed::PODS_PATH));
            let is_waiting = pod["spec"]["nodeName"].is_null();
            bed.client.delete(&format!("{}/{pod_name}", crate::testbed::PODS_PATH));
            is_waiting.then_some(())
        })
        .unwrap();
    let vm = bed.create_vm(Vm::large("reported"));
    bed.wait_until_refused(&vm);
    // The wait is longer than the first backoff of the scheduler, so the measured time does not contain the backoff.
    std::thread::sleep(Duration::from_secs(2));
    let wakes = extender.metric("berth_assignment_wakes_total");
    bed.hosts.get_mut("reported-0").unwrap().allocations.pop();
    bed.write_report("reported-0");
    let took = bed.wait_until_bound(&vm);
    eprintln!("the VM was bound {took:?} after a report with free resources");
    // On an idle machine, the VM is bound within a second. Without a wake-up, the scheduler would retry only after five
    // minutes.
    assert!(took < Duration::from_secs(150), "{took:?}\n{}", plane.log_tail("extender"));
    assert!(extender.metric("berth_assignment_wakes_total") > wakes);
    bed.assert_kubelets_admit();
    let node = plane.kubectl(&["get", "node", "reported-0", "-o", "yaml"]).unwrap();
    assert!(node.contains("berth.dev/capacity-generation"), "{node}");
}

/// Tests that kube-scheduler passes to the extender only hosts that its plugins allow, and that the extender evaluates
/// pod affinity.
pub(crate) fn taints_and_affinity_are_considered(bed: &mut Testbed) {
    for number in 0..3 {
        let taints: &[&str] = if number == 2 { &["special:NoSchedule"] } else { &[] };
        bed.add_host(&format!("apart-{number}"), "apart", taints);
    }
    let vm = Vm { cpus: 1, rack: Some("apart"), anti_affinity: Some("web"), ..Vm::default() };
    let mut hosts = BTreeSet::new();
    for _ in 0..2 {
        let name = bed.create_vm(vm);
        bed.wait_until_bound(&name);
        hosts.extend(bed.host_of(&name));
    }
    assert_eq!(hosts, BTreeSet::from(["apart-0".to_owned(), "apart-1".to_owned()]));
    let third = bed.create_vm(vm);
    let message = bed.wait_until_refused(&third);
    assert!(message.contains("taint") && message.contains("anti-affinity"), "{message}");
    let tolerating = bed.create_vm(Vm { tolerated_taint: Some("special"), ..vm });
    bed.wait_until_bound(&tolerating);
    assert_eq!(bed.host_of(&tolerating).as_deref(), Some("apart-2"));
}

/// Tests that the extender counts the pods of all Nodes, as kube-scheduler does: otherwise a VM with an affinity to
/// a pod on a Node without a report would never be scheduled.
pub(crate) fn pods_on_nodes_without_a_report_are_considered(
    plane: &ControlPlane,
    bed: &mut Testbed,
) {
    bed.add_host("near-0", "near", &[]);
    bed.add_node_without_agent("bare-0", "near", "database");
    let vm = bed.create_vm(Vm { cpus: 1, affinity: Some("database"), ..Vm::default() });
    let pod = bed.client.wait_until_scheduled(&format!("{}/{vm}", crate::testbed::PODS_PATH));
    let message = crate::scheduling_client::condition(&pod)["message"].clone();
    assert_eq!(pod["spec"]["nodeName"], "near-0", "{message}\n{}", plane.log_tail("extender"));
    // The following tests check all hosts that have pods, but no agent reports the resources of this pod.
    bed.client.delete(&format!("{}/on-bare-0", crate::testbed::PODS_PATH));
}

/// Kills the extender while many pods are created: no resource is allocated twice, and all pods that fit are
/// bound.
pub(crate) fn extender_is_killed_while_pods_are_created(
    plane: &ControlPlane,
    bed: &mut Testbed,
    mut extender: Controller,
) -> Controller {
    for number in 0..6 {
        bed.add_host(&format!("crowd-{number}"), "crowd", &[]);
    }
    // Per host, the test creates a VM of 5 CPUs and three VMs of 2 CPUs. In addition to the VM of 5 CPUs, each host has
    // room for four VMs of 2 CPUs: one in the same zone, and three in the other zone.
    let cpus_of_vm = |number: usize| if number.is_multiple_of(4) { 5 } else { 2 };
    let vms: Vec<String> = (0..24)
        .map(|number| {
            let vm = bed.create_vm(Vm {
                cpus: cpus_of_vm(number),
                rack: Some("crowd"),
                ..Vm::default()
            });
            if number == 9 || number == 17 {
                extender.running.stop();
                extender = bed.start_extender(plane, "extender", "kube-system/berth-scheduler");
            }
            vm
        })
        .collect();
    let begin = std::time::Instant::now();
    for vm in &vms {
        let timeout = Duration::from_secs(150);
        while bed.host_of(vm).is_none() {
            let conditions = bed.pod(vm)["status"]["conditions"].to_string();
            assert!(
                begin.elapsed() < timeout,
                "{vm}: {conditions}\n{}",
                plane.log_tail("extender")
            );
            std::thread::sleep(Duration::from_millis(300));
            // A restarted extender learns only from the agents' reports which resources each pod of a host has.
            bed.write_all_reports();
        }
    }
    eprintln!("24 VMs were bound {:?} after the second kill", begin.elapsed());
    assert!(bed.assert_kubelets_admit() >= 24);
    extender
}
