//! Determines the state of KVM from the evidence. The functions have no side effects, so that a test can check a table
//! of all cases.

use berth_api::infra_node::{KvmState, UnknownReason};

use super::device::KvmDevice;
use super::evidence::KvmEvidence;

/// Returns the state of KVM, or the reason why it is unknown.
pub(super) fn determine_state(evidence: &KvmEvidence) -> Result<KvmState, (UnknownReason, String)> {
    match &evidence.device {
        Some(KvmDevice::Opened(probe)) if probe.test_failure.is_none() => Ok(KvmState::Ready),
        Some(KvmDevice::Opened(_)) => Ok(KvmState::SmokeTestFailed),
        Some(KvmDevice::NoPermission) => Ok(KvmState::NoPermission),
        Some(KvmDevice::DeniedByCgroup) => Err((
            UnknownReason::DeviceCgroup,
            "opening /dev/kvm failed with EPERM: the container's device cgroup forbids it"
                .to_owned(),
        )),
        Some(KvmDevice::OpenFailed(error)) => {
            Err((UnknownReason::Unreadable, format!("opening /dev/kvm failed: {error}")))
        }
        Some(KvmDevice::Absent) | None => state_without_device(evidence),
    }
}

/// Determines the state of a host without the device `/dev/kvm`. The cause is the processor, the firmware or the KVM
/// module. If the firmware has disabled virtualisation, kernels since 5.6 (Intel) and 6.6 (AMD) hide the CPU flag.
/// Therefore only CPUID, and not the missing flag, shows whether the CPU supports virtualisation.
fn state_without_device(evidence: &KvmEvidence) -> Result<KvmState, (UnknownReason, String)> {
    let captured_tree = |message: &str| Err((UnknownReason::CapturedTree, message.to_owned()));
    // If the kernel has registered the device, KVM works even without CPU flags: paravirtual KVM needs no flags.
    if evidence.is_device_registered {
        if evidence.device.is_none() {
            return captured_tree(
                "the kernel has registered KVM, but a test VM can be created only on a running host",
            );
        }
        let message =
            "the kernel has registered KVM, but /dev/kvm is not visible in this mount namespace";
        return Err((UnknownReason::NotFound, message.to_owned()));
    }
    match (evidence.has_cpu_flag, evidence.has_cpuid_virtualization) {
        (Some(false), Some(true)) => return Ok(KvmState::DisabledInFirmware),
        (Some(false), _) => return Ok(KvmState::NoCpuSupport),
        (None, _) if evidence.device.is_none() => {
            return captured_tree(
                "/proc/cpuinfo has no x86 flags, and /dev/kvm can be tested only on a running host",
            );
        }
        (None, _) => {
            let message =
                "/dev/kvm does not exist, and the cause is unknown: /proc/cpuinfo has no x86 flags";
            return Err((UnknownReason::NotFound, message.to_owned()));
        }
        (Some(true), _) => {}
    }
    if evidence.is_locked_by_firmware == Some(true) {
        return Ok(KvmState::DisabledInFirmware);
    }
    match (evidence.is_module_loaded, evidence.device.is_some()) {
        (Some(false), _) => Ok(KvmState::ModuleNotLoaded),
        // The module is loaded or built in, but has not registered the device, because the module itself checks the
        // firmware.
        (Some(true), true) => Ok(KvmState::DisabledInFirmware),
        (None, true) => {
            let message =
                "/dev/kvm does not exist, and the cause is unknown: /sys/module could not be read";
            Err((UnknownReason::NotFound, message.to_owned()))
        }
        (_, false) => captured_tree(
            "the CPU supports virtualisation, but a test VM can be created only on a running host",
        ),
    }
}

/// Returns true if VMs can run with KVM in this state. Returns false for `None`, which means that the state is unknown.
#[must_use]
pub const fn is_ready(state: Option<KvmState>) -> bool {
    matches!(state, Some(KvmState::Ready))
}

#[cfg(test)]
mod tests {
    use super::super::device::ProbeResult;
    use super::*;

    /// Returns the evidence of a running host on which the CPU flag exists, the module is loaded, and the kernel has
    /// registered the device `kvm`.
    fn working_evidence(device: Option<KvmDevice>) -> KvmEvidence {
        KvmEvidence {
            device,
            has_cpu_flag: Some(true),
            has_cpuid_virtualization: Some(true),
            is_locked_by_firmware: None,
            module: Some("kvm_intel"),
            is_module_loaded: Some(true),
            is_device_registered: true,
        }
    }

    #[test]
    fn state_is_determined_from_evidence() {
        let opened = |failure: Option<&str>| {
            Some(KvmDevice::Opened(ProbeResult {
                test_failure: failure.map(str::to_owned),
                ..ProbeResult::default()
            }))
        };
        let absent = || working_evidence(Some(KvmDevice::Absent));
        let cases = [
            ("device opened and VM created", working_evidence(opened(None)), Ok(KvmState::Ready)),
            ("API 11", working_evidence(opened(Some("API 11"))), Ok(KvmState::SmokeTestFailed)),
            ("EACCES", working_evidence(Some(KvmDevice::NoPermission)), Ok(KvmState::NoPermission)),
            (
                "EPERM",
                working_evidence(Some(KvmDevice::DeniedByCgroup)),
                Err(UnknownReason::DeviceCgroup),
            ),
            (
                "EMFILE",
                working_evidence(Some(KvmDevice::OpenFailed("x".into()))),
                Err(UnknownReason::Unreadable),
            ),
            ("no node in a container", absent(), Err(UnknownReason::NotFound)),
            (
                "flag, module absent",
                KvmEvidence {
                    is_module_loaded: Some(false),
                    is_device_registered: false,
                    ..absent()
                },
                Ok(KvmState::ModuleNotLoaded),
            ),
            (
                "flag, module absent, locked by the firmware",
                KvmEvidence {
                    is_module_loaded: Some(false),
                    is_device_registered: false,
                    is_locked_by_firmware: Some(true),
                    ..absent()
                },
                Ok(KvmState::DisabledInFirmware),
            ),
            (
                "built in, no device registered",
                KvmEvidence { is_device_registered: false, ..absent() },
                Ok(KvmState::DisabledInFirmware),
            ),
            (
                "no flag, device registered: paravirtual KVM",
                KvmEvidence {
                    has_cpu_flag: Some(false),
                    has_cpuid_virtualization: Some(false),
                    ..absent()
                },
                Err(UnknownReason::NotFound),
            ),
            (
                "the kernel hid the flag",
                KvmEvidence { has_cpu_flag: Some(false), is_device_registered: false, ..absent() },
                Ok(KvmState::DisabledInFirmware),
            ),
            (
                "no flag, CPUID agrees",
                KvmEvidence {
                    has_cpu_flag: Some(false),
                    has_cpuid_virtualization: Some(false),
                    is_device_registered: false,
                    ..absent()
                },
                Ok(KvmState::NoCpuSupport),
            ),
            (
                "captured, no flag",
                KvmEvidence {
                    has_cpu_flag: Some(false),
                    has_cpuid_virtualization: None,
                    is_device_registered: false,
                    ..working_evidence(None)
                },
                Ok(KvmState::NoCpuSupport),
            ),
            (
                "captured, flag, module and device",
                working_evidence(None),
                Err(UnknownReason::CapturedTree),
            ),
            (
                "captured, module not loaded",
                KvmEvidence {
                    is_module_loaded: Some(false),
                    is_device_registered: false,
                    ..working_evidence(None)
                },
                Ok(KvmState::ModuleNotLoaded),
            ),
            (
                "captured, no /sys/module",
                KvmEvidence {
                    is_module_loaded: None,
                    is_device_registered: false,
                    ..working_evidence(None)
                },
                Err(UnknownReason::CapturedTree),
            ),
            ("captured, no evidence", KvmEvidence::default(), Err(UnknownReason::CapturedTree)),
        ];
        for (case, evidence, expected) in cases {
            assert_eq!(
                determine_state(&evidence).map_err(|(reason, _)| reason),
                expected,
                "{case}"
            );
        }
    }
}
