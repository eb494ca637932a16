//! What the daemon answers over HTTP: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use berth_runtime::serve::{Page, Site};
use berth_runtime::watch::WatchHealth;

use super::metrics::Metrics;
use super::sidecar::Listed;

/// Its pages.
#[derive(Debug)]
pub(super) struct Pages {
    metrics: Arc<Metrics>,
    watches: Arc<WatchHealth>,
    /// Of the scheduler extender, if there is to be one.
    extender: Arc<Listed>,
}

impl Pages {
    pub(super) const fn new(
        metrics: Arc<Metrics>,
        watches: Arc<WatchHealth>,
        extender: Arc<Listed>,
    ) -> Self {
        Self { metrics, watches, extender }
    }

    /// What is not listed yet, of the reconcilers' objects and of the extender's: a rolling update goes on only when one
    /// that has all of them can answer kube-scheduler.
    fn unready(&self) -> Option<String> {
        let all = [self.watches.unlisted(), self.extender.unready()];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl Site for Pages {
    fn page(&self, path: &str) -> Option<Page> {
        Some(match path {
            // A part that ends ends the program; that it answers shows that it goes on.
            "/healthz" => Page::fine(),
            "/readyz" => match self.unready() {
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
