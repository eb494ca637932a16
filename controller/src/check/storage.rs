//! Checks of storage classes and snapshot classes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::definition::Check;
use super::input::Input;
use super::kind::Kind;
use super::read::Unread;
use super::values::{items, join_names, name, text};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "storage.default-class",
        title: "default StorageClass",
        explanation: "Disks that name no class use the default class of InfraConfig, otherwise that of KubeVirt or of the \
            cluster. FAIL without any StorageClass, WARN without a default class, or with several.",
        run: check_default_class,
    },
    Check {
        id: "storage.tenant-classes",
        title: "StorageClasses of InfraConfig",
        explanation: "Every class in spec.infraStorageClasses of the InfraConfig must exist; otherwise the disks of machines \
            stay Pending. SKIP if the InfraConfig lists none.",
        run: check_tenant_classes,
    },
    Check {
        id: "storage.local-classes",
        title: "local volumes wait for the first consumer",
        explanation: "A class of a provisioner of local volumes must have volumeBindingMode WaitForFirstConsumer: with \
            Immediate, the volume selects the host, and the VM may not fit there. WARN otherwise; SKIP without a known \
            provisioner of local volumes.",
        run: check_local_classes,
    },
    Check {
        id: "storage.snapshot-classes",
        title: "VolumeSnapshotClasses",
        explanation: "Tenants' CSI drivers create VolumeSnapshots, and CDI clones volumes by snapshots. WARN if a \
            provisioner with a CSI driver's name has no VolumeSnapshotClass. SKIP if no StorageClass has such a \
            provisioner.",
        run: check_snapshot_classes,
    },
];

/// Provisioners of volumes that exist on one host only.
const LOCAL_PROVISIONERS: [&str; 12] = [
    "kubernetes.io/no-provisioner",
    "rancher.io/local-path",
    "openebs.io/local",
    "local.csi.openebs.io",
    "zfs.csi.openebs.io",
    "topolvm.io",
    "topolvm.cybozu.com",
    "kubevirt.io/hostpath-provisioner",
    "kubevirt.io.hostpath-provisioner",
    "hostpath.csi.k8s.io",
    "microk8s.io/hostpath",
    "docker.io/hostpath",
];
/// Annotations of a default class: for VMs (KubeVirt), and for the whole cluster.
const DEFAULT_ANNOTATIONS: [&str; 3] = [
    "storageclass.kubevirt.io/is-default-virt-class",
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Largest number of classes in evidence.
const SHOWN_CLASSES: usize = 5;

/// Returns true if an annotation of a class is `true`.
fn has_annotation(class: &Value, key: &str) -> bool {
    class["metadata"]["annotations"][key] == "true"
}

/// Returns the classes of the InfraConfig.
fn infra_classes(input: &Input) -> Result<Vec<&Value>, Unread> {
    let configs = input.objects(Kind::InfraConfig)?;
    let own = configs.iter().filter(|config| name(config) == "default");
    Ok(own.flat_map(|config| items(config, "/spec/infraStorageClasses")).collect())
}

fn check_default_class(input: &Input) -> Result<Outcome, Unread> {
    let classes = input.objects(Kind::StorageClass)?;
    let listed: Vec<&str> = classes.iter().map(name).collect();
    if classes.is_empty() {
        return Ok(Outcome::fail("there is no StorageClass: machines get no disks")
            .with_evidence("storageclasses", "none")
            .remedy("install a CSI driver and create a StorageClass"));
    }
    let is_default = |class: &&Value| {
        class["isDefaultClass"] == true && class["volumeProvisioner"] != "kubevirt-csi-driver"
    };
    let configured = infra_classes(input)?.into_iter().find(is_default);
    if let Some(class) = configured {
        let class = text(class, "/name");
        return Ok(Outcome::pass(class)
            .with_evidence("InfraConfig default spec.infraStorageClasses", class));
    }
    let [of_kubevirt, of_cluster, beta] = DEFAULT_ANNOTATIONS;
    let with = |key: &str| -> Vec<&str> {
        classes.iter().filter(|class| has_annotation(class, key)).map(name).collect()
    };
    let mut defaults = with(of_kubevirt);
    let mut keys = vec![of_kubevirt];
    if defaults.is_empty() {
        let all: BTreeSet<&str> = with(of_cluster).into_iter().chain(with(beta)).collect();
        defaults = all.into_iter().collect();
        keys = vec![of_cluster, beta];
        keys.retain(|key| !with(key).is_empty());
    }
    Ok(match defaults.as_slice() {
        [] => Outcome::warn("no StorageClass is the default: disks must name a class")
            .with_evidence("storageclasses", join_names(&listed))
            .remedy(format!("kubectl annotate --overwrite storageclass NAME {of_cluster}=true")),
        [one] => Outcome::pass(*one).with_evidence(format!("StorageClass {one}"), "default"),
        several => Outcome::warn(format!("{} StorageClasses are the default", several.len()))
            .with_evidence("storageclasses", join_names(several))
            .remedy(format!(
                "keep one of them; for each of the other classes: kubectl annotate storageclass NAME {}",
                keys.iter().map(|key| format!("{key}-")).collect::<Vec<_>>().join(" ")
            )),
    })
}

fn check_tenant_classes(input: &Input) -> Result<Outcome, Unread> {
    let listed: Vec<&str> =
        infra_classes(input)?.into_iter().map(|class| text(class, "/name")).collect();
    if listed.is_empty() {
        return Ok(Outcome::skip("InfraConfig lists no StorageClasses"));
    }
    let missing = missing_classes(input, &listed)?;
    let field = "InfraConfig default spec.infraStorageClasses";
    Ok(if missing.is_empty() {
        Outcome::pass(join_names(&listed)).with_evidence(field, join_names(&listed))
    } else {
        Outcome::fail(format!("StorageClasses that do not exist: {}", join_names(&missing)))
            .with_evidence(field, join_names(&listed))
            .remedy("create the classes, or remove them from the InfraConfig: kubectl edit infraconfig default")
    })
}

/// Returns those of `names` for which no StorageClass exists.
pub(super) fn missing_classes<'n>(
    input: &Input,
    names: &[&'n str],
) -> Result<Vec<&'n str>, Unread> {
    let existing: BTreeSet<&str> = input.objects(Kind::StorageClass)?.iter().map(name).collect();
    Ok(names.iter().filter(|name| !existing.contains(**name)).copied().collect())
}

fn check_local_classes(input: &Input) -> Result<Outcome, Unread> {
    let classes = input.objects(Kind::StorageClass)?;
    let provisioner = |class: &Value| text(class, "/provisioner").to_owned();
    let is_local = |class: &&Value| LOCAL_PROVISIONERS.contains(&text(class, "/provisioner"));
    let local: Vec<&Value> = classes.iter().filter(is_local).collect();
    if local.is_empty() {
        let all: BTreeSet<String> = classes.iter().map(provisioner).collect();
        let all: Vec<String> = all.into_iter().collect();
        return Ok(Outcome::skip("no StorageClass has a known provisioner of local volumes")
            .with_evidence("provisioners", join_names(&all)));
    }
    let waits = |class: &&Value| text(class, "/volumeBindingMode") == "WaitForFirstConsumer";
    let immediate: Vec<&Value> = local.iter().copied().filter(|class| !waits(class)).collect();
    if immediate.is_empty() {
        let names: Vec<&str> = local.iter().map(|class| name(class)).collect();
        return Ok(Outcome::pass(join_names(&names))
            .with_evidence("volumeBindingMode", "WaitForFirstConsumer"));
    }
    let names: Vec<&str> = immediate.iter().map(|class| name(class)).collect();
    let message =
        format!("StorageClasses that do not wait for the first consumer: {}", join_names(&names));
    let outcome = Outcome::warn(message).remedy(
        "the field is immutable: delete the class and create it again with volumeBindingMode: WaitForFirstConsumer; \
         existing volumes stay",
    );
    Ok(immediate.iter().take(SHOWN_CLASSES).fold(outcome, |outcome, class| {
        let mode = text(class, "/volumeBindingMode");
        let evidence = format!("{mode}, provisioner {}", provisioner(class));
        outcome.with_evidence(format!("StorageClass {}", name(class)), evidence)
    }))
}

fn check_snapshot_classes(input: &Input) -> Result<Outcome, Unread> {
    let classes = input.objects(Kind::StorageClass)?;
    // Other provisioners have a slash in their names, which the names of CSI drivers cannot have.
    let drivers = classes.iter().map(|class| text(class, "/provisioner"));
    let drivers: BTreeSet<&str> =
        drivers.filter(|name| !name.is_empty() && !name.contains('/')).collect();
    if drivers.is_empty() {
        return Ok(Outcome::skip("no StorageClass has the provisioner of a CSI driver"));
    }
    let snapshots = input.objects(Kind::VolumeSnapshotClass)?;
    let covered: BTreeSet<&str> = snapshots.iter().map(|class| text(class, "/driver")).collect();
    let missing: Vec<&str> = drivers.difference(&covered).copied().collect();
    let names: Vec<&str> = snapshots.iter().map(name).collect();
    let outcome = if missing.is_empty() {
        Outcome::pass(join_names(&names))
    } else {
        Outcome::warn(format!("no VolumeSnapshotClass: {}", join_names(&missing))).remedy(
            "if the driver supports snapshots: install the CRDs and the controller of kubernetes-csi/external-snapshotter, \
             and create a VolumeSnapshotClass with this driver",
        )
    };
    Ok(outcome.with_evidence("volumesnapshotclasses", join_names(&names)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{input_with, run_check, with_objects};

    fn class(name: &str, provisioner: &str, mode: &str, annotation: &str) -> Value {
        json!({
            "metadata": {"name": name, "annotations": {annotation: "true"}},
            "provisioner": provisioner, "volumeBindingMode": mode,
        })
    }

    fn status(id: &str, classes: &Value) -> Status {
        run_check(id, &input_with(Kind::StorageClass, classes)).status
    }

    #[test]
    fn one_class_is_the_default() {
        let [of_kubevirt, of_cluster, beta] = DEFAULT_ANNOTATIONS;
        let one = |name: &str, annotation: &str| class(name, "a.b", "Immediate", annotation);
        let id = "storage.default-class";
        assert_eq!(status(id, &json!([])), Status::Fail);
        assert_eq!(status(id, &json!([one("a", "x")])), Status::Warn);
        assert_eq!(status(id, &json!([one("a", of_cluster)])), Status::Pass);
        assert_eq!(status(id, &json!([one("a", of_cluster), one("b", of_cluster)])), Status::Warn);
        assert_eq!(status(id, &json!([one("a", of_cluster), one("b", of_kubevirt)])), Status::Pass);
        let remedy = |classes: Value| {
            let outcome = run_check(id, &input_with(Kind::StorageClass, &classes));
            assert_eq!(outcome.status, Status::Warn);
            outcome.remedy.unwrap_or_default()
        };
        let of_vms = remedy(json!([one("a", of_kubevirt), one("b", of_kubevirt)]));
        assert!(of_vms.ends_with(&format!("storageclass NAME {of_kubevirt}-")), "{of_vms}");
        let mixed = remedy(json!([one("a", of_cluster), one("b", beta)]));
        assert!(mixed.ends_with(&format!("NAME {of_cluster}- {beta}-")), "{mixed}");
        let old = remedy(json!([one("a", beta), one("b", beta)]));
        assert!(old.ends_with(&format!("NAME {beta}-")), "{old}");
        assert_eq!(status(id, &json!([{"metadata": {"annotations": ["true"]}}])), Status::Warn);
        let config = json!([{
            "metadata": {"name": "default"},
            "spec": {"infraStorageClasses": [{"name": "a", "isDefaultClass": true}]},
        }]);
        let input = input_with(Kind::StorageClass, &json!([one("a", "x")]));
        let input = with_objects(input, Kind::InfraConfig, &config);
        assert_eq!(run_check(id, &input).status, Status::Pass);
    }

    #[test]
    fn classes_of_the_infra_config_must_exist() {
        let config = |names: Value| json!([{"metadata": {"name": "default"}, "spec": {"infraStorageClasses": names}}]);
        let check = |names: Value| {
            let classes = json!([class("fast", "a.b", "Immediate", "x")]);
            let input = input_with(Kind::StorageClass, &classes);
            let input = with_objects(input, Kind::InfraConfig, &config(names));
            run_check("storage.tenant-classes", &input).status
        };
        assert_eq!(check(json!([{"name": "fast"}])), Status::Pass);
        assert_eq!(check(json!([{"name": "fast"}, {"name": "slow"}, 7])), Status::Fail);
        assert_eq!(check(json!("fast")), Status::Skip);
    }

    #[test]
    fn local_volumes_must_wait() {
        let one = |provisioner: &str, mode: &str| json!([class("local", provisioner, mode, "x")]);
        let id = "storage.local-classes";
        assert_eq!(status(id, &one("topolvm.io", "WaitForFirstConsumer")), Status::Pass);
        assert_eq!(status(id, &one("topolvm.io", "Immediate")), Status::Warn);
        let many = vec![class("local", "topolvm.io", "Immediate", "x"); 50];
        let outcome = run_check(id, &input_with(Kind::StorageClass, &json!(many)));
        assert_eq!(outcome.evidence.len(), SHOWN_CLASSES);
        assert!(outcome.message.ends_with("and 45 more"), "{}", outcome.message);
        assert_eq!(status(id, &one("rbd.csi.ceph.com", "Immediate")), Status::Skip);
    }

    #[test]
    fn csi_drivers_need_a_snapshot_class() {
        let check = |provisioner: &str, driver: &str| {
            let classes = json!([class("fast", provisioner, "Immediate", "x")]);
            let snapshots = json!([{"metadata": {"name": "snap"}, "driver": driver}]);
            let input = input_with(Kind::StorageClass, &classes);
            let input = with_objects(input, Kind::VolumeSnapshotClass, &snapshots);
            run_check("storage.snapshot-classes", &input).status
        };
        assert_eq!(check("rbd.csi.ceph.com", "rbd.csi.ceph.com"), Status::Pass);
        assert_eq!(check("rbd.csi.ceph.com", "other.csi"), Status::Warn);
        assert_eq!(check("rancher.io/local-path", "other.csi"), Status::Skip);
    }
}
