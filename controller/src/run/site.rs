//! HTTP pages of the daemon: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use berth_runtime::serve::{Page, Site};
use berth_runtime::watch::WatchHealth;

use super::extender::Listed;
use super::metrics::Metrics;

/// Pages of the daemon.
#[derive(Debug)]
pub(super) struct Pages {
    metrics: Arc<Metrics>,
    watches: Arc<WatchHealth>,
    /// State of the scheduler extender, if it is enabled.
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

    /// Returns the kinds that are not listed yet, of the reconcilers and of the extender: a rolling update continues only
    /// when the new replica can answer kube-scheduler.
    fn unready(&self) -> Option<String> {
        let all = [self.watches.unlisted(), self.extender.unready()];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl Site for Pages {
    fn page(&self, path: &str) -> Option<Page> {
        Some(match path {
            // The program ends with any of its tasks, so an answer proves that all of them run.
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
