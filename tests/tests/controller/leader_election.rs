//! Tests of leader election and its cost.

use std::time::{Duration, Instant};

use berth_tests::cluster::ControlPlane;
use serde_json::{Value, json};

use berth_tests::controller::{Controller, LEASE_SECONDS};

use crate::process::{self, start_controller, write_requests};
use crate::{SHORT_TIMEOUT, apply_profile, read_spec};

/// Tests that a controller waits at its start for a missing CRD, and reports the missing kind.
pub(crate) fn controller_waits_for_missing_crds(plane: &ControlPlane) -> Controller {
    let file = berth_tests::repository().join("deploy/crds/tenantclusters.berth.dev.yaml");
    plane.kubectl(&["delete", "crd", "tenantclusters.berth.dev"]).unwrap();
    let first = start_controller(plane, "first");
    let is_waiting = plane.wait_until("/readyz reports the missing kind", SHORT_TIMEOUT, |_| {
        let (code, text) = first.http_get("/readyz")?;
        (code == 503 && text.contains("tenantclusters: the API server does not serve this kind"))
            .then_some(())
    });
    assert!(
        is_waiting.is_ok(),
        "{is_waiting:?}: {:?}\n{}",
        first.http_get("/readyz"),
        process::controller_logs(plane)
    );
    assert_eq!(first.http_get("/healthz").unwrap().0, 200);
    plane.apply_file(&file).unwrap();
    let ready = plane.wait_until("the controller is ready", SHORT_TIMEOUT, |_| {
        (first.http_get("/readyz")?.0 == 200).then_some(())
    });
    assert!(ready.is_ok(), "{ready:?}\n{}", process::controller_logs(plane));
    first
}

/// Tests that resyncs without changes write nothing.
pub(crate) fn idle_controller_writes_nothing(plane: &ControlPlane) {
    // During this time, running reconciles end, including the reconciles that are triggered by the writes of earlier
    // reconciles.
    std::thread::sleep(Duration::from_secs(3));
    let before = write_requests(plane).len();
    std::thread::sleep(Duration::from_secs(6));
    let written: Vec<Value> = write_requests(plane).split_off(before);
    assert!(written.is_empty(), "{written:#?}\n{}", process::controller_logs(plane));
}

fn lease_holder(plane: &ControlPlane) -> Option<String> {
    let lease = plane.get_json(&["lease", "-n", "berth-system", "berth-controller"]).ok()?;
    lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
}

/// Tests that another controller takes over: immediately if the leader is stopped, and after the lease duration if
/// the leader is killed.
pub(crate) fn another_controller_takes_over(plane: &ControlPlane, mut first: Controller) {
    let mut second = start_controller(plane, "second");
    plane
        .wait_until("the second controller is ready", SHORT_TIMEOUT, |_| {
            (second.http_get("/readyz")?.0 == 200).then_some(())
        })
        .unwrap();
    assert_eq!(
        (first.metric("berth_controller_leader"), second.metric("berth_controller_leader")),
        (1.0, 0.0)
    );
    assert!(
        first.metric("berth_controller_reconciles_total{controller=\"hosts\",result=\"ok\"}")
            > 10.0
    );
    let begin = Instant::now();
    let ended = first.terminate();
    assert!(ended.is_ok(), "{ended:?}\n{}", process::controller_logs(plane));
    plane
        .wait_until("the second controller is the leader", SHORT_TIMEOUT, |plane| {
            (lease_holder(plane)? == "second").then_some(())
        })
        .unwrap();
    let took = begin.elapsed();
    assert!(
        took < Duration::from_secs(LEASE_SECONDS - 1),
        "the takeover took {took:?} although the Lease was released"
    );
    apply_profile(
        plane,
        "rack1",
        &json!({"nodeSelector": {"rack": "1"}, "ksm": {"mode": "Observe"}}),
    );
    wait_until_ksm_mode(plane, "Observe");
    let third = start_controller(plane, "third");
    plane
        .wait_until("the third controller is ready", SHORT_TIMEOUT, |_| {
            (third.http_get("/readyz")?.0 == 200).then_some(())
        })
        .unwrap();
    let begin = Instant::now();
    second.running.stop();
    apply_profile(plane, "rack1", &json!({"nodeSelector": {"rack": "1"}, "ksm": {"mode": "On"}}));
    wait_until_ksm_mode(plane, "On");
    let took = begin.elapsed();
    assert!(
        took > Duration::from_secs(LEASE_SECONDS / 2),
        "the takeover took {took:?}: the Lease of a killed leader must expire first"
    );
    assert_eq!(lease_holder(plane).as_deref(), Some("third"));
    let lease = plane.get_json(&["lease", "-n", "berth-system", "berth-controller"]).unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 2);
}

fn wait_until_ksm_mode(plane: &ControlPlane, mode: &str) {
    let result = plane.wait_until(mode, SHORT_TIMEOUT, |plane| {
        (read_spec(plane, "rack1-b")["ksm"]["mode"] == mode).then_some(())
    });
    assert!(
        result.is_ok(),
        "{result:?}: {}\n{}",
        read_spec(plane, "rack1-b"),
        process::controller_logs(plane)
    );
}
