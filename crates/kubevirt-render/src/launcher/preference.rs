//! Sets fields that a machine does not set to the values of its preference (`pkg/instancetype/preference/apply`).

use super::instancetype_spec::Preference;
use super::machine::Machine;
use super::spec::Spec;
use super::version::Version;

/// Sets the fields `autoattach...` that a machine does not set (`ApplyAutoAttachPreferences`). This must precede adding
/// the default network, which depends on `autoattachPodInterface`.
pub(super) fn apply_autoattach(preference: &Preference, spec: &mut Spec) {
    let (devices, prefer) = (&mut spec.domain.devices, &preference.devices);
    for (field, preferred) in [
        (&mut devices.autoattach_graphics_device, prefer.preferred_autoattach_graphics_device),
        (&mut devices.autoattach_pod_interface, prefer.preferred_autoattach_pod_interface),
        (&mut devices.autoattach_serial_console, prefer.preferred_autoattach_serial_console),
    ] {
        *field = field.or(preferred);
    }
}

/// Sets the fields that a machine does not set to the values of its preference (`preference/apply/vmi.go`). The
/// instance type must be applied first.
pub(super) fn apply(machine: &mut Machine, preference: &Preference, version: Version) {
    apply_autoattach(preference, &mut machine.spec);
    let domain = &mut machine.spec.domain;
    let cpu = domain.cpu.get_or_insert_default();
    for feature in &preference.cpu.preferred_cpu_features {
        if !cpu.features.iter().any(|own| own.name == feature.name) {
            cpu.features.push(feature.clone());
        }
    }
    domain.devices.tpm = domain.devices.tpm.or(preference.devices.preferred_tpm);
    for interface in &mut domain.devices.interfaces {
        if interface.model.is_empty() {
            interface.model.clone_from(&preference.devices.preferred_interface_model);
        }
    }
    if let Some(preferred) = &preference.features.preferred_hyperv {
        let hyperv = domain.features.hyperv.get_or_insert_default();
        for (name, switch) in preferred {
            hyperv.entry(name.clone()).or_insert(*switch);
        }
    }
    if domain.machine.kind.is_empty() {
        domain.machine.kind.clone_from(&preference.machine.preferred_machine_type);
    }
    // KubeVirt applies launch security since 1.9 (`applyLaunchSecurityPreferences`), and the architecture since 1.7
    // (`ApplyArchitecturePreferences`).
    if version.is_at_least(9, 0) {
        domain.launch_security = domain.launch_security.or(preference.preferred_launch_security);
    }
    if version.is_at_least(7, 0) && machine.spec.architecture.is_empty() {
        machine.spec.architecture.clone_from(&preference.preferred_architecture);
    }
    for (key, value) in &preference.annotations {
        machine.annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
}
