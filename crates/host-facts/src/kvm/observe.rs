//! Reads CPU flags and module parameters, and opens `/dev/kvm`.

use berth_api::infra_node::{Confidential, Kvm, UnknownReason};

use super::device::{self, KvmDevice};
use super::evidence::KvmEvidence;
use super::{cpuid, state};
use crate::cpuinfo::CpuInfo;
use crate::kernel_files::read_bool;
use crate::notes::Notes;
use crate::root::Root;

const MODULE_FOLDER: &str = "sys/module";

/// Reads CPU flags and module parameters. On a running machine, also opens `/dev/kvm`.
pub fn observe(root: &Root, cpuinfo: &CpuInfo, notes: &mut Notes) -> (KvmEvidence, Kvm) {
    let evidence = read_evidence(root, cpuinfo);
    let mut kvm = match state::determine_state(&evidence) {
        Ok(state) => Kvm { state: Some(state), ..Kvm::default() },
        Err((reason, message)) => {
            notes.add_unknown("capabilities.kvm.state", reason, message);
            Kvm::default()
        }
    };
    read_limits(&evidence, &mut kvm, notes);
    read_parameters(root, &evidence, &mut kvm, notes);
    kvm.confidential = read_confidential_kinds(root, &evidence, notes);
    read_helper_devices(root, &mut kvm, notes);
    (evidence, kvm)
}

fn read_evidence(root: &Root, cpuinfo: &CpuInfo) -> KvmEvidence {
    let x86 = cpuinfo.is_x86();
    let cpu_flag =
        (x86 && cpuinfo.has_flags).then(|| cpuinfo.has_flag("vmx") || cpuinfo.has_flag("svm"));
    let module = match cpuinfo.vendor.as_deref() {
        Some("AuthenticAMD" | "HygonGenuine") => Some("kvm_amd"),
        _ if x86 => Some("kvm_intel"),
        _ => None,
    };
    // A module that is still being loaded already has a folder, but has not checked the CPU yet. Its file `initstate`
    // then is not `live`. A built-in module does not have this file.
    let is_loaded = |module| {
        let state = root.read(&format!("{MODULE_FOLDER}/{module}/initstate"));
        root.exists(&format!("{MODULE_FOLDER}/{module}"))
            && state.map_or(true, |state| state == "live")
    };
    let live = root.is_live();
    let device_registered = root.exists("sys/devices/virtual/misc/kvm");
    let probe = || match device::probe_device() {
        // The host has `/dev/kvm`, but the agent's container does not.
        KvmDevice::Absent if device_registered && root.is_from_container() => {
            KvmDevice::DeniedByCgroup
        }
        found => found,
    };
    KvmEvidence {
        device: live.then(probe),
        has_cpu_flag: cpu_flag,
        has_cpuid_virtualization: live.then(cpuid::supports_virtualization).flatten(),
        is_locked_by_firmware: live.then(|| device::is_locked_by_firmware(module)).flatten(),
        module,
        is_module_loaded: root.exists(MODULE_FOLDER).then(|| module.is_some_and(is_loaded)),
        is_device_registered: device_registered,
    }
}

fn read_limits(evidence: &KvmEvidence, kvm: &mut Kvm, notes: &mut Notes) {
    match &evidence.device {
        Some(KvmDevice::Opened(probe)) => {
            kvm.api_version = probe.api_version;
            kvm.max_vcpus = probe.max_vcpus;
            kvm.recommended_vcpus = probe.recommended_vcpus;
            kvm.max_vcpu_id = probe.max_vcpu_id;
            kvm.memory_slots = probe.memory_slots;
        }
        device => {
            let (reason, message) = match device {
                None => (
                    UnknownReason::CapturedTree,
                    "KVM can be tested only on a running host".to_owned(),
                ),
                Some(KvmDevice::DeniedByCgroup) => (
                    UnknownReason::DeviceCgroup,
                    "the device cgroup forbids access to /dev/kvm".to_owned(),
                ),
                Some(KvmDevice::NoPermission) => (
                    UnknownReason::NoPermission,
                    "this user has no permission to open /dev/kvm".to_owned(),
                ),
                _ => (UnknownReason::NotFound, "/dev/kvm cannot be opened".to_owned()),
            };
            for field in ["apiVersion", "maxVCPUs"] {
                notes.add_unknown(format!("capabilities.kvm.{field}"), reason, message.clone());
            }
        }
    }
}

/// Reads the parameters of the KVM module for the CPU's vendor. The files of the parameters exist only while the module
/// is loaded.
fn read_parameters(root: &Root, evidence: &KvmEvidence, kvm: &mut Kvm, notes: &mut Notes) {
    let loaded = evidence.module.filter(|_| evidence.is_module_loaded == Some(true));
    let parameter = |names: [&str; 2]| {
        let module = loaded?;
        let name = if module == "kvm_amd" { names[1] } else { names[0] };
        read_bool(root, &format!("{MODULE_FOLDER}/{module}/parameters/{name}"))
    };
    kvm.nested = parameter(["nested", "nested"]);
    kvm.second_level_translation = parameter(["ept", "npt"]);
    kvm.interrupt_virtualization = parameter(["enable_apicv", "avic"]);
    let parameters = [
        ("nested", kvm.nested),
        ("secondLevelTranslation", kvm.second_level_translation),
        ("interruptVirtualization", kvm.interrupt_virtualization),
    ];
    for (field, value) in parameters {
        if value.is_none() {
            let message = match loaded {
                Some(module) => {
                    format!("/{MODULE_FOLDER}/{module}/parameters has no parameter for this field")
                }
                None => "no KVM module of this CPU's vendor is loaded".to_owned(),
            };
            notes.add_unknown(
                format!("capabilities.kvm.{field}"),
                UnknownReason::NotFound,
                message,
            );
        }
    }
}

/// Returns the kinds of confidential VMs that the host supports. For SEV, the module's parameter is not sufficient: it
/// is `Y` even if the firmware refuses SEV later, so the device of AMD's security processor (`/dev/sev`) is also
/// required. For TDX, the parameter is sufficient, because the module sets it only after the initialisation of TDX
/// succeeded.
fn read_confidential_kinds(
    root: &Root,
    evidence: &KvmEvidence,
    notes: &mut Notes,
) -> Option<Vec<Confidential>> {
    let is_on = |path: &str| read_bool(root, &format!("{MODULE_FOLDER}/{path}")) == Some(true);
    let mut kinds = Vec::new();
    let note_unknown = |notes: &mut Notes, reason, message: &str| {
        notes.add_unknown("capabilities.kvm.confidential", reason, message);
        None
    };
    if evidence.is_module_loaded != Some(true) {
        let message = "no KVM module of this CPU's vendor is loaded";
        return note_unknown(notes, UnknownReason::NotFound, message);
    }
    let sev = is_on("kvm_amd/parameters/sev");
    let firmware = if sev { has_device(root, "sev", "sev") } else { Ok(false) };
    let firmware = match firmware {
        Ok(exists) => exists,
        Err((reason, message)) => return note_unknown(notes, reason, &message),
    };
    if sev && firmware {
        kinds.push(Confidential::Sev);
        if is_on("kvm_amd/parameters/sev_es") {
            kinds.push(Confidential::SevEs);
        }
        if is_on("kvm_amd/parameters/sev_snp") {
            kinds.push(Confidential::SevSnp);
        }
    }
    if is_on("kvm_intel/parameters/tdx") {
        kinds.push(Confidential::Tdx);
    }
    Some(kinds)
}

/// Checks whether the device nodes of the kernel modules that help VMs exist, such as vhost-net. The nodes are not
/// opened, because this would load the module, and an observation must not change the host.
fn read_helper_devices(root: &Root, kvm: &mut Kvm, notes: &mut Notes) {
    let mut device_exists = |field: &str, node: &str, name: &str| match has_device(root, node, name)
    {
        Ok(exists) => Some(exists),
        Err((reason, message)) => {
            notes.add_unknown(format!("capabilities.kvm.{field}"), reason, message);
            None
        }
    };
    kvm.vhost_net = device_exists("vhostNet", "vhost-net", "vhost-net");
    kvm.vhost_vsock = device_exists("vhostVsock", "vhost-vsock", "vhost-vsock");
    kvm.tun = device_exists("tun", "net/tun", "tun");
}

/// Returns true if the host has a device: its device node exists, or the kernel has registered the device. A missing
/// node is no evidence in a container, which sees few nodes, and in a capture, which often has no nodes.
fn has_device(root: &Root, node: &str, name: &str) -> Result<bool, (UnknownReason, String)> {
    let registered = root.exists(&format!("sys/devices/virtual/misc/{name}"));
    // A container may not see the host's device nodes. On the host itself, udev has created a node for each device that
    // the kernel has registered.
    if root.exists(&format!("dev/{node}")) || (registered && root.is_from_container()) {
        Ok(true)
    } else if registered {
        let message = format!("the kernel has registered {name}, but /dev/{node} is not visible");
        Err((UnknownReason::NotFound, message))
    } else if root.is_live() {
        Ok(false)
    } else {
        Err((UnknownReason::CapturedTree, format!("the captured tree does not contain dev/{node}")))
    }
}
