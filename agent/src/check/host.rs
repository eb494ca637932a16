//! The host as a whole: control groups, size, and whether it is who it says.

use berth_api::Bytes;
use berth_api::infra_node::Hypervisor;

use super::{Check, Input, Outcome};
use crate::observe::identity::is_machine_id;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cgroup.version",
        title: "unified control groups",
        explanation: "Kubernetes supports cgroup v1 in maintenance only, and KubeVirt's and Berth's CPU and \
            memory controls expect the unified hierarchy (v2).",
        run: cgroup_version,
    },
    Check {
        id: "cgroup.controllers",
        title: "control group controllers",
        explanation: "VMs need cpu, cpuset, memory and io (blkio on v1), and device control: the devices \
            controller on v1, BPF on v2, where it is always there.",
        run: cgroup_controllers,
    },
    Check {
        id: "host.guest",
        title: "bare metal",
        explanation: "Berth is made for bare metal. On a host that is itself a guest VMs are nested: slower, \
            with another hypervisor's limits, and pinning pins virtual CPUs.",
        run: guest,
    },
    Check {
        id: "host.cores",
        title: "at least 16 cores",
        explanation: "Production minimum for an infra node: 16 physical cores (8 for testing).",
        run: cores,
    },
    Check {
        id: "host.memory",
        title: "at least 64 GiB of memory",
        explanation: "Production minimum for an infra node: 64 GiB (32 for testing). What firmware and kernel \
            keep for themselves, up to a twentieth, is allowed for.",
        run: memory,
    },
    Check {
        id: "host.storage",
        title: "at least 500 GB of disks",
        explanation: "Production minimum for an infra node: 500 GB of local disks (100 for testing).",
        run: storage,
    },
    Check {
        id: "host.machine-id",
        title: "no clone's machine id",
        explanation: "Hosts cloned from one image share /etc/machine-id, from which systemd derives hardware \
            addresses of bridges and veths: two such hosts lose frames in ways that look like a broken switch. \
            Seen by an id that is missing or not an id, by copies that disagree, and by a neighbour that has \
            one of our own hardware addresses.",
        run: machine_id,
    },
    Check {
        id: "host.product-uuid",
        title: "a firmware id of its own",
        explanation: "Some boards leave the factory with a placeholder for their UUID, which Kubernetes takes as \
            systemUUID: two such hosts look like one. Readable by root only.",
        run: product_uuid,
    },
];

fn cgroup_version(input: &Input) -> Outcome {
    match input.facts.cgroup.version {
        Some(2) => Outcome::pass("v2").because("/sys/fs/cgroup/cgroup.controllers", "there"),
        Some(_) => Outcome::warn("legacy or hybrid control groups (v1)")
            .because("/sys/fs/cgroup/cgroup.controllers", "not there")
            .remedy("boot with systemd.unified_cgroup_hierarchy=1 and without cgroup v1 mounts"),
        None => Outcome::skip("the tree has neither /sys/fs/cgroup nor /proc/cgroups"),
    }
}

fn cgroup_controllers(input: &Input) -> Outcome {
    let cgroup = &input.facts.cgroup;
    let (needed, path): (&[&str], &str) = match cgroup.version {
        Some(2) => (&["cpu", "cpuset", "io", "memory"], "/sys/fs/cgroup/cgroup.controllers"),
        Some(_) => (&["blkio", "cpu", "cpuacct", "cpuset", "devices", "memory"], "/proc/cgroups"),
        None => return Outcome::skip("the tree has neither /sys/fs/cgroup nor /proc/cgroups"),
    };
    let has = |name: &&&str| cgroup.controllers.iter().any(|controller| controller == **name);
    let missing: Vec<&str> = needed.iter().filter(|name| !has(name)).copied().collect();
    let seen = cgroup.controllers.join(" ");
    if missing.is_empty() {
        Outcome::pass(needed.join(", ")).because(path, seen)
    } else {
        Outcome::warn(format!("missing: {}", missing.join(", "))).because(path, seen).remedy(
            "remove cgroup_disable= from the kernel command line, or use a kernel built with them",
        )
    }
}

fn guest(input: &Input) -> Outcome {
    match input.facts.machine.hypervisor {
        None => Outcome::skip("not known"),
        Some(Hypervisor::None) => {
            Outcome::pass("bare metal").because("/proc/cpuinfo flags", "no hypervisor")
        }
        Some(other) => Outcome::warn(format!("this host is itself a guest ({other:?})"))
            .because("/proc/cpuinfo flags", "hypervisor")
            .remedy("fine for trying Berth; use bare metal for production"),
    }
}

const CORES: u32 = 16;
const MEMORY: Bytes = Bytes(64 << 30);
const STORAGE: Bytes = Bytes(500_000_000_000);

fn cores(input: &Input) -> Outcome {
    let Some(cores) = input.facts.cpu.cores else { return Outcome::skip("not known") };
    let path = "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list";
    let message = format!("{cores} cores");
    if cores < CORES {
        Outcome::warn(format!("{message}, below the production minimum of {CORES}"))
            .because(path, message)
            .remedy("fine for testing from 8 cores")
    } else {
        Outcome::pass(&message).because(path, message)
    }
}

fn memory(input: &Input) -> Outcome {
    let Some(total) = input.facts.memory.total else { return Outcome::skip("not known") };
    let path = "/proc/meminfo MemTotal";
    if total.0 < MEMORY.0 / 20 * 19 {
        Outcome::warn(format!(
            "{}, below the production minimum of {}",
            total.human(),
            MEMORY.human()
        ))
        .because(path, total)
        .remedy("fine for testing from 32 GiB")
    } else {
        Outcome::pass(total.human()).because(path, total)
    }
}

fn storage(input: &Input) -> Outcome {
    match &input.disks {
        None => Outcome::skip("the tree has no block devices"),
        Some((disks, size)) if size.0 < STORAGE.0 => {
            let found = if disks.is_empty() { "no local disk".to_owned() } else { disks.join(" ") };
            Outcome::warn(format!("{}, below the production minimum of 500 GB", size.human()))
                .because("/sys/class/block/*/size", format!("{found}: {size}"))
                .remedy(
                    "fine for testing from 100 GB; volumes on network storage count on their own",
                )
        }
        Some((disks, size)) => Outcome::pass(format!("{} on {} disks", size.human(), disks.len()))
            .because("/sys/class/block/*/size", disks.join(" ")),
    }
}

fn machine_id(input: &Input) -> Outcome {
    let identity = &input.identity;
    let renew = "drain the node; then: rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup; \
        reboot once no VM is left. Empty /etc/machine-id in the image, so that each clone makes its own";
    if let Some(neighbour) = identity.neighbours_with_our_address.first() {
        return Outcome::warn(format!(
            "{} on {} has a hardware address of this host's own: a clone with the same machine id?",
            neighbour.address, neighbour.link
        ))
        .because("/proc/net/arp", format!("{} {}", neighbour.address, neighbour.mac))
        .remedy(renew);
    }
    let Some(id) = &identity.machine_id else {
        return Outcome::skip("there is no /etc/machine-id, or it may not be read");
    };
    let same_digit = id.bytes().next().is_some_and(|first| id.bytes().all(|b| b == first));
    if !is_machine_id(id) || same_digit {
        return Outcome::warn("this is no machine id: systemd makes a new one at every boot")
            .because("/etc/machine-id", id)
            .remedy(renew);
    }
    if let Some(other) = identity.dbus_machine_id.as_ref().filter(|other| *other != id) {
        return Outcome::warn("D-Bus knows this host by another machine id")
            .because("/etc/machine-id", id)
            .because("/var/lib/dbus/machine-id", other)
            .remedy("ln -sf /etc/machine-id /var/lib/dbus/machine-id");
    }
    let override_ = input.facts.kernel.parameter("systemd.machine_id").last();
    if let Some(given) = override_.filter(|given| *given != "firmware" && given != id) {
        return Outcome::warn("the kernel command line gives another machine id")
            .because("/proc/cmdline systemd.machine_id", given)
            .because("/etc/machine-id", id)
            .remedy(
                "remove systemd.machine_id= if it is in the image rather than this host's own",
            );
    }
    if identity.journals.len() > 1 || identity.journals.iter().any(|journal| journal != id) {
        let journals: Vec<&str> = identity.journals.iter().map(String::as_str).collect();
        return Outcome::warn("journals of other machine ids: this disk was another host's, or an image that had booted")
            .because("/etc/machine-id", id)
            .because("/var/log/journal", journals.join(" "))
            .remedy("make sure no other host of that image kept the old id; then remove the old journals");
    }
    Outcome::pass("one id everywhere").because("/etc/machine-id", id)
}

/// UUIDs that whole production runs of boards share.
const PLACEHOLDERS: [&str; 4] = [
    "03000200-0400-0500-0006-000700080009",
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "12345678-1234-5678-90ab-cddeefaabbcc",
];

fn product_uuid(input: &Input) -> Outcome {
    let path = "/sys/class/dmi/id/product_uuid";
    match &input.identity.product_uuid {
        None => Outcome::skip("the firmware has none, or only root may read it"),
        Some(uuid) if PLACEHOLDERS.contains(&uuid.to_lowercase().as_str()) => {
            Outcome::warn("the firmware has a placeholder for its UUID, which other boards share")
                .because(path, uuid)
                .remedy("set it with the maker's tool (AMIDEEFIx64 /SU auto on AMI firmware)")
        }
        Some(uuid) => Outcome::pass("not a known placeholder").because(path, uuid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::tests_support::{judge, judge_input};
    use crate::observe::HostFacts;
    use crate::observe::identity::{Identity, Neighbour};

    #[test]
    fn clones_show_in_many_ways() {
        let id = "0123456789abcdef0123456789abcdef";
        let good = Identity {
            machine_id: Some(id.to_owned()),
            journals: [id.to_owned()].into(),
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
            (Identity { journals: [other].into(), ..good.clone() }, Status::Warn),
            (Identity { neighbours_with_our_address: vec![neighbour], ..good }, Status::Warn),
            (Identity::default(), Status::Skip),
        ] {
            let facts = HostFacts::default();
            let input = Input { identity, ..Input::of(&facts) };
            assert_eq!(judge_input("host.machine-id", &input).status, status);
        }
    }

    #[test]
    fn a_64_gib_host_passes_though_its_kernel_keeps_some() {
        let status = |total| {
            let mut facts = HostFacts::default();
            facts.memory.total = Some(total);
            judge("host.memory", &facts).status
        };
        assert_eq!(status(Bytes::from_kib(65_600_000)), Status::Pass);
        assert_eq!(status(Bytes(48 << 30)), Status::Warn);
    }
}
