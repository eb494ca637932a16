//! Huge pages: the number of pages of each zone, and the memory that is available for them.
//!
//! A pool is never shrunk below its used pages. A page counts as used if it is mapped, reserved by
//! the kernel, or reserved by the kubelet's Memory Manager; the largest of these numbers counts. The
//! kernel itself would accept a lower number and turn used pages into surplus pages, which disappear
//! when they are freed.

use std::collections::BTreeMap;

use berth_api::infra_node::{HugepagePool, HugepagesSpec, Zone};
use berth_api::{Bytes, PageSize};

use super::change::{Action, Change, ChangeReason, Disruption};
use super::current::{current_setting_value, find_pool};
use super::field_path::FieldPath;
use super::input::Input;
use super::kubelet::{self, PoolClaim};
use super::memory_reserve::host_memory_reserve;
use super::target::{Target, Targets};
use crate::manifest::Fault;
use berth_host_facts::HostFacts;
use berth_host_facts::setting::{Setting, SettingValue};

/// Adds the targets of the spec, for each page size and zone.
pub(super) fn add_targets(input: Input, targets: &mut Targets) {
    let mut desired: BTreeMap<(PageSize, u32), (usize, u64)> = BTreeMap::new();
    let specs = &input.spec.hugepages;
    for (index, spec) in specs.iter().enumerate() {
        let path = FieldPath::spec("hugepages").item(index);
        let is_duplicate = specs[..index].iter().any(|earlier| is_same_pool(earlier, spec));
        let fault = if is_duplicate {
            let where_ =
                spec.zone.map_or_else(|| "every zone".to_owned(), |zone| format!("zone {zone}"));
            let message = format!(
                "pages of this size are requested twice in {where_}; specify each pool once"
            );
            Some(path.child("size").fault(spec.size, message))
        } else {
            find_fault(input.facts, spec, &path)
        };
        if let Some(fault) = fault {
            targets.faults.push(fault);
            continue;
        }
        for (zone, count) in pages_by_zone(input.facts, spec) {
            desired.insert((spec.size, zone), (index, count));
        }
    }
    check_zone_memory(input.facts, &mut desired, targets);
    for ((size, zone), (_, count)) in desired {
        targets.set_target(Setting::Hugepages { zone, size }, SettingValue::Number(count));
    }
}

const fn is_same_pool(a: &HugepagesSpec, b: &HugepagesSpec) -> bool {
    let same_size = a.size.bytes() == b.size.bytes();
    same_size
        && match (a.zone, b.zone) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
}

fn find_fault(facts: &HostFacts, spec: &HugepagesSpec, path: &FieldPath) -> Option<Fault> {
    if facts.zones.is_empty() {
        return Some(path.child("size").fault(spec.size, "the zones of this host are not known"));
    }
    if let Some(id) = spec.zone
        && !facts.zones.iter().any(|zone| zone.id == id)
    {
        let ids: Vec<String> = facts.zones.iter().map(|zone| zone.id.to_string()).collect();
        let message = format!("this host has no such zone; it has {}", ids.join(", "));
        return Some(path.child("zone").fault(id, message));
    }
    if let Some(id) = find_unknown_zone(facts, spec) {
        let message = format!("the huge page pools of zone {id} cannot be read");
        return Some(path.child("size").fault(spec.size, message));
    }
    let missing = pages_by_zone(facts, spec)
        .iter()
        .any(|(zone, _)| find_pool(facts, *zone, spec.size).is_none());
    if missing || pages_by_zone(facts, spec).is_empty() {
        let pools = facts.zones.iter().flat_map(|zone| &zone.hugepages);
        let mut sizes: Vec<PageSize> = pools.map(|pool| pool.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let sizes: Vec<String> = sizes.iter().map(PageSize::to_string).collect();
        let available_sizes = if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
        let message =
            format!("the kernel of this host has no pages of this size; it has {available_sizes}");
        return Some(path.child("size").fault(spec.size, message));
    }
    None
}

/// Returns the first zone of the spec whose pools are unknown. Without this zone, the other zones would get its share.
/// If the host has only one zone, its pools may be known from those of the whole host.
fn find_unknown_zone(facts: &HostFacts, spec: &HugepagesSpec) -> Option<u32> {
    let is_concerned = |zone: &Zone| match spec.zone {
        Some(id) => zone.id == id,
        None => zone.cpus.as_ref().is_none_or(|cpus| !cpus.is_empty()),
    };
    let mut zones = facts.zones.iter().enumerate();
    let unknown = zones.find(|(index, zone)| {
        zone.hugepages.is_empty()
            && is_concerned(zone)
            && facts.notes.is_unknown(&format!("zones[{index}].hugepages"))
    });
    unknown.map(|(_, zone)| zone.id)
}

/// Returns the number of pages of each zone: all pages in the zone that the spec names, otherwise an
/// even share for each zone with CPUs. The remainder goes to the zones with the lowest numbers.
fn pages_by_zone(facts: &HostFacts, spec: &HugepagesSpec) -> Vec<(u32, u64)> {
    if let Some(zone) = spec.zone {
        return vec![(zone, spec.count)];
    }
    let with_cpus = |zone: &&Zone| zone.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
    // A zone without memory has no pools; such zones exist on boards with memory in half of their
    // sockets.
    let with_pool = |zone: &&Zone| find_pool(facts, zone.id, spec.size).is_some();
    let zones = facts.zones.iter().filter(with_cpus).filter(with_pool);
    let zones: Vec<u32> = zones.map(|zone| zone.id).collect();
    let n = zones.len() as u64;
    zones
        .into_iter()
        .zip(0u64..)
        .map(|(zone, index)| (zone, spec.count / n + u64::from(index < spec.count % n)))
        .collect()
}

/// Adds a fault if a zone would have more huge pages than memory, which can only be a mistake, and removes the targets
/// of this zone.
fn check_zone_memory(
    facts: &HostFacts,
    desired: &mut BTreeMap<(PageSize, u32), (usize, u64)>,
    targets: &mut Targets,
) {
    for zone in &facts.zones {
        let Some(memory) = zone.memory else { continue };
        let here = desired.clone();
        let in_zone = here.iter().filter(|((_, id), _)| *id == zone.id);
        let mut sum: u64 = 0;
        for ((size, _), (index, count)) in in_zone {
            sum = sum.saturating_add(size.bytes().saturating_mul(*count));
            if sum > memory.0 {
                let message = format!(
                    "zone {} has {} of memory, but the requested pages need {}",
                    zone.id,
                    memory.to_human_readable(),
                    Bytes(sum).to_human_readable()
                );
                let path = FieldPath::spec("hugepages").item(index).child("count");
                targets.faults.push(path.fault(count, message));
                desired.retain(|(_, id), _| *id != zone.id);
                break;
            }
        }
    }
}

/// Returns the changes: first the pools that shrink, because a smaller pool frees memory; then the pools that grow, the
/// largest page size first, because the largest pages need the longest contiguous free memory.
pub(super) fn plan_changes(input: Input, targets: &Targets) -> Vec<Change> {
    let mut spare_pages = pages_above_limits(input);
    let limits_unknown = input
        .settings
        .pods
        .hugepage_limits_error
        .as_ref()
        .map(|error| format!("the limits of the pods on this host cannot be read: {error}"));
    let mut room = input.settings.available_memory_by_zone.clone();
    let mut changes = Vec::new();
    let mut grow = Vec::new();
    let mut stale_checkpoint = None;
    for (setting, target) in &targets.values {
        let Setting::Hugepages { zone, size } = *setting else { continue };
        let Some(SettingValue::Number(now)) = current_setting_value(input, *setting) else {
            let reason = "this zone has no pool of huge pages of this size".to_owned();
            changes.push(Change::unsupported_setting(*setting, target, reason));
            continue;
        };
        let (target, fixed) = allowed_target(input, (zone, size), now, target);
        let SettingValue::Number(desired) = target.value else { continue };
        if desired == now {
            stale_checkpoint =
                stale_checkpoint.or_else(|| conflicting_checkpoint(input, (zone, size), now));
        } else if desired < now {
            let mut change = shrink_pool(input, *setting, (zone, size), now, &target);
            change.removes.extend(conflicting_checkpoint(input, (zone, size), desired));
            let spare = spare_pages.entry(size).or_default();
            let pod_limits_exceeded = (now - desired > *spare).then(|| {
                "the limits of the pods on this host exceed the pages of this size that would remain"
                    .to_owned()
            });
            *spare = spare.saturating_sub(now - desired);
            let change = change.blocked_by(limits_unknown.clone());
            let change = change.blocked_by(pod_limits_exceeded).blocked_by(fixed);
            if let (None, Some(room)) = (&change.blocked, room.get_mut(&zone)) {
                room.0 = room.0.saturating_add((now - desired).saturating_mul(size.bytes()));
            }
            changes.push(change);
        } else {
            grow.push((size, *setting, zone, now, target, fixed));
        }
    }
    grow.sort_by_key(|(size, ..)| std::cmp::Reverse(*size));
    for (size, setting, zone, now, target, fixed) in grow {
        let room = room.get_mut(&zone);
        let change = grow_pool(input, setting, (zone, size), room.as_deref(), now, &target);
        let mut change = change.blocked_by(fixed);
        if let [step] = change.steps()
            && let SettingValue::Number(pages) = step.new_value
        {
            // Memory that this change allocates is not available to the next change.
            if let (None, Some(room)) = (&change.blocked, room) {
                room.0 = room.0.saturating_sub((pages - now).saturating_mul(size.bytes()));
            }
            change.removes.extend(conflicting_checkpoint(input, (zone, size), pages));
        }
        changes.push(change);
    }
    // Any other change that removes the stale checkpoint makes a separate change unnecessary.
    let stale = stale_checkpoint.filter(|_| changes.iter().all(|change| change.removes.is_empty()));
    changes.extend(stale.map(kubelet::remove_checkpoint));
    changes
}

/// Returns the target that the kubelet allows for a pool, and the reason if the desired target is blocked. If the pages
/// were changed under a running kubelet, or by a reboot, the target is the number that the kubelet has counted, because
/// otherwise the kubelet would not start again.
fn allowed_target(
    input: Input,
    (zone, size): (u32, PageSize),
    now: u64,
    target: &Target,
) -> (Target, Option<String>) {
    let is_target = |pages: u64| target.value == SettingValue::Number(pages);
    match kubelet::memory_manager_claim(input, zone, size) {
        PoolClaim::FixedPageCount(Some(pages), _) if pages != now && !is_target(pages) => {
            (Target { value: SettingValue::Number(pages), reason: ChangeReason::Spec }, None)
        }
        PoolClaim::FixedPageCount(pages, reason) if pages.is_none_or(|pages| !is_target(pages)) => {
            (target.clone(), Some(reason))
        }
        PoolClaim::Unclaimed
        | PoolClaim::RemovableCheckpoint(..)
        | PoolClaim::FixedPageCount(..) => (target.clone(), None),
    }
}

/// Returns the path of the Memory Manager's checkpoint, if the checkpoint may be removed, and has another number of
/// these pages than the pool will have.
fn conflicting_checkpoint(
    input: Input,
    (zone, size): (u32, PageSize),
    will_be: u64,
) -> Option<String> {
    match kubelet::memory_manager_claim(input, zone, size) {
        PoolClaim::RemovableCheckpoint(pages, file) if pages != Some(will_be) => Some(file),
        _ => None,
    }
}

/// Returns the number of pages of each size that remain when the limits of all pods are subtracted. A kubelet that
/// finds fewer pages at its start than the limits of running pods refuses these pods.
fn pages_above_limits(input: Input) -> BTreeMap<PageSize, u64> {
    let pools = input.facts.memory.hugepages.iter();
    let pod_limits = &input.settings.pods.hugepage_limits;
    pools
        .map(|pool| {
            (pool.size, pool.total.saturating_sub(*pod_limits.get(&pool.size).unwrap_or(&0)))
        })
        .collect()
}

fn shrink_pool(
    input: Input,
    setting: Setting,
    (zone, size): (u32, PageSize),
    now: u64,
    target: &Target,
) -> Change {
    let SettingValue::Number(desired) = target.value else {
        return Change::unsupported_setting(setting, target, String::new());
    };
    let freed = Bytes((now - desired).saturating_mul(size.bytes()));
    let effect = format!("releases {} of memory in zone {zone}", freed.to_human_readable());
    let used = used_pages(input.facts, zone, size);
    let blocked = (desired < used).then(|| {
        format!(
            "{used} of the {now} pages are in use or reserved for pods; migrate the VMs that use them first"
        )
    });
    Change::for_setting(setting, SettingValue::Number(now), target, Disruption::Low, effect)
        .blocked_by(blocked)
}

fn grow_pool(
    input: Input,
    setting: Setting,
    (zone, size): (u32, PageSize),
    available_memory: Option<&Bytes>,
    now: u64,
    target: &Target,
) -> Change {
    let SettingValue::Number(desired) = target.value else {
        return Change::unsupported_setting(setting, target, String::new());
    };
    let taken = Bytes((desired - now).saturating_mul(size.bytes()));
    let effect = format!("allocates {} of memory in zone {zone}", taken.to_human_readable());
    let mut change =
        Change::for_setting(setting, SettingValue::Number(now), target, Disruption::Low, effect);
    let Some(room) = available_memory else { return change };
    let memory =
        input.facts.zones.iter().find(|known| known.id == zone).and_then(|zone| zone.memory);
    let host_reserve = host_memory_reserve(memory);
    let max_pages = now + room.0.saturating_sub(host_reserve) / size.bytes();
    if max_pages >= desired {
        return change;
    }
    let shortage = format!(
        "zone {zone} has {} available, of which Berth leaves {} for the host",
        room.to_human_readable(),
        Bytes(host_reserve).to_human_readable()
    );
    if max_pages <= now {
        return change.blocked_by(Some(format!("insufficient memory: {shortage}")));
    }
    if let Action::Set(steps) = &mut change.action
        && let Some(step) = steps.first_mut()
    {
        step.new_value = SettingValue::Number(max_pages);
        change.will_be = format!("{max_pages} of {desired}");
        change.effect = format!("{}; {shortage}", change.effect);
    }
    change
}

/// Returns the number of pages of a zone that are in use or reserved.
fn used_pages(facts: &HostFacts, zone: u32, size: PageSize) -> u64 {
    let in_use = |pool: &HugepagePool| pool.total.saturating_sub(pool.free.unwrap_or(pool.total));
    let used_in_zone = find_pool(facts, zone, size).map_or(0, in_use);
    // The kernel reserves pages for the whole host. Reserved pages that the free pages of other zones do not cover must
    // come from this zone.
    let host = facts.memory.hugepages.iter().find(|pool| pool.size == size);
    let reserved = host.and_then(|pool| pool.reserved).unwrap_or(0);
    let free_elsewhere: u64 = facts
        .zones
        .iter()
        .filter(|other| other.id != zone)
        .filter_map(|other| find_pool(facts, other.id, size)?.free)
        .sum();
    let by_kernel = used_in_zone.saturating_add(reserved.saturating_sub(free_elsewhere));
    let by_kubelet = facts.kubelet.memory_state.as_ref().map_or(0, |state| {
        let table = state.machine_state.get(&zone);
        let table = table.and_then(|zone| zone.memory_map.get(&size.resource_name()));
        table.map_or(0, |table| table.reserved / size.bytes())
    });
    by_kernel.max(by_kubelet)
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::{InfraNodeSpec, UnknownReason};
    use berth_host_facts::host_settings::HostSettings;
    use berth_host_facts::root::{ReadError, ReadProblem};

    use super::*;
    use crate::manifest::UnparsedParts;

    #[test]
    fn pool_is_not_shrunk_while_the_limits_of_pods_are_unknown() {
        let size = PageSize::MIB_2;
        let pool = HugepagePool { size, total: 8, free: Some(8), surplus: None, reserved: None };
        let zones = vec![Zone { hugepages: vec![pool.clone()], ..Zone::default() }];
        let mut facts = HostFacts { zones, ..HostFacts::default() };
        facts.memory.hugepages = vec![pool];
        let (spec, unparsed) = (InfraNodeSpec::default(), UnparsedParts::default());
        let blocked = |settings: &HostSettings, pages: u64| {
            let input =
                Input { spec: &spec, unparsed: &unparsed, facts: &facts, settings, leases: None };
            let mut targets = Targets::default();
            targets.set_target(Setting::Hugepages { zone: 0, size }, SettingValue::Number(pages));
            let changes = plan_changes(input, &targets);
            assert_eq!(changes.len(), 1);
            changes.into_iter().find_map(|change| change.blocked)
        };
        let mut settings = HostSettings::default();
        assert_eq!(blocked(&settings, 4), None);
        let error = ReadError { path: "kubepods".to_owned(), problem: ReadProblem::NoPermission };
        settings.pods.hugepage_limits_error = Some(error);
        assert!(blocked(&settings, 4).is_some_and(|reason| reason.contains("/kubepods: ")));
        assert_eq!(blocked(&settings, 16), None);
    }

    #[test]
    fn zone_with_unknown_pools_is_not_a_zone_without_pools() {
        let pool = HugepagePool {
            size: PageSize::MIB_2,
            total: 8,
            free: None,
            surplus: None,
            reserved: None,
        };
        let cpus = |list: &str| Some(list.parse().unwrap());
        let zones = vec![
            Zone { id: 0, cpus: cpus("0-3"), hugepages: vec![pool], ..Zone::default() },
            Zone { id: 2, cpus: cpus("4-7"), ..Zone::default() },
        ];
        let mut facts = HostFacts { zones, ..HostFacts::default() };
        let fault = |facts: &HostFacts, zone: Option<u32>| {
            let spec = HugepagesSpec { size: PageSize::MIB_2, zone, count: 16 };
            let fault = find_fault(facts, &spec, &FieldPath::spec("hugepages").item(0));
            fault.map(|fault| fault.message)
        };
        assert_eq!(fault(&facts, None), None, "zone 2 has no memory");
        facts.notes.add_unknown("zones[1].hugepages", UnknownReason::Unreadable, "");
        let unknown = Some("the huge page pools of zone 2 cannot be read".to_owned());
        assert_eq!(fault(&facts, None), unknown);
        assert_eq!(fault(&facts, Some(2)), unknown);
        assert_eq!(fault(&facts, Some(0)), None);
        facts.zones[1].cpus = cpus("");
        assert_eq!(fault(&facts, None), None, "zone 2 gets no share");
    }
}
