//! Watches that deliver nothing although their connections stay open, as after a load balancer has lost its state.

use std::time::Duration;

use crate::testbed::{SHORT_TIMEOUT, Testbed};

/// Time limit for detection: the agent restarts a watch that has delivered nothing for 200 s.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(215);

pub(crate) fn stalled_watch_is_restarted(bed: &Testbed<'_>) {
    let mark = bed.proxy.request_count();
    bed.proxy.stall_responses();
    bed.set_sleep(71);
    bed.wait_until_applied(71, DETECTION_TIMEOUT);
    bed.wait_until_observed("True", SHORT_TIMEOUT);
    // The agent detected the stalled watches by its timeout: in the meantime, it neither polled the server nor received
    // an event.
    let requests = bed.proxy.requests_since(mark);
    let count = |verb| requests.iter().filter(|one| one.verb == verb).count();
    assert!((1..=4).contains(&count("GET")) && count("WATCH") <= 4, "{requests:#?}");
    // The new watches deliver events.
    let mark = bed.proxy.request_count();
    bed.set_sleep(72);
    bed.wait_until_applied(72, SHORT_TIMEOUT);
    let requests = bed.proxy.requests_since(mark);
    let was_listed =
        requests.iter().any(|one| one.verb == "GET" && one.path.ends_with("infranodes"));
    assert!(!was_listed, "the agent received the change by a list, not by a watch");
}
