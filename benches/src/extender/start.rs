//! Measures a cold start: the controller starts with a full fleet and answers a call that was sent immediately.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::ControlPlane;
use jiff::Timestamp;

use super::connection::{Answer, Connection};
use super::filter::Question;
use super::process::Extender;
use crate::memory::Taken;

/// Time limit until the first decision. The API server uses most of this time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Times of one start, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// Time from spawn to the first decision.
    pub(super) total: f64,
    /// Time to read the hosts after all hosts were listed.
    pub(super) hosts: f64,
    /// Time to count the pods: each page when the page arrived, and all pods at the end.
    pub(super) pods: f64,
    /// Time from the end of the last list to the first decision.
    pub(super) last: f64,
    /// CPU time and memory at the first decision.
    pub(super) taken: Taken,
}

impl Start {
    /// Returns the time from the arrival of the lists to the first decision. Two of the summands include the end of
    /// counting.
    pub(super) fn after_lists(&self) -> f64 {
        self.hosts + self.pods + self.last
    }
}

/// Measures one start and returns the running process.
pub(super) fn measure(
    program: &Path,
    plane: &ControlPlane,
    question: &Question,
    number: usize,
) -> Result<(Start, Extender)> {
    let body = question.body(number, true);
    let begin = Instant::now();
    let mut extender = Extender::start(program, plane, &format!("start-{number}"), "")?;
    let mut connection = Connection::to(extender.port)?;
    loop {
        let (_, Answer { node_names, error }) = connection.filter(&body)?;
        if error.is_empty() {
            let named = node_names.context("filter: no NodeNames")?.len();
            ensure!(named == 1, "the first decision names {named} hosts");
            break;
        }
        // The extender delays an answer for some seconds.
        extender.must_run(plane)?;
        ensure!(begin.elapsed() < TIMEOUT, "no decision: {error}");
    }
    let (total, now) = (begin.elapsed().as_secs_f64(), Timestamp::now());
    let taken = extender.taken()?;
    let start = Start {
        total,
        hosts: extender.counting("hosts")?,
        pods: extender.counting("pods")?,
        last: now.as_duration().as_secs_f64() - extender.listed()?,
        taken,
    };
    Ok((start, extender))
}
