//! HTTP responses of the daemon, served on this host only: `/metrics`, `/healthz`, `/readyz`, `/report`.

use berth_runtime::serve::{Page, Site};

use super::state::State;

impl Site for State {
    fn page(&self, path: &str) -> Option<Page> {
        Some(match path {
            "/healthz" if self.is_alive() => Page::fine(),
            "/healthz" => Page::unavailable("the reconcile loop is stuck"),
            "/readyz" => {
                let inner = self.lock();
                match (&inner.waiting, inner.ready) {
                    (Some(why), _) => Page::unavailable(why),
                    (None, true) => Page::fine(),
                    (None, false) => Page::unavailable("the first cycle has not finished"),
                }
            }
            "/metrics" => Page::metrics(self.lock().metrics.render()),
            "/report" => match self.lock().node.as_ref().map(serde_json::to_string_pretty) {
                Some(Ok(body)) => Page::json(body + "\n"),
                _ => Page::unavailable("the first cycle has not finished"),
            },
            _ => return None,
        })
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/metrics", "/healthz", "/readyz", "/report"]
    }
}
