//! Report of a removal: what a machine waits for, since when, and until when.

use berth_api::{ConditionReason, Time};
use k8s_openapi::jiff::Timestamp;

use super::mark::RemovalMark;
use super::plan::{RemovalOutcome, Step};
use crate::tenants::fault::{Fault, join_first, join_names_limited};

/// Largest number of machines whose reports are in one message.
const MAX_MACHINES: usize = 16;

/// Report of the removal of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalReport {
    pub reason: ConditionReason,
    /// Removal mark of the machine.
    pub removal: RemovalMark,
    /// Time after which the machine is deleted even if the drain is not complete.
    pub deadline: Timestamp,
    /// Text that describes the event for which the machine waits.
    pub message: String,
}

impl RemovalReport {
    /// Returns the report of a step. `problems` are malformed annotations.
    #[must_use]
    pub fn new(
        removal: RemovalMark,
        deadline: Timestamp,
        step: &Step<'_>,
        problems: &[String],
    ) -> Self {
        let (reason, mut message) = describe(step);
        for problem in problems {
            message = format!("{message}; {problem}");
        }
        Self { reason, removal, deadline, message }
    }

    /// Returns true if the removal does not proceed by itself. Returns false after the time limit, because the machine
    /// is then deleted.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.reason != ConditionReason::DrainDeadlineExceeded
            && urgency(self.reason) > urgency(ConditionReason::WaitingForVolumes)
    }

    /// Returns the message about a machine.
    #[must_use]
    pub fn describe_machine(&self, machine: &str) -> String {
        let Self { reason, removal, deadline, message } = self;
        let since = Time(removal.since);
        // The time limit begins when the host is back.
        let until = match reason {
            ConditionReason::WaitingForHost => String::new(),
            _ => format!(", drained until {}", Time(*deadline)),
        };
        format!("{machine} ({} since {since}{until}): {message}", removal.reason)
    }
}

fn describe(step: &Step<'_>) -> (ConditionReason, String) {
    let draining = |message: &str| (ConditionReason::DrainingMachines, message.to_owned());
    match step {
        Step::WaitForHost => (
            ConditionReason::WaitingForHost,
            "it is unknown whether the VM still runs: waiting until its host is back, or has the taint \
             node.kubernetes.io/out-of-service"
                .to_owned(),
        ),
        Step::WaitForTenant(reason) => {
            (*reason, format!("waiting for the tenant's cluster: {reason}"))
        }
        Step::Cordon => draining("cordoning its Node"),
        Step::ListPods | Step::Evict(_) => draining("evicting the pods on its Node"),
        Step::WaitForPods { blocked, stopping } if blocked.is_empty() => {
            draining(&format!("waiting until {stopping} pods have stopped"))
        }
        Step::WaitForPods { blocked, .. } => {
            let each = blocked.iter();
            let each = each.map(|(pod, refused)| format!("pod {}: {refused}", pod.qualified_name()));
            let all: Vec<String> = each.collect();
            (ConditionReason::DrainBlocked, join_names_limited(&all))
        }
        Step::ListVolumes => draining("waiting until volumes are detached"),
        Step::WaitForVolumes(count) => (
            ConditionReason::WaitingForVolumes,
            format!("waiting until {count} VolumeAttachments of its Node are deleted"),
        ),
        Step::ConfirmNoNode => draining("checking that it has no Node"),
        Step::DeleteNode => draining("deleting its Node"),
        Step::DeleteMachine(RemovalOutcome::DeadlineExceeded) => (
            ConditionReason::DrainDeadlineExceeded,
            "deleting the machine without a complete drain".to_owned(),
        ),
        Step::DeleteMachine(RemovalOutcome::Drained | RemovalOutcome::NotDrained) => {
            draining("deleting the machine")
        }
    }
}

/// Returns the urgency of a removal: the highest value needs an operator most.
const fn urgency(reason: ConditionReason) -> u8 {
    match reason {
        ConditionReason::DrainDeadlineExceeded => 4,
        ConditionReason::DrainBlocked => 3,
        ConditionReason::WaitingForVolumes => 1,
        ConditionReason::DrainingMachines => 0,
        _ => 2,
    }
}

/// Returns the fault of a MachineDeployment whose machines are being removed; `None` if there are no such machines.
/// The reason is that of the most urgent removal.
#[must_use]
pub fn removal_fault(machines: &[(String, RemovalReport)]) -> Option<Fault> {
    let (_, worst) = machines.iter().max_by_key(|(_, report)| urgency(report.reason))?;
    let each = machines.iter().map(|(name, report)| report.describe_machine(name));
    let message = join_first(&each.collect::<Vec<_>>(), MAX_MACHINES, "\n");
    Some(Fault::new(worst.reason, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::removal::eviction::EvictionOutcome;
    use crate::removal::mark::RemovalReason;
    use crate::removal::pod::DrainPod;

    fn report(step: &Step<'_>) -> RemovalReport {
        let since: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let deadline: Timestamp = "2026-05-01T14:00:00Z".parse().unwrap();
        RemovalReport::new(RemovalMark::new(RemovalReason::Rollout, since), deadline, step, &[])
    }

    #[test]
    fn a_report_names_pods_and_budgets() {
        let pod = DrainPod {
            namespace: "shop".to_owned(),
            name: "web-1".to_owned(),
            uid: String::new(),
            terminating: None,
        };
        let budget = EvictionOutcome::Budget(Some("web".to_owned()));
        let blocked = report(&Step::WaitForPods { blocked: vec![(&pod, &budget)], stopping: 1 });
        assert_eq!(
            blocked.describe_machine("web-abc"),
            "web-abc (Rollout since 2026-05-01T12:00:00Z, drained until 2026-05-01T14:00:00Z): \
             pod shop/web-1: PodDisruptionBudget web permits no eviction"
        );
        let many = vec![(&pod, &budget); 500];
        let many = report(&Step::WaitForPods { blocked: many, stopping: 0 });
        assert!(blocked.is_blocked() && !report(&Step::Cordon).is_blocked());
        assert!(!report(&Step::WaitForVolumes(1)).is_blocked());
        let late = report(&Step::DeleteMachine(RemovalOutcome::DeadlineExceeded));
        assert!(!late.is_blocked(), "the machine is deleted");
        assert!(many.message.len() < 400 && many.message.ends_with("and 496 more"), "{many:?}");
    }

    #[test]
    fn a_machine_that_waits_for_its_host_has_no_time_limit() {
        let waiting = report(&Step::WaitForHost).describe_machine("web");
        assert!(
            waiting.starts_with("web (Rollout since 2026-05-01T12:00:00Z): it is"),
            "{waiting}"
        );
    }

    #[test]
    fn the_most_urgent_machine_gives_the_reason() {
        assert_eq!(removal_fault(&[]), None);
        let tenant = report(&Step::WaitForTenant(ConditionReason::TenantUnreachable));
        let late = report(&Step::DeleteMachine(RemovalOutcome::DeadlineExceeded));
        let all = |reports: Vec<RemovalReport>| {
            reports.into_iter().map(|report| ("web".to_owned(), report)).collect::<Vec<_>>()
        };
        let fault = removal_fault(&all(vec![report(&Step::Cordon), tenant.clone()])).unwrap();
        assert_eq!(fault.reason, ConditionReason::TenantUnreachable);
        let fault = removal_fault(&all(vec![late, tenant.clone()])).unwrap();
        assert_eq!(fault.reason, ConditionReason::DrainDeadlineExceeded);
        let fault = removal_fault(&all(vec![tenant; 100])).unwrap();
        assert!(fault.message.ends_with("and 84 more") && fault.message.len() < 8000, "{fault}");
    }
}
