//! Deletion of a VM with exclusive CPUs: the engine counts the CPUs as allocated until the kubelet has released them,
//! even if the launcher pod stays Terminating.
//!
//! After a VM with an isolated emulator thread ends, runc 1.1 with the cgroup driver `cgroupfs` cannot read the
//! threaded child cgroup of the container, and the pod keeps its exclusive CPUs until an administrator removes the
//! cgroup.

use std::time::{Duration, Instant};

use berth_tests::cluster::{ControlPlane, condition};
use serde_json::{Value, json};

use crate::machines::{self, Machine, Vm};
use crate::objects::HOST_PAGES;
use crate::placement::{self, PlannedPlacement};
use crate::print;
use crate::testbed::{Testbed, text};

/// Name of a pod with huge pages, which the engine places only on a host whose free zones are known.
const PROBE: &str = "probe";
/// Number of huge pages of 2 MiB of the pod [`PROBE`].
const PROBE_PAGES: u64 = 2;
/// Words in the reason why the scheduler extender refuses a host with a Terminating launcher pod.
const REFUSAL: &str = "had terminating pods";
/// Time after which a Terminating pod counts as stuck.
const END_TIMEOUT: Duration = Duration::from_secs(120);
/// Metric with the number of free exclusive CPUs.
const FREE_CPUS: &str = "berth_assignment_free{resource=\"cpus\"}";

pub(crate) fn cpus_are_counted_until_the_kubelet_releases_them(
    bed: &mut Testbed,
    machine: &Machine,
    vm: &Vm,
    planned: &PlannedPlacement,
) {
    let before = bed.controller.metric(FREE_CPUS);
    let Vm { namespace, name, .. } = vm;
    bed.plane.kubectl(&["delete", "vm", name, "-n", namespace, "--wait=false"]).unwrap();
    let object = ["pod", &vm.pod, "-n", namespace];
    bed.wait_until("the launcher pod is Terminating", &object, |plane| {
        let pod = read_pod(plane, vm)?;
        (pod.is_null() || pod["metadata"]["deletionTimestamp"].is_string()).then_some(())
    });
    probe_waits_for_the_release(bed, vm);
    let has_ended = has_ended(bed, vm);
    if !has_ended {
        stuck_pod_keeps_its_cpus(bed, vm, planned);
        assert!(bed.controller.metric(FREE_CPUS) <= before, "the CPUs are counted as free");
        remove_stuck_containers(bed, vm);
    }
    bed.wait_until("the launcher pod is deleted", &object, |plane| {
        read_pod(plane, vm)?.is_null().then_some(())
    });
    // The checkpoint of the kubelet's Memory Manager contains the memory of the pod until the kubelet admits the next
    // pod (`removeStaleState` in its memory_manager.go). The scheduler extender must not wait for the removal of this
    // entry.
    let (host, uid) = (planned.host.clone(), vm.uid.as_str());
    bed.wait_until("the allocation is removed", &["infranode", &planned.host], |plane| {
        let allocations = plane.infra_node(&host)["status"]["allocations"].to_string();
        (!allocations.contains(uid)).then_some(())
    });
    // The MachineDeployment has replaced the machine, which gets the released CPUs.
    let replacement = machines::wait_until_running(bed, machine, name);
    placement::check_placement(bed, &replacement, planned);
    let console = bed.wait_until_guest_is_up(&replacement);
    print(&format!("--- console of {} ---\n{console}", replacement.name));
    bed.plane.kubectl(&["delete", "pod", PROBE, "--wait=false"]).unwrap();
}

/// Creates a pod with huge pages, and tests that it gets no host while the report of the host lists the launcher pod.
fn probe_waits_for_the_release(bed: &mut Testbed, vm: &Vm) {
    let amounts =
        json!({"cpu": "50m", "memory": "32Mi", "hugepages-2Mi": format!("{}Mi", 2 * PROBE_PAGES)});
    let probe = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": PROBE, "namespace": "default"},
        "spec": {
            "schedulerName": "berth-scheduler", "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "compute", "image": "berth.test/busybox:1", "imagePullPolicy": "Never",
                "resources": {"limits": amounts, "requests": amounts},
            }],
        },
    });
    bed.plane.apply(&probe.to_string()).unwrap();
    let probe = bed.wait_until("the scheduler decides about the probe", &["pod", PROBE], |plane| {
        let pod = plane.get_json(&["pod", PROBE]).ok()?;
        let is_refused = text(&condition(&pod, "PodScheduled")["message"]).contains(REFUSAL);
        (is_refused || pod["spec"]["nodeName"].is_string()).then_some(pod)
    });
    let allocation = bed.reported_allocation(vm.host, &vm.uid);
    // The report may list memory that the kubelet releases when it admits the probe.
    let is_listed = !allocation.is_null()
        && (allocation["cpus"].is_string() || allocation["hasControlGroup"] != false);
    let scheduled = condition(&probe, "PodScheduled");
    print(&format!("probe while the launcher pod is Terminating: {scheduled}"));
    // The probe may get a host only after the kubelet has released the resources of the launcher pod.
    let is_bound = probe["spec"]["nodeName"].is_string();
    assert!(!is_bound || !is_listed, "the probe is bound: {probe:#}");
}

/// Returns the launcher pod of a VM, null if it is deleted, and `None` if the server does not respond.
fn read_pod(plane: &ControlPlane, vm: &Vm) -> Option<Value> {
    let get = ["get", "pod", &vm.pod, "-n", &vm.namespace, "--ignore-not-found", "-o", "json"];
    let pod = plane.kubectl(&get).ok()?;
    if pod.trim().is_empty() { Some(Value::Null) } else { serde_json::from_str(&pod).ok() }
}

/// Waits until the launcher pod has ended. Returns false if it does not end.
fn has_ended(bed: &Testbed, vm: &Vm) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < END_TIMEOUT {
        if read_pod(&bed.plane, vm).is_some_and(|pod| pod.is_null()) {
            print("the launcher pod has ended by itself");
            return true;
        }
        std::thread::sleep(Duration::from_secs(2));
    }
    false
}

/// Tests that a launcher pod that does not end keeps its CPUs: the kubelet has them in its checkpoint, the agent
/// reports them, and no new launcher pod has a host.
fn stuck_pod_keeps_its_cpus(bed: &mut Testbed, vm: &Vm, planned: &PlannedPlacement) {
    let checkpoint = bed.hosts[vm.host].cpu_checkpoint();
    let allocation = bed.reported_allocation(vm.host, &vm.uid);
    print(&format!("the launcher pod stays Terminating: {}, {allocation}", checkpoint["entries"]));
    assert_eq!(checkpoint["entries"][&vm.uid]["compute"], planned.cpus.to_string());
    assert_eq!(allocation["cpus"], planned.cpus.to_string(), "{allocation:#}");
    let pods = ["pods", "-n", &vm.namespace, "-l", "kubevirt.io=virt-launcher"];
    let pods = bed.plane.get_json(&pods).unwrap();
    let pods = pods["items"].as_array().unwrap();
    let others = pods.iter().filter(|pod| pod["metadata"]["uid"] != vm.uid.as_str());
    let bound: Vec<&Value> = others.filter(|pod| pod["spec"]["nodeName"].is_string()).collect();
    assert!(bound.is_empty(), "another launcher pod has a host: {bound:#?}");
    let pages = placement::free_pages(bed, vm.host, planned.zones[0]);
    print(&format!("free huge pages of zone {}: {pages} of {HOST_PAGES}", planned.zones[0]));
}

/// Removes the containers of a pod as an administrator does.
fn remove_stuck_containers(bed: &mut Testbed, vm: &Vm) {
    let commands = format!(
        "find /sys/fs/cgroup -depth -type d -path '*pod{0}*' -name housekeeping -exec rmdir {{}} +\n\
         for container in $(ctr -n k8s.io containers list -q 'labels.\"io.kubernetes.pod.uid\"=={0}'); do \
           ctr -n k8s.io tasks delete -f $container; done; true",
        vm.uid
    );
    let output = bed.hosts[vm.host].host.run_checked(&commands).unwrap();
    print(&format!("removed the containers of {}: {output}", vm.pod));
}
