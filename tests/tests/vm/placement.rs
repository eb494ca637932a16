//! CPUs and memory of a VM: what the engine plans before the VM exists, what the kubelet allocates, and what the
//! QEMU process uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use berth_api::CpuSet;
use serde_json::{Value, json};

use crate::machines::{Machine, Vm};
use crate::objects::{GUEST_PAGES, HOST_PAGES};
use crate::testbed::{TIMEOUT, Testbed, text};
use crate::{USES_EMULATION, print};

/// Placement that the engine computes for a machine that does not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedPlacement {
    pub(crate) host: String,
    pub(crate) cpus: CpuSet,
    pub(crate) zones: Vec<u64>,
}

/// Threads and memory of a QEMU process.
#[derive(Debug, Default)]
struct QemuProcess {
    /// Name and permitted CPUs of each thread.
    threads: Vec<(String, CpuSet)>,
    /// Memory policies of the mappings that use huge pages.
    policies: BTreeSet<String>,
    /// Number of huge pages by zone.
    pages: BTreeMap<u64, u64>,
    /// Output of the commands.
    output: String,
}

/// Returns the placement that `berth-controller plan` prints for a machine. The command uses the same engine as the
/// scheduler extender, which does not publish its reservations.
pub(crate) fn plan_placement(bed: &Testbed, machine: &Machine) -> PlannedPlacement {
    let file = bed.plane.folder().join(format!("{}.json", machine.name));
    fs::write(&file, machine.deployment().to_string()).unwrap();
    let output = Command::new(berth_tests::program("berth-controller"))
        .args(["plan", "-o", "json", "--kubeconfig"])
        .arg(bed.plane.kubeconfig())
        .arg("-f")
        .arg(file)
        .output()
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_str(&stdout).unwrap_or_default();
    let prefix = format!("{}/{}-", machine.namespace(), machine.name);
    let mut placed = plan["placed"].as_array().into_iter().flatten();
    let placed = placed.find(|one| text(&one["vm"]).starts_with(&prefix));
    let placed = placed.unwrap_or_else(|| panic!("{prefix} is not placed:\n{stdout}\n{stderr}"));
    print(&format!("plan for {}: {placed}", machine.name));
    PlannedPlacement {
        host: text(&placed["host"]).to_owned(),
        cpus: text(&placed["cpus"]).parse().unwrap(),
        zones: placed["zones"].as_array().unwrap().iter().filter_map(Value::as_u64).collect(),
    }
}

/// Tests that the report of the agent, the kubelet's checkpoint and the QEMU process agree with the plan. No other
/// process uses huge pages.
pub(crate) fn check_placement(bed: &mut Testbed, vm: &Vm, planned: &PlannedPlacement) {
    assert_eq!(bed.hosts[vm.host].name, planned.host, "the VM is on another host");
    assert_eq!((planned.cpus.len(), planned.zones.len()), (2, 1), "{planned:?}");
    let object = ["infranode", &planned.host];
    let (index, uid) = (vm.host, vm.uid.as_str());
    let name = planned.host.clone();
    let allocation = bed.wait_until("the allocation is reported", &object, |plane| {
        let infra = plane.infra_node(&name);
        let mut allocations = infra["status"]["allocations"].as_array()?.iter();
        allocations.find(|one| one["podUID"] == uid).cloned()
    });
    print(&format!("report of the agent: {allocation}"));
    assert_eq!(
        text(&allocation["cpus"]).parse::<CpuSet>().unwrap(),
        planned.cpus,
        "{allocation:#}"
    );
    assert_eq!(allocation["zones"], json!(planned.zones), "{allocation:#}");
    assert_eq!(allocation["hugepages"], json!([{"size": "2Mi", "count": GUEST_PAGES}]));
    let checkpoint = bed.hosts[index].cpu_checkpoint();
    let compute: CpuSet = text(&checkpoint["entries"][uid]["compute"]).parse().unwrap();
    assert_eq!(compute, planned.cpus, "{checkpoint:#}");
    check_process(bed, vm, planned);
    print_libvirt_facts(bed, vm);
}

fn check_process(bed: &mut Testbed, vm: &Vm, planned: &PlannedPlacement) {
    let process = read_process(bed, vm);
    let output = &process.output;
    print(&format!("QEMU of {}:\n{output}", vm.name));
    assert!(!process.threads.is_empty(), "{output}");
    for (thread, cpus) in &process.threads {
        assert!(cpus.is_subset(&planned.cpus), "thread {thread} may use CPUs {cpus}:\n{output}");
    }
    // With emulation, the threads of the guest's CPUs have other names, so KubeVirt does not find these threads, and
    // leaves them on the CPU of the emulator's thread.
    if !USES_EMULATION {
        let is_vcpu = |name: &str| name.starts_with("CPU ") && name.ends_with("/KVM");
        let vcpus: Vec<_> = process.threads.iter().filter(|(name, _)| is_vcpu(name)).collect();
        assert!(matches!(vcpus.as_slice(), [(_, cpus)] if cpus.len() == 1), "{vcpus:?}\n{output}");
    }
    let [zone] = planned.zones.as_slice() else { panic!("{planned:?}") };
    assert_eq!(process.policies, BTreeSet::from([format!("bind:{zone}")]), "{output}");
    assert_eq!(process.pages, BTreeMap::from([(*zone, GUEST_PAGES)]), "{output}");
    assert_eq!(free_pages(bed, vm.host, *zone), HOST_PAGES - GUEST_PAGES);
}

/// Returns the number of free huge pages of a zone.
pub(crate) fn free_pages(bed: &mut Testbed, host: usize, zone: u64) -> u64 {
    let file =
        format!("/sys/devices/system/node/node{zone}/hugepages/hugepages-2048kB/free_hugepages");
    let free = bed.hosts[host].host.run_checked(&format!("cat {file}")).unwrap();
    free.trim().parse().unwrap()
}

/// Returns a shell command that sets `pid` to the process of a VM.
pub(crate) fn find_process(vm: &Vm) -> String {
    format!("pid=$(pgrep -o -f 'guest={}_{},') || exit 1", vm.namespace, vm.name)
}

/// Reads the threads and the mappings of a VM's process. Lines of `numa_maps` are like
/// `7f2a00000000 bind:1 file=/memfd:... huge dirty=64 N1=64 kernelpagesize_kB=2048`.
fn read_process(bed: &mut Testbed, vm: &Vm) -> QemuProcess {
    let commands = format!(
        "{}\n\
         for task in /proc/$pid/task/*; do \
           echo \"thread $(sed -n 's/^Cpus_allowed_list:\\t*//p' $task/status) $(cat $task/comm)\"; done\n\
         grep -w huge /proc/$pid/numa_maps | sed 's/^/memory /'\n\
         cut -d: -f3 /proc/$pid/cgroup | sed 's/^/cgroup /'\n\
         grep -s . /sys/fs/cgroup$(cut -d: -f3 /proc/$pid/cgroup)/../cpuset.{{cpus,mems}}.effective; true",
        find_process(vm)
    );
    let output = bed.hosts[vm.host].host.run_checked(&commands).unwrap();
    let mut process = QemuProcess::default();
    for line in output.lines() {
        if let Some((cpus, name)) =
            line.strip_prefix("thread ").and_then(|rest| rest.split_once(' '))
        {
            process.threads.push((name.to_owned(), cpus.parse().unwrap()));
        }
        let Some(mapping) = line.strip_prefix("memory ") else { continue };
        process.policies.extend(mapping.split(' ').nth(1).map(str::to_owned));
        for word in mapping.split(' ') {
            // The words of zones are like N1=64.
            let pages = word.strip_prefix('N').and_then(|word| word.split_once('='));
            let pages =
                pages.and_then(|(zone, count)| Some((zone.parse().ok()?, count.parse().ok()?)));
            if let Some((zone, count)) = pages {
                let count: u64 = count;
                *process.pages.entry(zone).or_default() += count;
            }
        }
    }
    process.output = output;
    process
}

/// Prints the state of the VM according to libvirt in the launcher pod. The checks do not depend on this output.
fn print_libvirt_facts(bed: &mut Testbed, vm: &Vm) {
    let commands = format!(
        "{}\n\
         facts() {{ HOME=/tmp nsenter -t $pid -m -n -i -p -S 107 -G 107 \
           virsh -c 'qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock' \"$@\"; }}\n\
         for fact in dominfo vcpupin emulatorpin numatune domiflist; do \
           echo \"--- $fact ---\"; facts $fact {}_{} 2>&1; done",
        find_process(vm),
        vm.namespace,
        vm.name
    );
    let facts = bed.hosts[vm.host].host.run_for(&commands, TIMEOUT);
    print(&facts.map_or_else(|error| format!("{error:#}"), |facts| facts.output));
}
