//! From what a host is and what it is asked to be to the ordered list of changes between. Pure.
//!
//! Three steps: each part of the spec says which settings it wants ([`Target`]); settings that Berth
//! changed and nobody wants any more are to be what they were found as; and what is not as wanted
//! becomes a [`Change`], with what it costs and what stands in its way. A host that is as asked gives no
//! change, so a plan made after `apply` is empty.

mod change;
pub mod cpu;
mod housekeeping;
mod hugepages;
pub mod id;
mod ksm;
pub mod kubelet;
pub mod network;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::infra_node::{InfraNodeSpec, TenantNetworkState, TransparentHugepages};
use berth_api::{Bytes, CpuSet};
use serde::Serialize;

use crate::manifest::{Fault, Part, Unclear};
use berth_host_facts::HostFacts;
use berth_host_facts::host_settings::HostSettings;
use berth_host_facts::ledger::MadeNetwork;
use berth_host_facts::setting::{KsmSetting, Setting, Value};
pub use change::{Action, Change, Disruption, Step, Why};
pub use id::{AttemptId, ChangeId};
pub use network::state::NetworkState;

/// What the planner looks at.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// What the host is asked to be.
    pub spec: &'a InfraNodeSpec,
    /// Parts of it that nobody could make sense of: neither changed nor put back.
    pub unclear: &'a Unclear,
    /// What the host is.
    pub facts: &'a HostFacts,
    /// Its settings now.
    pub shape: &'a HostSettings,
}

/// What would be done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The Node's name.
    pub node: String,
    /// In the order in which they are made.
    pub changes: Vec<Change>,
    /// What is wrong with the spec on this host.
    pub faults: Vec<Fault>,
    /// What else an administrator should know.
    pub notes: Vec<String>,
    /// How the kubelet's configuration should be, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<kubelet::Advice>,
    /// CPUs kept for the host, as chosen.
    #[serde(rename = "reservedCPUs", skip_serializing_if = "Option::is_none")]
    pub reserved_cpus: Option<CpuSet>,
    /// How far the tenant networks are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkState>,
    /// Found values that need no longer be remembered: nobody asks for another, and the setting is as it
    /// was found, or gone with its device.
    #[serde(skip)]
    pub forget: Vec<Setting>,
    /// What is remembered of networks and uplinks, and no longer needed.
    #[serde(skip)]
    pub forget_networks: network::Forget,
    /// Networks that are in place and not remembered so.
    #[serde(skip)]
    pub adopt: BTreeMap<String, MadeNetwork>,
    /// Why what guests send cannot be filtered.
    #[serde(skip)]
    pub unfiltered: Option<String>,
    /// Whether host tasks are to be kept on the reserved CPUs.
    #[serde(skip)]
    pub housekeeping: bool,
    /// Whether a kubelet runs, which counted huge pages when it started; `None` if that is not known.
    #[serde(skip)]
    pub kubelet_runs: Option<bool>,
}

impl Plan {
    /// Makes it one that changes nothing, neither on the host nor in what is remembered of it.
    pub fn only_observe(&mut self) {
        for change in &mut self.changes {
            change.blocked.get_or_insert_with(|| "this agent only observes (--observe)".to_owned());
        }
        self.forget.clear();
        self.forget_networks = network::Forget::default();
        self.adopt.clear();
    }
}

/// What a setting shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    value: Value,
    why: Why,
}

/// Targets by setting, and what came up while they were gathered.
#[derive(Debug, Default)]
struct Targets {
    wanted: BTreeMap<Setting, Target>,
    faults: Vec<Fault>,
    notes: Vec<String>,
    /// Settings that stay as they are, and why.
    blocked: BTreeMap<Setting, String>,
}

impl Targets {
    fn want(&mut self, setting: Setting, value: Value) {
        self.wanted.insert(setting, Target { value, why: Why::Asked });
    }

    fn of(&self, setting: Setting) -> Option<&Target> {
        self.wanted.get(&setting)
    }
}

/// Makes the plan.
#[must_use]
pub fn plan(input: Input) -> Plan {
    let mut targets = Targets::default();
    if let Some(mode) = input.spec.transparent_hugepages {
        targets.want(Setting::TransparentHugepages, Value::Word(thp_word(mode).to_owned()));
    }
    let mut frozen = input.unclear.parts.clone();
    freeze(&mut frozen, Part::Hugepages, &mut targets, |t| hugepages::targets(input, t));
    freeze(&mut frozen, Part::Ksm, &mut targets, |t| ksm::targets(input, t));
    let mut reserved = None;
    freeze(&mut frozen, Part::Cpu, &mut targets, |t| {
        reserved = cpu::reserved(input, t);
        if let Some(reserved) = &reserved {
            housekeeping::targets(input, reserved, t);
        }
    });
    let mut forget = Vec::new();
    for (setting, entry) in &input.facts.ledger.entries {
        if targets.wanted.contains_key(setting) || frozen.contains(&part(*setting)) {
            continue;
        }
        let gone =
            |now: &Option<Value>| now.is_none() && matches!(setting, Setting::IrqAffinity(_));
        let now = current(input, *setting);
        // The advisor sets it all the time, so that it may look as found by chance.
        let by_advisor = *setting == Setting::Ksm(KsmSetting::PagesToScan)
            && input.facts.ledger.entries.contains_key(&Setting::Ksm(KsmSetting::AdvisorMode));
        if gone(&now) || (now.as_ref() == Some(&entry.found) && !by_advisor) {
            forget.push(*setting);
            continue;
        }
        let target = Target { value: entry.found.clone(), why: Why::PutBack };
        targets.wanted.insert(*setting, target);
    }

    let mut changes: Vec<Change> = transparent_hugepages(input, &targets).into_iter().collect();
    changes.extend(hugepages::changes(input, &targets));
    changes.extend(ksm::changes(input, &targets));
    changes.extend(housekeeping::changes(input, &targets));
    let mut changes = leave_drift(input, changes);
    let (kubelet_changes, advice) = kubelet::plan(input, reserved.as_ref(), &frozen, &mut targets);
    changes.extend(kubelet_changes);
    let networks = network::plan(input);
    changes.extend(networks.changes);
    targets.faults.extend(networks.faults);
    targets.faults.sort();
    targets.notes.extend(kubelet::restart_needed(input.facts));
    Plan {
        node: input.facts.node_name().unwrap_or_default().to_owned(),
        changes,
        faults: targets.faults,
        notes: targets.notes,
        kubelet: advice,
        reserved_cpus: reserved,
        networks: networks.states,
        forget,
        forget_networks: networks.forget,
        adopt: networks.adopt,
        unfiltered: None,
        housekeeping: input.spec.cpu.as_ref().and_then(|cpu| cpu.housekeeping) == Some(true),
        kubelet_runs: input.facts.processes.known.then_some(input.facts.kubelet.runs),
    }
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Says of tenants that changes which were tried and are still to be done have failed, and why.
    pub fn fail(&mut self, tried: &BTreeMap<ChangeId, String>) {
        self.unfiltered = None;
        for change in &self.changes {
            let (Some(work), Some(why)) = (change.links(), tried.get(&change.id)) else {
                continue;
            };
            if change.is_filter() {
                self.unfiltered = Some(why.clone());
            }
            let network = self.networks.iter_mut().find(|network| network.name == work.network);
            let Some(network) = network else { continue };
            for id in work.made.keys() {
                if let Some(tenant) = network.not_ready.get_mut(id) {
                    tenant.state = TenantNetworkState::Failed;
                    tenant.message.clone_from(why);
                }
            }
        }
    }

    /// Changes that something stands in the way of.
    #[must_use]
    pub fn blocked(&self) -> usize {
        self.changes.iter().filter(|change| change.blocked.is_some()).count()
    }
}

/// A part in which a fault comes up is left as it is.
fn freeze(
    frozen: &mut BTreeSet<Part>,
    part: Part,
    targets: &mut Targets,
    gather: impl FnOnce(&mut Targets),
) {
    let before = targets.faults.len();
    gather(targets);
    if targets.faults.len() > before {
        frozen.insert(part);
    }
}

/// The part of the spec that asks for a setting.
const fn part(setting: Setting) -> Part {
    match setting {
        Setting::Hugepages { .. } => Part::Hugepages,
        Setting::TransparentHugepages => Part::TransparentHugepages,
        Setting::Ksm(_) => Part::Ksm,
        Setting::WorkqueueCpus
        | Setting::DefaultIrqAffinity
        | Setting::IrqAffinity(_)
        | Setting::AllowedCpus(_) => Part::Cpu,
    }
}

/// What a setting is now; `None` if this host has no such thing, or it cannot be read.
fn current(input: Input, setting: Setting) -> Option<Value> {
    let shape = input.shape;
    match setting {
        Setting::Hugepages { zone, size } => hugepages::pool(input.facts, zone, size)
            .map(|pool| Value::Number(hugepages::persistent(pool))),
        Setting::TransparentHugepages => shape.transparent_hugepages.clone().map(Value::Word),
        Setting::Ksm(setting) => shape.ksm.get(&setting).cloned(),
        Setting::WorkqueueCpus => shape.workqueues.clone().map(Value::Cpus),
        Setting::DefaultIrqAffinity => shape.default_irq.clone().map(Value::Cpus),
        Setting::IrqAffinity(number) => {
            let irq = shape.irqs.iter().find(|irq| irq.number == number)?;
            Some(Value::Cpus(irq.affinity.clone()))
        }
        Setting::AllowedCpus(unit) => shape.units.get(&unit).cloned().map(Value::Cpus),
    }
}

/// Marks what somebody else changed after Berth had set it. With `enforce: false` that is told and left,
/// and what of a group of settings has not drifted is a change of its own.
fn leave_drift(input: Input, changes: Vec<Change>) -> Vec<Change> {
    let drifted = |step: &Step| {
        let entry = input.facts.ledger.entries.get(&step.setting);
        entry.is_some_and(|entry| entry.set.as_ref() == Some(&step.asked))
    };
    let left = input.spec.enforce == Some(false);
    let mut judged = Vec::new();
    for mut change in changes {
        let steps = change.steps();
        let some_drifted = change.why == Why::Asked && steps.iter().any(drifted);
        let all_drifted = some_drifted && steps.iter().all(drifted);
        if left && some_drifted && !all_drifted {
            let (drift, rest) = steps.iter().cloned().partition(drifted);
            change.set_steps(rest);
            let mut apart = change.clone();
            apart.set_steps(drift);
            judged.push(change);
            change = apart;
        }
        change.drift = if left { some_drifted } else { all_drifted };
        if change.drift && left {
            change.blocked.get_or_insert_with(|| {
                "somebody changed it after Berth had set it, and spec.enforce is false".to_owned()
            });
        }
        judged.push(change);
    }
    judged
}

fn transparent_hugepages(input: Input, targets: &Targets) -> Option<Change> {
    let absent = "this kernel has no transparent huge pages";
    let effect = "applies to memory that programs ask for from now on";
    plain(input, targets, Setting::TransparentHugepages, absent, effect)
}

/// The change of a setting that is a value and nothing more.
fn plain(
    input: Input,
    targets: &Targets,
    setting: Setting,
    absent: &str,
    effect: &str,
) -> Option<Change> {
    let target = targets.of(setting)?;
    let Some(was) = current(input, setting) else {
        return Some(Change::impossible(setting, target, absent.to_owned()));
    };
    (was != target.value).then(|| {
        let change = Change::of(setting, was, target, Disruption::Low, effect.to_owned());
        change.blocked_by(targets.blocked.get(&setting).cloned())
    })
}

const fn thp_word(mode: TransparentHugepages) -> &'static str {
    match mode {
        TransparentHugepages::Always => "always",
        TransparentHugepages::Madvise => "madvise",
        TransparentHugepages::Never => "never",
    }
}

/// Memory that Berth leaves to the host when it takes some for itself: 128 MiB, or 2 % where that is more.
/// Below it the kernel swaps and kills before it says no.
fn kept_back(total: Option<Bytes>) -> u64 {
    total.map_or(0, |total| total.0 / 50).max(128 << 20)
}
