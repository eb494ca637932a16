//! The server is slower than usual, or slower than the agent's timeouts.

use std::time::Duration;

use berth_tests::cluster::proxy::{Behaviour, RequestFilter};

use crate::testbed::{SHORT_TIMEOUT, Testbed, group_by_path};

/// Time limit for several consecutive slow requests.
const SLOW_TIMEOUT: Duration = Duration::from_secs(40);

pub(crate) fn slow_responses_are_tolerated(bed: &Testbed<'_>) {
    bed.proxy.set_behaviour(RequestFilter::All, Behaviour::Delay(Duration::from_secs(3)));
    bed.proxy.reset_connections();
    bed.set_sleep(52);
    bed.wait_until_applied(52, SHORT_TIMEOUT);
    bed.assert_drift_is_corrected(52);
    bed.wait_until_observed("True", SLOW_TIMEOUT);
    bed.stop_faults();
}

pub(crate) fn timeouts_are_tolerated(bed: &mut Testbed<'_>) {
    let before = bed.read_log();
    bed.proxy.set_behaviour(RequestFilter::All, Behaviour::Delay(Duration::from_secs(30)));
    let mark = bed.proxy.request_count();
    bed.proxy.reset_connections();
    bed.set_sleep(53);
    bed.wait_until_logged(&before, "the API server did not answer within 20 s", SLOW_TIMEOUT);
    // The agent does not send a request again while the request is still unanswered.
    let kinds = group_by_path(&bed.proxy.requests_since(mark));
    assert!(kinds.len() >= 2 && kinds.values().all(|requests| requests.len() <= 2), "{kinds:#?}");
    // An agent that starts now reads the last spec from its state folder.
    bed.agent.restart(&[]);
    bed.assert_drift_is_corrected(52);
    bed.stop_faults();
    bed.wait_until_applied(53, SLOW_TIMEOUT);
    bed.wait_until_observed("True", SLOW_TIMEOUT);
}
