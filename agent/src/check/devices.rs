//! Checks of device passthrough and of the file systems that hold VM images.

use berth_api::infra_node::Hypervisor;

use super::definition::Check;
use super::input::Input;
use berth_host_facts::kvm::is_ready;
use berth_host_facts::pci::PciDevice;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "iommu.firmware",
        title: "IOMMU in the firmware",
        explanation: "The ACPI table DMAR (Intel), IVRS (AMD) or IORT (Arm) describes the IOMMU of the machine. \
            Without an IOMMU no PCI device can be passed through.",
        run: check_firmware,
    },
    Check {
        id: "iommu.enabled",
        title: "IOMMU in the kernel",
        explanation: "The kernel must use the IOMMU (intel_iommu=on on Intel); it then assigns devices to IOMMU \
            groups. Passthrough of NICs, NVMe drives and GPUs needs it.",
        run: check_iommu_enabled,
    },
    Check {
        id: "devices.vfio",
        title: "PCI functions bound to vfio-pci",
        explanation: "VMs can use a function that is bound to vfio-pci only if no other function of its IOMMU group \
            has a driver of the host. spec.devices.vfio of a HostProfile or InfraNode binds functions.",
        run: check_vfio,
    },
    Check {
        id: "storage.direct-io",
        title: "O_DIRECT on the file systems of VM images",
        explanation: "QEMU opens disks with O_DIRECT (cache=none) to bypass the page cache. If the file system \
            does not support it, KubeVirt falls back to writethrough, and the data of VMs is cached twice.",
        run: check_direct_io,
    },
    Check {
        id: "storage.nvme",
        title: "NVMe drives for passthrough",
        explanation: "Lists the NVMe drives without partitions, mounts, holders and signatures: they can be \
            passed through to a VM without loss of data.",
        run: check_nvme,
    },
];

fn check_firmware(input: &Input) -> Outcome {
    let iommu = &input.facts.iommu;
    match (&iommu.firmware_table, iommu.enabled) {
        (Some(table), _) => {
            Outcome::pass(format!("table {table}")).with_evidence(format!("/sys/firmware/acpi/tables/{table}"), "present")
        }
        (None, Some(true)) => Outcome::pass("the kernel uses an IOMMU, although no ACPI table describes it"),
        (None, Some(false)) if input.facts.notes.is_unknown("capabilities.iommu.firmwareTable") => {
            Outcome::skip("ACPI tables are not readable here, and the kernel uses no IOMMU")
        }
        (None, Some(false)) => Outcome::warn("the firmware describes no IOMMU")
            .with_evidence("/sys/firmware/acpi/tables", "no DMAR, IVRS or IORT")
            .remedy("enable VT-d (Intel) or AMD-Vi/IOMMU in the firmware setup; only passthrough needs it"),
        (None, None) => Outcome::skip("the captured tree has no ACPI tables and no IOMMU groups"),
    }
}

fn check_iommu_enabled(input: &Input) -> Outcome {
    let path = "/sys/kernel/iommu_groups";
    match (input.facts.iommu.enabled, input.facts.iommu.groups) {
        (Some(true), Some(groups)) => Outcome::pass(format!("{groups} groups"))
            .with_evidence(path, format!("{groups} groups")),
        (Some(_), _) => {
            let guest = !matches!(input.facts.machine.hypervisor, None | Some(Hypervisor::None));
            let remedy = match input.facts.kvm_evidence.module {
                _ if guest => "give this guest a virtual IOMMU (libvirt: <iommu model='intel'/>)",
                Some("kvm_amd") => "add iommu=pt to the kernel command line and reboot",
                Some(_) => "add intel_iommu=on iommu=pt to the kernel command line and reboot",
                None => "enable the SMMU in the firmware setup",
            };
            Outcome::warn("no IOMMU groups: devices cannot be passed through")
                .with_evidence(path, "no groups")
                .remedy(format!("{remedy}; only passthrough needs it"))
        }
        (None, _) => Outcome::skip("the captured tree has no /sys/kernel/iommu_groups"),
    }
}

fn check_vfio(input: &Input) -> Outcome {
    let functions = &input.facts.pci;
    let bound: Vec<&PciDevice> = functions.iter().filter(|one| has_vfio_driver(one)).collect();
    if bound.is_empty() {
        return Outcome::skip("no PCI function is bound to vfio-pci");
    }
    let host_function = |function: &PciDevice| {
        let group = function.iommu_group?;
        functions.iter().find(|other| {
            let has_host_driver = !matches!(other.driver.as_deref(), None | Some("pci-stub"))
                && !has_vfio_driver(other);
            other.iommu_group == Some(group) && has_host_driver
        })
    };
    let shared: Vec<(&PciDevice, &PciDevice)> =
        bound.iter().filter_map(|one| Some((*one, host_function(one)?))).collect();
    let mut outcome = if shared.is_empty() {
        Outcome::pass(format!("{} functions", bound.len()))
    } else {
        let message = format!(
            "{} of {} functions share an IOMMU group with functions that the host uses",
            shared.len(),
            bound.len()
        );
        Outcome::warn(message).remedy(
            "add the other functions of the group to spec.devices.vfio of the HostProfile or InfraNode, if the host does \
             not need them; otherwise move the device to another slot",
        )
    };
    for (function, other) in shared {
        let driver = other.driver.as_deref().unwrap_or_default();
        let value = format!("its IOMMU group also contains {} ({driver})", other.address);
        outcome = outcome.with_evidence(function_path(function), value);
    }
    // A network card may have hundreds of virtual functions.
    for function in bound.into_iter().filter(|function| !function.is_virtual) {
        let number = |number: Option<u32>| {
            number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
        };
        let (group, zone) = (number(function.iommu_group), number(function.zone));
        let value = format!("{}, IOMMU group {group}, zone {zone}", function.id());
        outcome = outcome.with_evidence(function_path(function), value);
    }
    outcome
}

fn has_vfio_driver(function: &PciDevice) -> bool {
    function.driver.as_deref().is_some_and(|driver| driver.contains("vfio"))
}

fn function_path(function: &PciDevice) -> String {
    format!("/sys/bus/pci/devices/{}", function.address)
}

fn check_direct_io(input: &Input) -> Outcome {
    let paths = &input.facts.direct_io;
    if paths.is_empty() {
        return Outcome::skip(
            "none of the default paths exists on this host; name others with --direct-io-path",
        );
    }
    let filesystem = |path: &berth_api::infra_node::DirectIo| {
        path.filesystem.clone().unwrap_or_else(|| "an unknown file system".to_owned())
    };
    let evidence = |mut outcome: Outcome| {
        for path in paths {
            let supported = match path.supported {
                Some(true) => "O_DIRECT works",
                Some(false) => "no O_DIRECT",
                None => "not tested",
            };
            outcome =
                outcome.with_evidence(&path.path, format!("{}: {supported}", filesystem(path)));
        }
        outcome
    };
    let unsupported: Vec<&str> =
        paths.iter().filter(|p| p.supported == Some(false)).map(|p| p.path.as_str()).collect();
    if !unsupported.is_empty() {
        return evidence(Outcome::warn(format!("no O_DIRECT on {}", unsupported.join(", "))))
            .remedy("put images and volumes on xfs, ext4 or a block device instead of tmpfs, overlay or old ZFS");
    }
    if paths.iter().all(|path| path.supported.is_none()) {
        return evidence(Outcome::skip(
            "the test requires a running host, and root for folders that only root can write to",
        ));
    }
    evidence(Outcome::pass("O_DIRECT works"))
}

fn check_nvme(input: &Input) -> Outcome {
    let drives = &input.facts.nvme;
    if drives.is_empty() {
        return Outcome::skip("no NVMe drive was found");
    }
    let mut outcome = match drives.iter().filter(|drive| drive.in_use == Some(false)).count() {
        0 => Outcome::pass(format!("{} drives, none of them known to be unused", drives.len())),
        free => Outcome::pass(format!("{free} of {} drives unused", drives.len())),
    };
    for drive in drives {
        let users = match drive.in_use {
            Some(true) => drive.users.join(", "),
            Some(false) => "unused".to_owned(),
            None => "usage unknown".to_owned(),
        };
        outcome = outcome.with_evidence(format!("/dev/{}", drive.name), users);
    }
    if input.facts.iommu.enabled == Some(false) && is_ready(input.facts.kvm.state) {
        outcome = outcome.remedy("passthrough also needs an IOMMU, see iommu.enabled");
    }
    outcome
}

#[cfg(test)]
mod tests {
    use berth_host_facts::HostFacts;
    use berth_runtime::check::Status;

    use super::*;
    use crate::check::test_helpers::run_check_on_facts;

    fn function(address: &str, driver: &str, iommu_group: Option<u32>) -> PciDevice {
        PciDevice {
            address: address.parse().unwrap(),
            class: Some(0x01_08_02),
            vendor: Some(0x144d),
            device: Some(0xa80a),
            driver: Some(driver.to_owned()),
            iommu_group,
            zone: Some(1),
            sriov: None,
            is_virtual: false,
        }
    }

    #[test]
    fn function_of_the_host_in_the_same_group_is_reported() {
        let check = |pci: Vec<PciDevice>| {
            run_check_on_facts("devices.vfio", &HostFacts { pci, ..HostFacts::default() })
        };
        let bound = || function("0000:81:00.0", "vfio-pci", Some(40));
        let alone = check(vec![bound(), function("0000:41:00.0", "ice", Some(41))]);
        assert_eq!(alone.status, Status::Pass);
        assert_eq!(alone.evidence[0].value, "144d:a80a, IOMMU group 40, zone 1");
        let shared = check(vec![bound(), function("0000:81:00.1", "ice", Some(40))]);
        assert_eq!(shared.status, Status::Warn);
        assert!(shared.evidence[0].value.contains("0000:81:00.1 (ice)"), "{shared:?}");
        assert!(shared.remedy.is_some());
        let unknown = check(vec![function("0000:81:00.0", "vfio-pci", None)]);
        assert_eq!(unknown.status, Status::Pass);
        assert_eq!(check(vec![function("0000:41:00.0", "ice", None)]).status, Status::Skip);
    }
}
