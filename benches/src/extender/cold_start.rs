//! Measures a cold start: the controller starts with a full fleet, and a `filter` call is sent to it immediately.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::ControlPlane;
use jiff::Timestamp;

use super::connection::{Connection, FilterResponse};
use super::filter::FilterRequest;
use super::process::Extender;
use crate::memory::Usage;

/// Time limit until the first decision. Most of this time is used by the API server, which returns the lists.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Times of one start, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColdStart {
    /// Time from spawn to the first decision.
    pub(super) total_seconds: f64,
    /// Time to read the hosts into the engine after the list of hosts was complete.
    pub(super) hosts_seconds: f64,
    /// Time to count the resources of the pods: of each page of the list when it arrives, and of all pods at the
    /// end.
    pub(super) pods_seconds: f64,
    /// Time from the end of the last list to the first decision.
    pub(super) list_to_decision_seconds: f64,
    /// CPU time and memory at the first decision.
    pub(super) usage: Usage,
}

impl ColdStart {
    /// Returns the time from the arrival of the lists to the first decision. It is an upper bound, because the last
    /// part of counting is included both in `pods_seconds` and in `list_to_decision_seconds`.
    pub(super) fn seconds_after_lists(&self) -> f64 {
        self.hosts_seconds + self.pods_seconds + self.list_to_decision_seconds
    }
}

/// Measures one start and returns the running process.
pub(super) fn measure(
    program: &Path,
    plane: &ControlPlane,
    request: &FilterRequest,
    number: usize,
) -> Result<(ColdStart, Extender)> {
    let body = request.body(number, true);
    let begin = Instant::now();
    let mut extender = Extender::start(program, plane, &format!("start-{number}"), "")?;
    let mut connection = Connection::connect(extender.port)?;
    loop {
        let (_, FilterResponse { node_names, error }) = connection.filter(&body)?;
        if error.is_empty() {
            let host_count = node_names.context("filter: the response has no NodeNames")?.len();
            ensure!(host_count == 1, "the first decision has {host_count} hosts, not 1");
            break;
        }
        // The loop needs no delay, because the extender itself delays an answer with an error for some seconds.
        extender.ensure_running(plane)?;
        ensure!(begin.elapsed() < TIMEOUT, "the extender made no decision: {error}");
    }
    let (total, now) = (begin.elapsed().as_secs_f64(), Timestamp::now());
    let usage = extender.usage()?;
    let start = ColdStart {
        total_seconds: total,
        hosts_seconds: extender.counting_seconds("hosts")?,
        pods_seconds: extender.counting_seconds("pods")?,
        list_to_decision_seconds: now.as_duration().as_secs_f64() - extender.listed_at()?,
        usage,
    };
    Ok((start, extender))
}
