//! Conditions of the InfraNode: VirtualizationReady, HostTuned, TenantNetworksReady, KubeletAligned, CredentialValid,
//! TrunkVerified, AddressConflict, Ready.

use std::collections::BTreeMap;
use std::time::SystemTime;

use berth_api::ConditionReason;
use berth_api::infra_node::{
    AddressConflictStatus, InfraNodeSpec, KubeletMode, Kvm, KvmState, TenantNetworkState,
    TrunkState, TrunkStatus, TrunkUnknownReason,
};
use berth_api::names::condition::{
    ADDRESS_CONFLICT, CREDENTIAL_VALID, READY, TRUNK_VERIFIED, VIRTUALIZATION_READY,
};
use berth_api::{Condition, Time};
use berth_runtime::certificate::{ExpiryState, Validity};
use jiff::Timestamp;

use crate::manifest::{Fault, SpecPart};
use crate::plan::kubelet::{next_start_failure, restart_reason};
use crate::plan::{Change, Plan};
use crate::trunk_reasons::most_urgent_unknown;
use berth_host_facts::HostFacts;
use berth_host_facts::kubelet::RunningConfig;

/// Input of the conditions, from one cycle.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub facts: &'a HostFacts,
    /// Plan of the pending changes.
    pub plan: &'a Plan,
    /// Faults of the spec.
    pub faults: &'a [Fault],
    /// Reason why no part of the spec is applied, such as a missing manifest; `None` if the spec is applied.
    pub not_applied_reason: Option<&'a str>,
    /// Reason why no change can be applied; `None` if changes can be applied.
    pub blocked_reason: Option<&'a str>,
    /// Facts about KVM, as in `status.capabilities.kvm`.
    pub kvm: &'a Kvm,
    /// Desired state, without the parts of the spec that have faults.
    pub spec: &'a InfraNodeSpec,
    /// Client certificate of the agent, if it has one.
    pub certificate: Option<Validity>,
    /// Results of the verification of trunks, by host network.
    pub trunks: &'a BTreeMap<String, TrunkStatus>,
    /// Addresses of VMs that other machines use.
    pub address_conflicts: &'a [AddressConflictStatus],
}

/// Types of the conditions that the agent writes; the controller writes the other conditions.
pub const CONDITION_TYPES: [&str; 8] = [
    VIRTUALIZATION_READY,
    "HostTuned",
    "TenantNetworksReady",
    "KubeletAligned",
    CREDENTIAL_VALID,
    TRUNK_VERIFIED,
    ADDRESS_CONFLICT,
    READY,
];

/// Status, reason and message of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConditionState {
    status: &'static str,
    reason: ConditionReason,
    message: String,
}

impl ConditionState {
    fn status_true(reason: ConditionReason, message: impl Into<String>) -> Self {
        Self { status: "True", reason, message: message.into() }
    }

    fn status_false(reason: ConditionReason, message: impl Into<String>) -> Self {
        Self { status: "False", reason, message: message.into() }
    }

    fn status_unknown(reason: ConditionReason, message: impl Into<String>) -> Self {
        Self { status: "Unknown", reason, message: message.into() }
    }
}

/// Status and time of the last transition of each condition.
#[derive(Debug, Default)]
pub struct ConditionHistory(BTreeMap<&'static str, (&'static str, Timestamp)>);

impl ConditionHistory {
    /// Returns the conditions. The transition time changes only with the status.
    pub fn evaluate(&mut self, input: &Input) -> Vec<Condition> {
        let tuned = host_tuned_condition(input);
        let networks = networks_ready_condition(input);
        let kubelet = kubelet_aligned_condition(input);
        let credential = input
            .certificate
            .map(|validity| credential_valid_condition(&validity, SystemTime::now()));
        // `Ready` copies the first of HostTuned and TenantNetworksReady that is not true, or HostTuned if both are
        // true.
        let components = [Some(&tuned), networks.as_ref()];
        let ready =
            components.into_iter().flatten().find(|state| state.status != "True").unwrap_or(&tuned);
        let ready = Some(ready.clone());
        let states = [
            Some(virtualization_ready_condition(input.kvm)),
            Some(tuned.clone()),
            networks,
            kubelet,
            credential,
            trunk_verified_condition(input.trunks),
            address_conflict_condition(input.address_conflicts),
            ready,
        ];
        CONDITION_TYPES
            .into_iter()
            .zip(states)
            .filter_map(|(name, state)| Some(self.condition(name, state?)))
            .collect()
    }

    fn condition(&mut self, name: &'static str, state: ConditionState) -> Condition {
        let ConditionState { status, reason, message } = state;
        // Kubernetes stores these times in whole seconds. With a fraction, the condition would always differ from the
        // stored condition.
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let last_transition = self.0.entry(name).or_insert((status, now));
        if last_transition.0 != status {
            *last_transition = (status, now);
        }
        Condition {
            type_: name.to_owned(),
            status: status.to_owned(),
            reason: reason.to_string(),
            message,
            last_transition_time: Time(last_transition.1),
            observed_generation: None,
        }
    }
}

fn virtualization_ready_condition(kvm: &Kvm) -> ConditionState {
    use ConditionReason as Reason;
    match kvm.state {
        Some(KvmState::Ready) => {
            ConditionState::status_true(Reason::Ready, "virtual machines can run")
        }
        Some(KvmState::NoCpuSupport) => ConditionState::status_false(
            Reason::NoCpuSupport,
            "the CPU supports neither VMX nor SVM",
        ),
        Some(KvmState::DisabledInFirmware) => ConditionState::status_false(
            Reason::DisabledInFirmware,
            "virtualisation is disabled in the firmware",
        ),
        Some(KvmState::ModuleNotLoaded) => {
            ConditionState::status_false(Reason::ModuleNotLoaded, "no KVM module is loaded")
        }
        Some(KvmState::NoPermission) => ConditionState::status_false(
            Reason::NoPermission,
            "the agent has no permission to open /dev/kvm",
        ),
        Some(KvmState::SmokeTestFailed) => ConditionState::status_false(
            Reason::SmokeTestFailed,
            "/dev/kvm can be opened, but no VM can be created",
        ),
        None => ConditionState::status_unknown(
            Reason::Unknown,
            "the state of KVM is unknown; status.unknown has the reason for capabilities.kvm.state",
        ),
    }
}

fn host_tuned_condition(input: &Input) -> ConditionState {
    if let Some(message) = input.not_applied_reason {
        return ConditionState::status_unknown(ConditionReason::NoManifest, message);
    }
    if let Some(first) = input.faults.iter().find(|fault| !fault.is_about_part(SpecPart::Networks))
    {
        return ConditionState::status_false(ConditionReason::InvalidSpec, first.to_string());
    }
    let pending: Vec<&Change> =
        input.plan.changes.iter().filter(|change| change.link_action().is_none()).collect();
    match pending.iter().find(|change| change.blocked.is_some()).or_else(|| pending.first()) {
        None => {
            ConditionState::status_true(ConditionReason::Applied, "the host has the desired state")
        }
        Some(_) if let Some(message) = input.blocked_reason => {
            ConditionState::status_false(ConditionReason::RollbackLedgerUnavailable, message)
        }
        Some(change) => {
            let cause =
                change.blocked.as_deref().unwrap_or("the change failed or was applied partially");
            let reason = if change.drift {
                ConditionReason::DriftDetected
            } else if change.blocked.is_some() {
                ConditionReason::Blocked
            } else {
                ConditionReason::PartiallyApplied
            };
            let pending_count = pending.len();
            let message = format!(
                "{pending_count} changes are pending, the first: {}: {cause}",
                change.description()
            );
            ConditionState::status_false(reason, message)
        }
    }
}

/// Returns the condition TenantNetworksReady; `None` if no network is desired and no network
/// exists.
fn networks_ready_condition(input: &Input) -> Option<ConditionState> {
    let networks = &input.plan.networks;
    if let Some(message) = input.not_applied_reason {
        return Some(ConditionState::status_unknown(ConditionReason::NoManifest, message));
    }
    if let Some(first) = input.faults.iter().find(|fault| fault.is_about_part(SpecPart::Networks)) {
        return Some(ConditionState::status_false(ConditionReason::InvalidSpec, first.to_string()));
    }
    if input.facts.links.is_incomplete {
        // Existing networks continue to work, and their entries stay in the status.
        let message = "the kernel did not list the host's links";
        return (!input.spec.networks.is_empty())
            .then(|| ConditionState::status_unknown(ConditionReason::LinksUnknown, message));
    }
    let pending = input.plan.changes.iter().find(|change| change.link_action().is_some());
    if let (Some(_), Some(message)) = (pending, input.blocked_reason) {
        return Some(ConditionState::status_false(
            ConditionReason::RollbackLedgerUnavailable,
            message,
        ));
    }
    if let Some(message) = &input.plan.unfiltered_reason {
        return Some(ConditionState::status_false(ConditionReason::GuestFilterFailed, message));
    }
    let ready: u32 = networks.iter().map(|network| network.ready).sum();
    let mut not_ready = networks
        .iter()
        .flat_map(|network| network.not_ready.values().map(move |tenant| (network, tenant)));
    if let Some((network, first)) = not_ready.next() {
        let failed = first.state == TenantNetworkState::Failed;
        let message = format!(
            "{} of {} tenant networks are not ready, the first: {} on {}: {}",
            1 + not_ready.count(),
            ready as usize + networks.iter().map(|n| n.not_ready.len()).sum::<usize>(),
            first.tenant,
            network.name,
            first.message
        );
        let reason = if failed { ConditionReason::Failed } else { ConditionReason::Pending };
        return Some(ConditionState::status_false(reason, message));
    }
    if let Some(change) = pending {
        let cause = change.blocked.as_deref().unwrap_or("not applied yet");
        return Some(ConditionState::status_false(
            ConditionReason::ChangesPending,
            format!("{}: {cause}", change.id),
        ));
    }
    (!networks.is_empty()).then(|| {
        ConditionState::status_true(
            ConditionReason::Applied,
            format!("{ready} tenant networks are ready"),
        )
    })
}

/// Returns the condition KubeletAligned; `None` if Berth does not manage the kubelet and no restart
/// of the kubelet is needed.
fn kubelet_aligned_condition(input: &Input) -> Option<ConditionState> {
    let kubelet = &input.facts.kubelet;
    let mode = input.spec.cpu.as_ref().and_then(|cpu| cpu.kubelet);
    let is_managed = !matches!(mode, None | Some(KubeletMode::Ignore));
    if kubelet.config.is_none() {
        let fault = kubelet.config_error.as_ref();
        let message = fault.map_or("no kubelet was found", |(_, message)| message.as_str());
        return is_managed.then(|| {
            ConditionState::status_unknown(ConditionReason::ConfigurationUnknown, message)
        });
    }
    let start_failure = next_start_failure(input.facts);
    if let Some(message) = restart_reason(input.facts) {
        let reason = if start_failure.is_some() {
            ConditionReason::CheckpointRefused
        } else {
            ConditionReason::KubeletRestartRequired
        };
        return Some(ConditionState::status_false(reason, message));
    }
    if !is_managed {
        return None;
    }
    if let Some(failure) = start_failure {
        return Some(ConditionState::status_false(
            ConditionReason::CheckpointRefused,
            failure.to_string(),
        ));
    }
    if let RunningConfig::Unknown(cause) = &kubelet.running_config {
        let message = format!(
            "the configuration that the kubelet was started with is unknown: {cause}; restart the kubelet (systemctl restart {})",
            kubelet.systemd_unit
        );
        return Some(ConditionState::status_unknown(
            ConditionReason::ConfigurationUnknown,
            message,
        ));
    }
    Some(match &input.plan.kubelet {
        None => ConditionState::status_true(
            ConditionReason::Applied,
            "the kubelet's configuration reserves the desired CPUs and memory",
        ),
        Some(advice) => {
            let fields: Vec<&str> =
                advice.differences.iter().map(|difference| difference.field).collect();
            ConditionState::status_false(
                ConditionReason::ConfigurationDiffers,
                format!(
                    "{} differ from the desired configuration; run berth-agent plan",
                    fields.join(", ")
                ),
            )
        }
    })
}

/// Returns the condition CredentialValid for a client certificate. The message contains the expiration time and not the
/// remaining time, so that the message does not change with time.
fn credential_valid_condition(certificate: &Validity, now: SystemTime) -> ConditionState {
    let expiration = Timestamp::try_from(certificate.not_after)
        .map_or_else(|_| "an unknown time".to_owned(), |end| end.to_string());
    let message = format!("the agent's client certificate is valid until {expiration}");
    let remedy = "renew it (deploy/agent-kubeconfig.sh)";
    match certificate.expiry_at(now) {
        ExpiryState::NotSoon => ConditionState::status_true(ConditionReason::Valid, message),
        ExpiryState::Soon => ConditionState::status_false(
            ConditionReason::ExpiresSoon,
            format!("{message}; {remedy}"),
        ),
        ExpiryState::Expired => {
            ConditionState::status_false(ConditionReason::Expired, format!("{message}; {remedy}"))
        }
    }
}

/// Returns the condition TrunkVerified; `None` if no host network carries VLANs.
fn trunk_verified_condition(trunks: &BTreeMap<String, TrunkStatus>) -> Option<ConditionState> {
    let with_state = |state| trunks.iter().find(|(_, trunk)| trunk.state == state);
    if let Some((network, trunk)) = with_state(TrunkState::Missing) {
        let vlans = trunk.vlans.as_ref().map(|vlans| vlans.ids().to_string()).unwrap_or_default();
        let message = format!(
            "{network}: VLAN {vlans} is not received from {}; add it to the switch ports between these hosts and this \
             host",
            trunk.from.join(", ")
        );
        return Some(ConditionState::status_false(ConditionReason::VlansMissing, message));
    }
    if let Some((network, trunk)) = most_urgent_unknown(trunks) {
        let message = trunk.message.as_deref().unwrap_or("the trunk has not been verified yet");
        let reason = match trunk.reason {
            Some(TrunkUnknownReason::NoKey) => ConditionReason::NoTrunkKey,
            Some(TrunkUnknownReason::ProbeFailed) => ConditionReason::TrunkProbeFailed,
            Some(TrunkUnknownReason::VlansWithoutPeers) => ConditionReason::VlansUnverified,
            Some(TrunkUnknownReason::NoPeers) | None => ConditionReason::NoTrunkPeers,
        };
        return Some(ConditionState::status_unknown(reason, format!("{network}: {message}")));
    }
    (!trunks.is_empty()).then(|| {
        ConditionState::status_true(
            ConditionReason::TrunkVerified,
            "at least one other host carries each VLAN, and probes arrive from all hosts that carry it",
        )
    })
}

/// Returns the condition AddressConflict; `None` without a conflict.
fn address_conflict_condition(conflicts: &[AddressConflictStatus]) -> Option<ConditionState> {
    let AddressConflictStatus { network, address, machine, mac } = conflicts.first()?;
    let user = match mac {
        Some(mac) => format!("a machine with MAC address {mac}"),
        None => "another machine, according to the guest".to_owned(),
    };
    let message = format!(
        "{} addresses of VMs are in use by other machines, the first: {network}: {address} of {machine}, in use by {user}; \
         stop that machine, or exclude the address from the pool and delete the VM",
        conflicts.len()
    );
    Some(ConditionState::status_true(ConditionReason::AddressInUse, message))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn missing_vlan_is_reported_before_an_unknown_trunk() {
        let trunk = |state, vlans: &str, reason| TrunkStatus {
            state,
            vlans: vlans.parse().ok().map(|ids: berth_api::VlanSet| ids.into()),
            unverified: None,
            from: vec!["rack1-b".to_owned()],
            reason,
            message: Some("no key file".to_owned()),
        };
        let mut trunks = BTreeMap::new();
        assert_eq!(trunk_verified_condition(&trunks), None);
        trunks.insert("a".to_owned(), trunk(TrunkState::Verified, "", None));
        assert_eq!(trunk_verified_condition(&trunks).unwrap().status, "True");
        let no_key = Some(TrunkUnknownReason::NoKey);
        let without_peers = Some(TrunkUnknownReason::VlansWithoutPeers);
        trunks.insert("b".to_owned(), trunk(TrunkState::Unknown, "", without_peers));
        let state = trunk_verified_condition(&trunks).unwrap();
        assert_eq!((state.status, state.reason), ("Unknown", ConditionReason::VlansUnverified));
        // A reason that may be permanent does not hide other reasons.
        trunks.insert("bb".to_owned(), trunk(TrunkState::Unknown, "", no_key));
        let state = trunk_verified_condition(&trunks).unwrap();
        assert_eq!((state.status, state.reason), ("Unknown", ConditionReason::NoTrunkKey));
        trunks.insert("c".to_owned(), trunk(TrunkState::Missing, "120-121", None));
        let state = trunk_verified_condition(&trunks).unwrap();
        assert_eq!((state.status, state.reason), ("False", ConditionReason::VlansMissing));
        assert!(
            state.message.contains("c: VLAN 120-121 is not received from rack1-b"),
            "{}",
            state.message
        );
    }

    #[test]
    fn conflict_names_both_machines() {
        assert_eq!(address_conflict_condition(&[]), None);
        let conflict = AddressConflictStatus {
            network: "cluster-a".to_owned(),
            address: [10, 0, 0, 7].into(),
            machine: "cluster-a/worker-0".to_owned(),
            mac: Some(berth_api::MacAddress([2, 0, 0, 0, 0, 9])),
        };
        let state = address_conflict_condition(&[conflict]).unwrap();
        assert_eq!((state.status, state.reason), ("True", ConditionReason::AddressInUse));
        let part = "cluster-a: 10.0.0.7 of cluster-a/worker-0, in use by a machine with MAC address 02:00:00:00:00:09";
        assert!(state.message.contains(part), "{}", state.message);
    }

    #[test]
    fn expiring_certificate_is_reported_before_it_expires() {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let day = |n: u64| begin + Duration::from_secs(n * 86_400);
        let certificate = Validity { not_before: begin, not_after: day(30) };
        let condition_on_day = |n| credential_valid_condition(&certificate, day(n));
        let valid = "the agent's client certificate is valid until 2026-01-31T00:00:00Z";
        assert_eq!(condition_on_day(1), ConditionState::status_true(ConditionReason::Valid, valid));
        let ConditionState { status, reason, message } = condition_on_day(22);
        assert_eq!((status, reason), ("False", ConditionReason::ExpiresSoon));
        assert!(message.starts_with(valid) && message.contains("agent-kubeconfig.sh"), "{message}");
        assert_eq!(condition_on_day(31).reason, ConditionReason::Expired);
    }
}
