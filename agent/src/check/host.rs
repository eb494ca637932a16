//! Checks of the host as a whole: control groups, size and identity.

use berth_api::Bytes;
use berth_api::infra_node::{Hypervisor, MIN_CORES, MIN_MEMORY, is_enough_memory};

use super::definition::Check;
use super::input::Input;
use berth_host_facts::identity::is_machine_id;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cgroup.version",
        title: "unified control groups",
        explanation: "In Kubernetes, cgroup v1 is in maintenance mode, and the CPU and memory controls of \
            KubeVirt and Berth expect the unified hierarchy (v2).",
        run: check_cgroup_version,
    },
    Check {
        id: "cgroup.controllers",
        title: "control group controllers",
        explanation: "VMs need the controllers cpu, cpuset, memory and io (blkio on v1), and device control: the \
            devices controller on v1, BPF on v2, which is always available.",
        run: check_cgroup_controllers,
    },
    Check {
        id: "host.guest",
        title: "host is bare metal",
        explanation: "Berth is made for bare metal. On a host that is a virtual machine, VMs are nested: they \
            are slower, have the limits of another hypervisor, and are pinned to virtual CPUs.",
        run: check_bare_metal,
    },
    Check {
        id: "host.cores",
        title: "at least 16 cores",
        explanation: "Production minimum for an infra node: 16 physical cores (8 for testing).",
        run: check_cores,
    },
    Check {
        id: "host.memory",
        title: "at least 64 GiB of memory",
        explanation: "Production minimum for an infra node: 64 GiB (32 for testing). The check tolerates 5 % less, \
            because firmware and kernel reserve memory.",
        run: check_memory,
    },
    Check {
        id: "host.storage",
        title: "at least 500 GB of disks",
        explanation: "Production minimum for an infra node: 500 GB of local disks (100 for testing).",
        run: check_storage,
    },
    Check {
        id: "host.machine-id",
        title: "machine id is unique",
        explanation: "Hosts cloned from one image share /etc/machine-id, from which systemd derives the MAC \
            addresses of bridges and veths: two such hosts lose frames in ways that look like a broken switch. \
            The check looks for an id that is missing or malformed, for copies of it that differ, and for a \
            neighbour with a MAC address of this host.",
        run: check_machine_id,
    },
    Check {
        id: "host.product-uuid",
        title: "firmware UUID is unique",
        explanation: "Some boards ship with a placeholder as their UUID, which Kubernetes reports as systemUUID: \
            two such hosts look like one. Only root can read the UUID.",
        run: check_product_uuid,
    },
];

fn check_cgroup_version(input: &Input) -> Outcome {
    match input.facts.cgroup.version {
        Some(2) => {
            Outcome::pass("v2").with_evidence("/sys/fs/cgroup/cgroup.controllers", "present")
        }
        Some(_) => Outcome::warn("legacy or hybrid control groups (v1)")
            .with_evidence("/sys/fs/cgroup/cgroup.controllers", "absent")
            .remedy("boot with systemd.unified_cgroup_hierarchy=1 and without cgroup v1 mounts"),
        None => Outcome::skip("the captured tree has neither /sys/fs/cgroup nor /proc/cgroups"),
    }
}

fn check_cgroup_controllers(input: &Input) -> Outcome {
    let cgroup = &input.facts.cgroup;
    let (needed, path): (&[&str], &str) = match cgroup.version {
        Some(2) => (&["cpu", "cpuset", "io", "memory"], "/sys/fs/cgroup/cgroup.controllers"),
        Some(_) => (&["blkio", "cpu", "cpuacct", "cpuset", "devices", "memory"], "/proc/cgroups"),
        None => {
            return Outcome::skip("the captured tree has neither /sys/fs/cgroup nor /proc/cgroups");
        }
    };
    let has = |name: &&&str| cgroup.controllers.iter().any(|controller| controller == **name);
    let missing: Vec<&str> = needed.iter().filter(|name| !has(name)).copied().collect();
    let seen = cgroup.controllers.join(" ");
    if missing.is_empty() {
        Outcome::pass(needed.join(", ")).with_evidence(path, seen)
    } else {
        Outcome::warn(format!("missing: {}", missing.join(", "))).with_evidence(path, seen).remedy(
            "remove cgroup_disable= from the kernel command line, or use a kernel built with these controllers",
        )
    }
}

fn check_bare_metal(input: &Input) -> Outcome {
    match input.facts.machine.hypervisor {
        None => Outcome::skip("it is unknown whether this host is a virtual machine"),
        Some(Hypervisor::None) => {
            Outcome::pass("bare metal").with_evidence("/proc/cpuinfo flags", "no hypervisor")
        }
        Some(other) => Outcome::warn(format!("this host is a virtual machine ({other:?})"))
            .with_evidence("/proc/cpuinfo flags", "hypervisor")
            .remedy("sufficient for evaluation; use bare metal for production"),
    }
}

const MIN_STORAGE: Bytes = Bytes(500_000_000_000);

fn check_cores(input: &Input) -> Outcome {
    let Some(cores) = input.facts.cpu.cores else {
        return Outcome::skip("the number of cores is unknown");
    };
    let path = "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list";
    let message = format!("{cores} cores");
    if cores < MIN_CORES {
        Outcome::warn(format!("{message}, below the production minimum of {MIN_CORES}"))
            .with_evidence(path, message)
            .remedy("8 cores are sufficient for testing")
    } else {
        Outcome::pass(&message).with_evidence(path, message)
    }
}

fn check_memory(input: &Input) -> Outcome {
    let Some(total) = input.facts.memory.total else {
        return Outcome::skip("the size of memory is unknown");
    };
    let path = "/proc/meminfo MemTotal";
    if !is_enough_memory(total) {
        Outcome::warn(format!(
            "{}, below the production minimum of {}",
            total.to_human_readable(),
            MIN_MEMORY.to_human_readable()
        ))
        .with_evidence(path, total)
        .remedy("32 GiB are sufficient for testing")
    } else {
        Outcome::pass(total.to_human_readable()).with_evidence(path, total)
    }
}

fn check_storage(input: &Input) -> Outcome {
    match &input.disks {
        None => Outcome::skip("the captured tree has no block devices"),
        Some((disks, size)) if size.0 < MIN_STORAGE.0 => {
            let found = if disks.is_empty() { "no local disk".to_owned() } else { disks.join(" ") };
            Outcome::warn(format!(
                "{}, below the production minimum of 500 GB",
                size.to_human_readable()
            ))
            .with_evidence("/sys/class/block/*/size", format!("{found}: {size}"))
            .remedy("100 GB are sufficient for testing; volumes on network storage are not counted")
        }
        Some((disks, size)) => {
            Outcome::pass(format!("{} on {} disks", size.to_human_readable(), disks.len()))
                .with_evidence("/sys/class/block/*/size", disks.join(" "))
        }
    }
}

fn check_machine_id(input: &Input) -> Outcome {
    let identity = &input.identity;
    let remedy = "drain the node; then: rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup; \
        reboot once no VM is left. Empty /etc/machine-id in the image, so that each clone generates a new id";
    if let Some(neighbour) = identity.neighbours_with_host_mac.first() {
        return Outcome::warn(format!(
            "{} on {} has a MAC address of this host: is it a clone with the same machine id?",
            neighbour.address, neighbour.link
        ))
        .with_evidence("/proc/net/arp", format!("{} {}", neighbour.address, neighbour.mac))
        .remedy(remedy);
    }
    let Some(id) = &identity.machine_id else {
        return Outcome::skip("/etc/machine-id does not exist or is not readable");
    };
    let same_digit = id.bytes().next().is_some_and(|first| id.bytes().all(|b| b == first));
    if !is_machine_id(id) || same_digit {
        return Outcome::warn(
            "the machine id is malformed: systemd generates a new one at every boot",
        )
        .with_evidence("/etc/machine-id", id)
        .remedy(remedy);
    }
    if let Some(other) = identity.dbus_machine_id.as_ref().filter(|other| *other != id) {
        return Outcome::warn("D-Bus has another machine id for this host")
            .with_evidence("/etc/machine-id", id)
            .with_evidence("/var/lib/dbus/machine-id", other)
            .remedy("ln -sf /etc/machine-id /var/lib/dbus/machine-id");
    }
    let override_ = input.facts.kernel.parameter_values("systemd.machine_id").last();
    if let Some(given) = override_.filter(|given| *given != "firmware" && given != id) {
        return Outcome::warn("the kernel command line sets another machine id")
            .with_evidence("/proc/cmdline systemd.machine_id", given)
            .with_evidence("/etc/machine-id", id)
            .remedy("remove systemd.machine_id= if it comes from the image");
    }
    if identity.journal_machine_ids.len() > 1
        || identity.journal_machine_ids.iter().any(|journal| journal != id)
    {
        let journals: Vec<&str> = identity.journal_machine_ids.iter().map(String::as_str).collect();
        return Outcome::warn("the journal has entries of other machine ids: the disk comes from another host, or from an image that was booted")
            .with_evidence("/etc/machine-id", id)
            .with_evidence("/var/log/journal", journals.join(" "))
            .remedy("make sure that no other host of that image has the old id; then remove the old journals");
    }
    Outcome::pass("all copies of the machine id agree").with_evidence("/etc/machine-id", id)
}

/// UUIDs that many boards of one model share.
const PLACEHOLDER_UUIDS: [&str; 4] = [
    "03000200-0400-0500-0006-000700080009",
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "12345678-1234-5678-90ab-cddeefaabbcc",
];

fn check_product_uuid(input: &Input) -> Outcome {
    let path = "/sys/class/dmi/id/product_uuid";
    match &input.identity.product_uuid {
        None => Outcome::skip("the firmware has no UUID, or only root may read it"),
        Some(uuid) if PLACEHOLDER_UUIDS.contains(&uuid.to_lowercase().as_str()) => {
            Outcome::warn("the UUID of the firmware is a placeholder that other boards share")
                .with_evidence(path, uuid)
                .remedy("set the UUID with the tool of the board's manufacturer (AMIDEEFIx64 /SU auto on AMI firmware)")
        }
        Some(uuid) => Outcome::pass("not a known placeholder").with_evidence(path, uuid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{run_check_on_facts, run_check_with_input};
    use berth_host_facts::HostFacts;
    use berth_host_facts::identity::{Identity, Neighbour};

    #[test]
    fn clones_are_detected_by_each_copy_of_the_id() {
        let id = "0123456789abcdef0123456789abcdef";
        let good = Identity {
            machine_id: Some(id.to_owned()),
            journal_machine_ids: [id.to_owned()].into(),
            ..Identity::default()
        };
        let other = "fedcba9876543210fedcba9876543210".to_owned();
        let neighbour =
            Neighbour { address: "10.0.0.2".into(), mac: "x".into(), link: "br0".into() };
        for (identity, status) in [
            (good.clone(), Status::Pass),
            (Identity { machine_id: Some("uninitialized".into()), ..good.clone() }, Status::Warn),
            (Identity { machine_id: Some("0".repeat(32)), ..good.clone() }, Status::Warn),
            (Identity { dbus_machine_id: Some(other.clone()), ..good.clone() }, Status::Warn),
            (Identity { journal_machine_ids: [other].into(), ..good.clone() }, Status::Warn),
            (Identity { neighbours_with_host_mac: vec![neighbour], ..good }, Status::Warn),
            (Identity::default(), Status::Skip),
        ] {
            let facts = HostFacts::default();
            let input = Input { identity, ..Input::from_facts(&facts) };
            assert_eq!(run_check_with_input("host.machine-id", &input).status, status);
        }
    }

    #[test]
    fn host_with_64_gib_passes_although_its_kernel_reserves_memory() {
        let status = |total| {
            let mut facts = HostFacts::default();
            facts.memory.total = Some(total);
            run_check_on_facts("host.memory", &facts).status
        };
        assert_eq!(status(Bytes::from_kib(65_600_000)), Status::Pass);
        assert_eq!(status(Bytes(48 << 30)), Status::Warn);
    }
}
