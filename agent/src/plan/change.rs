//! One change of a plan.

use std::collections::BTreeSet;

use serde::Serialize;

use super::id::{AttemptId, ChangeId};
use super::kubelet::action::KubeletAction;
use super::network::work::LinkWork;
use super::target::Target;
pub use super::target::Why;
use berth_host_facts::setting::{Setting, Value};

/// One thing that would be done, as a person reads it and as `apply` does it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// What is changed: `hugepages 2Mi zone 1`.
    #[serde(rename = "what")]
    pub id: ChangeId,
    /// What it is now.
    pub was: String,
    /// What it would be.
    pub will_be: String,
    /// Who wants it.
    pub why: Why,
    /// Whether Berth had set it before and somebody changed it.
    pub drift: bool,
    /// How much of it what runs on the host notices.
    pub disruption: Disruption,
    /// What that is.
    pub effect: String,
    /// What stands in the way, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Files that are removed before, as they would not fit what is changed (the kubelet's checkpoints).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removes: Vec<String>,
    /// What `apply` does.
    #[serde(flatten)]
    pub action: Action,
}

/// How much of a change what runs on the host notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Disruption {
    /// Nothing.
    None,
    /// Some CPU time, or host tasks that move; no VM notices.
    Low,
    /// Memory or CPUs that running work may miss.
    High,
}

/// What `apply` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Action {
    /// Sets these, in this order.
    Set(#[serde(serialize_with = "as_steps")] Vec<Step>),
    /// Works on the kubelet's files.
    Kubelet(#[serde(serialize_with = "as_kubelet")] KubeletAction),
    /// Works on links.
    Links(#[serde(serialize_with = "as_links")] LinkWork),
}

/// One setting and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is set.
    pub setting: Setting,
    /// What it is now.
    pub was: Value,
    /// What it is set to; less than asked where not all of it is possible.
    pub will_be: Value,
    /// What is asked for.
    pub asked: Value,
    /// Other settings that the kernel changes with it, and what they are now.
    pub disturbs: Vec<(Setting, Value)>,
}

impl Change {
    /// The change of one setting.
    pub(super) fn of(
        setting: Setting,
        was: Value,
        target: &Target,
        disruption: Disruption,
        effect: String,
    ) -> Self {
        let step = Step {
            setting,
            was,
            will_be: target.value.clone(),
            asked: target.value.clone(),
            disturbs: Vec::new(),
        };
        Self {
            id: ChangeId::Setting(setting),
            was: step.was.shown(),
            will_be: step.will_be.shown(),
            why: target.why,
            drift: false,
            disruption,
            effect,
            blocked: None,
            removes: Vec::new(),
            action: Action::Set(vec![step]),
        }
    }

    /// A change of something this host has not.
    pub(super) fn impossible(setting: Setting, target: &Target, why: String) -> Self {
        Self {
            id: ChangeId::Setting(setting),
            was: "none".to_owned(),
            will_be: target.value.shown(),
            why: target.why,
            drift: false,
            disruption: Disruption::None,
            effect: String::new(),
            blocked: Some(why),
            removes: Vec::new(),
            action: Action::Set(Vec::new()),
        }
    }

    /// With what stands in its way, if anything does.
    pub(super) fn blocked_by(mut self, why: Option<String>) -> Self {
        self.blocked = self.blocked.or(why);
        self
    }

    /// Keeps only these steps of a group of interrupts.
    pub(super) fn set_steps(&mut self, steps: Vec<Step>) {
        if let ChangeId::Interrupts(numbers) = &mut self.id {
            *numbers = interrupts(&steps);
        }
        self.action = Action::Set(steps);
    }

    /// Returns the identity of an attempt at this change by the desired values, also where only a part of them is
    /// possible now.
    #[must_use]
    pub fn desired(&self) -> AttemptId {
        self.attempt(|step| &step.asked)
    }

    /// Returns the identity of an attempt at this change by the values that would be set now.
    #[must_use]
    pub fn next_attempt(&self) -> AttemptId {
        self.attempt(|step| &step.will_be)
    }

    fn attempt(&self, value: fn(&Step) -> &Value) -> AttemptId {
        let values = self.steps().iter().map(|step| value(step).clone()).collect();
        AttemptId { change: self.id.clone(), values }
    }

    /// The settings it sets.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        match &self.action {
            Action::Set(steps) => steps,
            Action::Kubelet(_) | Action::Links(_) => &[],
        }
    }

    /// The work on links that it is, if it is any.
    #[must_use]
    pub const fn links(&self) -> Option<&LinkWork> {
        match &self.action {
            Action::Links(work) => Some(work),
            Action::Set(_) | Action::Kubelet(_) => None,
        }
    }

    /// Whether it is about the rules for what guests send.
    #[must_use]
    pub fn is_filter(&self) -> bool {
        self.links().is_some_and(|work| work.filter.is_some())
    }

    /// Whether it is made only with the rules for what guests send in place. What was there before is repaired without
    /// them: a VM that is cut off is no safer.
    #[must_use]
    pub fn waits_for_filter(&self) -> bool {
        !self.drift && self.links().is_some_and(LinkWork::needs_filter)
    }

    /// What is changed in an operator's words. Of links that is a sentence, of settings both values.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self.action {
            Action::Links(_) => self.id.to_string(),
            _ => format!("{}: {} -> {}", self.id, self.was, self.will_be),
        }
    }
}

/// Returns the numbers of the interrupts that these steps set.
pub(super) fn interrupts(steps: &[Step]) -> BTreeSet<u32> {
    let number = |step: &Step| match step.setting {
        Setting::IrqAffinity(number) => Some(number),
        _ => None,
    };
    steps.iter().filter_map(number).collect()
}

fn as_steps<S: serde::Serializer>(steps: &[Step], serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct as _;
    let settings: Vec<String> = steps.iter().map(|step| step.setting.to_string()).collect();
    let mut map = serializer.serialize_struct("Action", 1)?;
    map.serialize_field("settings", &settings)?;
    map.end()
}

fn as_kubelet<S: serde::Serializer>(
    action: &KubeletAction,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct as _;
    let mut map = serializer.serialize_struct("Action", 1)?;
    map.serialize_field("files", &action.files())?;
    map.end()
}

fn as_links<S: serde::Serializer>(work: &LinkWork, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct as _;
    let links: BTreeSet<&str> = work.ops.iter().map(|op| op.link().as_str()).collect();
    let mut map = serializer.serialize_struct("Action", 2)?;
    map.serialize_field("network", &work.network)?;
    map.serialize_field("links", &links)?;
    map.end()
}
