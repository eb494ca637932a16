//! The server is slower than usual, or slower than the agent's timeouts.

use std::time::Duration;

use berth_tests::cluster::proxy::{Behaviour, RequestFilter};

use crate::bed::{Bed, SOON, by_kind};

/// Time limit for several late calls in a row.
const LATE: Duration = Duration::from_secs(40);

pub(crate) fn but_in_time(bed: &Bed<'_>) {
    bed.proxy.set_behaviour(RequestFilter::All, Behaviour::Slow(Duration::from_secs(3)));
    bed.proxy.reset();
    bed.ask(52);
    bed.is_at(52, SOON);
    bed.lives(52);
    bed.has_answered("True", LATE);
    bed.get_well();
}

pub(crate) fn beyond_patience(bed: &mut Bed<'_>) {
    let before = bed.said();
    bed.proxy.set_behaviour(RequestFilter::All, Behaviour::Slow(Duration::from_secs(30)));
    let mark = bed.proxy.mark();
    bed.proxy.reset();
    bed.ask(53);
    bed.says(&before, "the API server does not answer (20 s)", LATE);
    // The agent does not send a request again while the request is still unanswered.
    let kinds = by_kind(&bed.proxy.since(mark));
    assert!(kinds.len() >= 2 && kinds.values().all(|asked| asked.len() <= 2), "{kinds:#?}");
    // An agent that starts now knows the last spec.
    bed.agent.restart(&[]);
    bed.lives(52);
    bed.get_well();
    bed.is_at(53, LATE);
    bed.has_answered("True", LATE);
}
