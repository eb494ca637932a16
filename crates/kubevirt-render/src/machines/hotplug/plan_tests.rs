//! Tests of the changes of hotpluggable disks, with expected values.

use super::super::claims::detached_patch;
use super::*;

/// Returns a VirtualMachine with a first disk, a volume of the tenant's CSI driver, and hotpluggable disks of these names
/// and sizes.
pub(in crate::machines::hotplug) fn machine(disks: &[(&str, &str)]) -> Value {
    let mut templates = vec![json!({"metadata": {"name": "web-1"}, "spec": {}})];
    let mut volumes = vec![
        json!({"name": "datavolumedisk", "dataVolume": {"name": "web-1"}}),
        json!({"name": "pvc-7", "dataVolume": {"name": "pvc-7", "hotpluggable": true}}),
    ];
    let mut devices = vec![json!({"name": "datavolumedisk"}), json!({"name": "pvc-7"})];
    for (name, size) in disks {
        let claim = format!("web-1-disk-{name}");
        let storage = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": {"requests": {"storage": size}},
        });
        templates.push(json!({
            "metadata": {"name": claim, "labels": {names::HOTPLUG_DISK_LABEL: name}},
            "spec": {"pvc": storage, "source": {"blank": {}}},
        }));
        let volume = format!("disk-{name}");
        volumes.push(json!({"name": volume, "dataVolume": {"name": claim, "hotpluggable": true}}));
        devices.push(json!({"name": volume, "serial": name, "disk": {"bus": "scsi"}}));
    }
    json!({
        "metadata": {"name": "web-1", "uid": "u-1", "resourceVersion": "7"},
        "spec": {"dataVolumeTemplates": templates, "template": {"spec": {
            "domain": {"devices": {"disks": devices}}, "volumes": volumes,
        }}},
    })
}

/// Returns the VirtualMachine with `removalPolicy: Delete` for all hotpluggable disks.
fn deleting(mut vm: Value) -> Value {
    for template in vm["spec"]["dataVolumeTemplates"].as_array_mut().unwrap() {
        if template["metadata"]["labels"].is_object() {
            let policy = json!({names::REMOVAL_POLICY_ANNOTATION: "Delete"});
            template["metadata"]["annotations"] = policy;
        }
    }
    vm
}

fn desired(disks: &[(&str, &str)]) -> Vec<HotplugDisk> {
    HotplugDisk::read(&machine(disks))
}

fn apply(vm: &Value, plan: &DiskPlan, expanded: &[&str], revision: Option<&str>) -> Value {
    let expanded = expanded.iter().map(|&claim| claim.to_owned()).collect();
    let mut patched = vm.clone();
    merge(&mut patched, &plan.patch(vm, &expanded, revision));
    patched
}

/// Applies a merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

#[test]
fn a_disk_is_attached_and_other_volumes_stay() {
    let vm = machine(&[]);
    let plan = DiskPlan::new(&vm, &desired(&[("data", "1Gi")]));
    assert!(plan.changes_volumes() && plan.faults.is_empty() && plan.expansions.is_empty());
    assert!(plan.needs_patch(&BTreeSet::new()));
    let patched = apply(&vm, &plan, &[], Some("r2"));
    assert_eq!(patched["spec"], machine(&[("data", "1Gi")])["spec"]);
    assert_eq!(
        patched["metadata"]["annotations"],
        json!({names::HOTPLUG_REVISION_ANNOTATION: "r2"})
    );
    assert_eq!(plan.patch(&vm, &BTreeSet::new(), None)["metadata"]["resourceVersion"], "7");
    let same = DiskPlan::new(&patched, &desired(&[("data", "1Gi")]));
    assert!(!same.changes_volumes());
}

#[test]
fn a_removed_disk_is_recorded_until_it_is_deleted() {
    let vm = deleting(machine(&[("a", "1Gi"), ("b", "1Gi")]));
    let desired = |disks: &[(&str, &str)]| HotplugDisk::read(&deleting(machine(disks)));
    let plan = DiskPlan::new(&vm, &desired(&[("b", "1Gi")]));
    let patched = apply(&vm, &plan, &[], Some("r2"));
    assert_eq!(patched["spec"], deleting(machine(&[("b", "1Gi")]))["spec"]);
    assert!(retained_claims(&patched).is_empty());
    assert_eq!(detached_claims(&patched), BTreeSet::from(["web-1-disk-a".to_owned()]));
    // The disk is desired again before it is deleted.
    let plan = DiskPlan::new(&patched, &desired(&[("a", "1Gi"), ("b", "1Gi")]));
    assert_eq!(plan.faults, [DiskFault::NameInUse { disk: "a".to_owned() }]);
    assert!(plan.faults[0].is_temporary() && !plan.needs_patch(&BTreeSet::new()));
    assert_eq!(plan.patch(&patched, &BTreeSet::new(), None)["metadata"].get("annotations"), None);
    // The last disk is removed too.
    let plan = DiskPlan::new(&patched, &[]);
    let last = apply(&patched, &plan, &[], None);
    assert_eq!(last["spec"], machine(&[])["spec"]);
    let recorded = json!({names::DETACHED_DISKS_ANNOTATION: "web-1-disk-a,web-1-disk-b"});
    assert_eq!(last["metadata"]["annotations"], recorded);
    let mut done = last.clone();
    merge(&mut done, &detached_patch(&last, &BTreeSet::new()));
    assert_eq!(done["metadata"]["annotations"], json!({}));
    assert!(detached_claims(&done).is_empty());
}

#[test]
fn a_disk_is_expanded_but_never_shrunk() {
    let vm = machine(&[("data", "1Gi")]);
    let plan = DiskPlan::new(&vm, &desired(&[("data", "2048Mi")]));
    assert!(!plan.changes_volumes());
    let expansion = DiskExpansion {
        disk: "data".to_owned(),
        claim: "web-1-disk-data".to_owned(),
        size: "2Gi".parse().unwrap(),
        is_retained: false,
    };
    assert_eq!(plan.expansions, [expansion]);
    assert!(!plan.needs_patch(&BTreeSet::new()), "the claim is not expanded yet");
    let patched = apply(&vm, &plan, &["web-1-disk-data"], Some("r2"));
    let size = &patched["spec"]["dataVolumeTemplates"][1]["spec"]["pvc"]["resources"]["requests"]["storage"];
    let size: Quantity = size.as_str().unwrap().parse().unwrap();
    assert_eq!(size, "2Gi".parse().unwrap());
    assert_eq!(patched["metadata"]["annotations"][names::HOTPLUG_REVISION_ANNOTATION], "r2");
    assert_eq!(patched["spec"]["template"], vm["spec"]["template"]);
    let plan = DiskPlan::new(&patched, &desired(&[("data", "1Gi")]));
    assert!(plan.expansions.is_empty() && !plan.needs_patch(&BTreeSet::new()));
    assert!(plan.faults[0].to_string().contains("cannot be shrunk"), "{:?}", plan.faults);
    assert!(!plan.faults[0].redacted().contains("Gi"), "{:?}", plan.faults);
    assert!(!plan.faults[0].is_temporary());
}

#[test]
fn only_the_claim_with_the_size_is_changed() {
    let mut vm = machine(&[("data", "1Gi")]);
    vm["spec"]["dataVolumeTemplates"][1]["spec"]["storage"] = json!(7);
    let plan = DiskPlan::new(&vm, &desired(&[("data", "2Gi")]));
    let patched = apply(&vm, &plan, &["web-1-disk-data"], Some("r2"));
    let spec = &patched["spec"]["dataVolumeTemplates"][1]["spec"];
    assert_eq!(spec["storage"], 7);
    assert_eq!(spec["pvc"]["resources"]["requests"]["storage"], "2Gi");
}

#[test]
fn immutable_fields_are_reported() {
    let vm = machine(&[("data", "1Gi")]);
    for (pointer, value, field) in [
        (
            "/spec/dataVolumeTemplates/1/spec/pvc/storageClassName",
            json!("slow"),
            "storageClassName",
        ),
        (
            "/spec/dataVolumeTemplates/1/spec/pvc/accessModes",
            json!(["ReadWriteMany"]),
            "storageAccessType",
        ),
        ("/spec/template/spec/domain/devices/disks/2/disk/bus", json!("virtio"), "bus"),
    ] {
        let mut changed = vm.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        let plan = DiskPlan::new(&vm, &HotplugDisk::read(&changed));
        let [DiskFault::Immutable { field: reported, .. }] = plan.faults.as_slice() else {
            panic!("{:?}", plan.faults)
        };
        assert_eq!(*reported, field);
        let redacted = plan.faults[0].redacted();
        assert!(redacted.contains(field) && !redacted.contains('`'), "{redacted}");
        assert!(!plan.changes_volumes());
    }
}

#[test]
fn changed_defaults_apply_to_new_disks_only() {
    let vm = machine(&[("data", "1Gi")]);
    let mut changed = vm.clone();
    let claim = &mut changed["spec"]["dataVolumeTemplates"][1]["spec"]["pvc"];
    claim["storageClassName"] = "slow".into();
    claim["accessModes"] = json!(["ReadWriteMany"]);
    let desired = HotplugDisk::read(&changed);
    assert_eq!(DiskPlan::new(&vm, &desired).faults.len(), 1);
    let desired: Vec<HotplugDisk> = desired.into_iter().map(HotplugDisk::with_defaults).collect();
    let plan = DiskPlan::new(&vm, &desired);
    assert!(plan.faults.is_empty(), "{:?}", plan.faults);
    assert_eq!(apply(&vm, &plan, &[], Some("r2"))["spec"], vm["spec"]);
    let attached = apply(&machine(&[]), &DiskPlan::new(&machine(&[]), &desired), &[], Some("r2"));
    assert_eq!(attached["spec"], changed["spec"], "a new disk has the new defaults");
}

#[test]
fn the_claim_of_a_removed_disk_is_retained() {
    let vm = machine(&[("a", "1Gi"), ("b", "1Gi")]);
    let plan = DiskPlan::new(&vm, &desired(&[("b", "1Gi")]));
    let removed = apply(&vm, &plan, &[], Some("r2"));
    assert_eq!(removed["spec"], machine(&[("b", "1Gi")])["spec"]);
    let claim = "web-1-disk-a";
    assert_eq!(retained_claims(&removed), BTreeSet::from([claim.to_owned()]));
    assert!(detached_claims(&removed).is_empty());
    // A larger disk with the same name uses the retained claim, after the claim was expanded.
    let plan = DiskPlan::new(&removed, &desired(&[("a", "2Gi"), ("b", "1Gi")]));
    let [expansion] = plan.expansions.as_slice() else { panic!("{:?}", plan.expansions) };
    assert_eq!((expansion.claim.as_str(), expansion.is_retained), (claim, true));
    assert!(!plan.needs_patch(&BTreeSet::new()) && !plan.is_refused(true));
    let waiting = apply(&removed, &plan, &[], Some("r3"));
    assert_eq!((&waiting["spec"], retained_claims(&waiting).len()), (&removed["spec"], 1));
    let attached = apply(&removed, &plan, &[claim], Some("r3"));
    // The order of the disks has no effect.
    assert_eq!(attached["spec"], machine(&[("b", "1Gi"), ("a", "2Gi")])["spec"]);
    assert!(retained_claims(&attached).is_empty());
    assert_eq!(attached["metadata"]["annotations"][names::HOTPLUG_REVISION_ANNOTATION], "r3");
    // The claim is not expanded if KubeVirt does not attach it.
    assert!(plan.is_refused(false));
    assert!(plan.without_volumes().expansions.is_empty());
    let both = DiskPlan::new(&removed, &desired(&[("a", "2Gi"), ("b", "2Gi")]));
    assert!(!both.is_refused(false), "the attached disk can be expanded");
    let left = both.without_volumes().expansions;
    assert_eq!(left.iter().map(|one| one.disk.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn the_removal_policy_of_an_existing_disk_can_be_changed() {
    let retaining = machine(&[("a", "1Gi")]);
    let deleting = deleting(retaining.clone());
    for (from, to) in [(&retaining, &deleting), (&deleting, &retaining)] {
        let plan = DiskPlan::new(from, &HotplugDisk::read(to));
        assert!(plan.needs_patch(&BTreeSet::new()) && !plan.is_refused(false));
        let patched = apply(from, &plan, &[], Some("r2"));
        let disks = HotplugDisk::read(&patched);
        assert_eq!(disks[0].removal_policy(), HotplugDisk::read(to)[0].removal_policy());
        let same = DiskPlan::new(&patched, &HotplugDisk::read(to));
        assert!(same.policies.is_empty() && same.faults.is_empty());
        assert_eq!(patched["spec"]["template"], from["spec"]["template"]);
    }
    let mut odd = retaining.clone();
    odd["spec"]["dataVolumeTemplates"][1]["metadata"]["annotations"] = json!(7);
    let plan = DiskPlan::new(&odd, &HotplugDisk::read(&deleting));
    let patched = apply(&odd, &plan, &[], None);
    assert_eq!(patched["spec"]["dataVolumeTemplates"], deleting["spec"]["dataVolumeTemplates"]);
}

#[test]
fn a_plan_without_possible_changes_is_refused() {
    let vm = machine(&[("data", "2Gi")]);
    let plan = |disks: &[(&str, &str)]| DiskPlan::new(&vm, &desired(disks));
    let shrunk = plan(&[("data", "1Gi")]);
    assert!(shrunk.is_refused(true) && shrunk.is_refused(false));
    assert!(!plan(&[("data", "3Gi")]).is_refused(true), "the disk can be expanded");
    assert!(!plan(&[("data", "2Gi")]).is_refused(true), "the hash is to be recorded");
    let more = plan(&[("data", "2Gi"), ("log", "1Gi")]);
    assert!(!more.is_refused(true) && more.is_refused(false));
    let left = more.without_volumes();
    assert!(!left.needs_patch(&BTreeSet::new()) && !left.changes_volumes());
    let mut waiting = vm.clone();
    waiting["metadata"]["annotations"] =
        json!({names::DETACHED_DISKS_ANNOTATION: "web-1-disk-log"});
    let waits = DiskPlan::new(&waiting, &desired(&[("data", "1Gi"), ("log", "1Gi")]));
    assert!(!waits.is_refused(true), "a fault ends without a change of the template");
}

#[test]
fn a_copy_of_the_disks_has_the_same_plan() {
    let vm = machine(&[("data", "1Gi"), ("log", "1Gi")]);
    let mut copy = json!({"metadata": vm["metadata"], "spec": {"runStrategy": "Once"}});
    super::super::disk::copy_disks(&vm, &mut copy);
    assert_eq!(copy["spec"]["runStrategy"], "Once");
    let cases: [&[(&str, &str)]; 3] = [&[("data", "2Gi")], &[], &[("data", "1Gi"), ("new", "1Gi")]];
    for disks in cases {
        let desired = desired(disks);
        assert_eq!(DiskPlan::new(&copy, &desired), DiskPlan::new(&vm, &desired));
    }
    let (plain, mut copy) = (machine(&[]), json!({"spec": {}}));
    super::super::disk::copy_disks(&plain, &mut copy);
    assert_eq!(copy, json!({"spec": {}}), "volumes of others are not copied");
}
