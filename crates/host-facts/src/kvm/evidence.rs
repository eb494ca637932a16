//! Evidence for the state of KVM.

use super::device::KvmDevice;

/// The evidence from which the state of KVM is determined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvmEvidence {
    /// Result of opening `/dev/kvm`; `None` for a captured tree.
    pub device: Option<KvmDevice>,
    /// True if `/proc/cpuinfo` has the flag `vmx` or `svm`; `None` if it has no flags or is from another
    /// architecture.
    pub has_cpu_flag: Option<bool>,
    /// True if CPUID reports VMX or SVM, which does not depend on firmware and kernel.
    pub has_cpuid_virtualization: Option<bool>,
    /// True if the firmware has disabled virtualisation (read from model-specific registers, which only root can
    /// read).
    pub is_locked_by_firmware: Option<bool>,
    /// Name of the KVM module for this CPU: `kvm_intel` or `kvm_amd`.
    pub module: Option<&'static str>,
    /// True if this module is loaded; `None` if the tree has no `/sys/module`.
    pub is_module_loaded: Option<bool>,
    /// True if the kernel has registered KVM's device, even if its device node is not visible.
    pub is_device_registered: bool,
}
