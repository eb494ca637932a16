//! HTTP pages of the daemon: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use berth_runtime::serve::{self, Page, Site};
use berth_runtime::watch::WatchHealth;

use super::extender::Listed;
use super::metrics::Metrics;

/// HTTP pages of the daemon.
#[derive(Debug)]
pub(super) struct Pages {
    metrics: Arc<Metrics>,
    watches: Arc<WatchHealth>,
    /// Kinds that the scheduler extender has not listed yet; an empty set if the extender is disabled.
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

    /// Returns the kinds that the reconcilers or the extender have not listed yet; `None` if all are listed. Because
    /// of this page, a rolling update continues only when the new replica can answer kube-scheduler.
    fn unready(&self) -> Option<String> {
        let all = [self.watches.unlisted(), self.extender.unready()];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl Site for Pages {
    const PAGES: serve::Pages<Self> = &[
        ("/metrics", |pages| Page::metrics(pages.metrics.render())),
        // The program exits if any of its tasks ends, so a response proves that all tasks run.
        ("/healthz", |_| Page::healthy_page()),
        ("/readyz", |pages| match pages.unready() {
            None => Page::healthy_page(),
            Some(why) => Page::unavailable(&why),
        }),
    ];
}
