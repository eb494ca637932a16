//! NUMA zones. A zone has the kernel's number of its NUMA node; the numbers may have gaps.

use berth_api::excerpt;
use berth_api::infra_node::{Memory, UnknownReason, Zone, ZoneDistance};

use super::hugepages;
use super::kernel_files::saturating_u32;
use super::memory::read_meminfo;
use super::topology::{Topology, read_list_or_mask};
use crate::notes::Notes;
use crate::root::Root;

const NODE_FOLDER: &str = "sys/devices/system/node";

/// Reads the zones, and sets the zone of each CPU in the topology.
///
/// A kernel without NUMA has no folder `/sys/devices/system/node`. The host then has one zone with the number 0, as the
/// kubelet also assumes. If the folder cannot be read, the zones are unknown.
pub fn observe(
    root: &Root,
    topology: &mut Topology,
    memory: &Memory,
    notes: &mut Notes,
) -> Vec<Zone> {
    let listed = root.list_numbered(NODE_FOLDER, "node");
    let Some(nodes) = notes.value_or_unknown("zones", listed) else { return Vec::new() };
    let nodes = nodes.iter().enumerate();
    let mut zones: Vec<Zone> =
        nodes.map(|(index, (id, _))| read_zone(root, index, *id, topology, notes)).collect();
    if zones.is_empty() {
        zones.extend(zone_without_numa(topology, memory));
    }
    if let [only] = zones.as_mut_slice() {
        only.memory = only.memory.or(memory.total);
        if only.hugepages.is_empty() {
            only.hugepages = memory.hugepages.clone();
            only.hugepages.iter_mut().for_each(|pool| pool.reserved = None);
        }
    }
    read_distances(root, &mut zones, notes);
    assign_zones_to_cpus(&zones, topology, notes);
    for (index, zone) in zones.iter().enumerate() {
        let path = |field: &str| format!("zones[{index}].{field}");
        let file = format!("/{NODE_FOLDER}/node{}", zone.id);
        if zone.cpus.is_none() {
            let message = format!("{file} contains neither cpulist nor cpumap");
            notes.add_unknown(path("cpus"), UnknownReason::NotFound, message);
        }
        if zone.memory.is_none() {
            let message = format!("{file}/meminfo has no valid MemTotal line");
            notes.add_unknown(path("memory"), UnknownReason::NotFound, message);
        }
    }
    zones
}

/// Reads a zone. `index` is its index in the status.
fn read_zone(root: &Root, index: usize, id: u32, topology: &Topology, notes: &mut Notes) -> Zone {
    let file = |name: &str| format!("{NODE_FOLDER}/node{id}/{name}");
    let cpus = notes
        .value_or_warning(read_list_or_mask(root, &file("cpulist"), &file("cpumap")))
        .map(|cpus| cpus.intersection(&topology.online));
    Zone {
        id,
        cores: cpus
            .as_ref()
            .filter(|_| topology.are_core_ids_known)
            .map(|cpus| saturating_u32(topology.cores_with_cpus(cpus).len())),
        cpus,
        memory: read_meminfo(root, &file("meminfo")).ok().and_then(|info| info.bytes("MemTotal")),
        hugepages: hugepages::read_pools(
            root,
            &file("hugepages"),
            &format!("zones[{index}].hugepages"),
            notes,
        ),
        ..Zone::default()
    }
}

fn zone_without_numa(topology: &Topology, memory: &Memory) -> Option<Zone> {
    let empty = topology.online.is_empty() && memory.total.is_none();
    (!empty).then(|| Zone {
        id: 0,
        cpus: Some(topology.online.clone()).filter(|cpus| !cpus.is_empty()),
        cores: topology.are_core_ids_known.then(|| saturating_u32(topology.core_count())),
        ..Zone::default()
    })
}

/// Reads the distances between zones. The file `distance` of a zone has one number for each online NUMA node, in
/// ascending order of the nodes' numbers. Gaps in the nodes' numbers have no entry in the file.
fn read_distances(root: &Root, zones: &mut [Zone], notes: &mut Notes) {
    let ids: Vec<u32> = zones.iter().map(|zone| zone.id).collect();
    for zone in zones {
        let file = format!("{NODE_FOLDER}/node{}/distance", zone.id);
        let Ok(text) = root.read(&file) else { continue };
        let numbers: Vec<Option<u32>> =
            text.split_whitespace().map(|number| number.parse().ok()).collect();
        if numbers.len() == ids.len() && numbers.iter().all(Option::is_some) {
            let pair = |(zone, distance): (&u32, Option<u32>)| {
                Some(ZoneDistance { zone: *zone, distance: distance? })
            };
            zone.distances = ids.iter().zip(numbers).filter_map(pair).collect();
        } else {
            notes.warn(
                format!("/{file}"),
                format!(
                    "`{}` does not have one number for each of {} zones",
                    excerpt(&text),
                    ids.len()
                ),
            );
        }
    }
}

/// Sets the zone of each CPU. If two zones contain the same CPU, which is an error of the firmware, assigns the CPU to
/// the first zone and adds a warning.
fn assign_zones_to_cpus(zones: &[Zone], topology: &mut Topology, notes: &mut Notes) {
    let mut overlaps: Vec<(u32, u32)> = Vec::new();
    for zone in zones {
        for id in zone.cpus.iter().flat_map(berth_api::CpuSet::iter) {
            let Some(cpu) = topology.cpus.get_mut(&id) else { continue };
            match cpu.zone {
                Some(first) if !overlaps.contains(&(first, zone.id)) => {
                    overlaps.push((first, zone.id));
                }
                Some(_) => {}
                None => cpu.zone = Some(zone.id),
            }
        }
    }
    let cpus_of = |id| zones.iter().find(|z| z.id == id).and_then(|z| z.cpus.clone());
    for (first, second) in overlaps {
        let (a, b) = (cpus_of(first).unwrap_or_default(), cpus_of(second).unwrap_or_default());
        notes.warn(
            format!("/{NODE_FOLDER}/node{second}/cpulist"),
            format!(
                "zones {first} and {second} overlap: both contain CPUs {}; the firmware's NUMA \
                 tables are wrong: update the firmware before you use exclusive CPUs",
                a.intersection(&b)
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_unknown_if_their_folder_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let memory = Memory { total: Some(berth_api::Bytes(1 << 30)), ..Memory::default() };
        let zone_ids = |notes: &mut Notes| {
            let zones = observe(&root, &mut Topology::default(), &memory, notes);
            zones.iter().map(|zone| zone.id).collect::<Vec<_>>()
        };
        let mut notes = Notes::default();
        assert_eq!(zone_ids(&mut notes), [0], "a kernel without NUMA");
        assert!(!notes.is_unknown("zones"));

        let node_folder = folder.path().join(NODE_FOLDER);
        std::fs::create_dir_all(node_folder.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("node", &node_folder).unwrap();
        assert_eq!(zone_ids(&mut notes), [0; 0], "link to itself");
        assert!(notes.is_unknown("zones"));
    }
}
