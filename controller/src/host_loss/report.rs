//! Conditions of InfraNodes and TenantClusters that report lost hosts.

use std::collections::BTreeMap;

use berth_api::ConditionReason;
use berth_api::names::condition::HOST_LOST;
use k8s_openapi::jiff::Timestamp;

use super::deletion::OUT_OF_SERVICE_TAINT;
use super::machine_hosts::MachineName;
use super::verdict::{Verdict, WaitReason};
use crate::profiles::ConditionUpdate;
use crate::tenants::fault::join_first;

/// Maximum number of machines that a message names.
const MAX_NAMES: usize = 8;

/// A lost host, and the verdicts on the machines on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostHost {
    /// Time since which the host is down, according to its objects.
    pub since: Timestamp,
    pub machines: BTreeMap<MachineName, Verdict>,
}

impl LostHost {
    /// Returns the number of machines that wait for the host.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.machines.values().filter(|one| matches!(one, Verdict::Waits(_))).count()
    }
}

/// Returns the condition of the InfraNode of a lost host.
#[must_use]
pub fn host_condition(lost: &LostHost) -> ConditionUpdate {
    let mut summary = Summary::default();
    lost.machines.iter().for_each(|(machine, verdict)| summary.add(machine, verdict));
    let since = lost.since;
    let message = if since == Timestamp::MAX {
        "the Node is not ready and the agent is unresponsive".to_owned()
    } else {
        format!("the Node is not ready and the agent is unresponsive since {since}")
    };
    summary.into_condition(message)
}

/// Returns the condition of the tenant with this namespace; `None` if none of its machines is on a lost host.
#[must_use]
pub fn tenant_condition(
    namespace: &str,
    lost_hosts: &BTreeMap<String, LostHost>,
) -> Option<ConditionUpdate> {
    let (mut summary, mut hosts) = (Summary::default(), Vec::new());
    for (host, lost) in lost_hosts {
        let own = lost.machines.iter().filter(|((of, _), _)| of == namespace);
        let before = summary.count();
        own.for_each(|(machine, verdict)| summary.add(machine, verdict));
        if summary.count() > before {
            hosts.push(host.clone());
        }
    }
    if hosts.is_empty() {
        return None;
    }
    let hosts = join_first(&hosts, MAX_NAMES, "; ");
    Some(summary.into_condition(format!("machines of the tenant are on lost hosts: {hosts}")))
}

#[derive(Default)]
struct Summary {
    replaced: usize,
    are_too_many_hosts_away: bool,
    waiting: Vec<String>,
}

impl Summary {
    fn add(&mut self, (namespace, name): &MachineName, verdict: &Verdict) {
        match verdict {
            Verdict::Replaced => self.replaced = self.replaced.saturating_add(1),
            Verdict::Waits(reason) => {
                self.are_too_many_hosts_away |=
                    matches!(reason, WaitReason::TooManyHostsAway { .. });
                self.waiting.push(format!("{namespace}/{name}: {reason}"));
            }
            Verdict::Replace | Verdict::Unaffected => {}
        }
    }

    const fn count(&self) -> usize {
        self.replaced.saturating_add(self.waiting.len())
    }

    fn into_condition(self, mut message: String) -> ConditionUpdate {
        let Self { replaced, are_too_many_hosts_away, waiting } = self;
        if replaced > 0 {
            message += &format!(
                "; {replaced} machines are being replaced; their VirtualMachines will be deleted when the host is \
                 back or off"
            );
        }
        if !waiting.is_empty() {
            message += &format!(
                "; {} machines wait until the host is back, or, after it was switched off, until its Node has the taint \
                 {OUT_OF_SERVICE_TAINT}: {}",
                waiting.len(),
                join_first(&waiting, MAX_NAMES, "; ")
            );
        }
        let reason = match (are_too_many_hosts_away, waiting.is_empty(), replaced) {
            (true, ..) => ConditionReason::TooManyHostsAway,
            (false, false, _) => ConditionReason::MachinesWaitForHost,
            (false, true, 0) => ConditionReason::NoMachines,
            (false, true, _) => ConditionReason::MachinesReplaced,
        };
        ConditionUpdate { type_: HOST_LOST, status: "True", reason, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(machines: &[(&str, &str, Verdict)]) -> LostHost {
        let machine = |(namespace, name, verdict): &(&str, &str, Verdict)| {
            (((*namespace).to_owned(), (*name).to_owned()), verdict.clone())
        };
        LostHost {
            since: "2026-01-01T00:00:00Z".parse().unwrap(),
            machines: machines.iter().map(machine).collect(),
        }
    }

    fn data_disk() -> Verdict {
        Verdict::Waits(WaitReason::DataDisks(vec!["d".to_owned()]))
    }

    #[test]
    fn a_condition_names_what_machines_wait_for() {
        let host = lost(&[
            ("cluster-a", "web-1", Verdict::Replaced),
            ("cluster-a", "db-1", data_disk()),
            ("cluster-b", "web-1", Verdict::Replaced),
            ("cluster-c", "other", Verdict::Unaffected),
        ]);
        let condition = host_condition(&host);
        assert_eq!(condition.reason, ConditionReason::MachinesWaitForHost);
        let message = condition.message;
        assert!(
            message.contains("since 2026-01-01T00:00:00Z; 2 machines are being replaced"),
            "{message}"
        );
        assert!(message.ends_with("cluster-a/db-1: has data disks (d)"), "{message}");
        let all = BTreeMap::from([("rack1-a".to_owned(), host)]);
        let tenant = |namespace: &str| tenant_condition(namespace, &all).map(|one| one.reason);
        assert_eq!(tenant("cluster-a"), Some(ConditionReason::MachinesWaitForHost));
        assert_eq!(tenant("cluster-b"), Some(ConditionReason::MachinesReplaced));
        assert_eq!(tenant("cluster-c"), None);
    }

    #[test]
    fn the_reason_is_the_most_severe() {
        let storm = Verdict::Waits(WaitReason::TooManyHostsAway { away: 2, all: 3 });
        let condition = host_condition(&lost(&[("a", "1", storm), ("a", "2", data_disk())]));
        assert_eq!(condition.reason, ConditionReason::TooManyHostsAway);
        assert!(condition.message.contains("2 of 3 hosts are away, more than 40 %"));
        assert_eq!(host_condition(&lost(&[])).reason, ConditionReason::NoMachines);
    }

    #[test]
    fn a_message_has_a_limited_length() {
        let names: Vec<String> = (0..500).map(|at| format!("m{at}")).collect();
        let machines: Vec<_> =
            names.iter().map(|name| ("cluster-a", name.as_str(), data_disk())).collect();
        let message = host_condition(&lost(&machines)).message;
        assert!(
            message.contains("500 machines wait") && message.ends_with("and 492 more"),
            "{message}"
        );
        assert!(message.len() < 1000, "{}", message.len());
    }
}
