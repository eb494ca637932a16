//! Explains why a VM fits on no host, and suggests a remedy.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use berth_api::Bytes;
use serde::Serialize;

use super::build::PendingVm;
use super::request::VmRequest;
use super::scope;
use crate::fleet::Fleet;
use berth_kubelet_admission::{State, TopologyPolicy};
use berth_placement::engine::{Engine, Reason, Request, RequestClassKey};
use berth_placement::rules;

/// A VM that fits on no host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unplaced {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Resources that the VM requests.
    pub wants: VmRequest,
    /// Reasons why hosts refuse the VM, the most frequent reason first; each host is counted for one reason.
    pub refused: Vec<Refused>,
    /// Suggested remedy, as a sentence for the user.
    pub remedy: String,
}

/// Hosts that refuse the VM for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// Short text of the reason.
    pub reason: String,
    /// Number of these hosts.
    pub hosts: usize,
    /// Name of the one of these hosts that has the most free CPUs.
    pub example: String,
    /// Detailed reason of the host `example`.
    pub detail: String,
}

/// Explains why each pending VM fits on no host, after all other VMs have been placed. VMs of the same request class
/// share an explanation.
pub(super) fn explain_all(fleet: &Fleet, engine: &Engine, pending: &[&PendingVm]) -> Vec<Unplaced> {
    let mut known: HashMap<&RequestClassKey, Unplaced> = HashMap::new();
    let mut all = Vec::with_capacity(pending.len());
    for vm in pending {
        let Some(kind) = engine.class_key(&vm.request) else {
            all.push(explain(fleet, engine, vm));
            continue;
        };
        let answer = known.entry(kind).or_insert_with(|| explain(fleet, engine, vm));
        all.push(Unplaced { vm: vm.name.clone(), ..answer.clone() });
    }
    all
}

/// Explains why one VM fits on no host.
pub(super) fn explain(fleet: &Fleet, engine: &Engine, vm: &PendingVm) -> Unplaced {
    let mut by_reason: BTreeMap<String, (usize, u64, String, String)> = BTreeMap::new();
    let mut reasons = Vec::new();
    for (host, facts) in engine.hosts() {
        let Some(reason) = engine.rejection_reasons(&vm.request, host).into_iter().next() else {
            continue;
        };
        let short = reason.summary().into_owned();
        let entry = by_reason.entry(short).or_default();
        entry.0 += 1;
        let free = free_cpus(engine.state(host));
        if entry.2.is_empty() || entry.1 < free {
            (entry.1, entry.2, entry.3) =
                (free, facts.name.clone(), detail(engine, vm, host, &reason));
        }
        reasons.push((reason, host, facts.name.clone()));
    }
    let mut refused: Vec<Refused> = by_reason
        .into_iter()
        .map(|(reason, (hosts, _, example, detail))| Refused { reason, hosts, example, detail })
        .collect();
    refused.sort_by(|a, b| b.hosts.cmp(&a.hosts).then_with(|| a.reason.cmp(&b.reason)));
    Unplaced {
        vm: vm.name.clone(),
        wants: VmRequest::from_request(&vm.request),
        remedy: remedy(fleet, engine, &vm.request, &reasons),
        refused,
    }
}

/// Returns the detailed reason of one host. The kubelet's message for a host with insufficient zones does not mention
/// the zones, so the free resources of each zone are added.
fn detail(engine: &Engine, vm: &PendingVm, host: rules::HostId, reason: &Reason) -> String {
    let (Reason::Kubelet(refusal), Some(state)) = (reason, engine.state(host)) else {
        return reason.to_string();
    };
    let policy = state.host().kubelet().topology_policy;
    let size = vm.request.page_size();
    let zones = state.host().zone_numbers().zip(state.free_by_zone()).map(|(id, zone)| {
        let pages = size.map(|size| format!(" and {} of {size} pages", amount(zone.pages(size).0)));
        format!("zone {id} {} CPUs{}", zone.cpus, pages.unwrap_or_default())
    });
    let zones: Vec<String> = zones.take(8).collect();
    let why = match (refusal.reason.as_str(), policy) {
        ("TopologyAffinityError", TopologyPolicy::SingleNumaNode) => {
            "no zone has all requested resources".to_owned()
        }
        ("TopologyAffinityError", TopologyPolicy::Restricted) => {
            uneven_request_message(state, &vm.request).unwrap_or_else(|| {
                "no zones have all requested resources with as few zones as possible".to_owned()
            })
        }
        _ => refusal.plain.clone(),
    };
    format!(
        "{why}; free are: {} (the kubelet would say {}, its topology policy is {policy})",
        zones.join(", "),
        refusal.reason
    )
}

/// Returns a message for a VM whose CPUs and memory need different numbers of zones; `None` if the numbers are equal.
/// The policy `restricted` admits a pod only if its CPUs and its memory come from the same number of zones, where
/// each number is the minimum on an empty host: a VM with many CPUs and little memory is never admitted.
fn uneven_request_message(state: &State, request: &Request) -> Option<String> {
    let size = request.page_size()?;
    let wanted = request.pod().requests().hugepages.get(&size).copied()?;
    let zones: Vec<_> = state.free_by_zone().collect();
    let fewest = |wanted: u64, mut amounts: Vec<u64>| {
        amounts.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0_u64;
        let enough = amounts.iter().position(|amount| {
            sum = sum.saturating_add(*amount);
            sum >= wanted
        });
        enough.map(|at| at + 1)
    };
    let cpus = fewest(
        request.pinned_cpus().into(),
        zones.iter().map(|zone| zone.all_cpus.into()).collect(),
    )?;
    let pages = fewest(wanted, zones.iter().map(|zone| zone.pages(size).1).collect())?;
    (cpus != pages).then(|| {
        format!(
            "its CPUs need {cpus} zone{} and its memory {pages}, and the policy restricted wants as many of both",
            if cpus == 1 { "" } else { "s" }
        )
    })
}

fn amount(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { Bytes(bytes).human() }
}

fn free_cpus(state: Option<&State>) -> u64 {
    let zones = state.into_iter().flat_map(State::free_by_zone);
    zones.map(|zone| u64::from(zone.cpus)).max().unwrap_or_default()
}

/// Returns a remedy for the host that is closest to accepting the VM.
fn remedy(
    fleet: &Fleet,
    engine: &Engine,
    request: &Request,
    reasons: &[(Reason, rules::HostId, String)],
) -> String {
    let Some(nearest) = reasons.iter().map(|(reason, ..)| reason.report_rank()).min() else {
        return "there is no host: add InfraNodes to the input".to_owned();
    };
    let near = || reasons.iter().filter(|(reason, ..)| reason.report_rank() == nearest);
    let absent = near().find_map(|(reason, host, name)| match reason {
        Reason::Rule(rules::Reason::Resources { what, .. }) if what.contains('/') => {
            let has = engine.facts(*host)?.allocatable.extended.get(what).copied();
            (has.unwrap_or_default() == 0).then(|| missing_resource_remedy(what, name))
        }
        _ => None,
    });
    if let Some(absent) = absent {
        return absent;
    }
    if nearest <= 1 {
        let would = |host: rules::HostId| {
            let facts = engine.facts(host)?;
            let empty = State::new(&Arc::clone(&facts.admission));
            Some(empty.check(request.pod()))
        };
        let empty = near().find(|(_, host, _)| would(*host).is_some_and(|answer| answer.is_ok()));
        return match empty {
            Some((_, _, name)) => format!(
                "free resources of {name}, which could run it if it were empty, or add a host like it (--add {name})"
            ),
            None => {
                let hosts = || near().map(|(_, host, _)| *host);
                // Hosts that the scheduler's rules exclude are left out, because the kubelet's rules were not checked
                // for them.
                let refused = near().filter(|(reason, ..)| matches!(reason, Reason::Kubelet(_)));
                scope::remedy(fleet, engine, request, refused.map(|(_, host, _)| *host))
                    .unwrap_or_else(|| too_large(engine, request, hosts()))
            }
        };
    }
    let Some((reason, _, name)) = near().next() else { return String::new() };
    match reason {
        Reason::MergesPages => format!(
            "switch KSM off on {name} (HostProfile spec.ksm.mode: Off), or set another class for the VM ({})",
            berth_api::names::CLASS_LABEL
        ),
        Reason::SharesCpus => {
            format!("let the kubelet of {name} pin CPUs (cpuManagerPolicy: static)")
        }
        Reason::Stale(_) => format!("see why the agent of {name} does not report"),
        Reason::Unpredictable(_) => format!("see status.unknown of InfraNode {name}"),
        Reason::NoKvm(_) => format!("run `berth-agent check kvm` on {name}"),
        Reason::Rule(rule) => rule_remedy(rule, name),
        Reason::Kubelet(_) | Reason::Numa(_) | Reason::CpusInUse => String::new(),
    }
}

fn rule_remedy(rule: &rules::Reason, host: &str) -> String {
    match rule {
        rules::Reason::NodeSelector { wanted, .. } if wanted.contains("cpumanager=") => {
            format!(
                "let the kubelet of {host} pin CPUs (cpuManagerPolicy: static); `berth-agent check kubelet` says how"
            )
        }
        rules::Reason::Unschedulable => format!("kubectl uncordon {host}"),
        rules::Reason::Taint { key, .. } => {
            format!("add a toleration of taint {key} to the VM, or remove the taint from {host}")
        }
        rules::Reason::NodeSelector { wanted, .. } => {
            format!(
                "label a host that has free resources with {wanted}, or remove that from the VM's nodeSelector"
            )
        }
        rules::Reason::NodeAffinity { wanted } => {
            format!("label a host that has free resources so that it matches {wanted}")
        }
        rules::Reason::TopologySpread { key, .. } | rules::Reason::NoTopology { key } => {
            format!(
                "add hosts with another value of {key}, or set whenUnsatisfiable: ScheduleAnyway"
            )
        }
        rules::Reason::PodAffinity { key, .. } => {
            format!("free resources where those pods are ({key}), or make the affinity preferred")
        }
        rules::Reason::PodAntiAffinity { key, .. }
        | rules::Reason::ExistingAntiAffinity { key, .. } => {
            format!("add hosts with another value of {key}, or make the anti-affinity preferred")
        }
        _ => String::new(),
    }
}

/// Returns the remedy if the host lacks a resource.
fn missing_resource_remedy(what: &str, host: &str) -> String {
    match what.strip_prefix("devices.kubevirt.io/") {
        Some(device) => format!("{host} has no {device}: `berth-agent check kvm` says why"),
        None => format!(
            "{host} has no {what}: install its device plugin, or check why the plugin offers none"
        ),
    }
}

/// Returns the message for a VM that would fit on no host even if the hosts were empty.
fn too_large(
    engine: &Engine,
    request: &Request,
    hosts: impl Iterator<Item = rules::HostId>,
) -> String {
    let mut most: Option<(u32, &str, u32)> = None;
    let mut why = String::new();
    for host in hosts {
        let Some(facts) = engine.facts(host) else { continue };
        if why.is_empty()
            && let Err(refusal) = State::new(&facts.admission).check(request.pod())
        {
            why = refusal.plain;
        }
        for zone in &facts.zones {
            if most.is_none_or(|(cpus, ..)| cpus < zone.pinnable) {
                most = Some((zone.pinnable, &facts.name, zone.id));
            }
        }
    }
    match most.filter(|_| request.needs().is_pinned) {
        Some((0, ..)) | None => format!("no host could take it even if it were empty: {why}"),
        Some((cpus, name, zone)) => format!(
            "no host could take it even if it were empty; the largest zone has {cpus} pinnable CPUs ({name}, zone \
             {zone}): make the VM smaller, or give it a larger host"
        ),
    }
}
