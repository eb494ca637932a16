//! HTTP responses of the daemon, served on this host only: `/metrics`, `/healthz`, `/readyz`, `/report`.

use berth_runtime::serve::{Page, Pages, Site};

use super::state::State;

impl Site for State {
    const PAGES: Pages<Self> = &[
        ("/metrics", |state| Page::metrics(state.lock().metrics.render())),
        ("/healthz", healthz),
        ("/readyz", readyz),
        ("/report", report),
    ];
}

fn healthz(state: &State) -> Page {
    if state.is_alive() {
        Page::healthy_page()
    } else {
        Page::unavailable("the reconcile loop makes no progress")
    }
}

fn readyz(state: &State) -> Page {
    let inner = state.lock();
    match (&inner.not_applied_reason, inner.ready) {
        (Some(reason), _) => Page::unavailable(reason),
        (None, true) => Page::healthy_page(),
        (None, false) => Page::unavailable("the first cycle has not finished"),
    }
}

fn report(state: &State) -> Page {
    match state.lock().node.as_ref().map(serde_json::to_string_pretty) {
        Some(Ok(body)) => Page::json(body + "\n"),
        _ => Page::unavailable("the first cycle has not finished"),
    }
}
