//! CPUID instruction: features of the processor, read without the kernel.

use berth_api::infra_node::Hypervisor;

/// Returns true if CPUID reports VMX (leaf 1, ECX bit 5) or SVM (leaf 0x8000_0001, ECX bit 2), the virtualisation of
/// Intel and AMD.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn supports_virtualization() -> Option<bool> {
    use std::arch::x86_64::__cpuid;
    let vmx = __cpuid(1).ecx & 1 << 5 != 0;
    let svm = __cpuid(0x8000_0000).eax > 0x8000_0000 && __cpuid(0x8000_0001).ecx & 1 << 2 != 0;
    Some(vmx || svm)
}

/// Returns the hypervisor whose signature is in leaf 0x4000_0000; `None` if CPUID reports no hypervisor.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn detect_hypervisor() -> Option<Hypervisor> {
    use std::arch::x86_64::__cpuid;
    if __cpuid(1).ecx & 1 << 31 == 0 {
        return None;
    }
    let leaf = __cpuid(0x4000_0000);
    let signature: Vec<u8> =
        [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    Some(match signature.as_slice() {
        b"KVMKVMKVM\0\0\0" => Hypervisor::Kvm,
        b"TCGTCGTCGTCG" => Hypervisor::Qemu,
        b"VMwareVMware" => Hypervisor::VMware,
        b"Microsoft Hv" => Hypervisor::HyperV,
        b"VBoxVBoxVBox" => Hypervisor::VirtualBox,
        b"XenVMMXenVMM" => Hypervisor::Xen,
        _ => Hypervisor::Other,
    })
}

/// Returns `None`, because only x86 has CPUID.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub const fn supports_virtualization() -> Option<bool> {
    None
}

/// Returns `None`, because only x86 has CPUID.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub const fn detect_hypervisor() -> Option<Hypervisor> {
    None
}
