//! What kube-scheduler asks: `filter`, and `bind`.

use std::sync::Arc;
use std::time::Instant;

use berth_runtime::exchange::{BodyError, Bytes, Exchange};

use super::Sidecar;
use super::gate::{BRIEFLY, BUDGET, HOLD};
use super::send::Sender;
use berth_extender::{FilterAnswer, wire};

/// Its paths.
pub(super) struct Calls {
    sidecar: Arc<Sidecar>,
    sender: Sender,
}

impl Calls {
    pub(super) fn of(sidecar: &Arc<Sidecar>) -> Self {
        Self { sidecar: Arc::clone(sidecar), sender: Sender::of(sidecar) }
    }

    /// One host, and what became of the call.
    async fn filter(&self, body: &[u8]) -> (String, &'static str) {
        let read = match wire::filter(body) {
            Ok(read) => read,
            Err(error) => return (wire::filter_error(&error.to_string()), "error"),
        };
        let (sidecar, began) = (&self.sidecar, Instant::now());
        let after = |time| began.checked_add(time).unwrap_or(began);
        let (until, end) = (after(HOLD), after(BUDGET));
        let mut brief: Option<Instant> = None;
        loop {
            let mut changed = sidecar.gate.watch();
            if let Err(why) = sidecar.gate.pass_by(until, end).await {
                sidecar.extender().unanswered(&read.pod);
                return (wire::filter_error(&why), "error");
            }
            let (pod, names, now) = (&read.pod, &read.names, Instant::now());
            let answer = if read.is_of_group {
                sidecar.extender().filter_of_group(now, pod, names)
            } else {
                sidecar.extender().filter(now, pod, names)
            };
            match answer {
                FilterAnswer::Host(name) => return (wire::host(name), "placed"),
                FilterAnswer::Refused(hosts) => {
                    sidecar.metrics.assignment.refused(&hosts);
                    // Something may have changed while it was looked at.
                    sidecar.stirred.notify_one();
                    return (wire::refused(&hosts), "refused");
                }
                FilterAnswer::Failed(error) => {
                    let error = error.to_string();
                    tracing::warn!(error, "failed to filter a pod");
                    return (wire::filter_error(&error), "error");
                }
                FilterAnswer::NotReady(why) => {
                    let end = Instant::now().checked_add(BRIEFLY).unwrap_or(until).min(until);
                    let brief = *brief.get_or_insert(end);
                    if now >= brief {
                        let error = why.to_string();
                        tracing::warn!(error, "failed to filter a pod");
                        return (wire::filter_error(&error), "error");
                    }
                    // A change, or the end of the wait: either is a reason to ask again.
                    drop(tokio::time::timeout_at(brief.into(), changed.changed()).await);
                }
            }
        }
    }

    async fn bind(&self, body: &[u8]) -> (String, &'static str) {
        let binding = match wire::bind(body) {
            Ok(binding) => binding,
            Err(error) => return (wire::bound(&error.to_string()), "error"),
        };
        match self.sender.bind(&binding).await {
            Ok(()) => (wire::bound(""), "bound"),
            Err(why) => {
                let (namespace, name) = (&binding.pod_namespace, &binding.pod_name);
                tracing::warn!("Pod {namespace}/{name} is not bound to {}: {why}", binding.node);
                (wire::bound(&why), "error")
            }
        }
    }
}

impl Exchange for Calls {
    async fn answer(&self, path: &str, body: Result<Bytes, BodyError>) -> Option<String> {
        let began = Instant::now();
        let (call, (answer, result)) = match (path, &body) {
            ("/filter", Ok(body)) => ("filter", self.filter(body).await),
            ("/bind", Ok(body)) => ("bind", self.bind(body).await),
            ("/filter", Err(why)) => ("filter", (wire::filter_error(&why.to_string()), "error")),
            ("/bind", Err(why)) => ("bind", (wire::bound(&why.to_string()), "error")),
            _ => return None,
        };
        self.sidecar.metrics.assignment.decided(call, result, began.elapsed());
        Some(answer)
    }
}
