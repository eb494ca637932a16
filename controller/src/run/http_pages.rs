//! HTTP pages of the daemon: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use berth_runtime::serve::{self, HttpSite, Page};
use berth_runtime::watch::WatchHealth;

use super::extender::UnlistedKinds;
use super::metrics::Metrics;

/// HTTP pages of the daemon.
#[derive(Debug)]
pub(super) struct Pages {
    metrics: Arc<Metrics>,
    watch_health: Arc<WatchHealth>,
    /// Kinds that the scheduler extender has not listed yet; an empty set if the extender is disabled.
    extender_unlisted_kinds: Arc<UnlistedKinds>,
}

impl Pages {
    pub(super) const fn new(
        metrics: Arc<Metrics>,
        watch_health: Arc<WatchHealth>,
        extender_unlisted_kinds: Arc<UnlistedKinds>,
    ) -> Self {
        Self { metrics, watch_health, extender_unlisted_kinds }
    }

    /// Returns the kinds that the reconcilers or the extender have not listed yet; `None` if all are listed. `/readyz`
    /// fails until then, so a rolling update waits until the new replica can answer kube-scheduler.
    fn not_ready_reason(&self) -> Option<String> {
        let all =
            [self.watch_health.unlisted_reasons(), self.extender_unlisted_kinds.not_ready_reason()];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl HttpSite for Pages {
    const PAGES: serve::Pages<Self> = &[
        ("/metrics", |pages| Page::metrics_page(pages.metrics.render())),
        // The program exits if any of its tasks ends, so a response proves that all tasks run.
        ("/healthz", |_| Page::healthy_page()),
        ("/readyz", |pages| match pages.not_ready_reason() {
            None => Page::healthy_page(),
            Some(reason) => Page::unavailable_page(&reason),
        }),
    ];
}
