//! Checks of the host for problems that affect virtual machines, each with a remedy.
//!
//! Every check is a pure function from [`Input`] to an [`Outcome`], with a stable ID. The list
//! contains the checks of libvirt's `virt-host-validate qemu` and checks for known problems of
//! KubeVirt hosts.

mod agent;
mod cpu;
mod devices;
mod host;
mod kubelet;
mod kvm;
mod links;
mod memory;
mod outcome;
pub mod table;
mod tenants;
#[cfg(test)]
pub(crate) mod tests_support;

use serde::Serialize;

use crate::credential::{self, ClientCertificate, UnreadableCertificate};
use berth_api::Bytes;
use berth_host_facts::identity::Identity;
use berth_host_facts::irqs::Irq;
use berth_host_facts::root::Root;
use berth_host_facts::{HostFacts, disks, identity, irqs};
pub use outcome::{Evidence, Outcome, Status};

/// A check.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Check {
    /// Stable name, `group.name`.
    pub id: &'static str,
    /// Short description of the property that the check verifies.
    pub title: &'static str,
    /// Reason for the check and meaning of its results.
    pub explanation: &'static str,
    #[serde(skip)]
    run: fn(&Input) -> Outcome,
}

/// Input of the checks.
#[derive(Debug)]
pub struct Input<'a> {
    /// Facts of the host, as in the report.
    pub facts: &'a HostFacts,
    /// Interrupts, which are not in the report.
    pub irqs: Vec<Irq>,
    /// Machine ID and firmware UUID.
    pub identity: Identity,
    /// Disks and the sum of their sizes.
    pub disks: Option<(Vec<String>, Bytes)>,
    /// SMT setting of the administrator (`smt/control`): `on`, `off`, `forceoff`, ...
    pub smt_control: Option<String>,
    /// Client certificate of an agent that runs as a systemd service, or the error that prevented reading it.
    pub certificate: Option<Result<ClientCertificate, UnreadableCertificate>>,
    /// True if the process runs as root.
    pub root: bool,
}

impl<'a> Input<'a> {
    /// Returns an input with facts only.
    #[must_use]
    pub fn of(facts: &'a HostFacts) -> Self {
        Self {
            facts,
            irqs: Vec::new(),
            identity: Identity::default(),
            disks: None,
            smt_control: None,
            certificate: None,
            root: false,
        }
    }

    /// Reads the additional input that only checks need.
    #[must_use]
    pub fn observe(root: &Root, facts: &'a HostFacts) -> Self {
        Self {
            facts,
            irqs: irqs::observe(root),
            identity: identity::observe(root, &facts.links),
            disks: disks::observe(root),
            smt_control: root.read("sys/devices/system/cpu/smt/control").ok(),
            certificate: credential::observe(root),
            root: nix::unistd::geteuid().is_root(),
        }
    }
}

/// A check with its outcome, as `check --output json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's stable id.
    pub id: &'static str,
    /// Title of the check.
    pub title: &'static str,
    /// Outcome of the check.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Findings of all checks that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Number of checks by status.
    pub summary: Summary,
    /// Findings, in the order of the list of checks.
    pub checks: Vec<Finding>,
}

/// Number of checks by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Passed.
    pub pass: usize,
    /// Warnings.
    pub warn: usize,
    /// Failed.
    pub fail: usize,
    /// Skipped.
    pub skip: usize,
}

/// Returns all checks, in the order of output.
#[must_use]
pub fn all() -> Vec<Check> {
    [
        kvm::CHECKS,
        devices::CHECKS,
        cpu::CHECKS,
        memory::CHECKS,
        kubelet::CHECKS,
        links::CHECKS,
        tenants::CHECKS,
        host::CHECKS,
        agent::CHECKS,
    ]
    .concat()
}

/// Returns the checks with one of these ids or in a group of that name (`kvm` for `kvm.nested`); all checks if `names` is
/// empty.
#[must_use]
pub fn select(names: &[String]) -> Vec<Check> {
    let matches = |check: &Check, name: &str| {
        let rest = check.id.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let chosen = |check: &Check| names.is_empty() || names.iter().any(|name| matches(check, name));
    all().into_iter().filter(chosen).collect()
}

/// Runs the checks.
#[must_use]
pub fn run(checks: &[Check], input: &Input) -> Findings {
    let finding =
        |check: &Check| Finding { id: check.id, title: check.title, outcome: (check.run)(input) };
    let checks: Vec<Finding> = checks.iter().map(finding).collect();
    let count = |status| checks.iter().filter(|finding| finding.outcome.status == status).count();
    let summary = Summary {
        pass: count(Status::Pass),
        warn: count(Status::Warn),
        fail: count(Status::Fail),
        skip: count(Status::Skip),
    };
    Findings { summary, checks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_explained() {
        let mut ids: Vec<&str> = all().iter().map(|check| check.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all().len());
        for check in all() {
            assert!(check.id.split_once('.').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty()));
            assert!(
                check.explanation.len() > 40 && check.explanation.ends_with('.'),
                "{}",
                check.id
            );
        }
    }

    #[test]
    fn groups_and_ids_select() {
        let count = |name: &str| select(&[name.to_owned()]).len();
        assert_eq!(count("kvm.nested"), 1);
        assert!(count("kvm") > 5);
        assert_eq!(count("kv"), 0);
        assert_eq!(select(&[]).len(), all().len());
    }

    /// Without known facts of the host, no check returns PASS or FAIL, because both would be a
    /// guess.
    #[test]
    fn all_checks_are_skipped_without_facts() {
        let facts = HostFacts::default();
        let input = Input::of(&facts);
        for finding in run(&all(), &input).checks {
            assert_eq!(finding.outcome.status, Status::Skip, "{}", finding.id);
        }
    }
}
