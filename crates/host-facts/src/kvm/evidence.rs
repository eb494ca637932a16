//! Evidence for the state of KVM.

use super::device::KvmDevice;

/// The evidence from which the state of KVM is determined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvmEvidence {
    /// Result of opening `/dev/kvm`; `None` for a captured tree.
    pub device: Option<KvmDevice>,
    /// True if `/proc/cpuinfo` has the flag `vmx` or `svm`; `None` if the file has no flags, or if the CPU is not an
    /// x86 CPU.
    pub has_cpu_flag: Option<bool>,
    /// True if CPUID reports VMX or SVM. Unlike the flag in `/proc/cpuinfo`, the result does not depend on the
    /// firmware's settings and the kernel.
    pub has_cpuid_virtualization: Option<bool>,
    /// True if the firmware has disabled virtualisation. This is read from model-specific registers, which only root
    /// can read.
    pub is_locked_by_firmware: Option<bool>,
    /// Name of the KVM module for the CPU's vendor: `kvm_intel` or `kvm_amd`.
    pub module: Option<&'static str>,
    /// True if the module `module` is loaded; `None` if the tree has no `/sys/module`.
    pub is_module_loaded: Option<bool>,
    /// True if the kernel has registered the device `kvm`, even if `/dev/kvm` is not visible.
    pub is_device_registered: bool,
}
