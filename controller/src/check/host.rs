//! State of a host, as read from its InfraNode.

use berth_api::names::condition::{CREDENTIAL_VALID, READY, VIRTUALIZATION_READY};
use berth_api::{Bytes, ConditionReason};
use serde_json::Value;

use super::values::{condition, name, text};
use crate::host_devices::{ReportedFunction, reported_functions};

/// Policy of the kubelet's CPU Manager that allocates exclusive CPUs.
const STATIC_POLICY: &str = "static";

/// State of a host, as read from its InfraNode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Name of the InfraNode.
    pub name: String,
    /// True if the agent has reported the status of the host.
    pub is_reported: bool,
    /// Number of physical cores; `None` if it is unknown.
    pub cores: Option<u32>,
    /// Size of the memory; `None` if it is unknown.
    pub memory: Option<Bytes>,
    /// True if the kubelet's CPU Manager can allocate exclusive CPUs.
    pub has_exclusive_cpus: bool,
    /// PCI functions for VMs.
    pub functions: Vec<ReportedFunction>,
    pub ready: HostCondition,
    /// Condition VirtualizationReady.
    pub virtualization: HostCondition,
    /// Condition CredentialValid.
    pub credential: HostCondition,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The host has no such condition.
    #[default]
    Absent,
    True,
    False,
    /// `Unknown`, which the controller sets if the agent is unresponsive; or a malformed status.
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCondition {
    pub status: ConditionStatus,
    /// Reason; `None` if it is absent or unknown to this release.
    pub cause: Option<ConditionReason>,
    pub message: String,
}

impl Host {
    /// Reads an InfraNode. A malformed field is treated like an absent one.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let cores = object.pointer("/status/capabilities/cpu/cores").and_then(Value::as_u64);
        let policy = text(object, "/status/capabilities/kubelet/cpuManagerPolicy");
        Self {
            name: name(object).to_owned(),
            is_reported: object.pointer("/status/agent").is_some(),
            cores: cores.and_then(|cores| u32::try_from(cores).ok()),
            memory: text(object, "/status/capabilities/memory/total").parse().ok(),
            has_exclusive_cpus: policy == STATIC_POLICY,
            functions: reported_functions(object),
            ready: HostCondition::read(object, READY),
            virtualization: HostCondition::read(object, VIRTUALIZATION_READY),
            credential: HostCondition::read(object, CREDENTIAL_VALID),
        }
    }

    /// Returns true if the controller has reported that the agent does not renew its Lease.
    #[must_use]
    pub fn is_unresponsive(&self) -> bool {
        let conditions = [&self.ready, &self.virtualization, &self.credential];
        let is_cause = |one: &&HostCondition| one.cause == Some(ConditionReason::AgentUnresponsive);
        conditions.iter().any(is_cause)
    }
}

impl HostCondition {
    fn read(object: &Value, kind: &str) -> Self {
        let found = condition(object, kind);
        Self {
            status: match text(found, "/status") {
                "True" => ConditionStatus::True,
                "False" => ConditionStatus::False,
                _ if found.is_null() => ConditionStatus::Absent,
                _ => ConditionStatus::Unknown,
            },
            cause: text(found, "/reason").parse().ok(),
            message: text(found, "/message").to_owned(),
        }
    }
}
