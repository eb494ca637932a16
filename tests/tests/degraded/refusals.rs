//! The server is reachable and refuses requests: with `Retry-After` (429), with an internal error (500), or with a
//! conflict (409).

use std::thread::sleep;
use std::time::Duration;

use berth_tests::cluster::proxy::{Behaviour, RequestFilter};

use crate::testbed::{SHORT_TIMEOUT, Testbed, group_by_path};

/// Time for which the server refuses requests.
const FAULT_DURATION: Duration = Duration::from_secs(15);
/// Value of `Retry-After`, in seconds.
const RETRY_AFTER: u64 = 5;
/// Literal message of an overloaded API server.
const OVERLOAD_MESSAGE: &str = "Too many requests, please try again later.\n";

pub(crate) fn refusals_with_retry_after_are_tolerated(bed: &Testbed<'_>) {
    let before = bed.read_log();
    bed.proxy.set_behaviour(
        RequestFilter::All,
        Behaviour::Respond(429, Some(RETRY_AFTER), OVERLOAD_MESSAGE.to_owned()),
    );
    let mark = bed.proxy.request_count();
    bed.proxy.reset_connections();
    bed.set_distance(21);
    bed.assert_drift_is_corrected(50);
    bed.wait_until_logged(
        &before,
        "Too many requests, please try again later. (429",
        SHORT_TIMEOUT,
    );
    sleep(FAULT_DURATION);
    bed.assert_drift_is_corrected(50);
    let kinds = group_by_path(&bed.proxy.requests_since(mark));
    // The agent lists Nodes and InfraNodes, and writes the status.
    assert!(kinds.len() >= 3, "{kinds:#?}");
    for (kind, requests) in &kinds {
        assert!(requests.iter().all(|one| matches!(one.code, None | Some(429))), "{requests:#?}");
        for pair in requests.windows(2) {
            let delay = pair[1].arrived_at - pair[0].arrived_at;
            assert!(delay >= Duration::from_secs(RETRY_AFTER), "{kind:?} again after {delay:?}");
        }
    }
    let lists = kinds.iter().filter(|((verb, _), _)| verb == "GET");
    assert!(lists.map(|(_, requests)| requests.len()).min() >= Some(2), "{kinds:#?}");
    assert_one_update_after_recovery(bed, 21);
}

pub(crate) fn internal_errors_are_tolerated(bed: &Testbed<'_>) {
    let before = bed.read_log();
    let failure = failure_status(500, "InternalError", "etcdserver: request timed out");
    bed.proxy.set_behaviour(RequestFilter::All, Behaviour::Respond(500, None, failure));
    let mark = bed.proxy.request_count();
    bed.proxy.reset_connections();
    bed.set_distance(22);
    bed.wait_until_logged(&before, "etcdserver: request timed out (500)", SHORT_TIMEOUT);
    sleep(FAULT_DURATION);
    bed.assert_drift_is_corrected(50);
    // The backoff starts at a second, and jitter shortens each delay by at most a quarter, so the retries begin 0.75,
    // 2.25, 5.25, 11.25 and 23.25 s after the first failure at the earliest.
    for (kind, requests) in group_by_path(&bed.proxy.requests_since(mark)) {
        assert!((1..=6).contains(&requests.len()), "{kind:?}: {requests:#?}");
    }
    assert_one_update_after_recovery(bed, 22);
}

/// Ends the refusals, and asserts that one status update reports all changes during the refusals.
fn assert_one_update_after_recovery(bed: &Testbed<'_>, distance: u32) {
    // The agent reports a drift correction in the cycle after the correction, so the test waits for this cycle.
    sleep(Duration::from_secs(3));
    assert!(!bed.reports_distance(distance), "the distance is already reported");
    let mark = bed.proxy.request_count();
    bed.stop_faults();
    bed.wait_until("the status is up to date", SHORT_TIMEOUT, || bed.reports_distance(distance));
    sleep(Duration::from_secs(3));
    assert_eq!(bed.status_writes(mark), 1, "{:#?}", bed.proxy.requests_since(mark));
}

/// Tests a conflict like that of optimistic locking. The conflict does not mean that another manager owns the fields,
/// so the agent must keep its ownership of the fields.
pub(crate) fn write_conflicts_are_tolerated(bed: &Testbed<'_>) {
    let before = bed.read_log();
    let conflict = failure_status(
        409,
        "Conflict",
        "Operation cannot be fulfilled on infranodes.berth.dev \"rack1-a\": the object has been modified; please apply \
         your changes to the latest version and try again",
    );
    bed.proxy.set_behaviour(RequestFilter::Writes, Behaviour::Respond(409, None, conflict));
    let mark = bed.proxy.request_count();
    bed.set_sleep(51);
    // The watch may still be in its backoff after the earlier refusals, for half a minute at most.
    bed.wait_until_applied(51, SHORT_TIMEOUT * 3);
    bed.wait_until_logged(&before, "the object has been modified", SHORT_TIMEOUT);
    sleep(Duration::from_secs(6));
    let writes = group_by_path(&bed.proxy.requests_since(mark));
    let status = writes.iter().find(|((_, path), _)| path.ends_with("infranodes/rack1-a/status"));
    let tries = status.map_or(0, |(_, requests)| requests.len());
    assert!((2..=6).contains(&tries), "{writes:#?}");
    bed.stop_faults();
    bed.wait_until_observed("True", SHORT_TIMEOUT);

    // The same conflict occurs when the agent creates the object.
    let conflict = failure_status(409, "Conflict", "the storage is changing");
    bed.proxy.set_behaviour(RequestFilter::Writes, Behaviour::Respond(409, None, conflict));
    let mark = bed.proxy.request_count();
    bed.plane.kubectl(&["delete", "infranode", bed.name]).unwrap();
    bed.wait_until("the agent tries to create its InfraNode", SHORT_TIMEOUT, || {
        bed.proxy
            .requests_since(mark)
            .iter()
            .any(|one| one.verb == "POST" && one.path.ends_with("infranodes"))
    });
    bed.stop_faults();
    bed.wait_until("the InfraNode is created again", SHORT_TIMEOUT, || {
        bed.plane.infra_node(bed.name)["status"]["conditions"].is_array()
    });
    // The last spec is still applied.
    bed.assert_drift_is_corrected(51);
}

/// Returns the body of a refusal by the server.
fn failure_status(code: u16, reason: &str, message: &str) -> String {
    serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
    .to_string()
}
