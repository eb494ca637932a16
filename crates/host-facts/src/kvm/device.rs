//! Opens `/dev/kvm` and creates a VM as a test. This is done only on a running machine.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt;

use kvm_ioctls::{Cap, Kvm};
use nix::errno::Errno;

/// Result of opening `/dev/kvm` for reading and writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvmDevice {
    /// The device was opened.
    Opened(ProbeResult),
    /// The device node does not exist, or the kernel has no driver for it (ENOENT, ENXIO, ENODEV).
    Absent,
    /// EACCES: file permissions forbid opening the device.
    NoPermission,
    /// EPERM: a device cgroup forbids opening the device, as in a container without the device.
    DeniedByCgroup,
    /// Opening the device failed with another error, whose text is given.
    OpenFailed(String),
}

/// Version and limits that the opened device reports, and the result of the creation of a test VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeResult {
    /// Version of the KVM API (`KVM_GET_API_VERSION`).
    pub api_version: Option<u32>,
    /// Maximum number of virtual CPUs of a VM (`KVM_CAP_MAX_VCPUS`).
    pub max_vcpus: Option<u32>,
    /// Recommended number of virtual CPUs of a VM (`KVM_CAP_NR_VCPUS`).
    pub recommended_vcpus: Option<u32>,
    /// Limit for the ids of virtual CPUs of a VM (`KVM_CAP_MAX_VCPU_ID`).
    pub max_vcpu_id: Option<u32>,
    /// Maximum number of memory slots of a VM (`KVM_CAP_NR_MEMSLOTS`).
    pub memory_slots: Option<u32>,
    /// Error of the kernel when the test VM was created; `None` if the creation succeeded.
    pub test_failure: Option<String>,
}

/// Version of the KVM API (`KVM_GET_API_VERSION`) in all released kernels.
const API_VERSION: i32 = 12;
/// Maximum number of attempts to create the test VM. KVM_CREATE_VM fails with EINTR if a signal arrives, and QEMU also
/// retries the call then.
const MAX_CREATE_ATTEMPTS: usize = 10;

/// Opens `/dev/kvm`, reads its limits, and creates a test VM, which is closed again.
#[must_use]
pub fn probe_device() -> KvmDevice {
    let path = CString::from(c"/dev/kvm");
    let kvm = match Kvm::new_with_path(&path) {
        Ok(kvm) => kvm,
        Err(error) => {
            return match Errno::from_raw(error.errno()) {
                Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => KvmDevice::Absent,
                Errno::EACCES => KvmDevice::NoPermission,
                Errno::EPERM => KvmDevice::DeniedByCgroup,
                errno => KvmDevice::OpenFailed(errno.desc().to_owned()),
            };
        }
    };
    let version = kvm.get_api_version();
    // The kernel returns 0 for a capability that it does not know.
    let limit = |cap| u32::try_from(kvm.check_extension_int(cap)).ok().filter(|n| *n > 0);
    KvmDevice::Opened(ProbeResult {
        api_version: u32::try_from(version).ok(),
        max_vcpus: limit(Cap::MaxVcpus),
        recommended_vcpus: limit(Cap::NrVcpus),
        max_vcpu_id: limit(Cap::MaxVcpuId),
        memory_slots: limit(Cap::NrMemslots),
        test_failure: if version == API_VERSION {
            create_test_vm(&kvm)
        } else {
            Some(format!("KVM_GET_API_VERSION is {version}, not {API_VERSION}"))
        },
    })
}

fn create_test_vm(kvm: &Kvm) -> Option<String> {
    let mut errno = Errno::EINTR;
    for _ in 0..MAX_CREATE_ATTEMPTS {
        match kvm.create_vm() {
            Ok(_) => return None,
            Err(error) => errno = Errno::from_raw(error.errno()),
        }
        if errno != Errno::EINTR {
            break;
        }
    }
    Some(format!("KVM_CREATE_VM: {}", errno.desc()))
}

/// Returns true if the firmware has disabled virtualisation and locked this setting; `None` if this is unknown. Reading
/// the model-specific registers requires root and the module `msr`.
///
/// Intel SDM vol. 3, IA32_FEATURE_CONTROL: bit 0 locks the register, bit 2 allows VMX outside SMX. AMD APM vol. 2,
/// VM_CR: bit 4 (SVMDIS) disables SVM.
#[must_use]
pub fn is_locked_by_firmware(module: Option<&str>) -> Option<bool> {
    let registers = File::open("/dev/cpu/0/msr").ok()?;
    let read_register = |register: u64| {
        let mut value = [0; 8];
        registers.read_exact_at(&mut value, register).ok()?;
        Some(u64::from_le_bytes(value))
    };
    match module? {
        "kvm_amd" => read_register(0xc001_0114).map(|vm_cr| vm_cr & 1 << 4 != 0),
        _ => read_register(0x3a).map(|control| control & 1 != 0 && control & 1 << 2 == 0),
    }
}
