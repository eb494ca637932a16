//! Can virtual machines run at all, and how well.

use berth_api::infra_node::{Hypervisor, KvmState};

use super::{Check, Input, Outcome};
use crate::observe::kvm::device::Device;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kvm.hardware",
        title: "hardware virtualisation",
        explanation: "The CPU must offer Intel VT-x (vmx) or AMD-V (svm), and the firmware must not have \
            switched it off. Without it VMs are emulated, some ten times slower, and KubeVirt refuses them.",
        run: hardware,
    },
    Check {
        id: "kvm.device",
        title: "/dev/kvm is there",
        explanation: "KVM's device appears once the module of the CPU's vendor is loaded. Without it the \
            kubelet reports no devices.kubevirt.io/kvm and VM pods stay Pending.",
        run: device,
    },
    Check {
        id: "kvm.access",
        title: "/dev/kvm can be opened",
        explanation: "Whoever runs VMs must be allowed to read and write /dev/kvm. KubeVirt sees to that for \
            itself; that an ordinary user may not is a warning, that root may not is a failure.",
        run: access,
    },
    Check {
        id: "kvm.vm",
        title: "a VM can be made",
        explanation: "Asks KVM for its API version, which must be 12, and makes an empty VM. It fails where \
            another hypervisor holds the CPU, or nested virtualisation is half switched on.",
        run: vm,
    },
    Check {
        id: "kvm.vcpu-limit",
        title: "vCPUs of one VM",
        explanation: "The kernel's limit on vCPUs of one VM (KVM_CAP_MAX_VCPUS) should not be below the CPUs \
            of the host, or its largest VM cannot use all of it.",
        run: vcpu_limit,
    },
    Check {
        id: "kvm.nested",
        title: "nested virtualisation",
        explanation: "Guests can run VMs themselves only with the KVM module's parameter nested. Tenants who \
            test on virtual nodes need it; others are safer without.",
        run: nested,
    },
    Check {
        id: "kvm.second-level-translation",
        title: "second level address translation",
        explanation: "EPT (Intel) or NPT (AMD) lets the CPU translate guest addresses itself. Without it \
            every page table change of a guest traps, and memory-heavy VMs crawl.",
        run: second_level_translation,
    },
    Check {
        id: "kvm.vhost-net",
        title: "vhost-net",
        explanation: "In-kernel virtio networking (/dev/vhost-net). Without it every packet passes through \
            QEMU, at a fraction of the throughput.",
        run: |input| {
            helper("vhost-net", "/dev/vhost-net", "vhost_net", input.facts.kvm.vhost_net, false)
        },
    },
    Check {
        id: "kvm.vhost-vsock",
        title: "vhost-vsock",
        explanation: "Host to guest sockets (/dev/vhost-vsock), for VMs that ask for autoattachVSOCK. Only \
            needed by those.",
        run: |input| {
            helper(
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
        explanation: "Tap links (/dev/net/tun) connect VMs to bridges. Without them no VM has a network.",
        run: |input| helper("tun", "/dev/net/tun", "tun", input.facts.kvm.tun, true),
    },
    Check {
        id: "kvm.confidential",
        title: "confidential VMs",
        explanation: "AMD SEV, SEV-ES, SEV-SNP or Intel TDX, needed only for VMs that ask for launchSecurity. \
            The module's parameter and the firmware's device must both be there.",
        run: confidential,
    },
];

const FIRMWARE: &str = "switch on Intel VT-x (VMX) or AMD-V (SVM) in the firmware setup, then power the host off and on";

fn hardware(input: &Input) -> Outcome {
    let evidence = &input.facts.kvm_evidence;
    let guest = !matches!(input.facts.machine.hypervisor, None | Some(Hypervisor::None));
    let flag = |outcome: Outcome, value: &str| outcome.because("/proc/cpuinfo flags", value);
    match (evidence.cpu_flag, input.facts.kvm.state) {
        (_, Some(KvmState::DisabledInFirmware)) => {
            let outcome = Outcome::fail("the CPU can, but the firmware has switched it off");
            let outcome = match evidence.cpuid {
                Some(true) => outcome.because("CPUID", "VMX or SVM offered"),
                _ => outcome,
            };
            let seen = if evidence.cpu_flag == Some(true) { "vmx or svm" } else { "neither vmx nor svm" };
            flag(outcome, seen).remedy(FIRMWARE)
        }
        (Some(true), _) => {
            let name = if input.facts.cpuinfo.has("vmx") { "vmx" } else { "svm" };
            flag(Outcome::pass("the CPU offers it"), name)
        }
        (Some(false), Some(KvmState::Ready)) => flag(
            Outcome::fail("KVM makes VMs, yet the CPU has neither VMX nor SVM: a paravirtual KVM that ordinary guests do not boot on"),
            "neither vmx nor svm",
        )
        .remedy("give this guest the host's CPU with nested virtualisation, or use bare metal"),
        (Some(false), _) if guest => flag(
            Outcome::fail("this host is itself a guest, and its hypervisor does not pass virtualisation on"),
            "neither vmx nor svm",
        )
        .remedy("give this guest the host's CPU with nested virtualisation (libvirt: <cpu mode='host-passthrough'/>, kvm module option nested=1), or use bare metal"),
        (Some(false), _) => flag(
            Outcome::fail("the CPU offers neither VMX nor SVM, or the firmware hides it"),
            "neither vmx nor svm",
        )
        .remedy(FIRMWARE),
        (None, Some(KvmState::Ready)) => Outcome::pass("KVM makes VMs here"),
        (None, _) => Outcome::skip("/proc/cpuinfo has no x86 flags to tell"),
    }
}

fn device(input: &Input) -> Outcome {
    let evidence = &input.facts.kvm_evidence;
    match &evidence.device {
        None => match input.facts.kvm.state {
            Some(KvmState::ModuleNotLoaded) => not_loaded(input),
            _ => Outcome::skip("a captured tree has no devices to try"),
        },
        Some(Device::Absent) => match input.facts.kvm.state {
            Some(KvmState::NoCpuSupport) => {
                Outcome::fail("there can be no /dev/kvm without hardware virtualisation")
                    .because("/dev/kvm", "not there")
                    .remedy("see kvm.hardware")
            }
            Some(KvmState::DisabledInFirmware) => {
                Outcome::fail("KVM found virtualisation switched off and made no device")
                    .because("/dev/kvm", "not there")
                    .remedy(FIRMWARE)
            }
            Some(KvmState::ModuleNotLoaded) => not_loaded(input),
            _ => Outcome::warn("the kernel has KVM, but its device node is not visible here")
                .because("/dev/kvm", "not there")
                .because("/sys/devices/virtual/misc/kvm", "there")
                .remedy(
                    "run berth-agent on the host itself, or give the container the device /dev/kvm",
                ),
        },
        Some(_) => Outcome::pass("there").because("/dev/kvm", "there"),
    }
}

fn not_loaded(input: &Input) -> Outcome {
    let module = input.facts.kvm_evidence.module.unwrap_or("kvm");
    Outcome::fail(format!("the module {module} is not loaded"))
        .because(format!("/sys/module/{module}"), "not there")
        .remedy(format!(
            "modprobe {module} && echo {module} > /etc/modules-load.d/kvm.conf   # if modprobe says \
             \"Operation not supported\", switch on virtualisation in the firmware setup"
        ))
}

fn access(input: &Input) -> Outcome {
    match &input.facts.kvm_evidence.device {
        None => Outcome::skip("a captured tree has no devices to try"),
        Some(Device::Opened(_)) => Outcome::pass("it opens for reading and writing").because("/dev/kvm", "opened"),
        Some(Device::NoPermission) if input.root => Outcome::fail("even root may not open it")
            .because("/dev/kvm", "EACCES")
            .remedy("a security module (SELinux, AppArmor) refuses: ausearch -m avc -c berth-agent; dmesg | grep -i denied"),
        Some(Device::NoPermission) => {
            Outcome::warn("this user may not open it; root and KubeVirt may")
                .because("/dev/kvm", "EACCES")
                .remedy("sudo berth-agent check kvm   # or, for VMs of your own: usermod -aG kvm $USER")
        }
        Some(Device::Forbidden) => Outcome::skip("this container's device cgroup forbids /dev/kvm, so it says nothing of the host")
            .because("/dev/kvm", "EPERM")
            .remedy("run berth-agent on the host itself"),
        Some(Device::Broken(what)) => Outcome::fail(format!("opening it failed: {what}")).because("/dev/kvm", what),
        Some(Device::Absent) => Outcome::skip("/dev/kvm is not there, see kvm.device"),
    }
}

fn vm(input: &Input) -> Outcome {
    let Some(Device::Opened(probe)) = &input.facts.kvm_evidence.device else {
        return Outcome::skip("/dev/kvm could not be opened, see kvm.access");
    };
    let version = probe.api_version.map_or_else(|| "none".to_owned(), |v| v.to_string());
    match &probe.failure {
        None => Outcome::pass("a VM was made and let go again").because("KVM_GET_API_VERSION", version),
        Some(failure) => Outcome::fail("KVM opens, but makes no VM")
            .because("KVM_GET_API_VERSION", version)
            .because("/dev/kvm", failure)
            .remedy("dmesg | grep -i kvm   # another hypervisor (VirtualBox, VMware) may hold the CPU: stop it"),
    }
}

fn vcpu_limit(input: &Input) -> Outcome {
    let (Some(limit), Some(threads)) = (input.facts.kvm.max_vcpus, input.facts.cpu.threads) else {
        return Outcome::skip("the limit comes from /dev/kvm, which could not be opened");
    };
    let message = format!("a VM can have {limit} vCPUs, the host has {threads} CPUs");
    let outcome = if limit < threads {
        Outcome::warn(message).remedy("boot a kernel built with a larger CONFIG_KVM_MAX_NR_VCPUS")
    } else {
        Outcome::pass(message)
    };
    outcome.because("KVM_CAP_MAX_VCPUS", limit)
}

fn nested(input: &Input) -> Outcome {
    let evidence = &input.facts.kvm_evidence;
    match (input.facts.kvm.nested, evidence.module) {
        (Some(on), Some(module)) => {
            let path = format!("/sys/module/{module}/parameters/nested");
            if on {
                Outcome::pass("guests can run VMs themselves").because(path, "on")
            } else {
                Outcome::warn("guests cannot run VMs themselves").because(path, "off").remedy(format!(
                    "echo 'options {module} nested=1' > /etc/modprobe.d/kvm-nested.conf, then reload {module} \
                     with no VM running; leave it if no tenant needs it"
                ))
            }
        }
        _ => Outcome::skip("no KVM module of this CPU's vendor is loaded"),
    }
}

fn second_level_translation(input: &Input) -> Outcome {
    match (input.facts.kvm.second_level_translation, input.facts.kvm_evidence.module) {
        (Some(on), Some(module)) => {
            let name = if module == "kvm_amd" { "npt" } else { "ept" };
            let path = format!("/sys/module/{module}/parameters/{name}");
            if on {
                Outcome::pass("in use").because(path, "on")
            } else {
                Outcome::warn("not in use; memory-heavy VMs will crawl")
                    .because(path, "off")
                    .remedy(format!(
                        "remove {name}=0 from /etc/modprobe.d and the kernel command line"
                    ))
            }
        }
        _ => Outcome::skip("no KVM module of this CPU's vendor is loaded"),
    }
}

fn helper(name: &str, path: &str, module: &str, there: Option<bool>, needed: bool) -> Outcome {
    let remedy = format!("modprobe {module} && echo {module} > /etc/modules-load.d/{module}.conf");
    match there {
        Some(true) => Outcome::pass("there").because(path, "there"),
        Some(false) if needed => {
            Outcome::fail(format!("there is no {name}")).because(path, "not there").remedy(remedy)
        }
        Some(false) => {
            Outcome::warn(format!("there is no {name}")).because(path, "not there").remedy(remedy)
        }
        None => {
            Outcome::skip(format!("{path} is not visible here; on the host itself it may be there"))
        }
    }
}

fn confidential(input: &Input) -> Outcome {
    let word = |kind| serde_json::to_value(kind).ok().and_then(|v| v.as_str().map(str::to_owned));
    match &input.facts.kvm.confidential {
        _ if input.facts.kvm_evidence.module_loaded != Some(true) => {
            Outcome::skip("no KVM module of this CPU's vendor is loaded")
        }
        None => {
            Outcome::skip("the module says yes; whether the firmware does, the tree does not tell")
        }
        Some(kinds) if kinds.is_empty() => {
            Outcome::skip("this host offers none, which only VMs with launchSecurity miss")
        }
        Some(kinds) => {
            let kinds: Vec<String> = kinds.iter().filter_map(word).collect();
            Outcome::pass(kinds.join(", "))
                .because("/sys/module/kvm_*/parameters", kinds.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::tests_support::judge;
    use crate::observe::HostFacts;
    use crate::observe::kvm::Evidence;

    #[test]
    fn each_state_has_its_own_remedy() {
        let facts = |state, device, flag| HostFacts {
            kvm: berth_api::infra_node::Kvm { state, ..Default::default() },
            kvm_evidence: Evidence {
                device,
                cpu_flag: flag,
                cpuid: Some(true),
                module: Some("kvm_intel"),
                ..Evidence::default()
            },
            ..HostFacts::default()
        };
        for (state, device, flag, id, remedy) in [
            (KvmState::DisabledInFirmware, Device::Absent, false, "kvm.hardware", "firmware setup"),
            (KvmState::ModuleNotLoaded, Device::Absent, true, "kvm.device", "modprobe kvm_intel"),
        ] {
            let facts = facts(Some(state), Some(device), Some(flag));
            let outcome = judge(id, &facts);
            assert_eq!(outcome.status, Status::Fail, "{id}");
            assert!(outcome.remedy.unwrap().contains(remedy), "{id}");
        }
        // Most hosts keep /dev/kvm to root and a group: that is no failure of the host.
        let closed = facts(Some(KvmState::NoPermission), Some(Device::NoPermission), Some(true));
        assert_eq!(judge("kvm.access", &closed).status, Status::Warn);
    }
}
