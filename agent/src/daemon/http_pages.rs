//! HTTP responses of the daemon, served on this host only: `/metrics`, `/healthz`, `/readyz`, `/report`.

use berth_runtime::serve::{HttpSite, Page, Pages};

use super::state::State;

impl HttpSite for State {
    const PAGES: Pages<Self> = &[
        ("/metrics", |state| Page::metrics_page(state.lock().metrics.render())),
        ("/healthz", healthz),
        ("/readyz", readyz),
        ("/report", report),
    ];
}

fn healthz(state: &State) -> Page {
    if state.is_alive() {
        Page::healthy_page()
    } else {
        Page::unavailable_page("the reconcile loop makes no progress")
    }
}

fn readyz(state: &State) -> Page {
    let inner = state.lock();
    match (&inner.not_applied_reason, inner.is_ready) {
        (Some(reason), _) => Page::unavailable_page(reason),
        (None, true) => Page::healthy_page(),
        (None, false) => Page::unavailable_page("the first cycle has not finished"),
    }
}

fn report(state: &State) -> Page {
    match state.lock().node.as_ref().map(serde_json::to_string_pretty) {
        Some(Ok(body)) => Page::json_page(body + "\n"),
        _ => Page::unavailable_page("the first cycle has not finished"),
    }
}
