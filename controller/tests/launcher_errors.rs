//! Invalid manifests are reported with object, field and value, and never cause a panic.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use berth_kubevirt_render::launcher::{
    ClusterObjects, Configuration, Invalid, Launcher, Machine, predict,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn predict_launcher(object: &Value, cluster_objects: &ClusterObjects) -> Result<Launcher, Invalid> {
    // Only without this feature gate, KubeVirt reads the NetworkAttachmentDefinitions that a machine names.
    let disabled_feature_gates = ["ExternalNetResourceInjection".to_owned()].into();
    let configuration = Configuration { disabled_feature_gates, ..Configuration::default() };
    predict(&Machine::read(object)?.unwrap(), &configuration, cluster_objects)
}

fn virtual_machine(spec: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"namespace": "tenant-a", "name": "web-1"},
        "spec": {"template": {"spec": spec}},
    })
}

fn prediction_error(object: &Value, cluster_objects: &ClusterObjects) -> String {
    predict_launcher(object, cluster_objects).unwrap_err().to_string()
}

#[test]
fn object_field_and_value_are_reported() {
    let most = u32::MAX;
    for (domain, expected) in [
        (json!({"cpu": {"cores": "two"}}), "cpu.cores: invalid type: string \"two\""),
        (json!({"cpu": {"cores": -2}}), "cpu.cores: invalid value: integer `-2`"),
        (json!({"cpu": {"cores": 1.5}}), "cpu.cores: invalid type: floating point `1.5`"),
        (json!({"cpu": {"cores": most, "sockets": most, "threads": most}}), "cpu: 79228162458"),
        (json!({"ioThreads": {"supplementalPoolThreadCount": most}}), "cpu: 4294967296 CPUs"),
        (json!({"memory": 7}), "memory: invalid type"),
        (json!({"memory": {"guest": "1 Gi"}}), "memory.guest: `1 Gi` is not a quantity"),
        (json!({"memory": {"guest": "-1Gi"}}), "memory.guest: is missing"),
        (json!({}), "memory.guest: is missing"),
        (json!({"memory": {"guest": "99E"}}), "memory.guest: `99E` is out of range"),
        (
            json!({"memory": {"hugepages": {"pageSize": "3Mi"}}, "resources": {"requests": {"memory": "3Mi"}}}),
            "memory.hugepages.pageSize: `3Mi` is not",
        ),
        (
            json!({"memory": {"guest": "3Mi", "hugepages": {"pageSize": "2Mi"}}}),
            "memory.hugepages.pageSize: the memory 3Mi is not",
        ),
        (
            json!({"resources": {"requests": {"memory": "-5"}}}),
            "resources.requests.memory: `-5` is negative",
        ),
    ] {
        let error = prediction_error(
            &virtual_machine(json!({"domain": domain})),
            &ClusterObjects::default(),
        );
        let at = "VirtualMachine tenant-a/web-1: spec.template.spec.domain.";
        assert!(error.starts_with(&format!("{at}{expected}")), "{domain}: {error}");
    }
    for (domain, expected) in [
        (
            json!({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}),
            "domain.resources.limits.cpu: container `compute` requests 2, but",
        ),
        (
            json!({"resources": {"limits": {"x/y": "1.5"}}}),
            "domain.resources.requests.x/y: `1500m` is not a whole number",
        ),
        (
            json!({"resources": {"requests": {"x/y": 1}}}),
            "domain.resources.requests.x/y: container `compute` has no limit",
        ),
        (
            json!({"resources": {"requests": {"x/y": 1}, "limits": {"x/y": 2}}}),
            "domain.resources.limits.x/y: container `compute` requests 1, but",
        ),
        (
            json!({"resources": {"requests": {"disk": 1}}}),
            "domain.resources.requests.disk: a container cannot request",
        ),
        (
            json!({"cpu": {"isolateEmulatorThread": true}}),
            "domain.cpu.isolateEmulatorThread: requires",
        ),
        (
            json!({"cpu": {"numa": {"guestMappingPassthrough": {}}}}),
            "domain.cpu.numa.guestMappingPassthrough: requires",
        ),
        (
            json!({"cpu": {"dedicatedCpuPlacement": true}, "resources": {"limits": {"cpu": "1500m"}}}),
            "domain.resources.requests.cpu: `1500m` must be a whole number",
        ),
        (
            json!({"cpu": {"cores": 4, "dedicatedCpuPlacement": true}, "resources": {"limits": {"cpu": 3}}}),
            "domain.resources.requests.cpu: `3` must equal the 4 vCPUs",
        ),
        (
            json!({"cpu": {"threads": 4, "dedicatedCpuPlacement": true}}),
            "domain.cpu.dedicatedCpuPlacement: allows at most two threads per core, but cpu.threads is 4",
        ),
        (
            json!({"memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}},
                "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "512Mi"}}}),
            "domain.resources.requests.memory: `1Gi` is greater than the limit 512Mi",
        ),
        (
            json!({"devices": {"interfaces": [{"name": "a", "binding": {"name": "b"}}]}}),
            "domain.devices.interfaces[0].binding.name: network binding plugin `b` not found",
        ),
    ] {
        let mut object = virtual_machine(json!({"domain": domain}));
        object["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("1Gi");
        let error = prediction_error(&object, &ClusterObjects::default());
        let at = "VirtualMachine tenant-a/web-1: spec.template.spec.";
        assert!(error.starts_with(&format!("{at}{expected}")), "{domain}: {error}");
    }
}

#[test]
fn fields_outside_of_the_domain_are_reported() {
    let domain = json!({"memory": {"guest": "1Gi"}});
    for (field, value, expected) in [
        (
            "networks",
            json!([{"name": "a", "multus": {"networkName": "net"}}]),
            "networks[0].multus.networkName: NetworkAttachmentDefinition tenant-a/net not found",
        ),
        ("tolerations", json!([{"key": 5}]), "tolerations[0]"),
        (
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}),
            "affinity",
        ),
        ("nodeSelector", json!({"a": 1}), "nodeSelector.a: invalid type"),
    ] {
        let mut object = virtual_machine(json!({"domain": domain}));
        object["spec"]["template"]["spec"][field] = value;
        let error = prediction_error(&object, &ClusterObjects::default());
        let at = "VirtualMachine tenant-a/web-1: spec.template.spec.";
        assert!(error.starts_with(&format!("{at}{expected}")), "{field}: {error}");
    }
    let mut object = virtual_machine(json!({"domain": domain}));
    let hooks = json!({"hooks.kubevirt.io/hookSidecars": "[{"});
    object["spec"]["template"]["metadata"] = json!({"annotations": hooks});
    let error = prediction_error(&object, &ClusterObjects::default());
    let at = "spec.template.metadata.annotations[hooks.kubevirt.io/hookSidecars]: ";
    assert!(error.contains(at), "{error}");

    object["metadata"].as_object_mut().unwrap().remove("name");
    let error = prediction_error(&object, &ClusterObjects::default());
    assert_eq!(error, "VirtualMachine tenant-a/?: metadata.name: is missing");
    let bare = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"}});
    let error = prediction_error(&bare, &ClusterObjects::default());
    assert_eq!(error, "VirtualMachine a: spec.template: is missing");
    assert_eq!(Machine::read(&json!({"apiVersion": "v1", "kind": "Pod"})), Ok(None));
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
        cluster_objects
            .add(&json!({"kind": kind, "metadata": {"name": "own"}, "spec": spec}))
            .unwrap();
    }
    let mut object = virtual_machine(spec);
    object["spec"]["instancetype"] = json!({"name": "own"});
    object["spec"]["preference"] = json!({"name": "own"});
    (object, cluster_objects)
}

#[test]
fn missing_and_conflicting_instance_types_are_reported() {
    let three = json!({"cpu": {"guest": 3}, "memory": {"guest": "1Gi"}});
    let (mut object, around) = machine_with_instancetype(three.clone(), json!({}), json!({}));
    let error = prediction_error(&object, &ClusterObjects::default());
    let at = "VirtualMachine tenant-a/web-1: spec.instancetype.";
    assert_eq!(error, format!("{at}name: VirtualMachineClusterInstancetype `own` not found"));
    object["spec"]["instancetype"]["kind"] = json!("VirtualMachineInstancetype");
    let missing = "VirtualMachineInstancetype `own` not found in namespace tenant-a";
    assert_eq!(prediction_error(&object, &around), format!("{at}name: {missing}"));
    object["spec"]["instancetype"]["kind"] = json!("Node");
    assert!(prediction_error(&object, &around).starts_with(&format!("{at}kind: `Node` must be")));
    object["spec"]["instancetype"] = json!({"inferFromVolume": "disk"});
    let error = prediction_error(&object, &around);
    assert!(
        error.contains("name: is missing, and Berth cannot infer it from the volume `disk`"),
        "{error}"
    );

    for (field, own) in [
        ("domain.cpu.cores", json!({"cpu": {"cores": 1}})),
        ("domain.memory.guest", json!({"memory": {"guest": "1Gi"}})),
        ("domain.resources.limits.memory", json!({"resources": {"limits": {"memory": "1Gi"}}})),
    ] {
        let (object, around) =
            machine_with_instancetype(three.clone(), json!({}), json!({"domain": own}));
        let error = prediction_error(&object, &around);
        let expected = format!("spec.template.spec.{field}: is set by the instance type");
        assert!(error.contains(&expected), "{error}");
    }
    let spread = |options: Value| json!({"cpu": {"preferredCPUTopology": "spread", "spreadOptions": options}});
    let one = json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}});
    let requires = |requirements: Value| json!({"requirements": requirements});
    for (instancetype, preference, expected) in [
        (json!({"cpu": {"guest": 0}, "memory": {"guest": "1Gi"}}), json!({}), "cpu.guest of the"),
        (json!({"cpu": {"guest": 1}}), json!({}), "memory.guest of the instance type"),
        (three.clone(), spread(json!({})), "3 vCPUs are not divisible by 2"),
        (three.clone(), spread(json!({"ratio": 0})), "3 vCPUs are not divisible by 0"),
        (three.clone(), spread(json!({"across": "all"})), "`all` is unknown"),
        (
            one,
            spread(json!({})),
            "instancetype.spec.cpu.guest: cpu.spreadOptions of the preference: 1 vCPUs",
        ),
        (
            three.clone(),
            requires(json!({"cpu": {"guest": 4}})),
            "spec.instancetype: 3 vCPUs are fewer than the 4 that the preference requires",
        ),
        (
            three.clone(),
            requires(json!({"memory": {"guest": "2Gi"}})),
            "spec.instancetype: 1Gi of memory is less than the 2Gi",
        ),
        (
            three.clone(),
            requires(json!({"architecture": "arm64"})),
            "architecture: `amd64` is not `",
        ),
        (three, json!({"cpu": {"preferredCPUTopology": "round"}}), "`round` is unknown"),
    ] {
        let (object, around) = machine_with_instancetype(instancetype, preference, json!({}));
        let error = prediction_error(&object, &around);
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Generates arbitrary values for a field.
fn any_value() -> impl Strategy<Value = Value> {
    let fixed = vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(u32::MAX),
        json!(1.5),
        json!(1e300),
        json!(""),
        json!("9223372036854775807"),
        json!("1e18"),
        json!("0.0000001m"),
        json!("16Gi"),
        json!("2Mi"),
        json!([]),
        json!({}),
        json!([{}]),
        json!({"memory": "7E", "cpu": "7E", "x/y": "7E", "ephemeral-storage": "7E"}),
    ];
    prop_oneof![prop::sample::select(fixed), "[-+0-9.a-zA-Z]{0,9}".prop_map(Value::from)]
}

/// Returns a machine that sets every field that Berth reads.
fn full_machine() -> Value {
    let mut object = virtual_machine(json!({
        "architecture": "amd64", "nodeSelector": {"a": "b"}, "schedulerName": "s", "hostname": "h",
        "affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "topologySpreadConstraints":
            [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
        "networks": [{"name": "n", "pod": {}}],
        "volumes": [{"name": "v", "containerDisk": {"image": "i"}}],
        "livenessProbe": {"exec": {}},
        "domain": {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1, "model": "m", "dedicatedCpuPlacement": true,
                "isolateEmulatorThread": true, "numa": {"guestMappingPassthrough": {}}, "realtime": {},
                "features": [{"name": "f", "policy": "require"}]},
            "memory": {"guest": "2Gi", "hugepages": {"pageSize": "2Mi"},
                "reservedOverhead": {"addedOverhead": "1Mi"}},
            "resources": {"requests": {"memory": "2Gi", "cpu": 2}, "limits": {"memory": "2Gi", "cpu": 2},
                "overcommitGuestOverhead": true},
            "machine": {"type": "q35"}, "firmware": {"kernelBoot": {"container": {}}},
            "ioThreads": {"supplementalPoolThreadCount": 1}, "ioThreadsPolicy": "supplementalPool",
            "launchSecurity": {"sev": {"policy": {"encryptedState": true}}},
            "features": {"hyperv": {"synic": {"enabled": true}}},
            "devices": {"disks": [{"name": "v", "lun": {"reservation": true}}],
                "gpus": [{"name": "g", "deviceName": "x/g"}], "hostDevices": [],
                "interfaces": [{"name": "n", "model": "virtio"}], "filesystems": [{"name": "v"}],
                "tpm": {"enabled": true}, "autoattachVSOCK": true, "logSerialConsole": true},
        },
    }));
    let hooks = json!({"hooks.kubevirt.io/hookSidecars": "[{\"image\": \"i\"}]"});
    object["spec"]["template"]["metadata"] = json!({"annotations": hooks, "labels": {"l": "m"}});
    object
}

/// Collects the JSON pointers of all values in an object.
fn collect_pointers(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            collect_pointers(value, &format!("{at}/{key}"), into);
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(index, value)| {
            collect_pointers(value, &format!("{at}/{index}"), into);
        }),
        _ => {}
    }
}

#[test]
fn machine_with_all_fields_is_predicted() {
    let launcher = predict_launcher(&full_machine(), &ClusterObjects::default()).unwrap();
    // Two CPUs for vCPUs, one for the I/O thread pool, and one for the emulator thread.
    assert_eq!(launcher.pod.containers[0].requests.cpu_millis, 4000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// With arbitrary values in arbitrary fields, for every release of KubeVirt, the prediction returns a launcher pod,
    /// or an error that names the object.
    #[test]
    fn broken_machines_cause_errors(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any_value()), 1..5),
        version in prop::sample::select(vec!["v1.3.0", "v1.5.0", "v1.6.3", "v1.9.0", "main"]),
        ratio in prop::sample::select(vec![None, Some(0.0), Some(1.7), Some(1e6)]),
        overcommit in prop::sample::select(vec![0, 1, 100, u32::MAX]),
        shared in prop::sample::select(vec![i64::MIN, -1, 0, 1, 3, i64::MAX]),
    ) {
        let mut object = full_machine();
        for (index, value) in changes {
            let mut paths = Vec::new();
            collect_pointers(&object, "", &mut paths);
            let path: &String = index.get(&paths);
            *object.pointer_mut(path).unwrap() = value;
        }
        let configuration = Configuration {
            version: version.parse().unwrap(),
            overhead_ratio: ratio,
            memory_overcommit: overcommit,
            cpu_allocation_ratio: shared,
            ..Configuration::default()
        };
        match Machine::read(&object) {
            Ok(Some(machine)) => match predict(&machine, &configuration, &ClusterObjects::default()) {
                Ok(launcher) => {
                    prop_assert!(launcher.vcpus >= 1 && launcher.guest_memory > 0);
                    for container in &launcher.pod.containers {
                        for (name, limit) in &container.limits.extended {
                            prop_assert!(container.requests.extended[name] <= *limit);
                        }
                    }
                }
                Err(error) => prop_assert_eq!(error.object, machine.object),
            },
            Ok(None) => {}
            Err(error) => prop_assert!(!error.field.is_empty() && !error.message.is_empty()),
        }
    }

    /// An object of any other kind is used or ignored, or causes an error that names the field.
    #[test]
    fn malformed_objects_cause_errors(
        kind in prop::sample::select(vec![
            "VirtualMachineInstancetype", "VirtualMachinePreference", "ResourceQuota", "RuntimeClass",
            "Namespace", "NetworkAttachmentDefinition", "Node",
        ]),
        value in any_value(),
        field in "metadata|spec|overhead",
    ) {
        let mut object = json!({"kind": kind, "metadata": {"name": "a"}, "spec": {}});
        object[&field] = value;
        match ClusterObjects::default().add(&object) {
            Ok(taken) => prop_assert_eq!(taken, kind != "Node"),
            Err(error) => prop_assert!(!error.message.is_empty() && error.object.starts_with(kind)),
        }
    }
}
