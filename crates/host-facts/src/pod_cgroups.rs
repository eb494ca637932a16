//! Finds the systemd units that contain processes of pods and virtual machines.
//!
//! Usually the control groups of pods are below `kubepods.slice`. They are below the unit of the container runtime if
//! the kubelet uses the systemd cgroup driver and the runtime does not (runc then uses the name as a path relative to
//! its own group: `/system.slice/containerd.service/kubepods-pod<uid>.slice:cri-containerd:<id>`). They are below the
//! unit of the kubelet if `cgroupRoot` is set, or if the kubelet itself runs in a container. Virtual machines that
//! libvirt starts without systemd-machined are in the unit of libvirt.

use std::collections::BTreeMap;

use crate::root::Root;
use crate::setting::SystemdUnit;

/// Prefixes of the names of processes that run virtual machines. Such a process counts in any control group.
const VM_PROCESS_PREFIXES: [&str; 2] = ["qemu-", "virt-launcher"];

/// Returns the units that contain pods or virtual machines. The value describes one such process or control group in
/// the unit.
pub(super) fn observe(root: &Root) -> BTreeMap<SystemdUnit, String> {
    let processes = match root.list_numbered("proc", "") {
        Ok(processes) => processes,
        // Any unit may contain pods.
        Err(error) => {
            let units = SystemdUnit::ALL.into_iter();
            return units.map(|unit| (unit, error.to_string())).collect();
        }
    };
    let mut found = BTreeMap::new();
    for (pid, folder) in processes {
        // The file is missing if the process has ended since the list was read or, in a container, if the process is a
        // kernel thread.
        let Ok(text) = root.read(&format!("proc/{folder}/cgroup")) else { continue };
        let Some(group) = cgroup_v2_path(&text) else { continue };
        let (path, is_relative) = resolve_path(root, group);
        let name = || root.read(&format!("proc/{folder}/comm")).unwrap_or_default();
        let is_vm = || VM_PROCESS_PREFIXES.iter().any(|machine| name().starts_with(machine));
        let units = parent_units(path, is_relative);
        if units.is_empty() || !(contains_pod_uid(path) || is_vm()) {
            continue;
        }
        for unit in units {
            found.entry(unit).or_insert_with(|| {
                format!("process {pid} ({}) in {group} (/proc/{folder}/cgroup)", name())
            });
        }
    }
    // A control group of a pod that is being created has no process yet.
    if let Some(folder) = find_pod_group_in_system_slice(root) {
        found.entry(SystemdUnit::System).or_insert(folder);
    }
    found
}

/// Returns the path of the control group in the version 2 hierarchy. Version 1 is ignored, because `AllowedCPUs` of
/// units takes effect only in version 2.
fn cgroup_v2_path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Returns the path of a control group relative to the host's root control group, and true if the first components of
/// this path are unknown. A process in a cgroup namespace sees paths relative to its own group: `/../..`, followed by
/// the components below the common ancestor.
fn resolve_path<'a>(root: &Root, group: &'a str) -> (&'a str, bool) {
    let mut path = group;
    while let Some(rest) = path.strip_prefix("/..") {
        path = rest;
    }
    let top = path.split('/').nth(1).unwrap_or_default();
    let is_relative = path.len() < group.len()
        && !top.is_empty()
        && !root.exists(&format!("sys/fs/cgroup/{top}"));
    (path, is_relative)
}

/// Returns the units that may contain a control group: all units if the first components of its path are unknown
/// (`is_relative`).
fn parent_units(path: &str, is_relative: bool) -> Vec<SystemdUnit> {
    let top = path.split('/').nth(1).unwrap_or_default();
    SystemdUnit::ALL.into_iter().filter(|unit| is_relative || unit.unit_name() == top).collect()
}

/// Returns true if a component of the path contains the UID of a pod: `pod` and 32 hexadecimal digits, with `-` or `_`
/// between the digits (the UID of a static pod has no separators). `libpod-<64 digits>` is a container of Podman, not a
/// pod.
fn contains_pod_uid(path: &str) -> bool {
    path.match_indices("pod").any(|(offset, word)| {
        let before = path.get(..offset).unwrap_or_default();
        let starts_word = !before.ends_with(|c: char| c.is_ascii_alphanumeric());
        let rest = path.get(offset + word.len()..).unwrap_or_default();
        let uid = rest.split(|c: char| !c.is_ascii_hexdigit() && c != '-' && c != '_').next();
        let digits = uid.unwrap_or_default().chars().filter(char::is_ascii_hexdigit).count();
        starts_word && digits == 32 && rest.starts_with(|c: char| c.is_ascii_hexdigit())
    })
}

/// Returns the path of a folder with control groups of pods directly below a service, if there is one. If the services
/// cannot be listed, returns the error, because any of them may contain pods.
fn find_pod_group_in_system_slice(root: &Root) -> Option<String> {
    let top = "sys/fs/cgroup/system.slice";
    let names = match root.list(top) {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return None,
        Err(error) => return Some(error.to_string()),
    };
    let candidates =
        names.into_iter().filter(|name| name.ends_with(".service") || name.starts_with("kubepods"));
    candidates
        .flat_map(|name| {
            let nested = format!("{top}/{name}");
            if name.starts_with("kubepods") {
                vec![nested]
            } else {
                vec![format!("{nested}/kubepods"), format!("{nested}/kubepods.slice")]
            }
        })
        .find(|folder| root.exists(folder))
        .map(|folder| format!("/{folder}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_control_group_is_recognized_by_uid() {
        let uid = "6f9d2f1e-0c3a-4f0e-9a55-0d6f1a2b3c4d";
        for (path, is_pod) in [
            (
                format!(
                    "/system.slice/containerd.service/kubepods-burstable-pod{}.slice:cri-containerd:ab",
                    uid.replace('-', "_")
                ),
                true,
            ),
            (format!("/kubepods/burstable/pod{uid}/0123"), true),
            (
                "/kubepods.slice/kubepods-pod0123456789abcdef0123456789abcdef.slice/x".to_owned(),
                true,
            ),
            (format!("/machine.slice/libpod-{}.scope", "ab".repeat(32)), false),
            (format!("/machine.slice/libpod{uid}.scope"), false),
            ("/system.slice/podman.service".to_owned(), false),
            ("/system.slice/kubelet.service".to_owned(), false),
        ] {
            assert_eq!(contains_pod_uid(&path), is_pod, "{path}");
        }
    }
}
