//! Evidence for the state of KVM.

use super::device::Device;

/// Evidence for the state of KVM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Result of opening `/dev/kvm`; `None` for a captured tree.
    pub device: Option<Device>,
    /// True if cpuinfo has `vmx` or `svm`; `None` if it has no flags or is of another architecture.
    pub cpu_flag: Option<bool>,
    /// True if CPUID has VMX or SVM, independent of firmware and kernel.
    pub cpuid: Option<bool>,
    /// True if the firmware has locked virtualisation off (from model-specific registers, which only root can read).
    pub is_locked_by_firmware: Option<bool>,
    /// The module for this CPU: `kvm_intel` or `kvm_amd`.
    pub module: Option<&'static str>,
    /// True if the module is loaded; `None` if the tree has no `/sys/module`.
    pub module_loaded: Option<bool>,
    /// True if the kernel has registered KVM's device, even if the device node is not visible.
    pub registered: bool,
}
