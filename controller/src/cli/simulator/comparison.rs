//! Comparison of the states before and after a simulated change, in the form of the web console.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Problem;
use berth_api::infra_node::Zone;
use berth_console::{
    FreeAmount, HostAfterChange, HostChange, HostEffect, HostMap, Interruption, InterruptionKind,
    NewPlacement, Refusal, Totals, VmWithoutHost, WhatIfReport,
};

use crate::plan::{
    ChangeEffect, Departure, FieldChange, HostRefusal, HostUsage, Outcome, Plan, ResourceUsage,
    VmOfChangedHost, VmResult,
};

/// Maximum number of hosts with maps of their CPUs.
const MAX_MAPS: usize = 20;

/// Compares two states. `problems` are those after the change.
pub(super) fn compare(before: &Outcome, after: Outcome) -> WhatIfReport {
    let with_host: BTreeSet<&str> = before.plan.placed.iter().map(|vm| vm.vm.as_str()).collect();
    let without_host: BTreeSet<&str> =
        before.plan.unplaced.iter().map(|vm| vm.vm.as_str()).collect();
    let Outcome { plan, zones } = after;
    let (maps, more_maps) = maps(&before.zones, zones);
    WhatIfReport {
        before: totals(&before.plan),
        after: totals(&plan),
        problems: texts(&plan.problems),
        placed: plan
            .placed
            .into_iter()
            .filter(|vm| !with_host.contains(vm.vm.as_str()))
            .map(|vm| NewPlacement { vm: vm.vm, host: vm.host, zones: vm.zones, cpus: vm.cpus })
            .collect(),
        unplaced: plan
            .unplaced
            .into_iter()
            .map(|one| VmWithoutHost {
                is_new: !without_host.contains(one.vm.as_str()),
                vm: one.vm,
                refusals: one.refusals.into_iter().map(refusal).collect(),
                remedy: one.remedy,
            })
            .collect(),
        maps,
        more_maps,
        ..WhatIfReport::default()
    }
}

fn totals(plan: &Plan) -> Totals {
    let sum = |usages: &dyn Fn(&HostUsage) -> Vec<ResourceUsage>| {
        plan.hosts.iter().flat_map(usages).fold(FreeAmount::default(), |sum, one| FreeAmount {
            free: sum.free.saturating_add(one.total.saturating_sub(one.used)),
            total: sum.total.saturating_add(one.total),
        })
    };
    Totals {
        hosts: plan.hosts.len(),
        waiting: plan.unplaced.len(),
        cpus: sum(&|host| host.zones.iter().map(|zone| zone.cpus).collect()),
        hugepages: sum(&|host| vec![host.hugepages]),
        memory: sum(&|host| vec![host.memory]),
    }
}

/// Returns the first hosts whose CPUs differ, and the number of further ones.
fn maps(
    before: &BTreeMap<String, Vec<Zone>>,
    after: BTreeMap<String, Vec<Zone>>,
) -> (Vec<HostMap>, usize) {
    let mut maps = Vec::new();
    let mut more = 0;
    for (host, after) in after {
        let before = before.get(&host);
        if before == Some(&after) {
            continue;
        }
        if maps.len() < MAX_MAPS {
            maps.push(HostMap { host, before: before.cloned(), after });
        } else {
            more += 1;
        }
    }
    (maps, more)
}

/// Converts a VM on a host to which a profile is applied.
pub(super) fn profile_interruption(vm: VmOfChangedHost) -> Interruption {
    let (kind, reason) = match vm.departure {
        Departure::Stays => (InterruptionKind::Stays, String::new()),
        Departure::Migrated => (InterruptionKind::Migrated, String::new()),
        Departure::NotManaged => (InterruptionKind::NotManaged, String::new()),
        Departure::Replaced(cause) => {
            (InterruptionKind::Replaced, format!("{}: {cause}", cause.as_str()))
        }
    };
    let after = match vm.result {
        VmResult::SameHost => HostAfterChange::Same,
        VmResult::OtherHost(host) => HostAfterChange::Other(host),
        VmResult::NoHost => HostAfterChange::None,
        VmResult::NotAccepted(reason) => HostAfterChange::NotAccepted(reason),
        VmResult::NetworkInterrupted => HostAfterChange::NetworkInterrupted,
    };
    Interruption { vm: vm.vm, host: vm.host, kind, reason, after }
}

/// Converts a changed field of a host.
pub(super) fn host_change(host: &str, change: FieldChange) -> HostChange {
    let effect = match change.effect {
        ChangeEffect::Immediate => HostEffect::Immediate,
        ChangeEffect::AfterDrain => HostEffect::AfterDrain,
        ChangeEffect::AfterLastVm => HostEffect::AfterLastVm,
        ChangeEffect::InterruptsNetwork => HostEffect::InterruptsNetwork,
        ChangeEffect::Unknown => HostEffect::Unknown,
    };
    let FieldChange { field, before, after, note, .. } = change;
    HostChange { host: host.to_owned(), field: field.to_owned(), before, after, effect, note }
}

/// Converts hosts that refuse a VM.
pub(super) fn refusal(refusal: HostRefusal) -> Refusal {
    let HostRefusal { reason, hosts, example, detail } = refusal;
    Refusal { hosts, reason, example, detail }
}

/// Returns the texts of problems.
pub(super) fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}
