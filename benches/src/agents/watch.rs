//! Records the times at which the spec of an InfraNode changes and at which the status answers, from `kubectl get
//! --watch`.

#![expect(clippy::disallowed_methods, reason = "running other programs is what this crate does")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use berth_tests::cluster::ControlPlane;
use berth_tests::running::Running;

/// Output columns that [`Sight`] is parsed from.
const COLUMNS: &str = "custom-columns=N:.metadata.name,G:.metadata.generation,O:.status.observedGeneration,\
    R:.status.conditions[?(@.type==\"Ready\")].status,A:.status.conditions[?(@.type==\"Ready\")].observedGeneration";

/// State of an InfraNode in one line of the watch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sight {
    name: String,
    generation: u64,
    /// True if the InfraNode is Ready and the status is about this generation.
    is_answered: bool,
}

impl FromStr for Sight {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, generation, observed, ready, answered] = words.as_slice() else {
            bail!("kubectl get infranodes --watch: {line}");
        };
        Ok(Self {
            name: (*name).to_owned(),
            generation: generation.parse().with_context(|| format!("generation: {line}"))?,
            is_answered: *ready == "True" && observed == generation && answered == generation,
        })
    }
}

/// Time of the changed spec and time of the status that answers the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// `None` if the watch restarted before the spec changed.
    pub(super) asked: Option<Instant>,
    pub(super) answered: Instant,
}

/// Answers by name, with the answered generation.
#[derive(Debug, Default)]
struct Answers {
    answered: BTreeMap<String, u64>,
    asked: BTreeMap<String, Instant>,
    new: BTreeMap<String, Answer>,
    /// Names that a restarted watch has not listed yet. The list of a restarted watch does not give the time of a
    /// spec change.
    unlisted: BTreeSet<String>,
}

impl Answers {
    fn take(&mut self, at: Instant, sight: Sight) {
        let is_list = self.unlisted.remove(&sight.name);
        if self.answered.get(&sight.name).is_some_and(|last| sight.generation <= *last) {
            return;
        }
        if sight.is_answered {
            let asked = self.asked.remove(&sight.name);
            self.answered.insert(sight.name.clone(), sight.generation);
            self.new.insert(sight.name, Answer { asked, answered: at });
        } else if !is_list {
            self.asked.entry(sight.name).or_insert(at);
        }
    }
}

/// A running `kubectl get --watch`. The server ends a watch that is too slow, and then the watch is restarted.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    plane: &'a ControlPlane,
    lines: Receiver<(Instant, String)>,
    answers: Answers,
    _kubectl: Running,
}

impl<'a> Watch<'a> {
    pub(super) fn begin(plane: &'a ControlPlane) -> Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(plane.assets().join("kubectl"));
        command.arg("--kubeconfig").arg(plane.kubeconfig());
        command.arg("--cache-dir").arg(plane.folder().join("cache"));
        command.args(["get", "infranodes", "--watch", "--no-headers", "-o", COLUMNS]);
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
        Ok(Self { plane, lines, answers: Answers::default(), _kubectl: kubectl })
    }

    /// Waits until each of the InfraNodes has answered its newest generation since the last call.
    ///
    /// # Errors
    /// Fails if an InfraNode does not answer within the timeout.
    pub(super) fn answers(
        &mut self,
        names: &[String],
        timeout: Duration,
    ) -> Result<Vec<Answer>, Late> {
        let end = Instant::now() + timeout;
        while self.answers.new.len() < names.len() {
            let why = match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((at, line)) => match line.parse() {
                    Ok(sight) => {
                        self.answers.take(at, sight);
                        continue;
                    }
                    Err(error) => error,
                },
                Err(RecvTimeoutError::Timeout) => anyhow!("not after {} s", timeout.as_secs()),
                Err(RecvTimeoutError::Disconnected) => match self.begin_anew() {
                    Ok(()) => continue,
                    Err(error) => error,
                },
            };
            let missing = names.iter().filter(|name| !self.answers.new.contains_key(*name));
            return Err(Late { missing: missing.cloned().collect(), why });
        }
        Ok(std::mem::take(&mut self.answers.new).into_values().collect())
    }

    fn begin_anew(&mut self) -> Result<()> {
        let mut answers = std::mem::take(&mut self.answers);
        answers.unlisted = answers.answered.keys().cloned().collect();
        *self = Self { answers, ..Self::begin(self.plane)? };
        Ok(())
    }
}

/// Error of a wait: the InfraNodes that did not answer.
#[derive(Debug)]
pub(super) struct Late {
    missing: Vec<String>,
    why: anyhow::Error,
}

impl Late {
    /// Adds the log of the first missing agent to the error.
    pub(super) fn with_log(self, log: impl Fn(&str) -> String) -> anyhow::Error {
        let first = self.missing.first().map(String::as_str).unwrap_or_default();
        let count = self.missing.len();
        self.why.context(format!(
            "{count} InfraNodes do not become Ready, among them {first}, whose agent says: {}",
            log(first)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whether_the_newest_generation_is_answered() {
        let is_answered = |line: &str| line.parse::<Sight>().unwrap().is_answered;
        assert!(is_answered("node-1   3   3   True   3"));
        assert!(!is_answered("node-1   3   2   True   2"));
        assert!(!is_answered("node-1   3   3   True   2"));
        assert!(!is_answered("node-1   3   3   False   3"));
        assert!(!is_answered("node-1   1   <none>   <none>   <none>"));
        assert!("Error from server".parse::<Sight>().is_err());
    }

    #[test]
    fn an_answer_counts_once_and_from_the_question() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut answers = Answers::default();
        for (seconds, line) in [
            (1, "a 1 <none> <none> <none>"),
            (2, "a 1 1 True 1"),
            (3, "a 1 1 True 1"),
            (5, "b 2 1 True 1"),
            (6, "b 2 2 False 2"),
        ] {
            answers.take(at(seconds), line.parse().unwrap());
        }
        let first = std::mem::take(&mut answers.new);
        assert_eq!(first.len(), 1);
        assert_eq!(first.get("a"), Some(&Answer { asked: Some(at(1)), answered: at(2) }));
        answers.take(at(9), "b 2 2 True 2".parse().unwrap());
        answers.take(at(10), "a 1 1 True 1".parse().unwrap());
        assert_eq!(answers.new.len(), 1);
        answers.take(at(11), "c 4 4 True 4".parse().unwrap());
        assert_eq!(answers.new.remove("c"), Some(Answer { asked: None, answered: at(11) }));
        assert_eq!(answers.new.get("b"), Some(&Answer { asked: Some(at(5)), answered: at(9) }));
        // A restarted watch lists the current state.
        answers.unlisted.insert("a".to_owned());
        answers.take(at(12), "a 2 1 True 1".parse().unwrap());
        answers.take(at(13), "a 2 2 True 2".parse().unwrap());
        assert_eq!(answers.new.remove("a"), Some(Answer { asked: None, answered: at(13) }));
    }
}
