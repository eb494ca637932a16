//! Logical CPUs, cores and packages.
//!
//! Cores and packages are counted as in lscpu: each distinct set of thread siblings is a core, and each distinct set of
//! package siblings is a package. Core ids are not used for counting, because they repeat in each die and package, and
//! on AMD family 15h the two halves of a core have separate ids.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::CpuSet;

use super::cpuinfo::CpuInfo;
use super::kernel_files::read_cpu_list;
use crate::notes::Notes;
use crate::root::{ReadError, Root};

const CPU_FOLDER: &str = "sys/devices/system/cpu";

/// The logical CPUs of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    pub online: CpuSet,
    /// CPUs that are present but offline.
    pub offline: CpuSet,
    /// Properties of every online CPU, by its number.
    pub cpus: BTreeMap<u32, LogicalCpu>,
    /// The distinct packages of the CPUs that have been read so far, each as a set of CPUs. Equal sets share memory.
    packages: Vec<Arc<CpuSet>>,
    /// The distinct third-level caches of the CPUs that have been read so far, each as a set of CPUs. Equal sets share
    /// memory.
    caches: Vec<Arc<CpuSet>>,
    /// True if sysfs or `/proc/cpuinfo` shows to which core each CPU belongs.
    pub are_core_ids_known: bool,
}

/// Package, core, cache and NUMA zone of a logical CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogicalCpu {
    /// Number of the package, which the firmware assigns.
    pub socket: Option<u32>,
    /// Number of the die within the package.
    pub die: Option<u32>,
    /// Number of the core, which is unique only within one die.
    pub core: Option<u32>,
    /// All online CPUs of the same physical core, including this CPU.
    pub thread_siblings: Arc<CpuSet>,
    /// All online CPUs of the same package; empty if the package is unknown.
    pub package_cpus: Arc<CpuSet>,
    /// All online CPUs that share the third-level cache; empty if this cache is unknown or missing.
    pub l3_cache_cpus: Arc<CpuSet>,
    /// NUMA zone of the CPU; `None` until the zones have been read.
    pub zone: Option<u32>,
}

impl Topology {
    /// Reads the topology from `/sys/devices/system/cpu` or, if the tree does not have this folder, from
    /// `/proc/cpuinfo`.
    pub fn observe(root: &Root, cpuinfo: &CpuInfo, notes: &mut Notes) -> Self {
        let listed = root.list_numbered(CPU_FOLDER, "cpu");
        let folders = notes.value_or_warning(listed).unwrap_or_default();
        let is_valid_id = |id: &u32| *id <= CpuSet::MAX_CPU;
        let in_sysfs: CpuSet = folders.iter().map(|(id, _)| *id).filter(is_valid_id).collect();
        let in_proc: CpuSet = cpuinfo.processors.iter().map(|p| p.id).collect();
        let read_list = |name: &str, notes: &mut Notes| {
            let read = read_cpu_list(root, &format!("{CPU_FOLDER}/{name}"));
            notes.value_or_warning(read).filter(|set| !set.is_empty())
        };

        let online = read_list("online", notes).unwrap_or_else(|| {
            let is_cpu_online = |id: &u32| is_online(root, *id);
            if in_sysfs.is_empty() {
                in_proc
            } else {
                in_sysfs.iter().filter(is_cpu_online).collect()
            }
        });
        // CPUs without a folder in sysfs are ignored, so that a malformed file `online` cannot add thousands of CPUs to
        // a tree with few CPU folders.
        let online = match online.intersection(&in_sysfs) {
            seen if seen.is_empty() => online,
            seen => seen,
        };
        // Offline CPUs are computed from the file `present`, because the file `offline` also lists CPUs that the kernel
        // supports but the machine does not have.
        let present = read_list("present", notes).unwrap_or_else(|| in_sysfs.union(&online));
        let offline = present.difference(&online);

        let mut topology = Self { online, offline, ..Self::default() };
        let mut without_topology = CpuSet::new();
        for id in topology.online.iter() {
            if topology.cpus.contains_key(&id) {
                continue;
            }
            let (cpu, has_siblings) = read_logical_cpu(root, id, &topology);
            if !has_siblings {
                without_topology.insert(id);
            }
            if cpu.package_cpus.contains(id) && !topology.packages.contains(&cpu.package_cpus) {
                topology.packages.push(Arc::clone(&cpu.package_cpus));
            }
            if cpu.l3_cache_cpus.contains(id) && !topology.caches.contains(&cpu.l3_cache_cpus) {
                topology.caches.push(Arc::clone(&cpu.l3_cache_cpus));
            }
            // All threads of a core have the same ids and siblings, so the files of only one thread per core are read.
            for sibling in cpu.thread_siblings.iter() {
                topology.cpus.entry(sibling).or_insert_with(|| cpu.clone());
            }
        }
        topology.are_core_ids_known = without_topology != topology.online;
        if !topology.are_core_ids_known {
            topology.read_ids_from_cpuinfo(cpuinfo);
        } else if !without_topology.is_empty() {
            notes.warn(
                format!("/{CPU_FOLDER}"),
                format!(
                    "online CPUs {without_topology} have no folder topology/; \
                     each is counted as a separate core"
                ),
            );
        }
        topology
    }

    /// Returns the distinct cores that contain at least one of the CPUs in `cpus`. Each core is the set of its thread
    /// siblings.
    #[must_use]
    pub fn cores_with_cpus(&self, cpus: &CpuSet) -> BTreeSet<&CpuSet> {
        cpus.iter().filter_map(|id| self.cpus.get(&id)).map(|cpu| &*cpu.thread_siblings).collect()
    }

    /// Returns the number of online physical cores.
    #[must_use]
    pub fn core_count(&self) -> usize {
        self.cores_with_cpus(&self.online).len()
    }

    /// Returns the number of online packages.
    #[must_use]
    pub fn socket_count(&self) -> usize {
        let packages: BTreeSet<&CpuSet> = self
            .cpus
            .values()
            .map(|cpu| &*cpu.package_cpus)
            .filter(|set| !set.is_empty())
            .collect();
        packages.len()
    }

    /// Returns the number of threads of the core that has most threads.
    #[must_use]
    pub fn max_threads_per_core(&self) -> usize {
        self.cpus.values().map(|cpu| cpu.thread_siblings.len()).max().unwrap_or(0)
    }

    /// Determines packages and cores from the ids in `/proc/cpuinfo`, for kernels without CPU topology in sysfs.
    fn read_ids_from_cpuinfo(&mut self, cpuinfo: &CpuInfo) {
        let mut packages: BTreeMap<u32, CpuSet> = BTreeMap::new();
        let mut cores: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
        for processor in &cpuinfo.processors {
            let (Some(package), Some(core)) = (processor.package, processor.core) else { continue };
            packages.entry(package).or_default().insert(processor.id);
            cores.entry((package, core)).or_default().insert(processor.id);
        }
        for processor in &cpuinfo.processors {
            let (Some(package), Some(core)) = (processor.package, processor.core) else { continue };
            if let Some(cpu) = self.cpus.get_mut(&processor.id) {
                cpu.socket = Some(package);
                cpu.core = Some(core);
                cpu.package_cpus = Arc::new(packages.get(&package).cloned().unwrap_or_default());
                cpu.thread_siblings =
                    Arc::new(cores.get(&(package, core)).cloned().unwrap_or_default());
                self.are_core_ids_known = true;
            }
        }
    }
}

/// Returns true if a CPU is online. A CPU whose file `online` is missing, such as CPU 0 on most machines, cannot be
/// taken offline.
fn is_online(root: &Root, id: u32) -> bool {
    root.read(&format!("{CPU_FOLDER}/cpu{id}/online")).map_or(true, |value| value != "0")
}

/// Reads the properties of a CPU. The returned bool is true if sysfs lists the CPU's thread siblings.
fn read_logical_cpu(root: &Root, id: u32, topology: &Topology) -> (LogicalCpu, bool) {
    let file = |name: &str| format!("{CPU_FOLDER}/cpu{id}/topology/{name}");
    // The file contains -1 if the value is unknown on this architecture; -1 is not a valid u32, so it becomes `None`.
    let number = |name: &str| root.read_value::<u32>(&file(name)).ok();
    let siblings = read_first_list(root, &[&file("thread_siblings_list"), &file("core_cpus_list")])
        .or_else(|| read_first_mask(root, &[&file("thread_siblings"), &file("core_cpus")]))
        .map(|set| set.intersection(&topology.online))
        .filter(|set| set.contains(id));
    let has_siblings = siblings.is_some();
    let package = read_package(root, id, topology);
    let package_cpu = package.first().and_then(|first| topology.cpus.get(&first));
    let socket = package_cpu.and_then(|cpu| cpu.socket).or_else(|| number("physical_package_id"));
    let cpu = LogicalCpu {
        socket,
        die: number("die_id"),
        core: number("core_id"),
        thread_siblings: Arc::new(siblings.unwrap_or_else(|| CpuSet::from_iter([id]))),
        package_cpus: package,
        l3_cache_cpus: read_l3_cache(root, id, topology),
        zone: None,
    };
    (cpu, has_siblings)
}

/// Returns the CPUs of a CPU's package. If an earlier CPU belongs to the same package, returns the set that was read
/// for that CPU, so that equal sets share memory.
fn read_package(root: &Root, id: u32, topology: &Topology) -> Arc<CpuSet> {
    if let Some(known) = topology.packages.iter().find(|package| package.contains(id)) {
        return Arc::clone(known);
    }
    let file = |name: &str| format!("{CPU_FOLDER}/cpu{id}/topology/{name}");
    let set = read_first_list(root, &[&file("core_siblings_list"), &file("package_cpus_list")])
        .or_else(|| read_first_mask(root, &[&file("core_siblings"), &file("package_cpus")]));
    Arc::new(set.unwrap_or_default().intersection(&topology.online))
}

/// Returns the CPUs that share the CPU's third-level cache, which the kubelet calls an uncore cache. The kernel numbers
/// a CPU's caches from the first level up. Because the first level has separate data and instruction caches (`index0`
/// and `index1`), the third level is `index3`.
fn read_l3_cache(root: &Root, id: u32, topology: &Topology) -> Arc<CpuSet> {
    if let Some(known) = topology.caches.iter().find(|cache| cache.contains(id)) {
        return Arc::clone(known);
    }
    let file = |name: &str| format!("{CPU_FOLDER}/cpu{id}/cache/index3/{name}");
    let is_l3 = root.read_value::<u32>(&file("level")).is_ok_and(|level| level == 3);
    let shared = is_l3.then(|| read_first_list(root, &[&file("shared_cpu_list")])).flatten();
    Arc::new(shared.unwrap_or_default().intersection(&topology.online))
}

fn read_first_list(root: &Root, paths: &[&str]) -> Option<CpuSet> {
    paths.iter().find_map(|path| read_cpu_list(root, path).ok())
}

fn read_first_mask(root: &Root, paths: &[&str]) -> Option<CpuSet> {
    paths.iter().find_map(|path| CpuSet::from_mask(&root.read(path).ok()?).ok())
}

/// Reads the CPU list in the file `list`. If the file does not exist, as on old kernels, reads the CPU mask in the file
/// `mask`.
pub fn read_list_or_mask(root: &Root, list: &str, mask: &str) -> Result<CpuSet, ReadError> {
    match read_cpu_list(root, list) {
        Err(error) if error.is_not_found() => read_first_mask(root, &[mask]).ok_or(error),
        read => read,
    }
}
