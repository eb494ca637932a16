//! Parses the output of hwloc's `lstopo`, as text (`lstopo -v -`) or as XML, and compares it with the report.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel;
use crate::machine::{CapturedMachine, in_bytes, json_text};
use crate::units::{Cpus, format_cpu_list, parse_bytes, parse_cpu_mask};

/// An object of hwloc's tree. The tree is stored as a list in which each object is after its parent.
struct TopologyObject {
    depth: usize,
    kind: String,
    /// Number of the object in the operating system (`P#` in text, `os_index` in XML).
    index: Option<u32>,
    name: String,
    attributes: BTreeMap<String, String>,
}

impl TopologyObject {
    /// Returns the value of an attribute. `names` are the names of the attribute in the different formats.
    fn attribute(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.attributes.get(*name)).map(String::as_str)
    }

    fn pci_address(&self) -> Option<&str> {
        self.attribute(&["busid", "pci_busid"])
    }

    /// Returns true if the object is an NVMe disk, such as `nvme0n1`.
    fn is_nvme(&self) -> bool {
        let number = |text: &str| text.parse::<u32>().is_ok();
        let numbers = self.name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
        numbers.is_some_and(|(controller, namespace)| number(controller) && number(namespace))
    }

    fn is_os_device(&self) -> bool {
        self.kind.starts_with("OSDev")
    }
}

/// CPUs of one kind, and the efficiency rank of the kind if hwloc reports it.
struct CpuKind {
    efficiency: Option<i32>,
    cpus: Cpus,
}

pub(crate) struct Topology {
    objects: Vec<TopologyObject>,
    kinds: Vec<CpuKind>,
    /// CPUs that hwloc detects, but does not include in its topology.
    hidden_cpus: Cpus,
}

impl Topology {
    /// Parses lines such as `    Core L#1 (P#4 cpukind=1)`. Each level of the tree is indented by two more spaces.
    pub(crate) fn from_console(output: &str) -> Self {
        let objects = output
            .lines()
            .take_while(|line| !line.starts_with("depth "))
            .map(|line| {
                let content = line.trim_start();
                let words = split_words(content);
                let mut index = None;
                let mut attributes = BTreeMap::new();
                for word in &words {
                    let word = word.trim_start_matches('(').trim_end_matches(')');
                    if let Some((key, value)) = word.split_once('=') {
                        attributes.insert(key.to_owned(), value.to_owned());
                    } else if let Some(number) = word.strip_prefix("P#") {
                        index = number.parse().ok();
                    }
                }
                let name = content.strip_suffix('"').and_then(|rest| rest.rsplit('"').next());
                TopologyObject {
                    depth: line.len() - content.len(),
                    kind: words.into_iter().next().unwrap_or_default(),
                    index,
                    name: name.unwrap_or_default().to_owned(),
                    attributes,
                }
            })
            .collect();

        // Lines such as `CPU kind #0 efficiency 0 cpuset 0x000ff000`.
        let kinds =
            output.lines().filter(|line| line.starts_with("CPU kind ")).filter_map(|line| {
                let (rank, mask) = line.split_once(" cpuset ")?;
                let efficiency = rank.rsplit(' ').next()?.parse().ok();
                Some(CpuKind { efficiency, cpus: parse_cpu_mask(mask) })
            });
        let left_out =
            output.lines().find_map(|line| line.split_once(" not represented in topology: "));
        Self {
            objects,
            kinds: kinds.collect(),
            hidden_cpus: left_out.map(|(_, mask)| parse_cpu_mask(mask)).unwrap_or_default(),
        }
    }

    pub(crate) fn from_xml(output: &str) -> Self {
        let mut objects: Vec<TopologyObject> = Vec::new();
        let mut kinds = Vec::new();
        // Positions in `objects` of the XML elements that are still open.
        let mut open = Vec::new();
        for tag in output.split('<').filter_map(|piece| Some(piece.split_once('>')?.0)) {
            let mut attributes = xml_attributes(tag);
            match tag.split_whitespace().next() {
                Some("object") => {
                    let mut take = |key| attributes.remove(key).unwrap_or_default();
                    objects.push(TopologyObject {
                        depth: open.len(),
                        kind: take("type"),
                        index: take("os_index").parse().ok(),
                        name: take("name"),
                        attributes,
                    });
                    if !tag.ends_with('/') {
                        open.push(objects.len() - 1);
                    }
                }
                Some("/object") => {
                    open.pop();
                }
                Some("info") => {
                    let object = open.last().and_then(|position| objects.get_mut(*position));
                    let pair = attributes.remove("name").zip(attributes.remove("value"));
                    if let (Some(object), Some((key, value))) = (object, pair) {
                        object.attributes.insert(key, value);
                    }
                }
                Some("cpukind") => {
                    let cpus = attributes.get("cpuset").map(|mask| parse_cpu_mask(mask));
                    kinds.push(CpuKind { efficiency: None, cpus: cpus.unwrap_or_default() });
                }
                _ => {}
            }
        }
        let mask = |name| objects.first()?.attributes.get(name).map(|mask| parse_cpu_mask(mask));
        let left_out = mask("complete_cpuset")
            .zip(mask("cpuset"))
            .map(|(complete, shown)| complete.difference(&shown).copied().collect());
        Self { kinds, hidden_cpus: left_out.unwrap_or_default(), objects }
    }

    pub(crate) fn compare(&self, machine: &mut CapturedMachine) {
        let offline = kernel::offline_cpus(&machine.root);
        machine.compare_values(
            "offline",
            format_cpu_list(&offline),
            machine.capability("cpu/offline"),
        );
        // In a cgroup, hwloc shows only the CPUs of the cgroup, but the agent shows all CPUs of the machine.
        if self.hidden_cpus.is_subset(&offline) {
            self.compare_cpus(machine);
            self.compare_zones(machine);
        }
        self.compare_kinds(machine);
        self.compare_devices(machine);
    }

    fn compare_cpus(&self, machine: &mut CapturedMachine) {
        let everything = 0..self.objects.len();
        let cpus: Cpus = everything.clone().filter_map(|position| self.cpu_at(position)).collect();
        machine.compare_values("online", format_cpu_list(&cpus), machine.capability("cpu/online"));
        machine.compare_values("threads", cpus.len(), machine.capability("cpu/threads"));

        let of_kind = |kind| everything.clone().filter(move |at| self.objects[*at].kind == kind);
        let packages = of_kind("Package").count();
        if packages > 0 {
            machine.compare_values("sockets", packages, machine.capability("cpu/sockets"));
        }
        // hwloc counts the two halves of a module of these processors as cores; lscpu and the agent count them as
        // threads.
        let family = (kernel::cpuinfo_value(&machine.root, "vendor_id"))
            .zip(kernel::cpuinfo_value(&machine.root, "cpu family"));
        let has_modules = family == Some(("AuthenticAMD".to_owned(), "21".to_owned()));
        let threads = of_kind("Core").map(|core| self.cpus_below(core).len());
        if let Some(max_threads) = threads.clone().max().filter(|_| !has_modules) {
            machine.compare_values("cores", threads.count(), machine.capability("cpu/cores"));
            machine.compare_values(
                "threadsPerCore",
                max_threads,
                machine.capability("cpu/threadsPerCore"),
            );
        }
    }

    fn compare_zones(&self, machine: &mut CapturedMachine) {
        // hwloc ignores a NUMA node that has a CPU in common with another node. The agent reports all nodes of the
        // kernel, which `kernel::compare_zones` checks.
        if kernel::nodes_overlap(&machine.root) {
            return;
        }
        for (position, object) in self.objects.iter().enumerate() {
            let ("NUMANode", Some(id)) = (object.kind.as_str(), object.index) else { continue };
            // hwloc assigns the CPUs of neighbouring nodes to a NUMA node without CPUs.
            if !kernel::is_memory_only(&machine.root, id) {
                let cpus = format_cpu_list(&self.cpus_below(self.object_with_local_cpus(position)));
                machine.compare_values(&format!("zone {id} cpus"), cpus, machine.zone(id, "cpus"));
            }
            let Some(memory) = object.attribute(&["local", "local_memory"]) else { continue };
            // The text output rounds to its unit; the XML output has exact values in bytes.
            let berth = machine.zone(id, "memory");
            let is_near = parse_bytes(memory)
                .zip(parse_bytes(&berth))
                .is_some_and(|((tool, unit), (berth, _))| tool.abs_diff(berth) < unit);
            if !is_near {
                machine.compare_values(&format!("zone {id} memory"), memory, berth);
            }
        }
    }

    fn compare_kinds(&self, machine: &mut CapturedMachine) {
        let hybrid = machine.capability("cpu/hybrid");
        match self.kinds.len() {
            0 | 1 if hybrid == "nothing" => {}
            count => machine.compare_values("hybrid", count > 1, hybrid),
        }
        let best = self.kinds.iter().filter(|kind| kind.efficiency.is_some_and(|rank| rank >= 0));
        let best = best.max_by_key(|kind| kind.efficiency);
        let performance = kernel::reported_core_kind(machine, "Performance");
        if let Some(best) = best.filter(|_| performance != "nothing") {
            machine.compare_values("Performance cores", format_cpu_list(&best.cpus), performance);
        }
    }

    fn compare_devices(&self, machine: &mut CapturedMachine) {
        let is_device =
            |object: &TopologyObject| object.is_os_device() || object.pci_address().is_some();
        if !self.objects.iter().any(is_device) {
            // The recorded lstopo was run without I/O devices.
            return;
        }
        let devices = self.objects.iter().enumerate().filter(|(_, object)| object.is_os_device());
        let mut links = BTreeSet::new();
        let mut drives = BTreeSet::new();
        for (position, object) in devices {
            let name = object.name.clone();
            let pci = self.pci_address_of(position).unwrap_or("nothing").to_owned();
            if let Some(mac) = object.attributes.get("Address") {
                links.insert([name, mac.clone(), pci]);
            } else if object.is_nvme() {
                drives.insert([name, in_bytes(object.attribute(&["Size"]).unwrap_or("?")), pci]);
            }
        }

        // A bond is an uplink in the report, but no device in hwloc.
        let uplinks = machine.capabilities("uplinks").into_iter();
        let uplinks: BTreeSet<_> = uplinks
            .filter(|uplink| uplink["kind"] != "Bond")
            .map(|uplink| ["name", "mac", "pciAddress"].map(|key| json_text(uplink.get(key))))
            .collect();
        // hwloc names a drive without a block driver by its PCI address.
        let nvme: BTreeSet<_> = machine
            .capabilities("nvme")
            .iter()
            .map(|drive| ["name", "size", "pciAddress"].map(|key| json_text(drive.get(key))))
            .map(|[name, size, pci]| [name, in_bytes(&size), pci])
            .filter(|[name, ..]| name.starts_with("nvme"))
            .collect();
        compare_sets("uplink", &links, &uplinks, machine);
        compare_sets("nvme", &drives, &nvme, machine);
    }

    /// Returns the positions of all descendants of an object.
    fn descendants(&self, position: usize) -> impl Iterator<Item = usize> {
        let depth = self.objects[position].depth;
        (position + 1..self.objects.len()).take_while(move |at| self.objects[*at].depth > depth)
    }

    fn parent(&self, position: usize) -> Option<usize> {
        (0..position).rfind(|at| self.objects[*at].depth < self.objects[position].depth)
    }

    fn cpu_at(&self, position: usize) -> Option<u32> {
        self.objects.get(position).filter(|object| object.kind == "PU")?.index
    }

    fn cpus_below(&self, position: usize) -> Cpus {
        self.descendants(position).filter_map(|at| self.cpu_at(at)).collect()
    }

    /// Returns the object whose CPUs are local to a NUMA node: the nearest ancestor of the node that is not a
    /// memory-side cache.
    fn object_with_local_cpus(&self, node: usize) -> usize {
        let mut home = node;
        while let Some(parent) = self.parent(home) {
            home = parent;
            if !self.objects[home].kind.starts_with("MemCache") {
                break;
            }
        }
        home
    }

    /// Returns the PCI address of the device to which an object belongs.
    fn pci_address_of(&self, position: usize) -> Option<&str> {
        let mut ancestor = position;
        loop {
            ancestor = self.parent(ancestor)?;
            if let Some(address) = self.objects[ancestor].pci_address() {
                return Some(address);
            }
        }
    }
}

fn compare_sets(
    field: &str,
    tool: &BTreeSet<[String; 3]>,
    berth: &BTreeSet<[String; 3]>,
    machine: &mut CapturedMachine,
) {
    let names: BTreeSet<_> = tool.union(berth).map(|[name, ..]| name).collect();
    let describe = |set: &BTreeSet<[String; 3]>, name: &String| {
        let found: Vec<_> =
            set.iter().filter(|[it, ..]| it == name).map(|it| it.join(" ")).collect();
        if found.is_empty() { "nothing".to_owned() } else { found.join(" and ") }
    };
    for name in names {
        machine.compare_values(
            &format!("{field} {name}"),
            describe(tool, name),
            describe(berth, name),
        );
    }
}

/// Splits at spaces that are not within quotes, and removes the quotes.
fn split_words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match (c, words.last_mut()) {
            ('"', _) => quoted = !quoted,
            (' ', _) if !quoted => words.push(String::new()),
            (_, Some(word)) => word.push(c),
            (_, None) => {}
        }
    }
    words
}

/// Parses XML attributes such as `type="PU" os_index="3"`. hwloc's attribute values contain no escapes.
fn xml_attributes(tag: &str) -> BTreeMap<String, String> {
    let pieces: Vec<_> = tag.split('"').collect();
    let pairs = pieces.chunks_exact(2).filter_map(|pair| {
        let [key, value] = pair else { return None };
        let key = key.trim_end_matches('=').split_whitespace().last()?;
        Some((key.to_owned(), (*value).to_owned()))
    });
    pairs.collect()
}
