//! Explains why a VM fits on no host, and suggests a remedy.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use berth_api::Bytes;
use serde::Serialize;

use super::build::PendingVm;
use super::request::VmRequest;
use super::topology_scope;
use crate::fleet::Fleet;
use berth_kubelet_admission::{HostState, TopologyPolicy};
use berth_placement::engine::{Engine, Reason, Request, RequestClassKey};
use berth_placement::rules;

/// A VM that fits on no host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnplacedVm {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Resources that the VM requests.
    #[serde(rename = "wants")]
    pub request: VmRequest,
    /// Reasons why hosts refuse the VM, the most frequent reason first; each host is counted for one reason.
    #[serde(rename = "refused")]
    pub refusals: Vec<HostRefusal>,
    /// Suggested remedy, as a sentence for the user.
    pub remedy: String,
}

/// Hosts that refuse the VM for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRefusal {
    /// Short form of the reason.
    pub reason: String,
    /// Number of these hosts.
    pub hosts: usize,
    /// Name of the host with the most free CPUs among these hosts.
    pub example: String,
    /// Detailed reason of the host `example`.
    pub detail: String,
}

/// Explains why each pending VM fits on no host, after all other VMs have been placed. VMs of the same request class
/// share an explanation.
pub(super) fn explain_all(
    fleet: &Fleet,
    engine: &Engine,
    pending: &[&PendingVm],
) -> Vec<UnplacedVm> {
    let mut known: HashMap<&RequestClassKey, UnplacedVm> = HashMap::new();
    let mut all = Vec::with_capacity(pending.len());
    for vm in pending {
        let Some(kind) = engine.class_key(&vm.request) else {
            all.push(explain(fleet, engine, vm, None));
            continue;
        };
        let explanation = known.entry(kind).or_insert_with(|| explain(fleet, engine, vm, None));
        all.push(UnplacedVm { vm: vm.name.clone(), ..explanation.clone() });
    }
    all
}

/// Explains why one VM fits on no host except `excluded`, the host that it must leave.
pub(super) fn explain(
    fleet: &Fleet,
    engine: &Engine,
    vm: &PendingVm,
    excluded: Option<rules::HostId>,
) -> UnplacedVm {
    let mut by_reason: BTreeMap<String, (usize, u64, String, String)> = BTreeMap::new();
    let mut reasons = Vec::new();
    for (host, facts) in engine.hosts().filter(|(host, _)| Some(*host) != excluded) {
        let Some(reason) = engine.rejection_reasons(&vm.request, host).into_iter().next() else {
            continue;
        };
        let summary = reason.summary().into_owned();
        let entry = by_reason.entry(summary).or_default();
        entry.0 += 1;
        let free = free_cpus(engine.kubelet_state(host));
        if entry.2.is_empty() || entry.1 < free {
            (entry.1, entry.2, entry.3) =
                (free, facts.name.clone(), format_detail(engine, vm, host, &reason));
        }
        reasons.push((reason, host, facts.name.clone()));
    }
    let mut refused: Vec<HostRefusal> = by_reason
        .into_iter()
        .map(|(reason, (hosts, _, example, detail))| HostRefusal { reason, hosts, example, detail })
        .collect();
    refused.sort_by(|a, b| b.hosts.cmp(&a.hosts).then_with(|| a.reason.cmp(&b.reason)));
    UnplacedVm {
        vm: vm.name.clone(),
        request: VmRequest::from_request(&vm.request),
        remedy: match excluded {
            Some(_) if reasons.is_empty() => "there is no other host: add a host".to_owned(),
            _ => remedy(fleet, engine, &vm.request, &reasons),
        },
        refusals: refused,
    }
}

/// Returns the detailed reason of one host. The kubelet's message for a host with insufficient zones does not mention
/// the zones, so the free resources of each zone are added.
fn format_detail(engine: &Engine, vm: &PendingVm, host: rules::HostId, reason: &Reason) -> String {
    let (Reason::Kubelet(refusal), Some(state)) = (reason, engine.kubelet_state(host)) else {
        return reason.to_string();
    };
    let policy = state.host().kubelet().topology_policy;
    let size = vm.request.page_size();
    let zones = state.host().zone_numbers().zip(state.free_by_zone()).map(|(id, zone)| {
        let pages = size.map(|size| {
            format!(" and {} of {size} pages", format_amount(zone.free_and_total_pages(size).0))
        });
        format!("zone {id} {} CPUs{}", zone.cpus, pages.unwrap_or_default())
    });
    let zones: Vec<String> = zones.take(8).collect();
    let explanation = match (refusal.reason.as_str(), policy) {
        ("TopologyAffinityError", TopologyPolicy::SingleNumaNode) => {
            "no zone has all requested resources".to_owned()
        }
        ("TopologyAffinityError", TopologyPolicy::Restricted) => {
            uneven_request_message(state, &vm.request).unwrap_or_else(|| {
                "no combination of the minimum number of zones has all requested resources"
                    .to_owned()
            })
        }
        _ => refusal.explanation.clone(),
    };
    format!(
        "{explanation}; free: {} (the kubelet would reject the pod with {}; its topology policy is {policy})",
        zones.join(", "),
        refusal.reason
    )
}

/// Returns a message for a VM whose CPUs and memory need different numbers of zones; `None` if the numbers are equal.
/// The policy `restricted` admits a pod only if its CPUs and its memory come from the same number of zones, where
/// each number is the minimum on an empty host: a VM with many CPUs and little memory is never admitted.
fn uneven_request_message(state: &HostState, request: &Request) -> Option<String> {
    let size = request.page_size()?;
    let wanted = request.pod().requests().hugepages.get(&size).copied()?;
    let zones: Vec<_> = state.free_by_zone().collect();
    let min_zones = |wanted: u64, mut amounts: Vec<u64>| {
        amounts.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0_u64;
        let index = amounts.iter().position(|amount| {
            sum = sum.saturating_add(*amount);
            sum >= wanted
        });
        index.map(|at| at + 1)
    };
    let cpus = min_zones(
        request.pinned_cpus().into(),
        zones.iter().map(|zone| zone.total_cpus.into()).collect(),
    )?;
    let pages =
        min_zones(wanted, zones.iter().map(|zone| zone.free_and_total_pages(size).1).collect())?;
    (cpus != pages).then(|| {
        format!(
            "its CPUs need {cpus} zone{} and its memory needs {pages}; the policy restricted requires equal numbers",
            if cpus == 1 { "" } else { "s" }
        )
    })
}

fn format_amount(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { Bytes(bytes).to_human_readable() }
}

fn free_cpus(state: Option<&HostState>) -> u64 {
    let zones = state.into_iter().flat_map(HostState::free_by_zone);
    zones.map(|zone| u64::from(zone.cpus)).max().unwrap_or_default()
}

/// Returns a remedy for the host that is closest to accepting the VM.
fn remedy(
    fleet: &Fleet,
    engine: &Engine,
    request: &Request,
    reasons: &[(Reason, rules::HostId, String)],
) -> String {
    let Some(lowest_rank) = reasons.iter().map(|(reason, ..)| reason.report_rank()).min() else {
        return "there is no host: add InfraNodes to the input".to_owned();
    };
    let lowest_ranked =
        || reasons.iter().filter(|(reason, ..)| reason.report_rank() == lowest_rank);
    let absent = lowest_ranked().find_map(|(reason, host, name)| match reason {
        Reason::Rule(rules::Reason::InsufficientResource { resource: what, .. })
            if what.contains('/') =>
        {
            let allocatable = engine.reported_host(*host)?.allocatable.extended.get(what).copied();
            (allocatable.unwrap_or_default() == 0).then(|| missing_resource_remedy(what, name))
        }
        _ => None,
    });
    if let Some(absent) = absent {
        return absent;
    }
    if lowest_rank <= 1 {
        let check_when_empty = |host: rules::HostId| {
            let facts = engine.reported_host(host)?;
            let empty = HostState::new(&Arc::clone(&facts.admission));
            Some(empty.check(request.pod()))
        };
        let fitting_host = lowest_ranked()
            .find(|(_, host, _)| check_when_empty(*host).is_some_and(|answer| answer.is_ok()));
        return match fitting_host {
            Some((_, _, name)) => format!(
                "free resources on {name}, which could run the VM if the host were empty, or add \
                 a similar host (--add {name})"
            ),
            None => {
                let hosts = || lowest_ranked().map(|(_, host, _)| *host);
                // Hosts that the scheduler's rules exclude are left out, because the kubelet's rules were not checked
                // for them.
                let refused =
                    lowest_ranked().filter(|(reason, ..)| matches!(reason, Reason::Kubelet(_)));
                topology_scope::pod_scope_remedy(
                    fleet,
                    engine,
                    request,
                    refused.map(|(_, host, _)| *host),
                )
                .unwrap_or_else(|| too_large_message(engine, request, hosts()))
            }
        };
    }
    let Some((reason, _, name)) = lowest_ranked().next() else { return String::new() };
    match reason {
        Reason::MergesPages => format!(
            "disable KSM on {name} (HostProfile spec.ksm.mode: Off), or set another class for the \
             VM ({})",
            berth_api::names::CLASS_LABEL
        ),
        Reason::NoStaticCpuPolicy => {
            format!("configure the kubelet of {name} to pin CPUs (cpuManagerPolicy: static)")
        }
        Reason::StaleReport(_) => format!("find out why the agent of {name} does not report"),
        Reason::Unpredictable(_) => {
            format!("see status.unknown of InfraNode {name} for the reason")
        }
        Reason::NoKvm(_) => format!("run `berth-agent check kvm` on {name}"),
        Reason::Rule(rule) => rule_remedy(rule, name),
        Reason::Kubelet(_) | Reason::InsufficientZoneMemory(_) | Reason::CpusInUse => String::new(),
    }
}

fn rule_remedy(rule: &rules::Reason, host: &str) -> String {
    match rule {
        rules::Reason::NodeSelector { required: wanted, .. } if wanted.contains("cpumanager=") => {
            format!(
                "configure the kubelet of {host} to pin CPUs (cpuManagerPolicy: static); \
                 `berth-agent check kubelet` shows how"
            )
        }
        rules::Reason::Unschedulable => format!("uncordon the host: kubectl uncordon {host}"),
        rules::Reason::Taint { key, .. } => {
            format!("add a toleration of taint {key} to the VM, or remove the taint from {host}")
        }
        rules::Reason::NodeSelector { required: wanted, .. } => {
            format!(
                "label a host that has free resources with {wanted}, or remove this label from \
                 the VM's nodeSelector"
            )
        }
        rules::Reason::NodeAffinity { required: wanted } => {
            format!("label a host that has free resources so that it matches {wanted}")
        }
        rules::Reason::VolumeNodeAffinity { claim, .. } => {
            format!(
                "free resources on a host that can use the volume of PersistentVolumeClaim {claim}"
            )
        }
        rules::Reason::VolumeSelectedNode { node, .. } => {
            format!("free resources on {node}, where the VM's volume is provisioned")
        }
        rules::Reason::VolumeTopology { class, required: wanted } => format!(
            "label a host that has free resources so that it matches {wanted}, or use another \
             StorageClass than {class}"
        ),
        rules::Reason::InsufficientStorage { class, host, .. } => format!(
            "free storage of class {class} on {host}, use another StorageClass, or add a host \
             (--add {host})"
        ),
        rules::Reason::TopologySpread { key, .. } | rules::Reason::MissingTopologyLabel { key } => {
            format!(
                "add hosts with another value of {key}, or set whenUnsatisfiable: ScheduleAnyway"
            )
        }
        rules::Reason::PodAffinity { key, .. } => {
            format!(
                "free resources in the topology domain of those pods ({key}), or make the \
                 affinity preferred"
            )
        }
        rules::Reason::PodAntiAffinity { key, .. }
        | rules::Reason::ExistingAntiAffinity { key, .. } => {
            format!("add hosts with another value of {key}, or make the anti-affinity preferred")
        }
        _ => String::new(),
    }
}

/// Returns the remedy if the host lacks a resource.
fn missing_resource_remedy(resource: &str, host: &str) -> String {
    match resource.strip_prefix("devices.kubevirt.io/") {
        Some(device) => format!("{host} has no {device}: `berth-agent check kvm` shows why"),
        None => format!(
            "{host} has no {resource}: install its device plugin, or check why the plugin \
             advertises none"
        ),
    }
}

/// Returns the message for a VM that would fit on no host even if the hosts were empty.
fn too_large_message(
    engine: &Engine,
    request: &Request,
    hosts: impl Iterator<Item = rules::HostId>,
) -> String {
    let mut largest_zone: Option<(u32, &str, u32)> = None;
    let mut first_refusal = String::new();
    for host in hosts {
        let Some(facts) = engine.reported_host(host) else { continue };
        if first_refusal.is_empty()
            && let Err(refusal) = HostState::new(&facts.admission).check(request.pod())
        {
            first_refusal = refusal.explanation;
        }
        for zone in &facts.zones {
            if largest_zone.is_none_or(|(cpus, ..)| cpus < zone.pinnable_cpus) {
                largest_zone = Some((zone.pinnable_cpus, &facts.name, zone.id));
            }
        }
    }
    match largest_zone.filter(|_| request.vm_requirements().is_pinned) {
        Some((0, ..)) | None => {
            format!("the VM would fit on no host, even on an empty one: {first_refusal}")
        }
        Some((cpus, name, zone)) => format!(
            "the VM would fit on no host, even on an empty one; the largest zone has {cpus} \
             pinnable CPUs ({name}, zone \
             {zone}): make the VM smaller, or add a larger host"
        ),
    }
}
