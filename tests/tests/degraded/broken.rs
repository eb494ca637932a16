//! Responses that are cut off, are not JSON, or are not a valid object: the agent keeps the last valid spec and
//! loses no change.

use std::thread::sleep;
use std::time::Duration;

use berth_tests::cluster::condition;
use berth_tests::cluster::proxy::{Behaviour, RequestFilter};

use crate::bed::{Bed, SOON, by_kind};

/// Duration of a fault.
const TROUBLE: Duration = Duration::from_secs(6);

pub(crate) fn off_in_the_middle_of_lines(bed: &Bed<'_>) {
    let before = bed.said();
    let mark = bed.proxy.mark();
    bed.proxy.set_behaviour(RequestFilter::All, Behaviour::Cut);
    // The watch delivers half of the object, and so do the lists that follow.
    bed.ask(54);
    bed.says(&before, "; trying again", SOON);
    sleep(TROUBLE);
    bed.lives(53);
    is_calm(bed, mark);
    bed.get_well();
    bed.is_at(54, SOON);
    bed.has_answered("True", SOON);
}

pub(crate) fn lines_are_no_json(bed: &Bed<'_>) {
    let before = bed.said();
    let mark = bed.proxy.mark();
    bed.proxy.set_behaviour(
        RequestFilter::Reads,
        Behaviour::ReplaceText("\"spec\":{".to_owned(), "<html>".to_owned()),
    );
    bed.ask(55);
    bed.says(&before, "Error deserializing response: key must be a string", SOON);
    sleep(TROUBLE);
    bed.lives(54);
    is_calm(bed, mark);
    bed.get_well();
    bed.is_at(55, SOON);
    bed.has_answered("True", SOON);
}

pub(crate) fn objects_are_malformed(bed: &Bed<'_>) {
    // Metadata of a wrong type makes the whole object unreadable.
    let before = bed.said();
    let mark = bed.proxy.mark();
    let garbled = Behaviour::ReplaceText(
        "\"generation\":".to_owned(),
        "\"generation\":\"x\",\"g\":".to_owned(),
    );
    bed.proxy.set_behaviour(RequestFilter::Reads, garbled);
    bed.ask(56);
    bed.says(&before, "sent an object that cannot be parsed", SOON);
    bed.says(&before, "invalid type: string \"x\", expected i64", SOON);
    sleep(TROUBLE);
    bed.lives(55);
    is_calm(bed, mark);
    bed.get_well();
    bed.is_at(56, SOON);
    bed.has_answered("True", SOON);

    // A wrong type in a field of the spec only affects this part of the spec, and the agent leaves this part of the
    // host unchanged.
    bed.proxy.set_behaviour(
        RequestFilter::Reads,
        Behaviour::ReplaceText(
            "\"sleepMillis\":".to_owned(),
            "\"sleepMillis\":\"x\",\"s\":".to_owned(),
        ),
    );
    bed.ask(57);
    let node = bed.has_answered("False", SOON);
    let message = condition(&node, "HostTuned")["message"].as_str().unwrap();
    assert!(message.contains("spec.ksm"), "{message}");
    bed.is_at(56, Duration::ZERO);
    bed.get_well();
    bed.proxy.reset();
    bed.is_at(57, SOON);
    bed.has_answered("True", SOON);
}

/// Asserts that lists and watches are retried with increasing backoff.
fn is_calm(bed: &Bed<'_>, mark: usize) {
    for (kind, requests) in by_kind(&bed.proxy.since(mark)) {
        assert!(requests.len() <= 8, "{kind:?}: {requests:#?}");
    }
}
