//! Selection of CPUs by the CPU Manager of 1.22 and earlier: `takeByTopology` in cpumanager/cpu_assignment.go of those
//! versions.
//!
//! This algorithm considers sockets, not zones. Its comparison is inconsistent: for some pairs of sockets or cores,
//! each of the two compares as less than the other. The result of sorting such a pair depends on the iteration order of
//! a Go map or on the sort algorithm of the Go release. This module uses the order that the kubelet's comments
//! document, and reports whether another order was possible.

use super::cpu_bits::CpuBits;
use super::host::{HostCore, KubeletHost};
use super::refusal::Reason;
use super::take_packed::CpuAccumulator;

/// Takes `requested` CPUs from the available CPUs. The returned bool is false if the kubelet might take other CPUs.
pub(super) fn take_by_topology(
    host: &KubeletHost,
    available: &CpuBits,
    requested: i64,
) -> Result<(CpuBits, bool), Reason> {
    let mut accumulator = CpuAccumulator::new(host, available, requested);
    let mut is_deterministic = true;
    if accumulator.is_done() {
        return Ok((accumulator.taken_cpus, is_deterministic));
    }
    accumulator.check_enough_cpus()?;
    // Before 1.23, the kubelet computes the size of a socket with the number of zones instead of the number of sockets
    // (`NumSockets: len(machineInfo.Topology)` in topology.go).
    let zones = host.zones.len().max(1);
    let per_socket = u32::try_from(host.cpus.len() / zones).unwrap_or(u32::MAX);
    for socket in &host.sockets {
        let free = accumulator.free_cpus.intersection(&socket.cpus);
        if accumulator.needed_cpus >= i64::from(per_socket) && free.count() == per_socket {
            accumulator.take_cpus(&free);
        }
    }
    let per_core = i64::from(host.cpus_per_core);
    if !accumulator.is_done() && accumulator.needed_cpus >= per_core {
        is_deterministic &= take_cores(&mut accumulator, per_core);
    }
    if !accumulator.is_done() {
        is_deterministic &= take_threads(&mut accumulator);
    }
    if accumulator.is_done() {
        return Ok((accumulator.taken_cpus, is_deterministic));
    }
    Err(Reason::CpuError("failed to allocate cpus".to_owned()))
}

/// Takes whole free cores, beginning with the cores of the socket that has the fewest whole free cores (`freeCores`).
/// Returns false if the kubelet might take other cores.
fn take_cores(accumulator: &mut CpuAccumulator<'_>, per_core: i64) -> bool {
    let host = accumulator.host;
    let is_free = |accumulator: &CpuAccumulator<'_>, core: &HostCore| {
        i64::from(accumulator.free_cpus.count_range(core.cpus.0, core.cpus.1)) == per_core
    };
    let mut sockets: Vec<(usize, usize)> = Vec::with_capacity(host.sockets.len());
    for (index, socket) in host.sockets.iter().enumerate() {
        let cores = socket.cores.iter().filter_map(|&core| host.cores.get(usize::from(core)));
        let free = cores.filter(|core| is_free(accumulator, core)).count();
        if !accumulator.free_cpus.intersection(&socket.cpus).is_empty() {
            sockets.push((free, index));
        }
    }
    // A pair of sockets is inconsistent if the socket with the higher number has fewer free cores: it compares as less
    // because of its free cores, and the other socket compares as less because of its lower number.
    let is_consistent = sockets.is_sorted_by_key(|&(free, _)| free);
    sockets.sort_unstable();
    let mut all_taken = true;
    for (_, index) in sockets {
        let Some(socket) = host.sockets.get(index) else { continue };
        for core in socket.cores.iter().filter_map(|&core| host.cores.get(usize::from(core))) {
            if !is_free(accumulator, core) {
                continue;
            }
            if accumulator.needed_cpus >= per_core {
                accumulator.take_cpus(&CpuBits::from_range(core.cpus.0, core.cpus.1));
            } else {
                all_taken = false;
            }
        }
    }
    is_consistent || all_taken
}

/// Takes single CPUs (`freeCPUs`), sorted by five keys: most CPUs already taken from the socket, fewest free CPUs of
/// the socket, fewest free CPUs of the core, lowest socket number, lowest core number. Returns false if the kubelet
/// might take other CPUs.
fn take_threads(accumulator: &mut CpuAccumulator<'_>) -> bool {
    let host = accumulator.host;
    let key = |core: &HostCore| {
        let socket = host.sockets.get(usize::from(core.socket));
        let (taken, free) = socket.map_or((0, 0), |socket| {
            (
                accumulator.taken_cpus.intersection(&socket.cpus).count(),
                accumulator.free_cpus.intersection(&socket.cpus).count(),
            )
        });
        let free_in_core = accumulator.free_cpus.count_range(core.cpus.0, core.cpus.1);
        (std::cmp::Reverse(taken), free, free_in_core, core.socket, core.id)
    };
    let cores_with_free_cpus = host
        .cores
        .iter()
        .filter(|core| accumulator.free_cpus.count_range(core.cpus.0, core.cpus.1) > 0);
    let mut cores: Vec<_> = cores_with_free_cpus.map(|core| (key(core), core)).collect();
    cores.sort_unstable_by_key(|&(key, _)| key);
    // In the kubelet, an element compares as less if any of its five keys is less. Therefore the order is consistent
    // only if, in every pair, no key of the later element is less than the same key of the earlier element.
    let is_consistent = cores.iter().enumerate().all(|(index, (before, _))| {
        cores.iter().skip(index + 1).all(|(after, _)| {
            after.0 >= before.0
                && after.1 >= before.1
                && after.2 >= before.2
                && after.3 >= before.3
                && after.4 >= before.4
        })
    });
    let cpus: Vec<u16> = cores.iter().flat_map(|(_, core)| core.cpus.0..core.cpus.1).collect();
    let mut all_taken = true;
    for cpu in cpus {
        if !accumulator.free_cpus.contains(cpu) {
            continue;
        }
        if accumulator.is_done() {
            all_taken = false;
            break;
        }
        accumulator.take_cpus(&CpuBits::from_range(cpu, cpu + 1));
    }
    is_consistent || all_taken
}
