//! Conditions of the InfraNode that a plan decides: HostTuned, KubeletAligned, Ready.

use std::collections::BTreeMap;

use berth_api::infra_node::KubeletMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::manifest::Fault;
use crate::observe::HostFacts;
use crate::observe::shape::Shape;
use crate::plan::Plan;
use crate::plan::kubelet::restart_needed;

/// What is judged.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The host.
    pub facts: &'a HostFacts,
    /// Its settings.
    pub shape: &'a Shape,
    /// What is left to do.
    pub plan: &'a Plan,
    /// What is wrong with the spec.
    pub faults: &'a [Fault],
    /// Why nothing of the spec is carried out.
    pub waiting: Option<&'a str>,
    /// What Berth is to do about the kubelet.
    pub kubelet: Option<KubeletMode>,
}

/// A judgement: status, reason, message.
type Judged = (&'static str, &'static str, String);

/// When each condition last changed.
#[derive(Debug, Default)]
pub struct Memory(BTreeMap<&'static str, (&'static str, Timestamp)>);

impl Memory {
    /// The conditions; a time changes only with its status.
    pub fn judge(&mut self, input: &Input) -> Vec<Condition> {
        let tuned = host_tuned(input);
        let kubelet = kubelet_aligned(input);
        [("HostTuned", Some(tuned.clone())), ("KubeletAligned", kubelet), ("Ready", Some(tuned))]
            .into_iter()
            .filter_map(|(name, judged)| Some(self.condition(name, judged?)))
            .collect()
    }

    fn condition(&mut self, name: &'static str, (status, reason, message): Judged) -> Condition {
        let now = Timestamp::now();
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

fn host_tuned(input: &Input) -> Judged {
    if let Some(why) = input.waiting {
        return ("Unknown", "NoManifest", why.to_owned());
    }
    if let Some(first) = input.faults.first() {
        return ("False", "FaultInSpec", first.to_string());
    }
    let left = &input.plan.changes;
    match left.iter().find(|change| change.blocked.is_some()).or_else(|| left.first()) {
        None => ("True", "AsAsked", "the host is as asked".to_owned()),
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
            let message = format!(
                "{left} changes left, the first: {}: {} -> {}: {why}",
                change.what, change.was, change.will_be
            );
            ("False", reason, message)
        }
    }
}

/// `None` where there is no kubelet, or it is none of Berth's business.
fn kubelet_aligned(input: &Input) -> Option<Judged> {
    let kubelet = &input.facts.kubelet;
    kubelet.config.as_ref()?;
    if let Some(why) = restart_needed(input.facts, input.shape) {
        return Some(("False", "KubeletRestartNeeded", why));
    }
    if matches!(input.kubelet, None | Some(KubeletMode::Ignore)) {
        return None;
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
