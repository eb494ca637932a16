//! Watches that deliver nothing although their connections stay open, as after a load balancer has lost its state.

use std::time::Duration;

use crate::bed::{Bed, SOON};

/// Time limit for detection: the agent restarts a watch that has delivered nothing for 200 s.
const NOTICED: Duration = Duration::from_secs(215);

pub(crate) fn is_noticed(bed: &Bed<'_>) {
    let mark = bed.proxy.mark();
    bed.proxy.stop_responses();
    bed.ask(71);
    bed.is_at(71, NOTICED);
    bed.has_answered("True", SOON);
    // The agent detected the silence by its timeout: it neither polled the server nor got an event.
    let asked = bed.proxy.since(mark);
    let count = |verb| asked.iter().filter(|one| one.verb == verb).count();
    assert!((1..=4).contains(&count("GET")) && count("WATCH") <= 4, "{asked:#?}");
    // The new watches deliver events.
    let mark = bed.proxy.mark();
    bed.ask(72);
    bed.is_at(72, SOON);
    let asked = bed.proxy.since(mark);
    let listed = asked.iter().any(|one| one.verb == "GET" && one.path.ends_with("infranodes"));
    assert!(!listed, "the change came from a list");
}
