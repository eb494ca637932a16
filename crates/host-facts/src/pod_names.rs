//! Names of pods' control groups and log folders, from which UIDs, namespaces and names of pods are read.

/// Folder that contains a log folder for each pod, named `<namespace>_<name>_<uid>`.
pub const POD_LOGS_FOLDER: &str = "var/log/pods";

/// Folders in which the kubelet creates control groups of pods, one for each QoS class: in cgroup v2, then in cgroup
/// v1, with either cgroup driver.
pub const POD_CGROUP_FOLDERS: [&str; 12] = [
    "sys/fs/cgroup/kubepods.slice",
    "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice",
    "sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice",
    "sys/fs/cgroup/kubepods",
    "sys/fs/cgroup/kubepods/burstable",
    "sys/fs/cgroup/kubepods/besteffort",
    "sys/fs/cgroup/hugetlb/kubepods.slice",
    "sys/fs/cgroup/hugetlb/kubepods.slice/kubepods-burstable.slice",
    "sys/fs/cgroup/hugetlb/kubepods.slice/kubepods-besteffort.slice",
    "sys/fs/cgroup/hugetlb/kubepods",
    "sys/fs/cgroup/hugetlb/kubepods/burstable",
    "sys/fs/cgroup/hugetlb/kubepods/besteffort",
];

/// Returns the UID in the name of a pod's control group: `kubepods-pod<uid with _>.slice` or `pod<uid>`. The name may
/// contain a QoS class, as in `kubepods-burstable-pod<uid with _>.slice`.
pub fn pod_uid_of_cgroup(name: &str) -> Option<String> {
    let systemd_uid = name.strip_suffix(".slice").and_then(|name| {
        let rest = name.strip_prefix("kubepods-")?;
        let rest = rest
            .strip_prefix("burstable-")
            .or_else(|| rest.strip_prefix("besteffort-"))
            .unwrap_or(rest);
        rest.strip_prefix("pod")
    });
    let uid = systemd_uid.or_else(|| name.strip_prefix("pod").filter(|_| !name.contains('.')))?;
    Some(uid.replace('_', "-"))
}

/// Parses the name of a pod's log folder; returns the UID, and the namespace and name. Namespaces and names of pods
/// cannot contain `_`.
pub fn parse_log_folder_name(folder: &str) -> Option<(String, (String, String))> {
    let mut parts = folder.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_complete = parts.next().is_none() && ![namespace, name, uid].contains(&"");
    is_complete.then(|| (uid.to_owned(), (namespace.to_owned(), name.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_name_contains_pod_uid() {
        for (name, uid) in [
            ("kubepods-podab12_cd.slice", Some("ab12-cd")),
            ("podab12-cd", Some("ab12-cd")),
            ("kubepods-burstable-podab12_cd.slice", Some("ab12-cd")),
            ("kubepods-burstable.slice", None),
            ("burstable", None),
            ("cpu.max", None),
        ] {
            assert_eq!(pod_uid_of_cgroup(name).as_deref(), uid, "{name}");
        }
    }

    #[test]
    fn log_folder_name_contains_pod_and_uid() {
        let (uid, name) = parse_log_folder_name("default_virt-launcher-a_0d5c-1").unwrap();
        assert_eq!(
            (uid.as_str(), name.0.as_str(), name.1.as_str()),
            ("0d5c-1", "default", "virt-launcher-a")
        );
        for other in ["", "a_b", "a_b_c_d", "a__c", "lost+found"] {
            assert_eq!(parse_log_folder_name(other), None, "{other}");
        }
    }
}
