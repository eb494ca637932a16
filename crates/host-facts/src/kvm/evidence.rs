//! What the state of KVM is decided from.

use super::device::Device;

/// What the state of KVM is decided from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// What opening `/dev/kvm` gave; `None` for a captured tree.
    pub device: Option<Device>,
    /// Whether cpuinfo has `vmx` or `svm`; `None` if it has no flags or is of another architecture.
    pub cpu_flag: Option<bool>,
    /// Whether the CPU itself says VMX or SVM, whatever the firmware and the kernel made of it.
    pub cpuid: Option<bool>,
    /// Whether the firmware has locked virtualisation off (model-specific registers, root only).
    pub locked_off: Option<bool>,
    /// The module that should serve this CPU: `kvm_intel` or `kvm_amd`.
    pub module: Option<&'static str>,
    /// Whether it is there; `None` if the tree has no `/sys/module`.
    pub module_loaded: Option<bool>,
    /// Whether the kernel has registered KVM's device, whether or not we see its node.
    pub registered: bool,
}
