//! Tests of the scheduler extender with calls that the test sends in place of kube-scheduler.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use serde_json::{Value, json};

use crate::testbed::{PODS_PATH, SHORT_TIMEOUT, Testbed, Vm};

/// Sends a POST request, and retries until a server listens.
pub(crate) fn post(port: u16, call: &str, body: &str) -> Value {
    let begin = Instant::now();
    loop {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--max-time", "12", "-X", "POST", "--data-binary", "@-"]);
        curl.arg(format!("http://127.0.0.1:{port}/{call}"));
        curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = curl.spawn().unwrap();
        // curl does not read its input if the server does not answer.
        child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap_or_default();
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            return serde_json::from_slice(&output.stdout).unwrap();
        }
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(begin.elapsed() < SHORT_TIMEOUT, "{call}: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn call_filter(bed: &Testbed, pod: &str) -> Value {
    let names: Vec<&str> = bed.hosts.keys().map(String::as_str).collect();
    filter_hosts(bed, pod, &names)
}

pub(crate) fn call_filter_on(bed: &Testbed, pod: &str, host: &str) -> Value {
    filter_hosts(bed, pod, &[host])
}

fn filter_hosts(bed: &Testbed, pod: &str, names: &[&str]) -> Value {
    let body = json!({"Pod": bed.pod(pod), "Nodes": null, "NodeNames": names});
    post(bed.port, "filter", &body.to_string())
}

pub(crate) fn call_bind(bed: &Testbed, pod: &str, host: &str) -> String {
    let uid = bed.pod(pod)["metadata"]["uid"].clone();
    let body = json!({"PodName": pod, "PodNamespace": "vms", "PodUID": uid, "Node": host});
    post(bed.port, "bind", &body.to_string())["Error"].as_str().unwrap().to_owned()
}

/// Kills the extender between filter and bind: its reservations are lost, and the next extender reserves the resources
/// again if the pod still fits.
pub(crate) fn extender_is_killed_between_filter_and_bind(plane: &ControlPlane, bed: &mut Testbed) {
    let vms: Vec<String> = (0..2)
        .map(|_| bed.create_vm(Vm { cpus: 7, bypasses_scheduler: true, ..Vm::default() }))
        .collect();
    let mut first = bed.start_extender(plane, "by-hand", "");
    // The extender has just started, and answers the call only after it has listed all objects.
    let one = call_filter(bed, &vms[0]);
    assert_eq!(one["Error"], "", "{one}");
    let host = one["NodeNames"][0].as_str().unwrap().to_owned();
    assert_eq!(one["NodeNames"].as_array().unwrap().len(), 1);
    assert_eq!(
        call_filter(bed, &vms[0])["NodeNames"][0],
        host.as_str(),
        "a second call returns another host"
    );
    first.running.stop();

    let mut second = bed.start_extender(plane, "by-hand", "");
    assert_eq!(call_bind(bed, &vms[0], &host), "", "{}", plane.log_tail("by-hand"));
    assert_eq!(bed.host_of(&vms[0]).as_deref(), Some(host.as_str()));
    assert_eq!(call_bind(bed, &vms[0], &host), "", "a second call for a bound pod fails");
    // Seven of fifteen CPUs are allocated, and the other eight are in one zone.
    assert_eq!(call_bind(bed, &vms[1], &host), "");
    let third = bed.create_vm(Vm { cpus: 1, bypasses_scheduler: true, ..Vm::default() });
    let large = bed.create_vm(Vm { cpus: 5, bypasses_scheduler: true, ..Vm::default() });
    let error = call_bind(bed, &large, &host);
    assert!(error.contains("no longer fits on the host"), "{error}");
    assert_eq!(bed.host_of(&large), None);
    // A third extender lists the pods, but not their order of admission, because no agent has reported the pods yet.
    second.running.stop();
    let third_extender = bed.start_extender(plane, "by-hand", "");
    assert_ne!(call_filter(bed, &third)["NodeNames"][0], host.as_str());
    bed.write_all_reports();
    plane
        .wait_until("the fullest suitable host is the best host", SHORT_TIMEOUT, |_| {
            let one = bed.create_vm(Vm { cpus: 1, bypasses_scheduler: true, ..Vm::default() });
            let response = call_filter(bed, &one);
            bed.client.delete(&format!("{PODS_PATH}/{one}"));
            (response["NodeNames"][0] == host.as_str()).then_some(())
        })
        .unwrap();
    assert_eq!(bed.assert_kubelets_admit(), 2);
    bed.delete_all_vms(&third_extender);
}

/// Sets the spec of the scheduler's Lease.
pub(crate) fn set_lease(bed: &Testbed, spec: &Value) {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/berth-scheduler";
    let mut current = bed.client.get(path);
    current["spec"] = spec.clone();
    bed.client.put(path, &current);
}

/// Releases the Lease, as a scheduler does when it terminates.
pub(crate) fn release_lease(bed: &Testbed) {
    set_lease(bed, &json!({"holderIdentity": "", "leaseDurationSeconds": 1}));
}

/// Tests the extender while the scheduler of another pod holds the Lease.
pub(crate) fn calls_are_refused_without_the_lease(plane: &ControlPlane, bed: &Testbed) {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "berth-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "berth-controller-elsewhere_1", "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z", "acquireTime": "2026-01-01T00:00:00.000000Z"}});
    set_lease(bed, &lease["spec"]);
    let extender = bed.start_extender(plane, "without-lease", "kube-system/berth-scheduler");
    let body = json!({"Pod": {"metadata": {"name": "a", "namespace": "vms", "uid": "b"}, "spec": {"containers": []}},
        "NodeNames": ["plain-0"]});
    let response = post(bed.port, "filter", &body.to_string());
    let message = response["Error"].as_str().unwrap();
    assert!(
        message.contains("scheduler's Lease is held by berth-controller-elsewhere_1"),
        "{message}"
    );
    let body = json!({"PodName": "a", "PodNamespace": "vms", "PodUID": "b", "Node": "plain-0"});
    let response = post(bed.port, "bind", &body.to_string());
    assert!(
        response["Error"].as_str().unwrap().contains("scheduler's Lease is held by"),
        "{response}"
    );
    release_lease(bed);
    drop(extender);
}

/// Tests malformed calls. The status code is always 200, because kube-scheduler discards the body of any other
/// response.
pub(crate) fn malformed_calls_are_answered(plane: &ControlPlane, bed: &Testbed) {
    let extender = bed.start_extender(plane, "wrong", "");
    for (body, words) in
        [("", "filter"), ("{\"Pod\":", "filter"), ("{\"NodeNames\":[]}", "Pod: is missing")]
    {
        let response = post(bed.port, "filter", body);
        assert!(response["Error"].as_str().unwrap().contains(words), "{response}");
        assert!(response["NodeNames"].as_array().unwrap().is_empty());
    }
    let long = " ".repeat(9 << 20);
    let response = post(bed.port, "bind", &long);
    assert!(
        response["Error"]
            .as_str()
            .unwrap()
            .contains("the request body is longer than 8388608 bytes"),
        "{response}"
    );
    let names: Vec<String> = (0..50_000).map(|at| format!("unknown-host-{at}")).collect();
    let pod = json!({"metadata": {"name": "a", "namespace": "vms", "uid": "b"}, "spec": {"containers": []}});
    let response = post(bed.port, "filter", &json!({"Pod": pod, "NodeNames": names}).to_string());
    assert_eq!(response["FailedNodes"].as_object().unwrap().len(), 50_000);
    assert_eq!(bed.client.get(PODS_PATH)["items"].as_array().unwrap().len(), 0);
    let errors =
        extender.metric("berth_assignment_decisions_total{call=\"filter\",result=\"error\"}");
    assert!((errors - 3.0).abs() < 0.1, "{errors}");
    drop::<Controller>(extender);
}
