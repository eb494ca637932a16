//! Reads CPU flags and module parameters, and opens `/dev/kvm`.

use berth_api::infra_node::{Confidential, Kvm, UnknownReason};

use super::device::{self, Device};
use super::evidence::Evidence;
use super::{cpuid, state};
use crate::cpuinfo::CpuInfo;
use crate::kernel_files::read_bool;
use crate::notes::Notes;
use crate::root::Root;

const MODULES: &str = "sys/module";

/// Reads CPU flags and module parameters. On a running machine, also opens `/dev/kvm`.
pub fn observe(root: &Root, cpuinfo: &CpuInfo, notes: &mut Notes) -> (Evidence, Kvm) {
    let evidence = evidence(root, cpuinfo);
    let mut kvm = match state::determine_state(&evidence) {
        Ok(state) => Kvm { state: Some(state), ..Kvm::default() },
        Err((reason, why)) => {
            notes.unknown("capabilities.kvm.state", reason, why);
            Kvm::default()
        }
    };
    limits(&evidence, &mut kvm, notes);
    parameters(root, &evidence, &mut kvm, notes);
    kvm.confidential = confidential(root, &evidence, notes);
    helpers(root, &mut kvm, notes);
    (evidence, kvm)
}

fn evidence(root: &Root, cpuinfo: &CpuInfo) -> Evidence {
    let x86 = cpuinfo.is_x86();
    let cpu_flag = (x86 && cpuinfo.has_flags).then(|| cpuinfo.has("vmx") || cpuinfo.has("svm"));
    let module = match cpuinfo.vendor.as_deref() {
        Some("AuthenticAMD" | "HygonGenuine") => Some("kvm_amd"),
        _ if x86 => Some("kvm_intel"),
        _ => None,
    };
    // A module that is being loaded already has a folder, but has not checked the CPU yet; its file `initstate` shows
    // this. A built-in module does not have this file.
    let loaded = |module| {
        let state = root.read(&format!("{MODULES}/{module}/initstate"));
        root.exists(&format!("{MODULES}/{module}")) && state.map_or(true, |state| state == "live")
    };
    let live = root.is_live();
    let registered = root.exists("sys/devices/virtual/misc/kvm");
    let probe = || match device::probe() {
        // The host has the device, but the agent's container does not.
        Device::Absent if registered && root.is_from_container() => Device::Forbidden,
        found => found,
    };
    Evidence {
        device: live.then(probe),
        cpu_flag,
        cpuid: live.then(cpuid::virtualization).flatten(),
        is_locked_by_firmware: live.then(|| device::is_locked_by_firmware(module)).flatten(),
        module,
        module_loaded: root.exists(MODULES).then(|| module.is_some_and(loaded)),
        registered,
    }
}

fn limits(evidence: &Evidence, kvm: &mut Kvm, notes: &mut Notes) {
    match &evidence.device {
        Some(Device::Opened(probe)) => {
            kvm.api_version = probe.api_version;
            kvm.max_vcpus = probe.max_vcpus;
            kvm.recommended_vcpus = probe.recommended_vcpus;
            kvm.max_vcpu_id = probe.max_vcpu_id;
            kvm.memory_slots = probe.memory_slots;
        }
        device => {
            let (reason, why) = match device {
                None => (UnknownReason::CapturedTree, "only a running kernel has it".to_owned()),
                Some(Device::Forbidden) => {
                    (UnknownReason::DeviceCgroup, "the device cgroup forbids /dev/kvm".to_owned())
                }
                Some(Device::NoPermission) => {
                    (UnknownReason::NoPermission, "this user may not open /dev/kvm".to_owned())
                }
                _ => (UnknownReason::NotFound, "/dev/kvm cannot be opened".to_owned()),
            };
            for field in ["apiVersion", "maxVCPUs"] {
                notes.unknown(format!("capabilities.kvm.{field}"), reason, why.clone());
            }
        }
    }
}

/// Reads the parameters of the CPU vendor's module. They exist only while the module is loaded.
fn parameters(root: &Root, evidence: &Evidence, kvm: &mut Kvm, notes: &mut Notes) {
    let loaded = evidence.module.filter(|_| evidence.module_loaded == Some(true));
    let parameter = |names: [&str; 2]| {
        let module = loaded?;
        let name = if module == "kvm_amd" { names[1] } else { names[0] };
        read_bool(root, &format!("{MODULES}/{module}/parameters/{name}"))
    };
    kvm.nested = parameter(["nested", "nested"]);
    kvm.second_level_translation = parameter(["ept", "npt"]);
    kvm.interrupt_virtualization = parameter(["enable_apicv", "avic"]);
    let missing = [
        ("nested", kvm.nested),
        ("secondLevelTranslation", kvm.second_level_translation),
        ("interruptVirtualization", kvm.interrupt_virtualization),
    ];
    for (field, value) in missing {
        if value.is_none() {
            let why = match loaded {
                Some(module) => format!("/{MODULES}/{module}/parameters does not have it"),
                None => "no KVM module of this CPU's vendor is loaded".to_owned(),
            };
            notes.unknown(format!("capabilities.kvm.{field}"), UnknownReason::NotFound, why);
        }
    }
}

/// Returns the kinds of confidential VMs that the host supports. For SEV, the module's parameter is not sufficient:
/// it is `Y` even if the firmware then refuses, so the device of the security processor is also required. For TDX,
/// the module sets the parameter only after its initialisation succeeded.
fn confidential(root: &Root, evidence: &Evidence, notes: &mut Notes) -> Option<Vec<Confidential>> {
    let on = |path: &str| read_bool(root, &format!("{MODULES}/{path}")) == Some(true);
    let mut kinds = Vec::new();
    let unknown = |notes: &mut Notes, reason, why: &str| {
        notes.unknown("capabilities.kvm.confidential", reason, why);
        None
    };
    if evidence.module_loaded != Some(true) {
        let why = "no KVM module of this CPU's vendor is loaded";
        return unknown(notes, UnknownReason::NotFound, why);
    }
    let sev = on("kvm_amd/parameters/sev");
    let firmware = if sev { device_node(root, "sev", "sev") } else { Ok(false) };
    let firmware = match firmware {
        Ok(there) => there,
        Err((reason, why)) => return unknown(notes, reason, &why),
    };
    if sev && firmware {
        kinds.push(Confidential::Sev);
        if on("kvm_amd/parameters/sev_es") {
            kinds.push(Confidential::SevEs);
        }
        if on("kvm_amd/parameters/sev_snp") {
            kinds.push(Confidential::SevSnp);
        }
    }
    if on("kvm_intel/parameters/tdx") {
        kinds.push(Confidential::Tdx);
    }
    Some(kinds)
}

/// Checks which device nodes of the kernel's modules for VMs exist, such as vhost-net. The nodes are not opened,
/// because this would load the module, and a report must not change the host.
fn helpers(root: &Root, kvm: &mut Kvm, notes: &mut Notes) {
    let mut there = |field: &str, node: &str, name: &str| match device_node(root, node, name) {
        Ok(there) => Some(there),
        Err((reason, why)) => {
            notes.unknown(format!("capabilities.kvm.{field}"), reason, why);
            None
        }
    };
    kvm.vhost_net = there("vhostNet", "vhost-net", "vhost-net");
    kvm.vhost_vsock = there("vhostVsock", "vhost-vsock", "vhost-vsock");
    kvm.tun = there("tun", "net/tun", "tun");
}

/// Returns true if the host has a device: its device node exists, or the kernel has registered it. A missing node
/// proves nothing in a container, which sees few nodes, and in a capture, which often has no nodes.
fn device_node(root: &Root, node: &str, name: &str) -> Result<bool, (UnknownReason, String)> {
    let registered = root.exists(&format!("sys/devices/virtual/misc/{name}"));
    // A container may not see the host's device nodes. On the host, udev creates a node for each device that the
    // kernel has registered.
    if root.exists(&format!("dev/{node}")) || (registered && root.is_from_container()) {
        Ok(true)
    } else if registered {
        let why = format!("the kernel has {name}, but /dev/{node} is not visible here");
        Err((UnknownReason::NotFound, why))
    } else if root.is_live() {
        Ok(false)
    } else {
        Err((UnknownReason::CapturedTree, format!("the tree has no dev/{node}")))
    }
}
