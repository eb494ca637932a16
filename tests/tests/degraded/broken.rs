//! Answers that break off, are no JSON, or are no object as it should be: nothing is lost, and what was asked for last
//! holds.

use std::thread::sleep;
use std::time::Duration;

use berth_tests::cluster::condition;
use berth_tests::cluster::proxy::{Mood, Which};

use crate::bed::{Bed, SOON, by_kind};

/// How long nonsense lasts.
const TROUBLE: Duration = Duration::from_secs(6);

pub(crate) fn off_in_the_middle_of_lines(bed: &Bed<'_>) {
    let before = bed.said();
    let mark = bed.proxy.mark();
    bed.proxy.mood(Which::All, Mood::Cut);
    // The watch brings half of it, and so do the lists that follow.
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
    bed.proxy.mood(Which::Reads, Mood::Garble("\"spec\":{".to_owned(), "<html>".to_owned()));
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
    // Metadata of a wrong type: no object at all.
    let before = bed.said();
    let mark = bed.proxy.mark();
    let garbled =
        Mood::Garble("\"generation\":".to_owned(), "\"generation\":\"x\",\"g\":".to_owned());
    bed.proxy.mood(Which::Reads, garbled);
    bed.ask(56);
    bed.says(&before, "sent an object that cannot be understood", SOON);
    bed.says(&before, "invalid type: string \"x\", expected i64", SOON);
    sleep(TROUBLE);
    bed.lives(55);
    is_calm(bed, mark);
    bed.get_well();
    bed.is_at(56, SOON);
    bed.has_answered("True", SOON);

    // A wrong type in a field of the spec: a fault of that part, which is left as it is.
    bed.proxy.mood(
        Which::Reads,
        Mood::Garble("\"sleepMillis\":".to_owned(), "\"sleepMillis\":\"x\",\"s\":".to_owned()),
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

/// Lists and watches are tried again after ever longer pauses.
fn is_calm(bed: &Bed<'_>, mark: usize) {
    for (kind, requests) in by_kind(&bed.proxy.since(mark)) {
        assert!(requests.len() <= 8, "{kind:?}: {requests:#?}");
    }
}
