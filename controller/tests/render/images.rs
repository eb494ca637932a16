//! Golden images: disks of machines are clones of images that are imported once.

use berth_kubevirt_render::images::{GoldenImageUse, ImageSource, VolumeMode};
use berth_kubevirt_render::machines::RenderedMachine;
use serde_json::{Value, json};

use super::{
    DISK_POINTER, RenderError, base_provider_spec, machine_deployment, render_in_derived_namespace,
    set_value,
};

const URL: &str = "http://x.y.z.t/ubuntu.img";
const CHECKSUM: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Returns the MachineDeployment of a tenant, with changes of the first disk.
fn deployment_of_tenant(disk: &[(&str, Value)]) -> Value {
    let mut provider = base_provider_spec();
    for (field, value) in disk {
        set_value(&mut provider, &format!("{DISK_POINTER}/{field}"), value.clone());
    }
    let mut deployment = machine_deployment(&provider);
    set_value(
        &mut deployment,
        "/metadata/annotations",
        json!({"berth.dev/tenant": "cluster-name"}),
    );
    deployment
}

fn render_with_images(
    deployment: &Value,
    images: &Value,
    other_objects: &[Value],
) -> RenderedMachine {
    try_render(deployment, &json!({"images": images}), other_objects).unwrap()
}

fn try_render(
    deployment: &Value,
    config: &Value,
    other_objects: &[Value],
) -> Result<RenderedMachine, RenderError> {
    let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "cluster-name"},
        "spec": {"machineNamespaces": ["test-namespace"]}});
    let config = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": config});
    let mut objects = vec![tenant, config];
    objects.extend_from_slice(other_objects);
    render_in_derived_namespace(deployment, &objects, "vm")
}

fn storage_profile(sets: Value) -> Value {
    json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": {"name": "longhorn"},
        "status": {"claimPropertySets": sets}})
}

fn block_profile() -> Value {
    storage_profile(json!([{"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}]))
}

fn file_profile() -> Value {
    storage_profile(json!([{"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem"}]))
}

fn volume_specs(rendered: &RenderedMachine) -> Vec<Value> {
    let volumes = rendered.machine["spec"]["dataVolumeTemplates"].as_array().unwrap();
    volumes.iter().map(|volume| volume["spec"].clone()).collect()
}

#[test]
fn each_machine_imports_its_image_without_golden_images() {
    let plain = render_with_images(&deployment_of_tenant(&[]), &json!({}), &[block_profile()]);
    let catalog =
        json!({"catalog": [{"image": "http://images/other.img", "size": "4Gi", "preload": true}]});
    let listed = render_with_images(&deployment_of_tenant(&[]), &catalog, &[block_profile()]);
    assert_eq!(plain, listed);
    assert_eq!(plain.golden_images, []);
    assert_eq!(
        volume_specs(&plain),
        [json!({
            "source": {"http": {"url": URL}},
            "storage": {
                "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}},
                "storageClassName": "longhorn",
            },
        })]
    );
}

#[test]
fn disks_are_clones_of_a_golden_image() {
    let images = json!({"golden": true});
    let rendered = render_with_images(&deployment_of_tenant(&[]), &images, &[block_profile()]);
    let [GoldenImageUse { image: golden, smallest_disk, .. }] = rendered.golden_images.as_slice()
    else {
        panic!("the machine should have one golden image: {rendered:?}")
    };
    assert_eq!(
        (golden.namespace.as_str(), golden.storage_class.as_str()),
        ("cluster-cluster-name", "longhorn")
    );
    assert_eq!(*smallest_disk, "10Gi".parse().unwrap());
    assert_eq!(golden.volume_mode, Some(VolumeMode::Block));
    assert_eq!(
        volume_specs(&rendered),
        [json!({
            "sourceRef": {"kind": "DataSource", "namespace": "cluster-cluster-name", "name": golden.name()},
            "storage": {
                "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}},
                "storageClassName": "longhorn", "volumeMode": "Block",
            },
        })]
    );
    // The labels show that the image is in use, also before KubeVirt creates the DataVolume.
    let template = &rendered.machine["spec"]["dataVolumeTemplates"][0];
    assert_eq!(template["metadata"]["labels"], json!({"berth.dev/cloned-from": golden.name()}));
    let label = format!("cloned-from.berth.dev/{}", golden.name());
    assert_eq!(rendered.machine["metadata"]["labels"][label.as_str()], "true");
    let template = &rendered.machine["spec"]["template"]["metadata"];
    assert_eq!(template["labels"].get(label.as_str()), None);
    let again = render_with_images(
        &deployment_of_tenant(&[("size", json!("20Gi"))]),
        &images,
        &[block_profile()],
    );
    assert_eq!(*golden, again.golden_images[0].image, "machines should share the image");
    // Without a StorageProfile, CDI chooses the volume mode.
    let unknown = render_with_images(&deployment_of_tenant(&[]), &images, &[]);
    assert_eq!(unknown.golden_images[0].image.volume_mode, None);
    assert_eq!(volume_specs(&unknown)[0]["storage"].get("volumeMode"), None);
}

#[test]
fn secondary_disks_share_the_golden_image_of_their_class() {
    let mut deployment = deployment_of_tenant(&[("storageTarget", json!("pvc"))]);
    set_value(
        &mut deployment,
        "/spec/template/spec/providerSpec/value/cloudProviderSpec/virtualMachine/template/secondaryDisks",
        json!([
            {"size": "10Gi", "storageClassName": "longhorn"},
            {"size": "10Gi", "storageClassName": "fast"},
            {"size": "5Gi", "storageClassName": "longhorn", "source": "blank"},
        ]),
    );
    let rendered = render_with_images(&deployment, &json!({"golden": true}), &[file_profile()]);
    let classes: Vec<&str> =
        rendered.golden_images.iter().map(|golden| golden.image.storage_class.as_str()).collect();
    assert_eq!(classes, ["longhorn", "fast"]);
    let specs = volume_specs(&rendered);
    assert_eq!(specs[0]["sourceRef"], specs[1]["sourceRef"]);
    assert_ne!(specs[1]["sourceRef"], specs[2]["sourceRef"]);
    // A claim in spec.pvc would be smaller than the golden image by the overhead of a file system.
    assert!(specs[..3].iter().all(|spec| spec["storage"].is_object()), "{specs:?}");
    let ignored =
        |field: &str| rendered.warnings.iter().any(|warning| warning.field.ends_with(field));
    assert!(ignored("primaryDisk.storageTarget"), "{:?}", rendered.warnings);
    assert_eq!(specs[3]["source"], json!({"blank": {}}));
    assert_eq!(specs[3]["pvc"]["volumeMode"], "Filesystem");
}

#[test]
fn only_images_that_the_config_describes_are_shared() {
    let entry = json!({"image": URL, "size": "4Gi", "checksum": CHECKSUM, "certConfigMap": "ca"});
    let images = json!({"namespace": "images", "catalog": [entry]});
    let without_size = json!({"namespace": "images", "catalog": [{"image": URL}]});
    let namespace = |images: &Value, disk: &[(&str, Value)]| {
        let rendered = render_with_images(&deployment_of_tenant(disk), images, &[]);
        rendered.golden_images[0].image.namespace.clone()
    };
    let own = "cluster-cluster-name";
    for (images, disk, expected) in [
        (&images, vec![], "images"),
        (&images, vec![("checksum", json!(CHECKSUM))], "images"),
        (&images, vec![("checksum", json!(CHECKSUM.replace('f', "0")))], own),
        (&images, vec![("dataVolumeSecretRef", json!("credentials"))], own),
        (&images, vec![("extraHeaders", json!(["a: b"]))], own),
        (&images, vec![("osImage", json!("http://x.y.z.t/other.img"))], own),
        (&without_size, vec![], own),
    ] {
        assert_eq!(namespace(images, &disk), expected, "{disk:?}");
    }
    let shared = render_with_images(&deployment_of_tenant(&[]), &images, &[]);
    let golden = &shared.golden_images[0].image;
    assert_eq!(golden.size, Some("4Gi".parse().unwrap()));
    let ImageSource::Http(http) = &golden.source else { panic!("{golden:?}") };
    assert_eq!(http.checksum.as_deref(), Some(CHECKSUM));
    assert_eq!(http.cert_config_map.as_deref(), Some("ca"));
    // Machines without a tenant have no permission to clone from the shared namespace.
    let mut deployment = deployment_of_tenant(&[]);
    deployment["metadata"]["annotations"] = json!({});
    set_value(
        &mut deployment,
        "/spec/template/spec/providerSpec/value/cloudProviderSpec/clusterName",
        json!(""),
    );
    let alone = render_with_images(&deployment, &images, &[]);
    assert_eq!(alone.golden_images[0].image.namespace, "test-namespace");
}

/// The first machine must not determine how an image is imported that other tenants use.
#[test]
fn the_import_of_a_shared_image_is_that_of_the_catalog() {
    let entry = json!({"image": "docker://registry/rhel:9", "size": "4Gi"});
    let images = json!({"namespace": "images", "catalog": [entry]});
    let source = |fields: &[(&str, Value)]| {
        let image = ("osImage", json!("docker://registry/rhel:9"));
        let disk: Vec<(&str, Value)> = [&[image][..], fields].concat();
        let rendered = render_with_images(&deployment_of_tenant(&disk), &images, &[]);
        let golden = &rendered.golden_images[0].image;
        assert_eq!(golden.namespace, "images");
        golden.source.to_data_volume_source()
    };
    let expected = json!({"registry": {"url": "docker://registry/rhel:9", "pullMethod": "node"}});
    for fields in [vec![], vec![("pullMethod", json!("pod"))], vec![("source", json!("http"))]] {
        assert_eq!(source(&fields), expected, "{fields:?}");
    }
}

#[test]
fn existing_volumes_are_golden_images_only_if_they_are_listed() {
    let deployment = deployment_of_tenant(&[("osImage", json!("ns/dvname"))]);
    let direct = render_with_images(&deployment, &json!({"golden": true}), &[]);
    assert_eq!(direct.golden_images, []);
    assert_eq!(
        volume_specs(&direct)[0]["source"],
        json!({"pvc": {"namespace": "ns", "name": "dvname"}})
    );
    let images = json!({"golden": true, "catalog": [{"image": "ns/dvname"}]});
    let listed = render_with_images(&deployment, &images, &[]);
    assert_eq!(listed.golden_images.len(), 1);
    assert_eq!(volume_specs(&listed)[0]["sourceRef"]["kind"], "DataSource");
}

#[test]
fn registry_images_are_imported_on_a_schedule() {
    let schedule = |image: &str| {
        let disk = [("osImage", json!(image)), ("source", json!("registry"))];
        let images =
            json!({"golden": true, "catalog": [{"image": image, "schedule": "30 1 * * 1"}]});
        let rendered = render_with_images(&deployment_of_tenant(&disk), &images, &[]);
        rendered.golden_images[0].image.schedule.clone()
    };
    assert_eq!(schedule("docker://registry/rhel:9").as_deref(), Some("30 1 * * 1"));
    assert_eq!(schedule("oci-archive:/rhel.tar"), None, "an archive has no tags");
}

#[test]
fn disks_of_performance_flavors_are_fully_allocated_on_file_systems() {
    let render = |flavor: &str, images: Value, profile: Value| {
        let mut deployment = deployment_of_tenant(&[]);
        let machine = "/spec/template/spec/providerSpec/value/cloudProviderSpec/virtualMachine";
        set_value(&mut deployment, &format!("{machine}/flavor"), json!({"name": flavor}));
        let rendered = render_with_images(&deployment, &images, &[profile]);
        let golden =
            rendered.golden_images.first().is_some_and(|golden| golden.image.is_preallocated);
        let disk = volume_specs(&rendered)[0].get("preallocation") == Some(&json!(true));
        (golden, disk)
    };
    let golden = || json!({"golden": true});
    assert_eq!(render("performance-4", golden(), file_profile()), (true, true));
    assert_eq!(render("performance-database-4", golden(), file_profile()), (true, true));
    assert_eq!(render("density-4", golden(), file_profile()), (false, false));
    assert_eq!(render("performance-4", golden(), block_profile()), (false, false));
    let never = json!({"golden": true, "preallocation": "Never"});
    assert_eq!(render("performance-4", never, file_profile()), (false, false));
    assert_eq!(render("performance-4", json!({}), file_profile()), (false, false));
    let without_golden_images = json!({"preallocation": "Performance"});
    assert_eq!(render("performance-4", without_golden_images, file_profile()), (false, true));
}

#[test]
fn checksums_are_verified_without_golden_images_too() {
    let disk = [("checksum", json!(CHECKSUM))];
    let rendered = render_with_images(&deployment_of_tenant(&disk), &json!({}), &[]);
    assert_eq!(
        volume_specs(&rendered)[0]["source"]["http"],
        json!({"url": URL, "checksum": CHECKSUM})
    );
    let disk = [("checksum", json!(CHECKSUM)), ("osImage", json!("ns/dvname"))];
    let rendered = render_with_images(&deployment_of_tenant(&disk), &json!({}), &[]);
    let ignored =
        rendered.warnings.iter().any(|warning| warning.field.ends_with("primaryDisk.checksum"));
    assert!(ignored, "{:?}", rendered.warnings);
}

#[test]
fn a_disk_that_is_smaller_than_its_image_is_refused() {
    let deployment = deployment_of_tenant(&[]);
    let refuse = |images: Value, other_objects: &[Value]| {
        let report =
            try_render(&deployment, &json!({"images": images}), other_objects).unwrap_err();
        assert!(
            report.contains("MachineDeployment test-namespace/md-name: ")
                && report.contains("template.primaryDisk.size: `10Gi`: is smaller than the "),
            "{report}"
        );
        report.0.clone()
    };
    let listed = |size: &str| json!({"catalog": [{"image": URL, "size": size}]});
    assert!(refuse(listed("11Gi"), &[]).contains("image, which needs 11Gi"));
    render_with_images(&deployment, &listed("10Gi"), &[]);
    // The golden image already exists with the size of another machine's disk.
    let golden = json!({"golden": true});
    let image = render_with_images(&deployment, &golden, &[]).golden_images.remove(0).image;
    let volume = |size: &str| {
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {"namespace": image.namespace, "name": image.name()},
            "spec": {"storage": {"resources": {"requests": {"storage": size}}}},
        })
    };
    let report = refuse(golden.clone(), &[volume("20Gi")]);
    assert!(report.contains(&format!("{}/{} of 20Gi", image.namespace, image.name())), "{report}");
    render_with_images(&deployment, &golden, &[volume("10Gi")]);
    // A volume that is cloned directly, without a golden image, must fit into the disk, too.
    let clone = deployment_of_tenant(&[("osImage", json!("ns/dvname"))]);
    let mut source = volume("30Gi");
    source["metadata"] = json!({"namespace": "ns", "name": "dvname"});
    let report = try_render(&clone, &json!({}), &[source]).unwrap_err();
    assert!(report.contains("`10Gi`: is smaller than the image, which needs 30Gi"), "{report}");
}

#[test]
fn only_listed_storage_classes_are_permitted() {
    let classes = |list: Value| json!({"infraStorageClasses": list});
    let render = |config: &Value, other_objects: &[Value]| {
        try_render(&deployment_of_tenant(&[]), config, other_objects).map(drop)
    };
    for config in [
        json!({}),
        classes(json!([{"name": "longhorn"}])),
        classes(
            json!([{"name": "fast"}, {"name": "longhorn", "volumeProvisioner": "infra-csi-driver"}]),
        ),
        // The list restricts only volumes in the tenants' clusters.
        classes(json!([{"name": "fast", "volumeProvisioner": "kubevirt-csi-driver"}])),
    ] {
        assert_eq!(render(&config, &[]), Ok(()), "{config}");
    }
    let others = classes(json!([
        {"name": "fast"}, {"name": "longhorn", "volumeProvisioner": "kubevirt-csi-driver"}, {"name": "slow"},
    ]));
    let report = render(&others, &[]).unwrap_err();
    assert!(
        report.contains("primaryDisk.storageClassName: `longhorn`: is not in InfraConfig's")
            && report.contains("use fast, slow"),
        "{report}"
    );
    // A class with the annotation of old releases of KKP counts as listed.
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {
        "name": "longhorn", "annotations": {"kubevirt-initialization.k8c.io/initialize-sc": "true"},
    }});
    assert_eq!(render(&others, &[class]), Ok(()));
}

#[test]
fn live_migration_needs_disks_that_several_hosts_can_mount() {
    let warnings = |mode: &str, strategy: &str, profile: Value| {
        let config = json!({"vmEvictionStrategy": strategy});
        let deployment = deployment_of_tenant(&[("storageAccessType", json!(mode))]);
        let rendered = try_render(&deployment, &config, &[profile]).unwrap();
        let is_migration = |field: &str| field.ends_with("primaryDisk.storageAccessType");
        rendered.warnings.iter().filter(|warning| is_migration(&warning.field)).count()
    };
    let local =
        || storage_profile(json!([{"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}]));
    assert_eq!(warnings("", "LiveMigrate", local()), 1);
    assert_eq!(warnings("ReadWriteOnce", "LiveMigrate", block_profile()), 1);
    assert_eq!(warnings("", "LiveMigrate", block_profile()), 0);
    assert_eq!(warnings("", "External", local()), 0);
}

#[test]
fn the_strategy_of_clones_is_known_before_they_exist() {
    let class = |allows_expansion: bool| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "longhorn"},
            "provisioner": "driver.longhorn.io", "allowVolumeExpansion": allows_expansion,
        })
    };
    let snapshot_class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "snap"}, "driver": "driver.longhorn.io",
    });
    let images = json!({"golden": true, "catalog": [{"image": URL, "size": "4Gi"}]});
    let clones = |other_objects: &[Value]| -> Vec<String> {
        let mut objects = vec![block_profile()];
        objects.extend_from_slice(other_objects);
        let rendered = render_with_images(&deployment_of_tenant(&[]), &images, &objects);
        let name = rendered.golden_images[0].image.name();
        let shown = rendered.clones.iter().map(ToString::to_string);
        shown.map(|clone| clone.replace(&name, "IMAGE")).collect()
    };
    assert_eq!(clones(&[]), Vec::<String>::new());
    let prefix = "disk vm from DataSource cluster-cluster-name/IMAGE";
    assert_eq!(
        clones(&[class(true), snapshot_class.clone()]),
        [format!(
            "{prefix}: smart clone: VolumeSnapshotClass snap has the driver driver.longhorn.io of the storage class"
        )]
    );
    let host_assisted = format!("{prefix}: host-assisted clone: ");
    for (objects, reason) in [
        (vec![class(true)], "no VolumeSnapshotClass has the driver driver.longhorn.io"),
        (
            vec![class(false), snapshot_class.clone()],
            "the disk (10Gi) is larger than the source (4Gi)",
        ),
    ] {
        let found = clones(&objects);
        assert!(found[0].starts_with(&format!("{host_assisted}{reason}")), "{found:?}");
    }
    let cdi = json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDI", "metadata": {"name": "cdi"},
        "spec": {"cloneStrategyOverride": "copy"}});
    let found = clones(&[class(true), snapshot_class, cdi]);
    assert_eq!(
        found,
        [format!(
            "{host_assisted}cloneStrategyOverride of the CDI object selects it for all clones"
        )]
    );
}
