//! A cold start: the controller begins with a full fleet, and a call that came at once is answered.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::ControlPlane;
use jiff::Timestamp;

use super::connection::{Answer, Connection};
use super::filter::Question;
use super::process::Sidecar;
use crate::memory::Taken;

/// Until the first decision; the API server takes most of it.
const TIMEOUT: Duration = Duration::from_secs(600);

/// One start, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// From spawn to the first decision.
    pub(super) total: f64,
    /// Reading hosts, after all were listed.
    pub(super) hosts: f64,
    /// Counting pods, page by page as they came, and all at their end.
    pub(super) pods: f64,
    /// From the end of the last list to the first decision.
    pub(super) last: f64,
    /// CPU time and memory, then.
    pub(super) taken: Taken,
}

impl Start {
    /// What the first decision waited for after lists had arrived. The end of counting is in two of these.
    pub(super) fn after_lists(&self) -> f64 {
        self.hosts + self.pods + self.last
    }
}

/// Starts one, which goes on.
pub(super) fn measure(
    program: &Path,
    plane: &ControlPlane,
    question: &Question,
    number: usize,
) -> Result<(Start, Sidecar)> {
    let body = question.body(number, true);
    let begin = Instant::now();
    let mut sidecar = Sidecar::start(program, plane, &format!("start-{number}"), "")?;
    let mut connection = Connection::to(sidecar.port)?;
    loop {
        let (_, Answer { node_names, error }) = connection.filter(&body)?;
        if error.is_empty() {
            let named = node_names.context("filter: no NodeNames")?.len();
            ensure!(named == 1, "the first decision names {named} hosts");
            break;
        }
        // A call is held for some seconds.
        sidecar.must_run(plane)?;
        ensure!(begin.elapsed() < TIMEOUT, "no decision: {error}");
    }
    let (total, now) = (begin.elapsed().as_secs_f64(), Timestamp::now());
    let taken = sidecar.taken()?;
    let start = Start {
        total,
        hosts: sidecar.counting("hosts")?,
        pods: sidecar.counting("pods")?,
        last: now.as_duration().as_secs_f64() - sidecar.listed()?,
        taken,
    };
    Ok((start, sidecar))
}
