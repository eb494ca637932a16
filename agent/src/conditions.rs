//! Conditions of the InfraNode: VirtualizationReady, HostTuned, TenantNetworksReady, KubeletAligned, CredentialValid,
//! Ready.

use std::collections::BTreeMap;
use std::time::SystemTime;

use berth_api::infra_node::{InfraNodeSpec, KubeletMode, Kvm, KvmState, TenantNetworkState};
use berth_runtime::certificate::{Expiry, Validity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::manifest::{Fault, Part};
use crate::observe::HostFacts;
use crate::observe::kubelet::StartedWith;
use crate::plan::kubelet::{next_start, restart_needed};
use crate::plan::{Change, Plan};

/// What is judged.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The host.
    pub facts: &'a HostFacts,
    /// What is left to do.
    pub plan: &'a Plan,
    /// What is wrong with the spec.
    pub faults: &'a [Fault],
    /// Why nothing of the spec is carried out.
    pub waiting: Option<&'a str>,
    /// Why nothing may be changed, whatever is left to do.
    pub stopped: Option<&'a str>,
    /// Whether VMs can be made, as it is reported.
    pub kvm: &'a Kvm,
    /// What is asked for, as far as it is clear.
    pub spec: &'a InfraNodeSpec,
    /// The agent's client certificate, if it has one.
    pub certificate: Option<Validity>,
}

/// Types of the conditions that the agent writes; others are the controller's.
pub const TYPES: [&str; 6] = [
    "VirtualizationReady",
    "HostTuned",
    "TenantNetworksReady",
    "KubeletAligned",
    "CredentialValid",
    "Ready",
];

/// A judgement: status, reason, message.
type Judged = (&'static str, &'static str, String);

/// When each condition last changed.
#[derive(Debug, Default)]
pub struct Memory(BTreeMap<&'static str, (&'static str, Timestamp)>);

impl Memory {
    /// The conditions; a time changes only with its status.
    pub fn judge(&mut self, input: &Input) -> Vec<Condition> {
        let tuned = host_tuned(input);
        let networks = networks_ready(input);
        let kubelet = kubelet_aligned(input);
        let credential = input.certificate.map(|one| credential_valid(&one, SystemTime::now()));
        // The first that is not so says why.
        let parts = [Some(&tuned), networks.as_ref()];
        let ready = parts.into_iter().flatten().find(|judged| judged.0 != "True").unwrap_or(&tuned);
        let ready = Some(ready.clone());
        let judged = [
            Some(virtualization_ready(input.kvm)),
            Some(tuned.clone()),
            networks,
            kubelet,
            credential,
            ready,
        ];
        TYPES
            .into_iter()
            .zip(judged)
            .filter_map(|(name, judged)| Some(self.condition(name, judged?)))
            .collect()
    }

    fn condition(&mut self, name: &'static str, (status, reason, message): Judged) -> Condition {
        // As objects carry it; a fraction would be lost on the way, and the object look changed.
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let known = self.0.entry(name).or_insert((status, now));
        if known.0 != status {
            *known = (status, now);
        }
        Condition {
            type_: name.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: Time(known.1),
            observed_generation: None,
        }
    }
}

fn virtualization_ready(kvm: &Kvm) -> Judged {
    let (status, reason, message) = match kvm.state {
        Some(KvmState::Ready) => ("True", "Ready", "virtual machines can be made"),
        Some(KvmState::NoCpuSupport) => {
            ("False", "NoCpuSupport", "the CPU offers neither VMX nor SVM")
        }
        Some(KvmState::DisabledInFirmware) => {
            ("False", "DisabledInFirmware", "the firmware has switched it off")
        }
        Some(KvmState::ModuleNotLoaded) => ("False", "ModuleNotLoaded", "no KVM module is loaded"),
        Some(KvmState::NoPermission) => ("False", "NoPermission", "/dev/kvm may not be opened"),
        Some(KvmState::SmokeTestFailed) => {
            ("False", "SmokeTestFailed", "/dev/kvm opens, but no VM can be made")
        }
        None => ("Unknown", "Unknown", "see unknown[] for capabilities.kvm.state"),
    };
    (status, reason, message.to_owned())
}

fn host_tuned(input: &Input) -> Judged {
    if let Some(why) = input.waiting {
        return ("Unknown", "NoManifest", why.to_owned());
    }
    if let Some(first) = input.faults.iter().find(|fault| !fault.is_of(Part::Networks)) {
        return ("False", "FaultInSpec", first.to_string());
    }
    let left: Vec<&Change> =
        input.plan.changes.iter().filter(|change| change.links().is_none()).collect();
    match left.iter().find(|change| change.blocked.is_some()).or_else(|| left.first()) {
        None => ("True", "AsAsked", "the host is as asked".to_owned()),
        Some(_) if let Some(why) = input.stopped => ("False", "CannotStart", why.to_owned()),
        Some(change) => {
            let why = change.blocked.as_deref().unwrap_or("was tried and is not so");
            let reason = if change.drift {
                "Drift"
            } else if change.blocked.is_some() {
                "Blocked"
            } else {
                "FellShort"
            };
            let left = left.len();
            let message = format!("{left} changes left, the first: {}: {why}", change.sentence());
            ("False", reason, message)
        }
    }
}

/// `None` where no network is asked for and nothing of one is left.
fn networks_ready(input: &Input) -> Option<Judged> {
    let networks = &input.plan.networks;
    if input.waiting.is_some() {
        return Some(("Unknown", "NoManifest", input.waiting.unwrap_or_default().to_owned()));
    }
    if let Some(first) = input.faults.iter().find(|fault| fault.is_of(Part::Networks)) {
        return Some(("False", "FaultInSpec", first.to_string()));
    }
    if input.facts.links.incomplete {
        // What was in place goes on, and what it carries is kept in the status.
        let why = "the kernel did not list the host's links".to_owned();
        return (!input.spec.networks.is_empty()).then_some(("Unknown", "LinksUnknown", why));
    }
    let left = input.plan.changes.iter().find(|change| change.links().is_some());
    if let (Some(_), Some(why)) = (left, input.stopped) {
        return Some(("False", "CannotStart", why.to_owned()));
    }
    if let Some(why) = &input.plan.unfiltered {
        return Some(("False", "GuestFilterFailed", why.clone()));
    }
    let ready: u32 = networks.iter().map(|network| network.ready).sum();
    let mut waiting = networks
        .iter()
        .flat_map(|network| network.not_ready.values().map(move |tenant| (network, tenant)));
    if let Some((network, first)) = waiting.next() {
        let failed = first.state == TenantNetworkState::Failed;
        let message = format!(
            "{} of {} tenant networks are not in place, the first: {} on {}: {}",
            1 + waiting.count(),
            ready as usize + networks.iter().map(|n| n.not_ready.len()).sum::<usize>(),
            first.tenant,
            network.name,
            first.message
        );
        return Some(("False", if failed { "Failed" } else { "Pending" }, message));
    }
    if let Some(change) = left {
        let why = change.blocked.as_deref().unwrap_or("not done yet");
        return Some(("False", "ChangesLeft", format!("{}: {why}", change.what)));
    }
    (!networks.is_empty())
        .then(|| ("True", "AsAsked", format!("{ready} tenant networks are in place")))
}

/// `None` where the kubelet is none of Berth's business, and needs nothing.
fn kubelet_aligned(input: &Input) -> Option<Judged> {
    let kubelet = &input.facts.kubelet;
    let mode = input.spec.cpu.as_ref().and_then(|cpu| cpu.kubelet);
    let minds = !matches!(mode, None | Some(KubeletMode::Ignore));
    if kubelet.config.is_none() {
        let fault = kubelet.config_fault.as_ref();
        let why = fault.map_or("no kubelet was found", |(_, why)| why.as_str()).to_owned();
        return minds.then_some(("Unknown", "ConfigurationUnknown", why));
    }
    let refused = next_start(input.facts);
    if let Some(why) = restart_needed(input.facts) {
        let reason = if refused.is_some() { "CheckpointRefused" } else { "KubeletRestartNeeded" };
        return Some(("False", reason, why));
    }
    if !minds {
        return None;
    }
    if let Some(refused) = refused {
        return Some(("False", "CheckpointRefused", refused.to_string()));
    }
    if let StartedWith::Unknown(why) = &kubelet.started_with {
        let why = format!(
            "what the kubelet was started with is not known: {why}; after its next start it is (systemctl restart {})",
            kubelet.unit
        );
        return Some(("Unknown", "ConfigurationUnknown", why));
    }
    Some(match &input.plan.kubelet {
        None => ("True", "AsAsked", "the kubelet keeps what the host keeps".to_owned()),
        Some(advice) => {
            let fields: Vec<&str> =
                advice.differences.iter().map(|difference| difference.field).collect();
            (
                "False",
                "ConfigurationDiffers",
                format!("{} should differ; berth-agent plan shows how", fields.join(", ")),
            )
        }
    })
}

/// Judges a client certificate. The message has its end, not the time that is left, so that it does not change.
fn credential_valid(certificate: &Validity, now: SystemTime) -> Judged {
    let end = Timestamp::try_from(certificate.not_after)
        .map_or_else(|_| "a time that cannot be shown".to_owned(), |end| end.to_string());
    let message = format!("the agent's client certificate is valid until {end}");
    let renew = "renew it (deploy/agent-kubeconfig.sh)";
    match certificate.at(now) {
        Expiry::Far => ("True", "Valid", message),
        Expiry::Soon => ("False", "ExpiresSoon", format!("{message}; {renew}")),
        Expiry::Expired => ("False", "Expired", format!("{message}; {renew}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_certificate_is_warned_of_before_its_end() {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let day = |n: u64| begin + Duration::from_secs(n * 86_400);
        let certificate = Validity { not_before: begin, not_after: day(30) };
        let judged = |n| credential_valid(&certificate, day(n));
        let valid = "the agent's client certificate is valid until 2026-01-31T00:00:00Z";
        assert_eq!(judged(1), ("True", "Valid", valid.to_owned()));
        let (status, reason, message) = judged(22);
        assert_eq!((status, reason), ("False", "ExpiresSoon"));
        assert!(message.starts_with(valid) && message.contains("agent-kubeconfig.sh"), "{message}");
        assert_eq!(judged(31).1, "Expired");
    }
}
