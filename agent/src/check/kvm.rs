//! Checks that the host can run virtual machines, and the features of its KVM.

use berth_api::infra_node::{Hypervisor, KvmState};

use super::definition::Check;
use super::input::Input;
use berth_host_facts::kvm::device::KvmDevice;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kvm.hardware",
        title: "hardware virtualisation",
        explanation: "The CPU must support Intel VT-x (vmx) or AMD-V (svm), and it must be enabled in the \
            firmware. Without it VMs are emulated, about ten times slower, and KubeVirt refuses them.",
        run: check_hardware,
    },
    Check {
        id: "kvm.device",
        title: "/dev/kvm exists",
        explanation: "The KVM device appears once the KVM module of the CPU's vendor is loaded. Without it the \
            node has no resource devices.kubevirt.io/kvm, and pods of VMs stay Pending.",
        run: check_device,
    },
    Check {
        id: "kvm.access",
        title: "/dev/kvm can be opened",
        explanation: "A process that runs VMs needs read and write access to /dev/kvm. KubeVirt arranges this for \
            its pods; the check warns if an ordinary user has no access and fails if root has none.",
        run: check_access,
    },
    Check {
        id: "kvm.vm",
        title: "a VM can be created",
        explanation: "Reads the API version of KVM, which must be 12, and creates an empty VM. The check fails if \
            another hypervisor uses the CPU, or if nested virtualisation is only partly enabled.",
        run: check_vm_creation,
    },
    Check {
        id: "kvm.vcpu-limit",
        title: "limit of vCPUs per VM",
        explanation: "The kernel's limit of vCPUs per VM (KVM_CAP_MAX_VCPUS) should not be lower than the number \
            of CPUs of the host; otherwise no VM can use all CPUs.",
        run: check_vcpu_limit,
    },
    Check {
        id: "kvm.nested",
        title: "nested virtualisation",
        explanation: "Guests can run VMs only if the parameter nested of the KVM module is on. Tenants that test \
            on virtual nodes need it; without such tenants, off is safer.",
        run: check_nested,
    },
    Check {
        id: "kvm.second-level-translation",
        title: "second level address translation",
        explanation: "With EPT (Intel) or NPT (AMD) the CPU translates guest addresses. Without it every page \
            table change of a guest traps into the hypervisor, and memory-intensive VMs are very slow.",
        run: check_second_level_translation,
    },
    Check {
        id: "kvm.vhost-net",
        title: "vhost-net",
        explanation: "In-kernel virtio networking (/dev/vhost-net). Without it QEMU forwards every packet, at a \
            fraction of the throughput.",
        run: |input| {
            check_device_file(
                "vhost-net",
                "/dev/vhost-net",
                "vhost_net",
                input.facts.kvm.vhost_net,
                false,
            )
        },
    },
    Check {
        id: "kvm.vhost-vsock",
        title: "vhost-vsock",
        explanation: "Host to guest sockets (/dev/vhost-vsock). Only VMs that set autoattachVSOCK need them.",
        run: |input| {
            check_device_file(
                "vhost-vsock",
                "/dev/vhost-vsock",
                "vhost_vsock",
                input.facts.kvm.vhost_vsock,
                false,
            )
        },
    },
    Check {
        id: "kvm.tun",
        title: "TUN/TAP",
        explanation: "Tap interfaces (/dev/net/tun) connect VMs to bridges. Without them no VM has a network.",
        run: |input| check_device_file("tun", "/dev/net/tun", "tun", input.facts.kvm.tun, true),
    },
    Check {
        id: "kvm.confidential",
        title: "confidential VMs",
        explanation: "AMD SEV, SEV-ES, SEV-SNP or Intel TDX, needed only by VMs that set launchSecurity. Both the \
            parameter of the KVM module and the device of the firmware must be present.",
        run: check_confidential,
    },
];

const FIRMWARE_REMEDY: &str =
    "enable Intel VT-x (VMX) or AMD-V (SVM) in the firmware setup, then power the host off and on";

fn check_hardware(input: &Input) -> Outcome {
    let evidence = &input.facts.kvm_evidence;
    let guest = !matches!(input.facts.machine.hypervisor, None | Some(Hypervisor::None));
    let flag = |outcome: Outcome, value: &str| outcome.with_evidence("/proc/cpuinfo flags", value);
    match (evidence.has_cpu_flag, input.facts.kvm.state) {
        (_, Some(KvmState::DisabledInFirmware)) => {
            let outcome = Outcome::fail("the CPU supports hardware virtualisation, but it is disabled in the firmware");
            let outcome = match evidence.has_cpuid_virtualization {
                Some(true) => outcome.with_evidence("CPUID", "VMX or SVM supported"),
                _ => outcome,
            };
            let seen = if evidence.has_cpu_flag == Some(true) { "vmx or svm" } else { "neither vmx nor svm" };
            flag(outcome, seen).remedy(FIRMWARE_REMEDY)
        }
        (Some(true), _) => {
            let name = if input.facts.cpuinfo.has_flag("vmx") { "vmx" } else { "svm" };
            flag(Outcome::pass("the CPU supports hardware virtualisation"), name)
        }
        (Some(false), Some(KvmState::Ready)) => flag(
            Outcome::fail("KVM creates VMs, but the CPU has neither VMX nor SVM: this is a paravirtual KVM on which ordinary guests do not boot"),
            "neither vmx nor svm",
        )
        .remedy("give this guest the host's CPU with nested virtualisation, or use bare metal"),
        (Some(false), _) if guest => flag(
            Outcome::fail("this host is a virtual machine, and its hypervisor does not enable nested virtualisation"),
            "neither vmx nor svm",
        )
        .remedy("give this guest the host's CPU with nested virtualisation (libvirt: <cpu mode='host-passthrough'/>, kvm module option nested=1), or use bare metal"),
        (Some(false), _) => flag(
            Outcome::fail("the CPU supports neither VMX nor SVM, or the firmware hides it"),
            "neither vmx nor svm",
        )
        .remedy(FIRMWARE_REMEDY),
        (None, Some(KvmState::Ready)) => Outcome::pass("KVM can create VMs"),
        (None, _) => Outcome::skip("/proc/cpuinfo has no x86 flags"),
    }
}

fn check_device(input: &Input) -> Outcome {
    let evidence = &input.facts.kvm_evidence;
    match &evidence.device {
        None => match input.facts.kvm.state {
            Some(KvmState::ModuleNotLoaded) => module_not_loaded_outcome(input),
            _ => Outcome::skip("a captured tree has no devices to open"),
        },
        Some(KvmDevice::Absent) => match input.facts.kvm.state {
            Some(KvmState::NoCpuSupport) => {
                Outcome::fail("/dev/kvm cannot exist without hardware virtualisation")
                    .with_evidence("/dev/kvm", "absent")
                    .remedy("see kvm.hardware")
            }
            Some(KvmState::DisabledInFirmware) => {
                Outcome::fail("KVM found virtualisation disabled and created no device")
                    .with_evidence("/dev/kvm", "absent")
                    .remedy(FIRMWARE_REMEDY)
            }
            Some(KvmState::ModuleNotLoaded) => module_not_loaded_outcome(input),
            _ => Outcome::warn("the kernel has KVM, but its device node is not visible here")
                .with_evidence("/dev/kvm", "absent")
                .with_evidence("/sys/devices/virtual/misc/kvm", "present")
                .remedy(
                    "run berth-agent on the host itself, or give the container the device /dev/kvm",
                ),
        },
        Some(_) => Outcome::pass("present").with_evidence("/dev/kvm", "present"),
    }
}

fn module_not_loaded_outcome(input: &Input) -> Outcome {
    let module = input.facts.kvm_evidence.module.unwrap_or("kvm");
    Outcome::fail(format!("the module {module} is not loaded"))
        .with_evidence(format!("/sys/module/{module}"), "absent")
        .remedy(format!(
            "modprobe {module} && echo {module} > /etc/modules-load.d/kvm.conf   # if modprobe prints \
             \"Operation not supported\", enable virtualisation in the firmware setup"
        ))
}

fn check_access(input: &Input) -> Outcome {
    match &input.facts.kvm_evidence.device {
        None => Outcome::skip("a captured tree has no devices to open"),
        Some(KvmDevice::Opened(_)) => Outcome::pass("/dev/kvm can be opened for reading and writing").with_evidence("/dev/kvm", "opened"),
        Some(KvmDevice::NoPermission) if input.is_root => Outcome::fail("even root cannot open /dev/kvm")
            .with_evidence("/dev/kvm", "EACCES")
            .remedy("a security module (SELinux, AppArmor) refuses: ausearch -m avc -c berth-agent; dmesg | grep -i denied"),
        Some(KvmDevice::NoPermission) => {
            Outcome::warn("this user cannot open /dev/kvm; root and KubeVirt can")
                .with_evidence("/dev/kvm", "EACCES")
                .remedy("sudo berth-agent check kvm   # or, to run VMs as this user: usermod -aG kvm $USER")
        }
        Some(KvmDevice::DeniedByCgroup) => Outcome::skip("the device cgroup of this container forbids /dev/kvm, so the host cannot be checked")
            .with_evidence("/dev/kvm", "EPERM")
            .remedy("run berth-agent on the host itself"),
        Some(KvmDevice::OpenFailed(what)) => Outcome::fail(format!("/dev/kvm cannot be opened: {what}")).with_evidence("/dev/kvm", what),
        Some(KvmDevice::Absent) => Outcome::skip("/dev/kvm does not exist, see kvm.device"),
    }
}

fn check_vm_creation(input: &Input) -> Outcome {
    let Some(KvmDevice::Opened(probe)) = &input.facts.kvm_evidence.device else {
        return Outcome::skip("/dev/kvm could not be opened, see kvm.access");
    };
    let version = probe.api_version.map_or_else(|| "none".to_owned(), |v| v.to_string());
    match &probe.test_failure {
        None => Outcome::pass("a VM was created and destroyed").with_evidence("KVM_GET_API_VERSION", version),
        Some(failure) => Outcome::fail("/dev/kvm can be opened, but no VM can be created")
            .with_evidence("KVM_GET_API_VERSION", version)
            .with_evidence("/dev/kvm", failure)
            .remedy("dmesg | grep -i kvm   # another hypervisor (VirtualBox, VMware) may use the CPU: stop it"),
    }
}

fn check_vcpu_limit(input: &Input) -> Outcome {
    let (Some(limit), Some(threads)) = (input.facts.kvm.max_vcpus, input.facts.cpu.threads) else {
        return Outcome::skip("the limit is read from /dev/kvm, which could not be opened");
    };
    let message = format!("a VM can have {limit} vCPUs, the host has {threads} CPUs");
    let outcome = if limit < threads {
        Outcome::warn(message).remedy("boot a kernel built with a larger CONFIG_KVM_MAX_NR_VCPUS")
    } else {
        Outcome::pass(message)
    };
    outcome.with_evidence("KVM_CAP_MAX_VCPUS", limit)
}

fn check_nested(input: &Input) -> Outcome {
    let evidence = &input.facts.kvm_evidence;
    match (input.facts.kvm.nested, evidence.module) {
        (Some(on), Some(module)) => {
            let path = format!("/sys/module/{module}/parameters/nested");
            if on {
                Outcome::pass("guests can run VMs").with_evidence(path, "on")
            } else {
                Outcome::warn("guests cannot run VMs").with_evidence(path, "off").remedy(format!(
                    "echo 'options {module} nested=1' > /etc/modprobe.d/kvm-nested.conf, then reload {module} \
                     with no VM running; not needed unless a tenant runs VMs in guests"
                ))
            }
        }
        _ => Outcome::skip("no KVM module of this CPU's vendor is loaded"),
    }
}

fn check_second_level_translation(input: &Input) -> Outcome {
    match (input.facts.kvm.second_level_translation, input.facts.kvm_evidence.module) {
        (Some(on), Some(module)) => {
            let name = if module == "kvm_amd" { "npt" } else { "ept" };
            let path = format!("/sys/module/{module}/parameters/{name}");
            if on {
                Outcome::pass("in use").with_evidence(path, "on")
            } else {
                Outcome::warn("the CPU does not translate guest addresses; memory-intensive VMs will be very slow")
                    .with_evidence(path, "off")
                    .remedy(format!(
                        "remove {name}=0 from /etc/modprobe.d and the kernel command line"
                    ))
            }
        }
        _ => Outcome::skip("no KVM module of this CPU's vendor is loaded"),
    }
}

fn check_device_file(
    name: &str,
    path: &str,
    module: &str,
    present: Option<bool>,
    required: bool,
) -> Outcome {
    let remedy = format!("modprobe {module} && echo {module} > /etc/modules-load.d/{module}.conf");
    match present {
        Some(true) => Outcome::pass("present").with_evidence(path, "present"),
        Some(false) if required => {
            Outcome::fail(format!("{name} is missing")).with_evidence(path, "absent").remedy(remedy)
        }
        Some(false) => {
            Outcome::warn(format!("{name} is missing")).with_evidence(path, "absent").remedy(remedy)
        }
        None => Outcome::skip(format!("{path} is not visible here; it may exist on the host")),
    }
}

fn check_confidential(input: &Input) -> Outcome {
    let word = |kind| serde_json::to_value(kind).ok().and_then(|v| v.as_str().map(str::to_owned));
    match &input.facts.kvm.confidential {
        _ if input.facts.kvm_evidence.is_module_loaded != Some(true) => {
            Outcome::skip("no KVM module of this CPU's vendor is loaded")
        }
        None => Outcome::skip(
            "the KVM module supports confidential VMs, but the captured tree has no device files of the firmware",
        ),
        Some(kinds) if kinds.is_empty() => Outcome::skip(
            "this host supports no confidential VMs; only VMs with launchSecurity need them",
        ),
        Some(kinds) => {
            let kinds: Vec<String> = kinds.iter().filter_map(word).collect();
            Outcome::pass(kinds.join(", "))
                .with_evidence("/sys/module/kvm_*/parameters", kinds.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::run_check_on_facts;
    use berth_host_facts::HostFacts;
    use berth_host_facts::kvm::KvmEvidence;

    #[test]
    fn each_state_has_a_specific_remedy() {
        let facts = |state, device, flag| HostFacts {
            kvm: berth_api::infra_node::Kvm { state, ..Default::default() },
            kvm_evidence: KvmEvidence {
                device,
                has_cpu_flag: flag,
                has_cpuid_virtualization: Some(true),
                module: Some("kvm_intel"),
                ..KvmEvidence::default()
            },
            ..HostFacts::default()
        };
        for (state, device, flag, id, remedy) in [
            (
                KvmState::DisabledInFirmware,
                KvmDevice::Absent,
                false,
                "kvm.hardware",
                "firmware setup",
            ),
            (
                KvmState::ModuleNotLoaded,
                KvmDevice::Absent,
                true,
                "kvm.device",
                "modprobe kvm_intel",
            ),
        ] {
            let facts = facts(Some(state), Some(device), Some(flag));
            let outcome = run_check_on_facts(id, &facts);
            assert_eq!(outcome.status, Status::Fail, "{id}");
            assert!(outcome.remedy.unwrap().contains(remedy), "{id}");
        }
        // Most hosts restrict /dev/kvm to root and a group, which is not a failure of the host.
        let closed = facts(Some(KvmState::NoPermission), Some(KvmDevice::NoPermission), Some(true));
        assert_eq!(run_check_on_facts("kvm.access", &closed).status, Status::Warn);
    }
}
