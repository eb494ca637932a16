//! Responses that are cut off, are not JSON, or are not a valid object: the agent continues to apply the last valid
//! spec, and misses no change.

use std::thread::sleep;
use std::time::Duration;

use berth_tests::cluster::condition;
use berth_tests::cluster::proxy::{Behaviour, RequestFilter};

use crate::testbed::{SHORT_TIMEOUT, Testbed, group_by_path};

const FAULT_DURATION: Duration = Duration::from_secs(6);

pub(crate) fn truncated_responses_are_tolerated(bed: &Testbed<'_>) {
    let before = bed.read_log();
    let mark = bed.proxy.request_count();
    bed.proxy.set_behaviour(RequestFilter::All, Behaviour::Truncate);
    // The watch delivers half of the object, and each later list request also delivers half of a response.
    bed.set_sleep(54);
    bed.wait_until_logged(&before, "; trying again", SHORT_TIMEOUT);
    sleep(FAULT_DURATION);
    bed.assert_drift_is_corrected(53);
    assert_backoff(bed, mark);
    bed.stop_faults();
    bed.wait_until_applied(54, SHORT_TIMEOUT);
    bed.wait_until_observed("True", SHORT_TIMEOUT);
}

pub(crate) fn invalid_json_is_tolerated(bed: &Testbed<'_>) {
    let before = bed.read_log();
    let mark = bed.proxy.request_count();
    bed.proxy.set_behaviour(
        RequestFilter::Reads,
        Behaviour::ReplaceText("\"spec\":{".to_owned(), "<html>".to_owned()),
    );
    bed.set_sleep(55);
    bed.wait_until_logged(
        &before,
        "Error deserializing response: key must be a string",
        SHORT_TIMEOUT,
    );
    sleep(FAULT_DURATION);
    bed.assert_drift_is_corrected(54);
    assert_backoff(bed, mark);
    bed.stop_faults();
    bed.wait_until_applied(55, SHORT_TIMEOUT);
    bed.wait_until_observed("True", SHORT_TIMEOUT);
}

pub(crate) fn malformed_objects_are_tolerated(bed: &Testbed<'_>) {
    // Metadata of a wrong type makes the whole object unreadable.
    let before = bed.read_log();
    let mark = bed.proxy.request_count();
    let garbled = Behaviour::ReplaceText(
        "\"generation\":".to_owned(),
        "\"generation\":\"x\",\"g\":".to_owned(),
    );
    bed.proxy.set_behaviour(RequestFilter::Reads, garbled);
    bed.set_sleep(56);
    bed.wait_until_logged(&before, "sent an object that cannot be parsed", SHORT_TIMEOUT);
    bed.wait_until_logged(&before, "invalid type: string \"x\", expected i64", SHORT_TIMEOUT);
    sleep(FAULT_DURATION);
    bed.assert_drift_is_corrected(55);
    assert_backoff(bed, mark);
    bed.stop_faults();
    bed.wait_until_applied(56, SHORT_TIMEOUT);
    bed.wait_until_observed("True", SHORT_TIMEOUT);

    // A wrong type in a field of the spec only affects this part of the spec, and the agent leaves this part of the
    // host unchanged.
    bed.proxy.set_behaviour(
        RequestFilter::Reads,
        Behaviour::ReplaceText(
            "\"sleepMillis\":".to_owned(),
            "\"sleepMillis\":\"x\",\"s\":".to_owned(),
        ),
    );
    bed.set_sleep(57);
    let node = bed.wait_until_observed("False", SHORT_TIMEOUT);
    let message = condition(&node, "HostTuned")["message"].as_str().unwrap();
    assert!(message.contains("spec.ksm"), "{message}");
    bed.wait_until_applied(56, Duration::ZERO);
    bed.stop_faults();
    bed.proxy.reset_connections();
    bed.wait_until_applied(57, SHORT_TIMEOUT);
    bed.wait_until_observed("True", SHORT_TIMEOUT);
}

/// Asserts that lists and watches are retried with increasing backoff.
fn assert_backoff(bed: &Testbed<'_>, mark: usize) {
    for (kind, requests) in group_by_path(&bed.proxy.requests_since(mark)) {
        assert!(requests.len() <= 8, "{kind:?}: {requests:#?}");
    }
}
