//! Renders MachineDeployments as VirtualMachines, and compares the result with the golden files of machine-controller
//! and with the examples in KKP's documents.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, print what they skip, and fail by panicking"
)]

#[path = "../../tests/src/data.rs"]
mod data;
#[path = "render/documents.rs"]
mod documents;
#[path = "render/flavors.rs"]
mod flavors;
#[path = "render/images.rs"]
mod images;
#[path = "render/invalid.rs"]
mod invalid;
#[path = "render/networks.rs"]
mod networks;
#[path = "render/schedulers.rs"]
mod schedulers;
#[path = "render/tenant_isolation.rs"]
mod tenant_isolation;

use base64::Engine as _;
use berth_controller::fleet::{RenderInput, stream};
use berth_kubevirt_render::launcher::{ClusterObjects, Configuration, Machine, predict};
use berth_kubevirt_render::machines::{RenderOptions, RenderedMachine, render_machine};
use serde_json::{Map, Value, json};

const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: https://10.0.0.1:6443}\n";

/// Returns the providerSpec of the base MachineDeployment that `tests/data/README.md` describes.
fn base_provider_spec() -> Value {
    let kubeconfig = base64::engine::general_purpose::STANDARD.encode(KUBECONFIG);
    json!({
        "cloudProvider": "kubevirt",
        "cloudProviderSpec": {
            "clusterName": "cluster-name",
            "auth": {"kubeconfig": kubeconfig},
            "virtualMachine": {"template": {
                "cpus": "2", "memory": "2Gi",
                "primaryDisk": {
                    "storageAccessType": "ReadWriteMany", "osImage": "http://x.y.z.t/ubuntu.img",
                    "size": "10Gi", "storageClassName": "longhorn"
                }
            }}
        },
        "operatingSystem": "ubuntu",
        "operatingSystemSpec": {"disableAutoUpdate": false, "disableLocksmithD": true, "disableUpdateEngine": false}
    })
}

fn machine_deployment(provider: &Value) -> Value {
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "md-name", "namespace": "test-namespace"},
        "spec": {"template": {"spec": {"providerSpec": {"value": provider}}}}
    })
}

/// Problems of a MachineDeployment, one problem per line.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
struct RenderError(String);

impl std::ops::Deref for RenderError {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Renders one MachineDeployment from a manifest that also contains `other_objects`.
fn render_deployment(
    deployment: &Value,
    other_objects: &[Value],
    machine: &str,
) -> Result<RenderedMachine, RenderError> {
    let namespace = Some("test-namespace".to_owned());
    render_with_options(
        deployment,
        other_objects,
        RenderOptions { namespace, ..render_options(machine) },
    )
}

/// Renders a MachineDeployment without `--namespace`: the namespace of its machines is derived from the objects in the
/// manifest.
fn render_in_derived_namespace(
    deployment: &Value,
    other_objects: &[Value],
    machine: &str,
) -> Result<RenderedMachine, RenderError> {
    render_with_options(deployment, other_objects, render_options(machine))
}

fn render_options(machine: &str) -> RenderOptions {
    let user_data_secret = Some("udsn".to_owned());
    RenderOptions {
        machine_name: Some(machine.to_owned()),
        user_data_secret,
        ..RenderOptions::default()
    }
}

fn render_with_options(
    deployment: &Value,
    other_objects: &[Value],
    options: RenderOptions,
) -> Result<RenderedMachine, RenderError> {
    let mut text = deployment.to_string();
    for object in other_objects {
        text += &format!("\n---\n{object}");
    }
    let mut problems = Vec::new();
    let found = stream::for_each_object("test", &text, &mut problems, |found| found);
    let input = RenderInput::new(found, problems);
    let report = |problems: &[berth_api::Problem]| {
        problems.iter().map(|problem| format!("{problem}\n")).collect::<String>()
    };
    assert!(input.problems.is_empty(), "{}", report(&input.problems));
    render_machine(&input.deployments[0], &input.render_context, &options)
        .map_err(|problems| RenderError(report(&problems)))
}

fn set_value(value: &mut Value, pointer: &str, new: Value) {
    let mut at = value;
    let parts: Vec<&str> = pointer.trim_start_matches('/').split('/').collect();
    for part in &parts[..parts.len() - 1] {
        at = at.as_object_mut().unwrap().entry(*part).or_insert_with(|| json!({}));
    }
    at[parts[parts.len() - 1]] = new;
}

const DISK_POINTER: &str = "/cloudProviderSpec/virtualMachine/template/primaryDisk";

/// Returns the changes that convert the base MachineDeployment to a test case of machine-controller: JSON pointers and
/// new values.
fn case_changes(case: &str) -> Vec<(String, Value)> {
    let spec = |field: &str, value: Value| vec![(format!("/cloudProviderSpec/{field}"), value)];
    let disk = |field: &str, value: &str| (format!("{DISK_POINTER}/{field}"), json!(value));
    match case {
        "nominal-case" => vec![],
        "extra-headers-set" => {
            vec![(
                format!("{DISK_POINTER}/extraHeaders"),
                json!(["authorization: Basic bXE6cGFzc3dvcmQ="]),
            )]
        }
        "topologyspreadconstraints" => spec(
            "topologySpreadConstraints",
            json!([
                {"maxSkew": "2", "topologyKey": "key1", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": "3", "topologyKey": "key2", "whenUnsatisfiable": "ScheduleAnyway"}
            ]),
        ),
        "affinity" => spec(
            "affinity/nodeAffinityPreset",
            json!({"type": "hard", "key": "key1", "values": ["foo1", "foo2"]}),
        ),
        "custom-local-disk" => vec![disk("osImage", "ns/dvname")],
        "use-storage-as-storage-target" => vec![disk("storageTarget", "storage")],
        "http-image-source" => vec![disk("source", "http")],
        "registry-image-source" => {
            vec![disk("source", "registry"), disk("osImage", "docker://x.y.z.t/ubuntu.img:latest")]
        }
        "pvc-image-source" => vec![disk("source", "pvc"), disk("osImage", "ns/dvname")],
        "eviction-strategy-live-migrate" => {
            spec("virtualMachine/evictionStrategy", json!("LiveMigrate"))
        }
        other => panic!("unknown test case of machine-controller: {other}"),
    }
}

/// Converts keys to lower case, and removes empty objects and `null`.
fn normalize(value: &Value) -> Value {
    const KEYS_KEPT_IF_EMPTY: [&str; 3] = ["affinity", "bridge", "pod"];
    match value {
        Value::Object(map) => {
            let mut plainer = Map::new();
            for (key, value) in map {
                let (key, value) = (key.to_lowercase(), normalize(value));
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if !is_empty || KEYS_KEPT_IF_EMPTY.contains(&key.as_str()) {
                    plainer.insert(key, value);
                }
            }
            plainer.into()
        }
        Value::Array(items) => items.iter().map(normalize).collect(),
        other => other.clone(),
    }
}

#[test]
fn machines_equal_those_of_machine_controller() {
    let mut cases = 0;
    for path in data::files("machine-controller", ".yaml") {
        let case = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let expected: Value =
            serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut provider = base_provider_spec();
        for (pointer, value) in case_changes(&case) {
            set_value(&mut provider, &pointer, value);
        }
        let ours = render_deployment(&machine_deployment(&provider), &[], &case).unwrap();
        assert_eq!(normalize(&ours.machine), normalize(&expected), "{case}");
        cases += 1;
    }
    assert!(cases >= 10, "{cases} cases");
}

#[test]
fn allowed_devices_are_requested_by_the_launcher() {
    let path = "/cloudProviderSpec/virtualMachine/template";
    let mut provider = base_provider_spec();
    let gpu = json!({"resourceName": "nvidia.com/GA100"});
    set_value(
        &mut provider,
        &format!("{path}/gpus"),
        json!([gpu, {"name": "second", "resourceName": "nvidia.com/GA100"}]),
    );
    set_value(&mut provider, &format!("{path}/hostDevices"), json!([{"resourceName": "a.b/nvme"}]));
    let config = |allowed: Value| {
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
            "spec": {"hostDevices": {"allowed": allowed}}})
    };
    let allowed = json!([{"resourceName": "nvidia.com/GA100"}, {"resourceName": "a.b/nvme"}]);
    let deployment = machine_deployment(&provider);
    let machine = render_deployment(&deployment, &[config(allowed)], "vm").unwrap().machine;
    let devices = &machine["spec"]["template"]["spec"]["domain"]["devices"];
    let expected = json!([
        {"name": "gpu1", "deviceName": "nvidia.com/GA100"}, {"name": "second", "deviceName": "nvidia.com/GA100"},
    ]);
    assert_eq!(devices["gpus"], expected);
    assert_eq!(devices["hostDevices"], json!([{"name": "device1", "deviceName": "a.b/nvme"}]));
    let read = Machine::read(&machine).unwrap().unwrap();
    let launcher = predict(&read, &Configuration::default(), &ClusterObjects::default()).unwrap();
    let counts = |name: &str| launcher.pod.containers[0].limits.extended.get(name).copied();
    assert_eq!((counts("nvidia.com/GA100"), counts("a.b/nvme")), (Some(2), Some(1)));
    let restricted = json!([{"resourceName": "nvidia.com/GA100"}, {"resourceName": "a.b/nvme", "tenants": ["bank"]}]);
    for (allowed, words) in [
        (
            json!([]),
            "gpus[0].resourceName: `nvidia.com/GA100`: is not in InfraConfig's spec.hostDevices.allowed, which allows",
        ),
        (
            restricted,
            "hostDevices[0].resourceName: `a.b/nvme`: is not in InfraConfig's spec.hostDevices.allowed for these machines",
        ),
    ] {
        let report = render_deployment(&deployment, &[config(allowed)], "vm").unwrap_err();
        assert!(report.contains(words), "{report}");
    }
    set_value(&mut provider, &format!("{path}/gpus"), json!([{"name": "device1"}]));
    let report = render_deployment(&machine_deployment(&provider), &[], "vm").unwrap_err();
    assert!(report.contains("gpus[0].resourceName: is missing"), "{report}");
    assert!(
        report.contains("hostDevices[0].name: `device1`: is the name of another device"),
        "{report}"
    );
}

/// Tests the rule of KubeVirt that a VM must not set a list of devices that its instance type also sets.
#[test]
fn devices_of_the_instance_type_are_not_set_again() {
    let virtual_machine = "/cloudProviderSpec/virtualMachine";
    let mut provider = base_provider_spec();
    let instancetype = json!({"name": "gpu-4", "kind": "VirtualMachineClusterInstancetype"});
    set_value(&mut provider, &format!("{virtual_machine}/instancetype"), instancetype);
    let device = json!([{"resourceName": "nvidia.com/GA100"}]);
    set_value(&mut provider, &format!("{virtual_machine}/template/gpus"), device.clone());
    let config = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {"hostDevices": {"allowed": [{"resourceName": "nvidia.com/GA100"}]}}});
    let instancetype = |spec: Value| {
        json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": "gpu-4"}, "spec": spec})
    };
    let devices = json!([{"name": "g", "deviceName": "nvidia.com/GA100"}]);
    let deployment = machine_deployment(&provider);
    let render =
        |spec: Value| render_deployment(&deployment, &[config.clone(), instancetype(spec)], "vm");
    let report = render(json!({"gpus": devices})).unwrap_err();
    let words = "virtualMachine.template.gpus: cannot be set because instance type gpu-4 also sets gpus: remove one of them";
    assert!(report.contains(words), "{report}");
    for spec in [json!({}), json!({"gpus": []}), json!({"hostDevices": devices})] {
        let machine = render(spec).unwrap().machine;
        let rendered = &machine["spec"]["template"]["spec"]["domain"]["devices"]["gpus"];
        assert_eq!(rendered[0]["deviceName"], "nvidia.com/GA100");
    }
    // Tenants may create instance types.
    let other = json!([{"name": "g", "deviceName": "nvidia.com/GA100"}, {"name": "h", "deviceName": "a.b/nvme"}]);
    let report = render(json!({"hostDevices": other})).unwrap_err();
    let words = "virtualMachine.instancetype.name: `gpu-4`: sets hostDevices[1].deviceName: `a.b/nvme`, which is not in \
        InfraConfig's spec.hostDevices.allowed for these machines: use nvidia.com/GA100";
    assert!(report.contains(words), "{report}");
    let report = render(json!({"hostDevices": [{"name": "x"}]})).unwrap_err();
    assert!(report.contains("sets hostDevices[0].deviceName: ``, which"), "{report}");
    let objects = [instancetype(json!({"hostDevices": other}))];
    let report = render_deployment(&deployment, &objects, "vm").unwrap_err();
    let words = "sets hostDevices[0].deviceName: `nvidia.com/GA100`, which is not in InfraConfig's spec.hostDevices.allowed, which";
    assert!(report.contains(words), "{report}");
    set_value(&mut provider, &format!("{virtual_machine}/template/hostDevices"), device);
    let deployment = machine_deployment(&provider);
    let objects = [config, instancetype(json!({"hostDevices": devices}))];
    let report = render_deployment(&deployment, &objects, "vm").unwrap_err();
    let words =
        "template.hostDevices: cannot be set because instance type gpu-4 also sets hostDevices";
    assert!(report.contains(words) && !report.contains("template.gpus: cannot"), "{report}");
}

#[test]
fn hotpluggable_disks_have_names_of_their_own() {
    let mut provider = base_provider_spec();
    let path = "/cloudProviderSpec/virtualMachine/template/secondaryDisks";
    let cold = json!({"size": "5Gi", "storageClassName": "fast"});
    set_value(&mut provider, path, json!([cold]));
    let before = render_deployment(&machine_deployment(&provider), &[], "vm").unwrap().machine;
    let scsi =
        json!({"name": "data", "size": "1Gi", "storageClassName": "fast", "hotpluggable": true});
    let virtio = json!({
        "name": "log", "size": "2Gi", "storageClassName": "fast", "hotpluggable": true, "bus": "virtio",
        "removalPolicy": "Delete",
    });
    set_value(&mut provider, path, json!([scsi, cold, virtio]));
    let machine = render_deployment(&machine_deployment(&provider), &[], "vm").unwrap().machine;
    let disks = "/spec/template/spec/domain/devices/disks";
    let names = |list: &str| -> Vec<Value> {
        let list = machine.pointer(list).and_then(Value::as_array).unwrap();
        list.iter().skip(2).cloned().collect()
    };
    let cold_disk = before.pointer(disks).unwrap()[2].clone();
    assert_eq!(
        names(disks),
        [
            json!({"name": "disk-data", "serial": "data", "disk": {"bus": "scsi"}}),
            cold_disk,
            json!({"name": "disk-log", "serial": "log", "disk": {"bus": "virtio"}}),
        ]
    );
    assert_eq!(
        names("/spec/template/spec/volumes"),
        [
            json!({"name": "disk-data", "dataVolume": {"name": "vm-disk-data", "hotpluggable": true}}),
            json!({"name": "vm-secondarydisk0", "dataVolume": {"name": "vm-secondarydisk0"}}),
            json!({"name": "disk-log", "dataVolume": {"name": "vm-disk-log", "hotpluggable": true}}),
        ]
    );
    let templates = &machine["spec"]["dataVolumeTemplates"];
    assert_eq!(templates[2], before["spec"]["dataVolumeTemplates"][1]);
    assert_eq!(templates[1]["metadata"]["labels"], json!({"berth.dev/hotplug-disk": "data"}));
    assert_eq!(templates[1]["spec"]["source"], json!({"blank": {}}));
    assert_eq!(templates[1]["metadata"].get("annotations"), None);
    let policy = json!({"berth.dev/removal-policy": "Delete"});
    assert_eq!(templates[3]["metadata"]["annotations"], policy);
}

#[test]
fn disks_and_sizes_equal_those_of_machine_controller() {
    let mut provider = base_provider_spec();
    let template = "/cloudProviderSpec/virtualMachine/template";
    set_value(&mut provider, &format!("{template}/vcpus"), json!({"cores": 4}));
    set_value(
        &mut provider,
        &format!("{template}/secondaryDisks"),
        json!([
            {"size": "5Gi", "storageClassName": "fast", "storageAccessType": "ReadWriteOnce"},
            {"size": "6Gi", "storageClassName": "fast", "source": "blank"}
        ]),
    );
    set_value(&mut provider, &format!("{DISK_POINTER}/storageAccessType"), json!(""));
    set_value(&mut provider, "/cloudProviderSpec/virtualMachine/location", json!({"zone": "z1"}));
    let mut deployment = machine_deployment(&provider);
    set_value(
        &mut deployment,
        "/spec/template/metadata",
        json!({
            "labels": {"team": "shop"},
            "annotations": {"cdi.kubevirt.io/storage.bind.immediate.requested": "true", "more": "here"}
        }),
    );
    let other_objects = [
        json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": {"name": "longhorn"},
            "status": {"claimPropertySets": [{"accessModes": ["ReadWriteOnce"]}, {"accessModes": ["ReadWriteMany"]}]}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "longhorn"},
        "allowedTopologies": [{"matchLabelExpressions": [
            {"key": "topology.kubernetes.io/region", "values": ["eu"]},
            {"key": "topology.kubernetes.io/zone", "values": ["z8", "z9"]}
        ]}]}),
    ];
    let machine = render_deployment(&deployment, &other_objects, "vm").unwrap().machine;
    let domain = &machine["spec"]["template"]["spec"]["domain"];
    assert_eq!(domain["cpu"], json!({"cores": 4}));
    assert_eq!(domain["resources"]["requests"], json!({"memory": "2Gi"}));
    let names: Vec<&Value> =
        domain["devices"]["disks"].as_array().unwrap().iter().map(|disk| &disk["name"]).collect();
    assert_eq!(
        names,
        ["datavolumedisk", "cloudinitdisk", "vm-secondarydisk0", "vm-secondarydisk1"]
    );
    let volumes = &machine["spec"]["dataVolumeTemplates"];
    assert_eq!(volumes[0]["spec"]["storage"]["accessModes"], json!(["ReadWriteMany"]));
    assert_eq!(
        volumes[0]["metadata"]["annotations"],
        json!({"cdi.kubevirt.io/storage.bind.immediate.requested": "true"})
    );
    assert_eq!(
        volumes[1]["spec"],
        json!({
            "pvc": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}, "storageClassName": "fast"},
            "source": {"http": {"url": "http://x.y.z.t/ubuntu.img"}}
        })
    );
    assert_eq!(volumes[2]["spec"]["source"], json!({"blank": {}}));
    assert_eq!(volumes[2]["spec"]["pvc"]["accessModes"], json!(["ReadWriteOnce"]));
    let labels = &machine["metadata"]["labels"];
    assert_eq!(
        (&labels["topology.kubernetes.io/region"], &labels["topology.kubernetes.io/zone"]),
        (&json!("eu"), &json!("z1"))
    );
    assert_eq!(labels["team"], "shop");
    assert_eq!(machine["spec"]["template"]["metadata"]["annotations"]["more"], "here");
}

#[test]
fn a_tenant_adds_its_network_and_its_scheduler() {
    let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "cluster-name"},
        "spec": {"network": {"name": "tenant-trunk"}, "schedulerName": "berth-scheduler", "projectID": "shop",
            "machineNamespaces": ["test-namespace"]}});
    let config = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
    "spec": {
        "vmEvictionStrategy": "LiveMigrate", "dnsPolicy": "Default",
        "images": {"http": {"operatingSystems": {"ubuntu": {"22.04": "http://images/jammy.img", "24.04": "http://images/noble.img"}}}},
        "infraStorageClasses": [{"name": "longhorn", "isDefaultClass": true}],
        "nodeDefaults": {"cpus": "4", "memory": "16Gi", "primaryDiskSize": "20Gi"}
    }});
    let mut provider = base_provider_spec();
    provider["cloudProviderSpec"] =
        json!({"virtualMachine": {"template": {"primaryDisk": {"osImage": "24.04"}}}});
    let mut owned = machine_deployment(&provider);
    set_value(&mut owned, "/metadata/annotations", json!({"berth.dev/tenant": "cluster-name"}));
    let machine = render_deployment(&owned, &[tenant, config], "vm").unwrap().machine;
    let spec = &machine["spec"]["template"]["spec"];
    assert_eq!(
        spec["networks"],
        json!([
            {"name": "default", "pod": {}},
            {"name": "tenant", "multus": {"networkName": "cluster-cluster-name/tenant-cluster-name"}}
        ])
    );
    assert_eq!(
        spec["domain"]["devices"]["interfaces"],
        json!([{"name": "default", "bridge": {}}, {"name": "tenant", "bridge": {}}])
    );
    assert_eq!(spec["schedulerName"], "berth-scheduler");
    assert_eq!(spec["tolerations"], json!([{"key": "berth.dev/vms", "operator": "Exists"}]));
    assert_eq!(spec["domain"]["resources"]["requests"], json!({"cpu": "4", "memory": "16Gi"}));
    assert_eq!(
        (&spec["evictionStrategy"], &spec["dnsPolicy"]),
        (&json!("LiveMigrate"), &json!("Default"))
    );
    assert_eq!(machine["metadata"]["labels"]["kubermatic.k8c.io/project-id"], "shop");
    let volume = &machine["spec"]["dataVolumeTemplates"][0]["spec"];
    assert_eq!(volume["source"]["http"]["url"], "http://images/noble.img");
    assert_eq!(volume["storage"]["storageClassName"], "longhorn");
    assert_eq!(volume["storage"]["resources"]["requests"]["storage"], "20Gi");
}

#[test]
fn references_are_resolved() {
    let mut provider = base_provider_spec();
    let refer = |kind: &str, key: &str| json!({kind: {"namespace": "test-namespace", "name": "sizes", "key": key}});
    set_value(
        &mut provider,
        "/cloudProviderSpec/virtualMachine/template/cpus",
        refer("secretKeyRef", "cpus"),
    );
    set_value(
        &mut provider,
        "/cloudProviderSpec/virtualMachine/template/memory",
        refer("configMapKeyRef", "memory"),
    );
    let deployment = machine_deployment(&provider);
    let other_objects = [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "test-namespace", "name": "sizes"}, "data": {"cpus": "Mw=="}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "test-namespace", "name": "sizes"}, "data": {"memory": "3Gi"}}),
    ];
    let machine = render_deployment(&deployment, &other_objects, "vm").unwrap().machine;
    let requests = &machine["spec"]["template"]["spec"]["domain"]["resources"]["requests"];
    assert_eq!(*requests, json!({"cpu": "3", "memory": "3Gi"}));
    let report = render_deployment(&deployment, &other_objects[..1], "vm").unwrap_err();
    assert!(
        report.contains(
            "template.memory.configMapKeyRef: ConfigMap test-namespace/sizes does not exist"
        ),
        "{report}"
    );
}
