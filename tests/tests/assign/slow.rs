//! The scheduler extender with a slow API server: kube-scheduler waits at most ten seconds for an answer.

use std::time::{Duration, Instant};

use berth_tests::cluster::ControlPlane;
use berth_tests::cluster::proxy::{Behaviour, Proxy, RequestFilter};
use berth_tests::controller::Controller;
use serde_json::json;

use crate::calls::{call_bind, call_filter, release_lease, set_lease};
use crate::testbed::{PODS_PATH, SHORT_TIMEOUT, Testbed, Vm};

/// Value of `httpTimeout` in `deploy/components/scheduler/config.yaml`.
const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay of each request to the API server: slightly less than the limit of two seconds for each step of a binding.
const REQUEST_DELAY: Duration = Duration::from_millis(1_800);

fn start_extender(
    plane: &ControlPlane,
    proxy: &Proxy,
    bed: &Testbed,
    name: &str,
    lease: &str,
) -> Controller {
    let listen = format!("--extender-listen=127.0.0.1:{}", bed.port);
    let lease = format!("--scheduler-lease={lease}");
    Controller::start_behind_proxy(proxy, plane, name, &[&listen, &lease]).unwrap()
}

/// Tests that two concurrent bindings to one host are answered within kube-scheduler's timeout. The extender serializes
/// the bindings to a host. The extender reads the Lease when a binding arrives, and again when the preceding binding
/// has ended.
pub(crate) fn binding_completes_within_the_scheduler_timeout(
    plane: &ControlPlane,
    bed: &mut Testbed,
) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    set_lease(
        bed,
        &json!({"holderIdentity": format!("{}_1", host.trim()), "leaseDurationSeconds": 3600,
        "renewTime": "2026-01-01T00:00:00.000000Z", "acquireTime": "2026-01-01T00:00:00.000000Z"}),
    );
    let proxy = Proxy::start(plane).unwrap();
    let extender = start_extender(plane, &proxy, bed, "slow", "kube-system/berth-scheduler");
    let vms =
        [0, 1].map(|_| bed.create_vm(Vm { cpus: 2, bypasses_scheduler: true, ..Vm::default() }));
    let hosts = [0, 1].map(|at| call_filter(bed, &vms[at])["NodeNames"][0].clone());
    assert!(
        hosts[0].is_string() && hosts[0] == hosts[1],
        "the VMs have different hosts: {hosts:?}"
    );
    proxy.set_behaviour(RequestFilter::All, Behaviour::Delay(REQUEST_DELAY));
    let bed = &*bed;
    let answers: Vec<(String, String, Duration)> = std::thread::scope(|scope| {
        let calls = vms.each_ref().map(|vm| {
            let host = hosts[0].as_str().unwrap();
            scope.spawn(move || {
                let began = Instant::now();
                let error = call_bind(bed, vm, host);
                (vm.clone(), error, began.elapsed())
            })
        });
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    proxy.set_behaviour(RequestFilter::All, Behaviour::Forward);
    for (_, error, took) in &answers {
        assert!(
            *took < SCHEDULER_TIMEOUT,
            "the call took longer than the timeout of kube-scheduler: {took:?}, `{error}`"
        );
    }
    // A call returns no error exactly if its VM is bound.
    for (vm, error, _) in &answers {
        assert_eq!(bed.host_of(vm).is_some(), error.is_empty(), "{vm}: `{error}`");
    }
    assert!(answers.iter().any(|(_, error, _)| error.is_empty()), "{answers:?}");
    for vm in &vms {
        bed.client.delete(&format!("{PODS_PATH}/{vm}"));
    }
    drop(extender);
    release_lease(bed);
}

/// Tests that the extender is ready only when it can answer calls: when a new replica is ready, a rolling update stops
/// the next old replica, and kube-scheduler may call the new replica.
pub(crate) fn extender_is_ready_only_when_it_can_answer(plane: &ControlPlane, bed: &mut Testbed) {
    let vm = bed.create_vm(Vm { cpus: 1, bypasses_scheduler: true, ..Vm::default() });
    let proxy = Proxy::start(plane).unwrap();
    // This delay is longer than the time for which the extender lets a call wait.
    proxy.set_behaviour(RequestFilter::Reads, Behaviour::Delay(SCHEDULER_TIMEOUT));
    let extender = start_extender(plane, &proxy, bed, "beginning", "");
    let began = Instant::now();
    let mut waits_for = String::new();
    loop {
        match extender.http_get("/readyz") {
            Some((200, _)) => break,
            Some((_, message)) => waits_for = message,
            None => {}
        }
        assert!(began.elapsed() < 5 * SHORT_TIMEOUT, "{waits_for}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let response = call_filter(bed, &vm);
    assert_eq!(
        response["Error"], "",
        "the extender is ready, but returns an error; before, it waited for `{waits_for}`"
    );
    assert!(waits_for.contains("pods"), "{waits_for}");
    proxy.set_behaviour(RequestFilter::All, Behaviour::Forward);
    bed.client.delete(&format!("{PODS_PATH}/{vm}"));
    drop(extender);
}
