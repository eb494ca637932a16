//! One change of a plan.

use std::collections::BTreeSet;

use serde::Serialize;

use super::id::{AttemptId, ChangeId};
use super::kubelet::action::KubeletAction;
use super::network::action::LinkAction;
pub use super::target::ChangeReason;
use super::target::Target;
use berth_host_facts::setting::{Setting, SettingValue};

/// One change of the host, as text for an operator and as data for `apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Identity: `hugepages 2Mi zone 1`.
    #[serde(rename = "what")]
    pub id: ChangeId,
    /// Current value.
    pub was: String,
    /// Value after the change.
    pub will_be: String,
    pub why: ChangeReason,
    /// True if the value was set by Berth before, and then changed by another program.
    pub drift: bool,
    /// Effect on workloads of the host.
    pub disruption: Disruption,
    /// Description of the effect on workloads.
    pub effect: String,
    /// Reason why the change is blocked, and the remedy; `None` if it is not blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Checkpoints of the kubelet that are removed before the change, because the kubelet would refuse them afterwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removes: Vec<String>,
    /// Action that `apply` executes.
    #[serde(flatten)]
    pub action: Action,
}

/// Effect of a change on workloads of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Disruption {
    /// No effect.
    None,
    /// The change takes some CPU time or moves host tasks. VMs are not affected.
    Low,
    /// The change takes memory or CPUs that running workloads may need.
    High,
}

/// Action that `apply` executes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Action {
    /// Sets these settings, in this order.
    Set(#[serde(serialize_with = "serialize_steps")] Vec<Step>),
    /// Changes files of the kubelet.
    Kubelet(#[serde(serialize_with = "serialize_kubelet_action")] KubeletAction),
    /// Changes links.
    Links(#[serde(serialize_with = "serialize_links")] Box<LinkAction>),
}

/// One setting with its current, new and desired value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub setting: Setting,
    pub current_value: SettingValue,
    /// Value to set; lower than the desired value if only a part of it is possible.
    pub new_value: SettingValue,
    pub desired_value: SettingValue,
    /// Other settings that the kernel changes with this setting, with their current values.
    pub dependent_settings: Vec<(Setting, SettingValue)>,
}

impl Change {
    /// Returns the change of one setting.
    pub(super) fn for_setting(
        setting: Setting,
        was: SettingValue,
        target: &Target,
        disruption: Disruption,
        effect: String,
    ) -> Self {
        let step = Step {
            setting,
            current_value: was,
            new_value: target.value.clone(),
            desired_value: target.value.clone(),
            dependent_settings: Vec::new(),
        };
        Self {
            id: ChangeId::Setting(setting),
            was: step.current_value.to_display_text(),
            will_be: step.new_value.to_display_text(),
            why: target.reason,
            drift: false,
            disruption,
            effect,
            blocked: None,
            removes: Vec::new(),
            action: Action::Set(vec![step]),
        }
    }

    /// Returns a blocked change of a setting that this host does not have.
    pub(super) fn unsupported_setting(setting: Setting, target: &Target, reason: String) -> Self {
        Self {
            id: ChangeId::Setting(setting),
            was: "none".to_owned(),
            will_be: target.value.to_display_text(),
            why: target.reason,
            drift: false,
            disruption: Disruption::None,
            effect: String::new(),
            blocked: Some(reason),
            removes: Vec::new(),
            action: Action::Set(Vec::new()),
        }
    }

    /// Blocks the change if there is a reason.
    pub(super) fn blocked_by(mut self, reason: Option<String>) -> Self {
        self.blocked = self.blocked.or(reason);
        self
    }

    /// Replaces the steps of the change. For a change of a group of interrupts, also updates the interrupt numbers in
    /// the identity of the change.
    pub(super) fn set_steps(&mut self, steps: Vec<Step>) {
        if let ChangeId::Interrupts(numbers) = &mut self.id {
            *numbers = interrupt_numbers(&steps);
        }
        self.action = Action::Set(steps);
    }

    /// Returns the identity of an attempt at this change, with the desired values, even if only a part of them is
    /// possible now.
    #[must_use]
    pub fn desired_attempt_id(&self) -> AttemptId {
        self.attempt_id_with_values(|step| &step.desired_value)
    }

    /// Returns the identity of an attempt at this change, with the values that would be set now.
    #[must_use]
    pub fn next_attempt_id(&self) -> AttemptId {
        self.attempt_id_with_values(|step| &step.new_value)
    }

    fn attempt_id_with_values(&self, value: fn(&Step) -> &SettingValue) -> AttemptId {
        let values = self.steps().iter().map(|step| value(step).clone()).collect();
        AttemptId { change: self.id.clone(), values }
    }

    /// Returns the settings that the change sets.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        match &self.action {
            Action::Set(steps) => steps,
            Action::Kubelet(_) | Action::Links(_) => &[],
        }
    }

    /// Returns the steps on links, if this is a change of links.
    #[must_use]
    pub fn link_action(&self) -> Option<&LinkAction> {
        match &self.action {
            Action::Links(action) => Some(action),
            Action::Set(_) | Action::Kubelet(_) => None,
        }
    }

    /// Returns true if the change is a change of the rules that drop guests' control frames.
    #[must_use]
    pub fn is_filter_change(&self) -> bool {
        self.link_action().is_some_and(|action| action.filter.is_some())
    }

    /// Returns true if the change needs the rules that drop guests' control frames. A link that existed before is
    /// repaired even without the rules, because leaving its VMs without a network would not make them safer.
    #[must_use]
    pub fn waits_for_filter(&self) -> bool {
        !self.drift && self.link_action().is_some_and(LinkAction::needs_filter)
    }

    /// Returns the change as text for an operator: a sentence for links; for settings, the current and the new value.
    #[must_use]
    pub fn description(&self) -> String {
        match self.action {
            Action::Links(_) => self.id.to_string(),
            _ => format!("{}: {} -> {}", self.id, self.was, self.will_be),
        }
    }
}

/// Returns the numbers of the interrupts that these steps set.
pub(super) fn interrupt_numbers(steps: &[Step]) -> BTreeSet<u32> {
    let number = |step: &Step| match step.setting {
        Setting::IrqAffinity(number) => Some(number),
        _ => None,
    };
    steps.iter().filter_map(number).collect()
}

fn serialize_steps<S: serde::Serializer>(steps: &[Step], serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct as _;
    let settings: Vec<String> = steps.iter().map(|step| step.setting.to_string()).collect();
    let mut map = serializer.serialize_struct("Action", 1)?;
    map.serialize_field("settings", &settings)?;
    map.end()
}

fn serialize_kubelet_action<S: serde::Serializer>(
    action: &KubeletAction,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct as _;
    let mut map = serializer.serialize_struct("Action", 1)?;
    map.serialize_field("files", &action.files())?;
    map.end()
}

fn serialize_links<S: serde::Serializer>(
    action: &LinkAction,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct as _;
    let links: BTreeSet<&str> = action.ops.iter().map(|op| op.link().as_str()).collect();
    let mut map = serializer.serialize_struct("Action", 2)?;
    map.serialize_field("network", &action.network)?;
    map.serialize_field("links", &links)?;
    map.end()
}
