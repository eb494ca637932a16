//! Records two times for each InfraNode, from `kubectl get --watch`: when its spec changes, and when the agent has
//! updated the status for this spec.

#![expect(clippy::disallowed_methods, reason = "this crate runs other programs")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use berth_tests::cluster::ControlPlane;
use berth_tests::running::Running;

/// Output columns that [`ObservedState`] is parsed from.
const OUTPUT_COLUMNS: &str = "custom-columns=N:.metadata.name,G:.metadata.generation,O:.status.observedGeneration,\
    R:.status.conditions[?(@.type==\"Ready\")].status,A:.status.conditions[?(@.type==\"Ready\")].observedGeneration";

/// State of an InfraNode, from one output line of the watch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObservedState {
    name: String,
    generation: u64,
    /// True if the condition Ready is `True`, and the status and this condition refer to the current generation.
    is_ready: bool,
}

impl FromStr for ObservedState {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, generation, observed, ready, answered] = words.as_slice() else {
            bail!("kubectl get infranodes --watch: {line}");
        };
        Ok(Self {
            name: (*name).to_owned(),
            generation: generation.parse().with_context(|| format!("generation: {line}"))?,
            is_ready: *ready == "True" && observed == generation && answered == generation,
        })
    }
}

/// Times at which the watch showed the changed spec and the status for this spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadyTimes {
    /// Time of the changed spec; `None` if the watch was restarted before the spec changed.
    pub(super) spec_changed: Option<Instant>,
    pub(super) became_ready: Instant,
}

/// State of each wait, by the name of the InfraNode: the last generation that became Ready, the time of the spec
/// change, and the result.
#[derive(Debug, Default)]
struct ReadyTracker {
    ready_generations: BTreeMap<String, u64>,
    spec_changes: BTreeMap<String, Instant>,
    completed: BTreeMap<String, ReadyTimes>,
    /// Names that a restarted watch has not listed yet. An initial list does not show when a spec changed.
    unlisted: BTreeSet<String>,
}

impl ReadyTracker {
    fn record(&mut self, time: Instant, state: ObservedState) {
        let is_list = self.unlisted.remove(&state.name);
        if self.ready_generations.get(&state.name).is_some_and(|last| state.generation <= *last) {
            return;
        }
        if state.is_ready {
            let spec_changed = self.spec_changes.remove(&state.name);
            self.ready_generations.insert(state.name.clone(), state.generation);
            self.completed.insert(state.name, ReadyTimes { spec_changed, became_ready: time });
        } else if !is_list {
            self.spec_changes.entry(state.name).or_insert(time);
        }
    }
}

/// A running `kubectl get --watch`. The API server ends a watch that is too slow, and this type then starts
/// another.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    plane: &'a ControlPlane,
    lines: Receiver<(Instant, String)>,
    tracker: ReadyTracker,
    _kubectl: Running,
}

impl<'a> Watch<'a> {
    pub(super) fn start(plane: &'a ControlPlane) -> Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(plane.assets().join("kubectl"));
        command.arg("--kubeconfig").arg(plane.kubeconfig());
        command.arg("--cache-dir").arg(plane.folder().join("cache"));
        command.args(["get", "infranodes", "--watch", "--no-headers", "-o", OUTPUT_COLUMNS]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut kubectl = Running::spawn(command)?;
        let output = kubectl.process.stdout.take().context("kubectl has no standard output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Ok(Self { plane, lines, tracker: ReadyTracker::default(), _kubectl: kubectl })
    }

    /// Waits until each of the InfraNodes is Ready in a newer generation than at the last call.
    ///
    /// # Errors
    /// Fails if an InfraNode does not become Ready within the timeout.
    pub(super) fn wait_until_ready(
        &mut self,
        names: &[String],
        timeout: Duration,
    ) -> Result<Vec<ReadyTimes>, NotReady> {
        let deadline = Instant::now() + timeout;
        while self.tracker.completed.len() < names.len() {
            let cause = match self
                .lines
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok((at, line)) => match line.parse() {
                    Ok(state) => {
                        self.tracker.record(at, state);
                        continue;
                    }
                    Err(error) => error,
                },
                Err(RecvTimeoutError::Timeout) => anyhow!("timeout after {} s", timeout.as_secs()),
                Err(RecvTimeoutError::Disconnected) => match self.restart() {
                    Ok(()) => continue,
                    Err(error) => error,
                },
            };
            let missing = names.iter().filter(|name| !self.tracker.completed.contains_key(*name));
            return Err(NotReady { missing: missing.cloned().collect(), cause });
        }
        Ok(std::mem::take(&mut self.tracker.completed).into_values().collect())
    }

    fn restart(&mut self) -> Result<()> {
        let mut tracker = std::mem::take(&mut self.tracker);
        tracker.unlisted = tracker.ready_generations.keys().cloned().collect();
        *self = Self { tracker, ..Self::start(self.plane)? };
        Ok(())
    }
}

/// Error of a wait: the InfraNodes that did not become Ready.
#[derive(Debug)]
pub(super) struct NotReady {
    missing: Vec<String>,
    cause: anyhow::Error,
}

impl NotReady {
    /// Adds the log of one agent to the error: the agent of the first InfraNode that did not become Ready.
    pub(super) fn with_log(self, log: impl Fn(&str) -> String) -> anyhow::Error {
        let first = self.missing.first().map(String::as_str).unwrap_or_default();
        let count = self.missing.len();
        self.cause.context(format!(
            "{count} InfraNodes did not become Ready, including {first}; the log of its agent: {}",
            log(first)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_requires_status_and_condition_of_the_newest_generation() {
        let is_ready = |line: &str| line.parse::<ObservedState>().unwrap().is_ready;
        assert!(is_ready("node-1   3   3   True   3"));
        assert!(!is_ready("node-1   3   2   True   2"));
        assert!(!is_ready("node-1   3   3   True   2"));
        assert!(!is_ready("node-1   3   3   False   3"));
        assert!(!is_ready("node-1   1   <none>   <none>   <none>"));
        assert!("Error from server".parse::<ObservedState>().is_err());
    }

    #[test]
    fn each_generation_is_recorded_once_with_its_spec_change() {
        let begin = Instant::now();
        let time = |seconds| begin + Duration::from_secs(seconds);
        let mut tracker = ReadyTracker::default();
        for (seconds, line) in [
            (1, "a 1 <none> <none> <none>"),
            (2, "a 1 1 True 1"),
            (3, "a 1 1 True 1"),
            (5, "b 2 1 True 1"),
            (6, "b 2 2 False 2"),
        ] {
            tracker.record(time(seconds), line.parse().unwrap());
        }
        let first = std::mem::take(&mut tracker.completed);
        assert_eq!(first.len(), 1);
        assert_eq!(
            first.get("a"),
            Some(&ReadyTimes { spec_changed: Some(time(1)), became_ready: time(2) })
        );
        tracker.record(time(9), "b 2 2 True 2".parse().unwrap());
        tracker.record(time(10), "a 1 1 True 1".parse().unwrap());
        assert_eq!(tracker.completed.len(), 1);
        tracker.record(time(11), "c 4 4 True 4".parse().unwrap());
        assert_eq!(
            tracker.completed.remove("c"),
            Some(ReadyTimes { spec_changed: None, became_ready: time(11) })
        );
        assert_eq!(
            tracker.completed.get("b"),
            Some(&ReadyTimes { spec_changed: Some(time(5)), became_ready: time(9) })
        );
        // A restarted watch first lists the current state, which is not a change.
        tracker.unlisted.insert("a".to_owned());
        tracker.record(time(12), "a 2 1 True 1".parse().unwrap());
        tracker.record(time(13), "a 2 2 True 2".parse().unwrap());
        assert_eq!(
            tracker.completed.remove("a"),
            Some(ReadyTimes { spec_changed: None, became_ready: time(13) })
        );
    }
}
