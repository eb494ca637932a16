//! Checks of the host for problems that affect virtual machines, each with a remedy.
//!
//! Every check is a pure function from [`Input`] to an [`Outcome`], with a stable ID. The list
//! contains the checks of libvirt's `virt-host-validate qemu` and checks for known problems of
//! KubeVirt hosts.

mod addresses;
mod agent;
mod cpu;
mod definition;
mod devices;
mod host;
mod input;
mod kubelet;
mod kvm;
mod links;
mod memory;
mod network_mtu;
mod tenants;
#[cfg(test)]
pub(crate) mod test_helpers;
mod trunks;

pub use berth_runtime::check::{Evidence, Finding, Findings, Outcome, Status, Summary, table};
pub use definition::Check;
pub use input::Input;

/// Returns all checks, in the order of output.
#[must_use]
pub fn all_checks() -> Vec<Check> {
    [
        kvm::CHECKS,
        devices::CHECKS,
        cpu::CHECKS,
        memory::CHECKS,
        kubelet::CHECKS,
        links::CHECKS,
        tenants::CHECKS,
        network_mtu::CHECKS,
        trunks::CHECKS,
        addresses::CHECKS,
        host::CHECKS,
        agent::CHECKS,
    ]
    .concat()
}

/// Returns the checks with these ids and the checks of these groups (`kvm` is the group of `kvm.nested`); all checks if
/// `names` is empty.
#[must_use]
pub fn select(names: &[String]) -> Vec<Check> {
    berth_runtime::check::select(all_checks(), names)
}

#[must_use]
pub fn run(checks: &[Check], input: &Input) -> Findings {
    Findings::collect(checks, |check| check(input))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_host_facts::HostFacts;

    #[test]
    fn ids_are_unique_and_explained() {
        let mut ids: Vec<&str> = all_checks().iter().map(|check| check.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all_checks().len());
        for check in all_checks() {
            assert!(check.id.split_once('.').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty()));
            assert!(
                check.explanation.len() > 40 && check.explanation.ends_with('.'),
                "{}",
                check.id
            );
        }
    }

    #[test]
    fn checks_are_selected_by_group_or_id() {
        let count = |name: &str| select(&[name.to_owned()]).len();
        assert_eq!(count("kvm.nested"), 1);
        assert!(count("kvm") > 5);
        assert_eq!(count("kv"), 0);
        assert_eq!(select(&[]).len(), all_checks().len());
    }

    /// Without known facts of the host, no check returns PASS or FAIL, because both would be a
    /// guess.
    #[test]
    fn all_checks_are_skipped_without_facts() {
        let facts = HostFacts::default();
        let input = Input::from_facts(&facts);
        for finding in run(&all_checks(), &input).checks {
            assert_eq!(finding.outcome.status, Status::Skip, "{}", finding.id);
        }
    }
}
