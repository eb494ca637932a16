//! Checks of an infra cluster (`berth-controller check`), each with evidence and a remedy.
//!
//! Every check is a pure function of [`Input`], with a stable ID. A check never guesses: its status is SKIP if the
//! objects that it examines could not be read, or do not show whether there is a problem. [`crate::observe`] reads the
//! objects.

mod admission;
mod cdi;
mod certificates;
mod controller;
mod crds;
mod definition;
mod devices;
mod difference;
mod host;
#[cfg(test)]
mod hostile_tests;
mod hosts;
mod input;
mod kind;
mod kubernetes;
mod kubevirt;
mod lease;
mod network;
mod operator;
mod rbac;
mod read;
mod release;
mod scheduler;
mod storage;
mod tenant;
mod tenant_additional;
mod tenant_input;
mod tenant_mtu;
#[cfg(test)]
pub(crate) mod test_helpers;
mod values;

pub use berth_runtime::check::{Evidence, Finding, Findings, Outcome, Status, Summary, table};
pub use crds::crd_names;
pub use definition::Check;
pub use host::{ConditionStatus, Host, HostCondition};
pub use input::{BundleValidity, CaBundle, Input, InvalidBundle, Lists};
pub use kind::{Kind, LISTS};
pub use lease::{Election, LeaseState};
pub use read::{Read, ReadError, Unread};
pub use tenant_input::{ApiServerAnswer, KubeconfigProblem, KubeconfigState, TenantInput};

/// Group of the checks of one tenant.
pub const TENANT_GROUP: &str = "tenant";

/// Returns all checks, in the order of output.
#[must_use]
pub fn all_checks() -> Vec<Check> {
    [
        kubernetes::CHECKS,
        kubevirt::CHECKS,
        devices::CHECKS,
        cdi::CHECKS,
        network::CHECKS,
        storage::CHECKS,
        crds::CHECKS,
        controller::CHECKS,
        scheduler::CHECKS,
        admission::CHECKS,
        certificates::CHECKS,
        hosts::CHECKS,
        tenant::CHECKS,
        tenant_mtu::CHECKS,
        tenant_additional::CHECKS,
    ]
    .concat()
}

/// Returns the checks with these ids and the checks of these groups (`storage` is the group of
/// `storage.default-class`); all checks if `names` is empty.
#[must_use]
pub fn select(names: &[String]) -> Vec<Check> {
    berth_runtime::check::select(all_checks(), names)
}

/// Runs the checks. A check whose objects could not be read is skipped.
#[must_use]
pub fn run(checks: &[Check], input: &Input) -> Findings {
    Findings::collect(checks, |check| check(input).unwrap_or_else(Unread::into_outcome))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_explained() {
        let ids: BTreeSet<&str> = all_checks().iter().map(|check| check.id).collect();
        assert_eq!(ids.len(), all_checks().len());
        for check in all_checks() {
            assert!(check.id.split_once('.').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty()));
            assert!(check.id.len() <= 28, "{} does not fit the table", check.id);
            assert!(
                check.explanation.len() > 40 && check.explanation.ends_with('.'),
                "{}",
                check.id
            );
        }
    }

    /// Without objects, no check returns PASS or FAIL, because both would be a guess.
    #[test]
    fn all_checks_are_skipped_without_objects() {
        for finding in run(&all_checks(), &Input::default()).checks {
            assert_eq!(finding.outcome.status, Status::Skip, "{}", finding.id);
        }
    }

    #[test]
    fn problems_have_evidence_and_a_remedy() {
        for finding in run(&all_checks(), &test_helpers::empty_cluster()).checks {
            let outcome = finding.outcome;
            let is_problem = [Status::Warn, Status::Fail].contains(&outcome.status);
            assert_eq!(is_problem, outcome.remedy.is_some(), "{}", finding.id);
            assert!(!is_problem || !outcome.evidence.is_empty(), "{}", finding.id);
        }
    }
}
