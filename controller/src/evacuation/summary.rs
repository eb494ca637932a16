//! Condition `Draining` of an InfraNode, which names the VMs that must leave the host.

use berth_api::ConditionReason;
use berth_api::names::condition::DRAINING;
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

use super::record::EvacuationRecord;
use crate::profiles::ConditionUpdate;
use crate::tenants::fault::join_first;

/// Maximum number of VMs in the message.
const MAX_VMS: usize = 5;

/// Reason of the condition `Draining`. The variants have the names of the same reasons in [`ConditionReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum DrainingReason {
    /// VMs must leave the cordoned host.
    HostCordoned,
    /// VMs must leave the host, which is not cordoned.
    PodsEvicted,
    /// The host was uncordoned before all VMs had left it.
    DrainCancelled,
}

impl DrainingReason {
    /// Parses the reason of an existing condition; `None` if it is not known to this release.
    #[must_use]
    pub fn parse(reason: &str) -> Option<Self> {
        Self::deserialize(StrDeserializer::<Error>::new(reason)).ok()
    }

    #[must_use]
    pub const fn condition_reason(self) -> ConditionReason {
        match self {
            Self::HostCordoned => ConditionReason::HostCordoned,
            Self::PodsEvicted => ConditionReason::PodsEvicted,
            Self::DrainCancelled => ConditionReason::DrainCancelled,
        }
    }

    /// Returns true if VMs had to leave the host while it was cordoned. If such a host is schedulable now, the drain is
    /// cancelled.
    #[must_use]
    pub const fn was_cordoned(self) -> bool {
        match self {
            Self::HostCordoned | Self::DrainCancelled => true,
            Self::PodsEvicted => false,
        }
    }
}

/// Returns the condition; `None` if no VM must leave the host. Each record has the namespace and name of its VM. The
/// message names blocked VMs first.
#[must_use]
pub fn draining_condition(
    records: &[(String, EvacuationRecord)],
    is_schedulable: bool,
) -> Option<ConditionUpdate> {
    if records.is_empty() {
        return None;
    }
    let count = records.len();
    let plural = if count == 1 { "VM" } else { "VMs" };
    let (blocked, others): (Vec<_>, Vec<_>) =
        records.iter().partition(|(_, record)| record.is_blocked);
    let describe = |(vm, record): &(String, EvacuationRecord)| {
        let EvacuationRecord { reason, since, until, message, .. } = record;
        let until = until.as_ref().map(|until| format!(" until {until}")).unwrap_or_default();
        format!("{vm} ({reason} since {since}{until}): {message}")
    };
    let all: Vec<String> = blocked.into_iter().chain(others).map(describe).collect();
    let all = join_first(&all, MAX_VMS, "; ");
    let message = format!("{count} {plural} must leave the host: {all}");
    let reason =
        if is_schedulable { DrainingReason::PodsEvicted } else { DrainingReason::HostCordoned };
    let reason = reason.condition_reason();
    Some(ConditionUpdate { type_: DRAINING, status: "True", reason, message })
}

/// Returns the condition of a host that was uncordoned, if KubeVirt cannot end the evacuation of its VMs.
#[must_use]
pub fn cancelled_condition(vms: usize) -> ConditionUpdate {
    let message = format!(
        "the host is schedulable again, so its machines stay; KubeVirt before v1.8 does not clear \
         status.evacuationNodeName of {vms} VirtualMachineInstances"
    );
    let reason = DrainingReason::DrainCancelled.condition_reason();
    ConditionUpdate { type_: DRAINING, status: "False", reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_reasons_are_parsed() {
        for reason in [
            DrainingReason::HostCordoned,
            DrainingReason::PodsEvicted,
            DrainingReason::DrainCancelled,
        ] {
            assert_eq!(DrainingReason::parse(reason.condition_reason().as_str()), Some(reason));
        }
        assert_eq!(DrainingReason::parse("NoMachines"), None);
    }

    #[test]
    fn message_names_the_first_vms() {
        let record = |number: usize| {
            let record = EvacuationRecord {
                host: "a".to_owned(),
                reason: "BudgetExhausted".to_owned(),
                since: "2026-01-01T00:00:00Z".to_owned(),
                until: None,
                is_blocked: false,
                message: "too few".to_owned(),
            };
            (format!("cluster-a/web-{number}"), record)
        };
        assert_eq!(draining_condition(&[], false), None);
        let all: Vec<_> = (1..=7).map(record).collect();
        let condition = draining_condition(&all, false).unwrap();
        assert!(
            condition.message.starts_with("7 VMs must leave the host: cluster-a/web-1 (Budget")
        );
        assert!(condition.message.ends_with("too few; and 2 more"), "{}", condition.message);
        assert_eq!(condition.reason, ConditionReason::HostCordoned);
        let mut all = all;
        all[6].1.is_blocked = true;
        let blocked = draining_condition(&all, false).unwrap().message;
        assert!(blocked.starts_with("7 VMs must leave the host: cluster-a/web-7 "), "{blocked}");
        let one = draining_condition(&all[..1], true).unwrap();
        assert_eq!(one.reason, ConditionReason::PodsEvicted);
    }
}
