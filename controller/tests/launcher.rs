//! Predicts launcher pods from manifests, and reads pods of the cluster.
#![expect(clippy::disallowed_methods, reason = "the test reads manifests of other projects")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../tests/src/data.rs"]
mod data;

use berth_api::PageSize;
use berth_kubevirt_render::launcher::{
    ClusterObjects, Configuration, ExistingPod, Invalid, Launcher, Machine, predict,
};
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn configuration_for_release(version: &str) -> Configuration {
    Configuration { version: version.parse().unwrap(), ..Configuration::default() }
}

fn try_predict_launcher(
    object: &Value,
    cluster_objects: &ClusterObjects,
) -> Result<Launcher, Invalid> {
    predict(&Machine::read(object)?.unwrap(), &Configuration::default(), cluster_objects)
}

fn predict_launcher(
    object: &Value,
    configuration: &Configuration,
    cluster_objects: &ClusterObjects,
) -> Launcher {
    predict(&Machine::read(object).unwrap().unwrap(), configuration, cluster_objects).unwrap()
}

fn virtual_machine(spec: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"namespace": "tenant-a", "name": "web-1", "uid": "of the machine"},
        "spec": {"template": {"metadata": {"labels": {"md": "web"}}, "spec": spec}},
    })
}

/// Returns a machine with an instance type and a preference, and a cluster that contains these two objects.
fn machine_with_instancetype(
    instancetype: Value,
    preference: Value,
    spec: Value,
) -> (Value, ClusterObjects) {
    let mut cluster_objects = ClusterObjects::default();
    for (kind, spec) in [
        ("VirtualMachineClusterInstancetype", instancetype),
        ("VirtualMachineClusterPreference", preference),
    ] {
        let object = json!({"kind": kind, "metadata": {"name": "own"}, "spec": spec});
        assert!(cluster_objects.add(&object).unwrap());
    }
    let mut object = virtual_machine(spec);
    object["spec"]["instancetype"] = json!({"name": "own"});
    object["spec"]["preference"] =
        json!({"name": "own", "kind": "virtualmachineclusterpreferences"});
    (object, cluster_objects)
}

/// The machines are golden files of kubermatic/machine-controller. With two CPUs and 2Gi as requests and limits, the
/// QoS class is Guaranteed.
#[test]
fn launchers_for_machines_of_machine_controller_are_predicted() {
    let mut seen = 0;
    for path in data::files("machine-controller", ".yaml") {
        let text = std::fs::read_to_string(&path).unwrap();
        let object: Value = serde_saphyr::from_str(&text).unwrap();
        let launcher = predict_launcher(
            &object,
            &configuration_for_release("main"),
            &ClusterObjects::default(),
        );
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let compute = &launcher.pod.containers[0];
        assert_eq!(compute.requests.memory, (2048 + 400) * MIB, "{name}");
        assert_eq!(compute.limits.memory, compute.requests.memory, "{name}");
        assert_eq!(
            (compute.requests.cpu_millis, compute.limits.cpu_millis),
            (2000, 2000),
            "{name}"
        );
        assert_eq!((launcher.vcpus, launcher.guest_memory), (2, 2 * GIB), "{name}");
        let log = &launcher.pod.init_containers[0];
        assert!(log.is_sidecar && log.requests == log.limits, "{name}");
        assert_eq!((log.requests.cpu_millis, log.requests.memory), (15, 60_000_000), "{name}");
        assert_eq!(launcher.labels["md"], "md-name", "{name}");
        assert_eq!(launcher.labels["vm.kubevirt.io/name"], object["metadata"]["name"]);
        assert_eq!(launcher.namespace, "test-namespace");
        seen += 1;
    }
    assert_ne!(seen, 0, "tests/data/machine-controller contains no manifest");
}

/// The expected values were calculated by hand from the rules for common-instancetypes of the series u1, o1 and
/// cx1.
#[test]
fn launchers_with_instance_types_are_predicted() {
    let small = json!({"cpu": {"guest": 2}, "memory": {"guest": "8Gi"}});
    let (object, around) = machine_with_instancetype(small, json!({}), json!({}));
    for (version, overhead) in [("main", 296), ("v1.9.0", 276), ("v1.6.3", 292)] {
        let launcher = predict_launcher(&object, &configuration_for_release(version), &around);
        let compute = &launcher.pod.containers[0];
        // KubeVirt 1.6.3 computes the request in its webhook, and adds the memory of page tables.
        let bytes = compute.requests.memory - 8 * GIB;
        assert_eq!(bytes.div_ceil(MIB), overhead, "{version}");
        assert_eq!((compute.requests.cpu_millis, compute.limits.memory), (200, 0), "{version}");
        assert_eq!((launcher.vcpus, launcher.is_dedicated), (2, false));
    }

    let overcommitted =
        json!({"cpu": {"guest": 2}, "memory": {"guest": "8Gi", "overcommitPercent": 50}});
    let (object, around) = machine_with_instancetype(overcommitted, json!({}), json!({}));
    let compute = predict_launcher(&object, &configuration_for_release("main"), &around)
        .pod
        .containers
        .swap_remove(0);
    assert_eq!(compute.requests.memory, 4 * GIB + 304 * MIB + 1);

    let pinned = json!({
        "cpu": {"guest": 4, "dedicatedCPUPlacement": true, "isolateEmulatorThread": true,
                "numa": {"guestMappingPassthrough": {}}},
        "memory": {"guest": "8Gi", "hugepages": {"pageSize": "2Mi"}},
        "ioThreadsPolicy": "auto", "schedulerName": "berth", "nodeSelector": {"pool": "fast"},
        "annotations": {"from": "the type"},
    });
    let spread = json!({
        "cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "SocketsCoresThreads"},
                "preferredCPUFeatures": [{"name": "vmx"}]},
        "devices": {"preferredAutoattachGraphicsDevice": false, "preferredTPM": {}},
        "machine": {"preferredMachineType": "pc-q35-rhel9.4.0"},
    });
    let (object, around) = machine_with_instancetype(pinned, spread, json!({}));
    let launcher = predict_launcher(&object, &configuration_for_release("main"), &around);
    let compute = &launcher.pod.containers[0];
    // The overhead in MiB is 240 + 8 x 4 + 8, plus 53 for the TPM and 100 for pinned CPUs; nothing for a screen.
    let overhead = (240 + 32 + 8 + 53 + 100) * MIB;
    assert_eq!(launcher.memory_overhead, overhead);
    assert_eq!((compute.requests.cpu_millis, compute.requests.memory), (5000, overhead));
    assert_eq!(compute.requests.hugepages, [(PageSize::MIB_2, 8 * GIB)].into());
    assert_eq!(compute.requests.hugepages, compute.limits.hugepages);
    assert_eq!(compute.requests.memory, compute.limits.memory);
    assert!(launcher.numa_passthrough && launcher.is_dedicated);
    assert_eq!((launcher.vcpus, launcher.scheduler_name.as_str()), (4, "berth"));
    for label in [
        "machine-type.node.kubevirt.io/pc-q35-rhel9.4.0",
        "cpu-feature.node.kubevirt.io/vmx",
        "kubevirt.io/cpumanager",
    ] {
        assert_eq!(launcher.node_selector[label], "true");
    }
    assert_eq!(launcher.node_selector["pool"], "fast");
}

#[test]
fn the_configuration_is_read_from_the_kubevirt_object() {
    let object = json!({
        "kind": "KubeVirt", "metadata": {"namespace": "kubevirt", "name": "kubevirt", "annotations":
            {"alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity": ""}},
        "spec": {"configuration": {
            "developerConfiguration":
                {"cpuAllocationRatio": 4, "memoryOvercommit": 200, "featureGates": ["AlignCPUs"]},
            "additionalGuestMemoryOverheadRatio": "2",
            "supportContainerResources": [{"type": "guest-console-log",
                "resources": {"requests": {"cpu": "7m"}, "limits": {"cpu": 0, "memory": "90M"}}}],
            "architectureConfiguration": {"defaultArchitecture": "arm64"},
        }},
        "status": {"observedKubeVirtVersion": "v1.8.2"},
    });
    let configuration = Configuration::from_kubevirt(&object).unwrap();
    let shared =
        virtual_machine(json!({"domain": {"cpu": {"cores": 2}, "memory": {"guest": "2Gi"}}}));
    let made = predict_launcher(&shared, &configuration, &ClusterObjects::default());
    // The overhead is twice (220 + 16 + 8 + 32 + 128) MiB, because the ratio is 2. A difference below 1000 bytes is due
    // to rounding.
    assert!(made.memory_overhead.abs_diff(2 * 404 * MIB) < 1000);
    let compute = &made.pod.containers[0];
    assert_eq!(compute.requests.cpu_millis, 500);
    assert_eq!(compute.requests.memory, GIB + made.memory_overhead);
    let log = &made.pod.init_containers[0];
    assert_eq!((log.requests.cpu_millis, log.limits.cpu_millis), (7, 15));
    assert_eq!((log.requests.memory, log.limits.memory), (35_000_000, 90_000_000));
    assert_eq!(made.node_selector["kubernetes.io/arch"], "arm64");
    assert_eq!(made.node_selector["machine-type.node.kubevirt.io/virt"], "true");
    let pinned = virtual_machine(json!({"domain": {"memory": {"guest": "2Gi"},
        "cpu": {"cores": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true}}}));
    let made = predict_launcher(&pinned, &configuration, &ClusterObjects::default());
    assert_eq!(made.pod.containers[0].requests.cpu_millis, 4000);

    let at = "/spec/configuration";
    for (pointer, value, said) in [
        ("/developerConfiguration/memoryOvercommit", json!(-5), "memoryOvercommit: `-5` must be"),
        (
            "/developerConfiguration/cpuAllocationRatio",
            json!("x"),
            "cpuAllocationRatio: invalid type",
        ),
        ("/additionalGuestMemoryOverheadRatio", json!("NaN"), "`NaN` must be a number"),
        (
            "/supportContainerResources/0/resources/requests/cpu",
            json!("7 m"),
            "`7 m` is not a quantity",
        ),
    ] {
        let mut broken = object.clone();
        *broken.pointer_mut(&format!("{at}{pointer}")).unwrap() = value;
        let error = Configuration::from_kubevirt(&broken).unwrap_err().to_string();
        let called = error.starts_with("KubeVirt kubevirt/kubevirt: spec.configuration.");
        assert!(called && error.contains(said), "{error}");
    }
    let mut old = object;
    old["status"]["observedKubeVirtVersion"] = json!("v0.59.0");
    let error = Configuration::from_kubevirt(&old).unwrap_err().to_string();
    assert!(
        error.contains("status.observedKubeVirtVersion: `v0.59.0` is not a supported"),
        "{error}"
    );
}

fn pod(object: Value) -> core::Pod {
    serde_json::from_value(object).unwrap()
}

#[test]
fn pods_of_the_cluster_are_read() {
    let read = ExistingPod::read(&pod(json!({
        "metadata": {"namespace": "a", "name": "virt-launcher-web-1-x", "uid": "p", "labels": {
            "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "vmi",
            "kubevirt.io/migrationJobUID": "job"}},
        "spec": {
            "nodeName": "n1",
            "initContainers": [
                {"name": "log", "restartPolicy": "Always",
                    "resources": {"requests": {"cpu": "5m", "memory": "35M"}}},
                {"name": "disk", "resources": {"requests": {"ephemeral-storage": "90M"}}},
            ],
            "containers": [{"name": "compute", "resources": {
                "requests": {"cpu": "200m", "memory": "2376Mi", "ephemeral-storage": "50M", "hugepages-2Mi": "1Gi"},
                "limits": {"devices.kubevirt.io/kvm": "1", "hugepages-2Mi": "1Gi"}}}],
            "overhead": {"memory": "1Mi"},
        },
        "status": {"phase": "Running", "nominatedNodeName": ""},
    })))
    .unwrap();
    let compute = &read.pod.containers[0];
    assert_eq!((compute.requests.cpu_millis, compute.requests.memory), (200, 2376 * MIB));
    assert_eq!(compute.requests.extended["devices.kubevirt.io/kvm"], 1);
    assert_eq!(compute.requests.hugepages[&PageSize::MIB_2], GIB);
    let sidecars: Vec<_> = read.pod.init_containers.iter().map(|it| it.is_sidecar).collect();
    assert_eq!((read.pod.uid.as_str(), sidecars), ("p", vec![true, false]));
    assert_eq!((read.pod.overhead.memory, read.ephemeral_storage), (MIB, 90_000_000));
    assert_eq!(read.vmi_uid.as_deref(), Some("vmi"));
    assert_eq!(read.migration_uid.as_deref(), Some("job"));
    assert_eq!((read.node_name.as_deref(), read.nominated_node_name), (Some("n1"), None));
    assert!(!read.is_terminal && !read.is_terminating && !read.is_first_consumer);

    let other = ExistingPod::read(&pod(json!({
        "metadata": {"name": "x", "labels": {"kubevirt.io/created-by": "vmi"},
            "annotations": {"kubevirt.io/ephemeral-provisioning": "true"}},
        "spec": {"containers": []}, "status": {"phase": "Failed", "nominatedNodeName": "n2"},
    })))
    .unwrap();
    assert_eq!((other.vmi_uid, other.nominated_node_name.as_deref()), (None, Some("n2")));
    assert!(other.is_terminal && !other.is_first_consumer);

    let at = "Pod a/b: spec.containers[0].resources.requests.";
    for (amount, said) in [
        (json!({"requests": {"cpu": "lots"}}), "cpu: `lots` is not a quantity"),
        (json!({"limits": {"memory": "-1"}}), "memory: `-1` is negative"),
        (json!({"limits": {"hugepages-3Mi": "3Mi"}}), "hugepages-3Mi: `3Mi` is not"),
    ] {
        let object = json!({"metadata": {"namespace": "a", "name": "b"},
            "spec": {"containers": [{"name": "c", "resources": amount}]}});
        let error = ExistingPod::read(&pod(object)).unwrap_err().to_string();
        assert!(error.starts_with(at) && error.contains(said), "{error}");
    }
}

/// The kubelet's CPU and memory managers ignore a pod with pod-level resources. The request of the pod equals its
/// pod-level resources.
#[test]
fn pod_level_resources_are_shared_by_containers() {
    let own = json!({"cpu": "2", "memory": "1Gi"});
    let object = json!({"metadata": {"name": "x", "uid": "u"}, "spec": {
        "resources": {"requests": {"cpu": "4", "memory": "3Gi"}, "limits": {"cpu": "4", "memory": "3Gi"}},
        "containers": [{"name": "c", "resources": {"requests": own, "limits": own}}]}});
    let read = ExistingPod::read(&pod(object.clone())).unwrap().pod;
    assert!(!read.is_guaranteed() && !read.has_exclusive_cpus());
    assert_eq!((read.requests().cpu_millis, read.requests().memory), (4000, 3 * GIB));
    let mut without = object;
    without["spec"]["resources"] = json!(null);
    assert!(ExistingPod::read(&pod(without)).unwrap().pod.has_exclusive_cpus());
    let wrong = json!({"metadata": {"namespace": "a", "name": "b"}, "spec": {
        "resources": {"requests": {"cpu": "lots"}}, "containers": []}});
    let error = ExistingPod::read(&pod(wrong)).unwrap_err().to_string();
    assert!(error.contains("Pod a/b: spec.resources.requests.cpu: `lots` is not"), "{error}");
}

/// During a resize of a container, the scheduler counts the larger of the requested and the allocated resources.
#[test]
fn a_container_keeps_its_allocated_resources_during_a_resize() {
    let read = |spec: &str, allocated: &str| {
        let requests = |cpu: &str| json!({"cpu": cpu, "memory": "1Gi"});
        let object = json!({"metadata": {"name": "x", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": requests(spec), "limits": requests(spec)}}]},
            "status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "i", "ready": true,
                "restartCount": 0, "allocatedResources": requests(allocated),
                "resources": {"requests": requests(allocated), "limits": requests(allocated)}}]}});
        let read = ExistingPod::read(&pod(object)).unwrap().pod;
        (read.requests().cpu_millis, read.has_exclusive_cpus())
    };
    assert_eq!(read("2", "2"), (2000, true));
    assert_eq!(read("2", "3"), (3000, true), "the requested value is smaller");
    assert_eq!(read("3", "2"), (3000, true), "the requested value is larger");
}

#[test]
fn a_static_pod_has_the_uid_that_its_kubelet_uses() {
    let object = json!({"metadata": {"name": "x", "uid": "mirror",
        "annotations": {"kubernetes.io/config.mirror": "static"}}, "spec": {"containers": []}});
    assert_eq!(ExistingPod::read(&pod(object)).unwrap().pod.uid, "static");
}

/// Formats requests or limits for the manifest of a pod.
fn resources_json(amounts: &berth_kubelet_admission::pod::Resources) -> Value {
    let mut all = json!({});
    if amounts.cpu_millis != 0 {
        all["cpu"] = json!(format!("{}m", amounts.cpu_millis));
    }
    if amounts.memory != 0 {
        all["memory"] = json!(amounts.memory.to_string());
    }
    for (name, count) in &amounts.extended {
        all[name] = json!(count.to_string());
    }
    all
}

/// A predicted pod equals the pod that is read from a Pod object with the same containers.
#[test]
fn a_predicted_pod_read_as_a_created_pod_is_the_same() {
    let spec = json!({"domain": {"cpu": {"cores": 3}, "memory": {"guest": "1Gi"}}, "hostname": "host-1",
        "volumes": [{"name": "d", "containerDisk": {"image": "i"}}]});
    let instance = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web-1", "uid": "u"}, "spec": spec});
    let made = predict_launcher(
        &instance,
        &configuration_for_release("v1.8.0"),
        &ClusterObjects::default(),
    );
    assert_eq!((made.pod.init_containers.len(), made.pod.containers.len()), (3, 2));
    let list = |containers: &[berth_kubelet_admission::pod::Container]| -> Value {
        let each = containers.iter().map(|it| {
            let restart = if it.is_sidecar { json!("Always") } else { json!(null) };
            json!({"name": it.name, "restartPolicy": restart,
                "resources": {"requests": resources_json(&it.requests), "limits": resources_json(&it.limits)}})
        });
        each.collect()
    };
    let object = json!({"metadata": {"name": "x", "labels": made.labels}, "spec": {
        "initContainers": list(&made.pod.init_containers), "containers": list(&made.pod.containers)}});
    let read = ExistingPod::read(&pod(object)).unwrap();
    assert_eq!(read.pod, made.pod);
    assert_eq!(read.vmi_uid.as_deref(), Some("u"));
    assert_eq!(made.labels["vm.kubevirt.io/name"], "host-1");
    // The UID of a VirtualMachine must not be used as the UID of its VirtualMachineInstance.
    let spec = json!({"domain": {"memory": {"guest": "1Gi"}}});
    let made = try_predict_launcher(&virtual_machine(spec), &ClusterObjects::default()).unwrap();
    assert!(!made.labels.contains_key("kubevirt.io/created-by"));
}
