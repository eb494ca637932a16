//! Handles kube-scheduler's calls `filter` and `bind`.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::routing::post;
use berth_extender::{FilterAnswer, scheduler_api};
use berth_runtime::cli::text::error_chain;
use berth_runtime::local_server::JsonText;
use tracing::Instrument as _;

use super::binder::Binder;
use super::error::BodyError;
use super::readiness_gate::{CALL_TIMEOUT, HOLD_TIMEOUT, OBJECT_TIMEOUT};
use super::service::ExtenderService;

/// State that the handlers of all calls share.
struct Handlers {
    service: Arc<ExtenderService>,
    binder: Binder,
}

/// Body of a response, and the value of the label `result` of the metrics.
type CallResponse = (String, &'static str);

impl Handlers {
    fn new(service: &Arc<ExtenderService>) -> Self {
        Self { service: Arc::clone(service), binder: Binder::new(service) }
    }

    async fn filter(&self, body: &[u8]) -> CallResponse {
        match scheduler_api::parse_filter_args(body) {
            Ok(args) => {
                let metadata = &args.pod.metadata;
                let span = tracing::debug_span!(
                    "filter",
                    namespace = metadata.namespace.as_deref(),
                    name = metadata.name.as_deref(),
                    hosts = args.node_names.len()
                );
                self.filter_pod(&args).instrument(span).await
            }
            Err(error) => (scheduler_api::filter_error_response(&error_chain(&error)), "error"),
        }
    }

    /// Returns the response to a `filter` call. Delays the response until the watches are up to date, as long as the
    /// time limits permit.
    async fn filter_pod(&self, args: &scheduler_api::FilterArgs<'_>) -> CallResponse {
        let failed = |error: &dyn std::error::Error| {
            let error = error_chain(error);
            tracing::warn!(
                namespace = args.pod.metadata.namespace.as_deref(),
                name = args.pod.metadata.name.as_deref(),
                error,
                "failed to filter the hosts for a pod"
            );
            (scheduler_api::filter_error_response(&error), "error")
        };
        let (service, started_at) = (&self.service, Instant::now());
        let after = |time| started_at.checked_add(time).unwrap_or(started_at);
        let (hold_deadline, call_deadline) = (after(HOLD_TIMEOUT), after(CALL_TIMEOUT));
        let mut object_deadline: Option<Instant> = None;
        loop {
            let mut changed = service.readiness_gate.subscribe();
            if let Err(error) =
                service.readiness_gate.wait_until_allowed_before(hold_deadline, call_deadline).await
            {
                service.extender().record_unanswered(&args.pod);
                return (scheduler_api::filter_error_response(&error_chain(&error)), "error");
            }
            let now = Instant::now();
            let answer = if args.is_pod_group_member {
                service.extender().answer_pod_group_filter(now, &args.pod, &args.node_names)
            } else {
                service.extender().answer_filter(now, &args.pod, &args.node_names)
            };
            match answer {
                FilterAnswer::ReservedHost(host) => {
                    tracing::debug!(host, "reserved a host");
                    return (scheduler_api::hosts_response(&[host]), "placed");
                }
                FilterAnswer::UnreservedHosts(hosts) => {
                    tracing::debug!(
                        hosts = hosts.len(),
                        "left the choice of the host to kube-scheduler"
                    );
                    return (scheduler_api::hosts_response(&hosts), "unreserved");
                }
                FilterAnswer::Refused(hosts) => {
                    service.metrics.assignment.count_refusals(&hosts);
                    tracing::debug!(hosts = hosts.len(), "pod fits on no host");
                    // The waker is notified, because the state may have changed between the decision and this
                    // response.
                    service.state_changed.notify_one();
                    return (scheduler_api::refusal_response(&hosts), "refused");
                }
                FilterAnswer::Failed(error) => return failed(&error),
                FilterAnswer::NotReady(error) => {
                    let deadline =
                        now.checked_add(OBJECT_TIMEOUT).unwrap_or(hold_deadline).min(hold_deadline);
                    let object_deadline = *object_deadline.get_or_insert(deadline);
                    if now >= object_deadline {
                        return failed(&error);
                    }
                    // The loop repeats the decision after a change of the state, and also at the end of the timeout.
                    drop(tokio::time::timeout_at(object_deadline.into(), changed.changed()).await);
                }
            }
        }
    }

    async fn bind(&self, body: &[u8]) -> CallResponse {
        let args = match scheduler_api::parse_binding_args(body) {
            Ok(args) => args,
            Err(error) => return (scheduler_api::binding_response(&error_chain(&error)), "error"),
        };
        let (namespace, name) = (args.pod_namespace.as_str(), args.pod_name.as_str());
        let host = args.node.as_str();
        let span = tracing::debug_span!("bind", namespace, name, host);
        match self.binder.bind(&args).instrument(span).await {
            Ok(()) => (scheduler_api::binding_response(""), "bound"),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(namespace, name, host, error, "failed to bind a pod");
                (scheduler_api::binding_response(&error), "error")
            }
        }
    }

    /// Records a response in the metrics, and returns its body.
    fn record_answer(
        &self,
        call: &'static str,
        (text, result): CallResponse,
        started_at: Instant,
    ) -> JsonText {
        self.service.metrics.assignment.record_decision(call, result, started_at.elapsed());
        JsonText(text)
    }
}

/// Body of a request, or the reason why the body cannot be read.
type RequestBody = Result<Bytes, BytesRejection>;

/// Returns the HTTP routes of the extender.
pub(super) fn routes(service: &Arc<ExtenderService>) -> Router {
    let calls = Arc::new(Handlers::new(service));
    Router::new().route("/filter", post(filter)).route("/bind", post(bind)).with_state(calls)
}

async fn filter(State(calls): State<Arc<Handlers>>, body: RequestBody) -> JsonText {
    let started_at = Instant::now();
    let answer = match body.map_err(BodyError::from) {
        Ok(body) => calls.filter(&body).await,
        Err(error) => (scheduler_api::filter_error_response(&error_chain(&error)), "error"),
    };
    calls.record_answer("filter", answer, started_at)
}

async fn bind(State(calls): State<Arc<Handlers>>, body: RequestBody) -> JsonText {
    let started_at = Instant::now();
    let answer = match body.map_err(BodyError::from) {
        Ok(body) => calls.bind(&body).await,
        Err(error) => (scheduler_api::binding_response(&error_chain(&error)), "error"),
    };
    calls.record_answer("bind", answer, started_at)
}
