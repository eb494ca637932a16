//! What stands in the way of virtual machines on this host, and what to do about it.
//!
//! Every check is a pure function from [`Input`] to an [`Outcome`], with a stable id. The list covers
//! what libvirt's `virt-host-validate qemu` checks, and what users of KubeVirt hosts have stumbled over.

mod agent;
pub(crate) mod checkpoints;
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

use crate::observe::credential::ClientCertificate;
use crate::observe::identity::Identity;
use crate::observe::irqs::Irq;
use crate::observe::{HostFacts, credential, disks, identity, irqs};
use crate::root::Root;
use berth_api::Bytes;
pub use outcome::{Evidence, Outcome, Status};

/// One check.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Check {
    /// Stable name, `group.what`.
    pub id: &'static str,
    /// What is checked, in a few words.
    pub title: &'static str,
    /// Why it matters and what the results mean.
    pub explanation: &'static str,
    #[serde(skip)]
    run: fn(&Input) -> Outcome,
}

/// What the checks look at.
#[derive(Debug)]
pub struct Input<'a> {
    /// The facts of the report.
    pub facts: &'a HostFacts,
    /// Interrupts, which the report does not need.
    pub irqs: Vec<Irq>,
    /// Ids of the host.
    pub identity: Identity,
    /// Disks and the sum of their sizes.
    pub disks: Option<(Vec<String>, Bytes)>,
    /// SMT as the administrator has set it (`smt/control`): `on`, `off`, `forceoff`, ...
    pub smt_control: Option<String>,
    /// The client certificate of an agent that systemd runs, or why it cannot be read.
    pub certificate: Option<Result<ClientCertificate, String>>,
    /// Whether root asks.
    pub root: bool,
}

impl<'a> Input<'a> {
    /// The facts alone, with nothing of what only checks need.
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

    /// Adds to the facts what only checks need.
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
    /// What was checked.
    pub title: &'static str,
    /// What came out.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// All findings with their count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// How many of each status.
    pub summary: Summary,
    /// One for each check, in the order of the list.
    pub checks: Vec<Finding>,
}

/// How many checks came out how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Fine.
    pub pass: usize,
    /// To be looked at.
    pub warn: usize,
    /// Stands in the way.
    pub fail: usize,
    /// Could not be checked here, or does not apply.
    pub skip: usize,
}

/// Every check, grouped as they are shown.
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

/// Checks whose id is one of these, or lies in a group of that name (`kvm` for `kvm.nested`); all of
/// them if none is named.
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

    /// A host of which nothing is known gives no PASS and no FAIL that would be a guess.
    #[test]
    fn nothing_is_judged_without_facts() {
        let facts = HostFacts::default();
        let input = Input::of(&facts);
        for finding in run(&all(), &input).checks {
            assert_eq!(finding.outcome.status, Status::Skip, "{}", finding.id);
        }
    }
}
