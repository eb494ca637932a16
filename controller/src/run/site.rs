//! What the daemon answers over HTTP: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use berth_kit::serve::{Page, Site};

use super::follow::Waiting;
use super::metrics::Metrics;

/// Its pages.
#[derive(Debug)]
pub(super) struct Pages {
    metrics: Arc<Metrics>,
    waiting: Arc<Waiting>,
}

impl Pages {
    pub(super) const fn new(metrics: Arc<Metrics>, waiting: Arc<Waiting>) -> Self {
        Self { metrics, waiting }
    }
}

impl Site for Pages {
    fn page(&self, path: &str) -> Option<Page> {
        Some(match path {
            // A part that ends ends the program; that it answers shows that it goes on.
            "/healthz" => Page::fine(),
            "/readyz" => match self.waiting.sentence() {
                None => Page::fine(),
                Some(why) => Page::unavailable(&why),
            },
            "/metrics" => Page::metrics(self.metrics.render()),
            _ => return None,
        })
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/metrics", "/healthz", "/readyz"]
    }
}
