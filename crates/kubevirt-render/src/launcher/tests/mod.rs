//! Tests whose expected values come from `KubeVirt`'s own tests. Steps that KubeVirt does not test are not covered
//! here.

mod memory;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::configuration::EVEN_PARITY_ANNOTATION;
use super::predict::render;
use super::*;
use berth_kubelet_admission::pod::Container;

const MIB: u64 = 1 << 20;

/// Parses a VirtualMachineInstance without adding defaults, because KubeVirt's tests pass it to the renderer in this
/// form.
fn parse_instance(spec: Value) -> Machine {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"namespace": "default", "name": "testvmi", "uid": "1234"},
        "spec": spec,
    });
    Machine::read(&object).unwrap().unwrap()
}

fn configuration_of(version: &str) -> Configuration {
    Configuration { version: version.parse().unwrap(), ..Configuration::default() }
}

fn render_spec(spec: Value, configuration: &Configuration) -> Launcher {
    render(&parse_instance(spec), configuration, &ClusterObjects::default()).unwrap()
}

fn compute_container(spec: Value, configuration: &Configuration) -> Container {
    render_spec(spec, configuration).pod.containers.swap_remove(0)
}

/// Merges objects; values of `more` take precedence.
fn merge(mut base: Value, more: Value) -> Value {
    match (&mut base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                let existing = base.remove(&key).unwrap_or(Value::Null);
                base.insert(key, merge(existing, value));
            }
        }
        (base, more) => *base = more,
    }
    base
}

/// Covers "Default CPU configuration" of renderresources_test.go, and CPU counts that are not divisible by the CPU
/// allocation ratio.
#[test]
fn cpus_are_shared_by_the_ratio() {
    for (cores, ratio, limited, millis) in
        [(5, 1, false, 5000), (5, 10, false, 500), (5, 1, true, 5000), (5, 10, true, 500)]
    {
        let mut objects = ClusterObjects::default();
        if limited {
            objects.cpu_limited_namespaces.insert("default".to_owned());
        }
        let configuration =
            Configuration { cpu_allocation_ratio: ratio, ..configuration_of("main") };
        let machine = parse_instance(json!({"domain": {"cpu": {"cores": cores}}}));
        let container = &render(&machine, &configuration, &objects).unwrap().pod.containers[0];
        assert_eq!(container.requests.cpu_millis, millis);
        assert_eq!(container.limits.cpu_millis, if limited { 5000 } else { 0 });
    }
    let shared = |cores: u32, ratio| {
        let configuration =
            Configuration { cpu_allocation_ratio: ratio, ..configuration_of("main") };
        compute_container(json!({"domain": {"cpu": {"cores": cores}}}), &configuration)
            .requests
            .cpu_millis
    };
    assert_eq!((shared(1, 3), shared(4, 3), shared(3, 7)), (334, 1334, 429));
    assert_eq!((shared(2, 0), shared(2, -1)), (0, 0));
    // With ratio 10, every quotient is a whole number of thousandths of a CPU. The result must be exact, although the
    // renderer divides floats as KubeVirt does.
    for cores in 1..=512 {
        assert_eq!(shared(cores, 10), u64::from(cores) * 100, "{cores}");
    }
}

/// Covers "an isolated emulator thread is requested" of renderresources_test.go, and the parity table of
/// template_test.go.
#[test]
fn emulator_and_io_threads_need_additional_pinned_cpus() {
    let policy = json!({"ioThreadsPolicy": "supplementalPool"});
    for (cores, pool, requested_cpus, parity, policy, expected) in [
        (5, 2, 0, false, json!({}), 8),
        (5, 2, 0, true, json!({}), 8),
        (6, 2, 0, true, json!({}), 10),
        (0, 0, 3, false, json!({}), 4),
        (0, 2, 5, true, json!({}), 8),
        (3, 0, 0, false, json!({}), 4),
        (2, 0, 0, false, json!({}), 3),
        (3, 0, 0, true, json!({}), 4),
        (2, 0, 0, true, json!({}), 4),
        // With the policy supplementalPool, KubeVirt counts the I/O thread pool twice for the parity. Counted once, 5 +
        // 3 CPUs are even, and the emulator thread gets 2 CPUs. Counted twice, 5 + 3 + 3 CPUs are odd, and it gets only
        // 1.
        (5, 3, 0, true, json!({}), 10),
        (5, 3, 0, true, policy, 9),
    ] {
        let resources =
            if requested_cpus == 0 { json!({}) } else { json!({"cpu": requested_cpus}) };
        let domain = json!({
            "cpu": {"cores": cores, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true},
            "ioThreads": {"supplementalPoolThreadCount": pool},
            "resources": {"requests": resources, "limits": resources},
        });
        let mut machine = parse_instance(json!({"domain": merge(domain, policy)}));
        if parity {
            machine.annotations.insert(EVEN_PARITY_ANNOTATION.to_owned(), String::new());
        }
        let launcher =
            render(&machine, &configuration_of("main"), &ClusterObjects::default()).unwrap();
        let container = &launcher.pod.containers[0];
        assert_eq!(container.limits.cpu_millis, expected * 1000, "{machine:?}");
        assert_eq!(container.requests.cpu_millis, expected * 1000, "{machine:?}");
    }
}

/// Covers "`WithNetworkResources`", "`WithHostDevices` / `WithGPU`" and "`getRequiredResources`".
#[test]
fn devices_are_counted() {
    let mut objects = ClusterObjects::default();
    objects.networks.insert("default/net1".to_owned(), "res1".to_owned() + "/vf");
    objects.networks.insert("other/net2".to_owned(), String::new());
    let machine = parse_instance(json!({
        "domain": {
            "devices": {
                "interfaces": [{"name": "a", "sriov": {}, "model": "e1000e"}, {"name": "b", "model": "virtio"}],
                "gpus": [{"name": "g1", "deviceName": "x/gpu"}, {"name": "g2", "deviceName": "x/gpu"}],
                "hostDevices": [
                    {"name": "h", "deviceName": "x/nic"},
                    {"name": "claimed", "claimName": "c", "requestName": "r"},
                ],
                "autoattachVSOCK": true,
            },
            "launchSecurity": {"sev": {}},
            "resources": {"limits": {"example.com/asked": "3"}},
        },
        "networks": [
            {"name": "a", "multus": {"networkName": "net1"}},
            {"name": "b", "multus": {"networkName": "other/net2"}},
        ],
    }));
    let mut configuration = configuration_of("main");
    configuration.disabled_feature_gates.insert("ExternalNetResourceInjection".to_owned());
    let launcher = render(&machine, &configuration, &objects).unwrap();
    let mut expected: BTreeMap<String, u64> = [
        ("devices.kubevirt.io/kvm", 1),
        ("devices.kubevirt.io/sev", 1),
        ("devices.kubevirt.io/tun", 1),
        ("devices.kubevirt.io/vhost-net", 1),
        ("devices.kubevirt.io/vhost-vsock", 1),
        ("example.com/asked", 3),
        ("res1/vf", 1),
        ("x/gpu", 2),
        ("x/nic", 1),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into();
    assert_eq!(launcher.pod.containers[0].limits.extended, expected);
    assert_eq!(launcher.pod.containers[0].requests.extended, expected);

    assert_eq!(*launcher.placement_pod(), launcher.pod);

    // Since 1.9, KubeVirt does not add the resources of networks by default, because another webhook does. The pod that
    // a placement counts nevertheless includes these resources.
    let launcher = render(&machine, &configuration_of("main"), &objects).unwrap();
    let counted = launcher.placement_pod();
    assert_eq!(counted.containers[0].limits.extended, expected);
    assert_eq!(counted.containers[0].requests.extended, expected);
    expected.remove("res1/vf");
    assert_eq!(launcher.pod.containers[0].limits.extended, expected);
    assert!(render(&machine, &configuration_of("main"), &ClusterObjects::default()).is_ok());

    let emulated = Configuration { use_emulation: true, ..configuration_of("main") };
    let bare = json!({"domain": {"devices": {"autoattachPodInterface": false}}});
    assert_eq!(compute_container(bare.clone(), &emulated).limits.extended, BTreeMap::new());

    let mut other =
        Configuration { hypervisor: Some("hyperv-direct".to_owned()), ..configuration_of("main") };
    assert!(
        compute_container(bare.clone(), &other)
            .limits
            .extended
            .contains_key("devices.kubevirt.io/kvm")
    );
    other.feature_gates.insert("ConfigurableHypervisor".to_owned());
    let device = ("devices.kubevirt.io/mshv".to_owned(), 1);
    assert_eq!(compute_container(bare, &other).limits.extended, [device].into());
}

/// Covers "`GenerateCNIAnnotation`" of annotation_test.go. The name of the pod's interface is derived from the output
/// of `printf '%s' blue | sha256sum`.
#[test]
fn networks_for_multus_are_annotated() {
    let mut machine = parse_instance(json!({
        "domain": {"devices": {"interfaces": [
            {"name": "gone", "bridge": {}, "state": "absent"},
            {"name": "plugged", "binding": {"name": "plugin"}},
            {"name": "blue", "bridge": {}, "macAddress": "02:00:00:00:00:01"},
        ]}},
        "networks": [
            {"name": "plugged", "pod": {}},
            {"name": "blue", "multus": {"networkName": "other/net2"}},
            {"name": "gone", "multus": {"networkName": "net1"}},
            {"name": "unused", "multus": {"networkName": "net3", "default": true}},
        ],
    }));
    machine.annotations.insert("kubectl.kubernetes.io/x".to_owned(), "filtered".to_owned());
    machine.annotations.insert("own".to_owned(), "kept".to_owned());
    let binding = configuration::Binding {
        network_attachment_definition: "plugin-net".to_owned(),
        ..configuration::Binding::default()
    };
    let bindings = [("plugin".to_owned(), binding)].into();
    let configuration = Configuration { bindings, ..configuration_of("main") };
    let launcher = render(&machine, &configuration, &ClusterObjects::default()).unwrap();
    let networks = concat!(
        r#"[{"name":"plugin-net","namespace":"default","cni-args":{"logicNetworkName":"plugged"}},"#,
        r#"{"name":"net2","namespace":"other","mac":"02:00:00:00:00:01","interface":"pod16477688c0e"}]"#,
    );
    let expected = [
        ("k8s.v1.cni.cncf.io/networks", networks),
        ("kubevirt.io/domain", "testvmi"),
        ("own", "kept"),
        ("v1.multus-cni.io/default-network", "net3"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(launcher.annotations, expected.into());
}

/// Covers "`WithEphemeral` option", and the ephemeral storage of container disks.
#[test]
fn ephemeral_storage_is_requested() {
    let spec = json!({"domain": {"resources": {
        "requests": {"ephemeral-storage": "30M"}, "limits": {"ephemeral-storage": "80M"}}}});
    assert_eq!(render_spec(spec, &configuration_of("main")).ephemeral_storage, 80_000_000);
    let spec = json!({"volumes": [{"name": "a", "containerDisk": {}}, {"name": "b", "containerDisk": {}}]});
    assert_eq!(render_spec(spec, &configuration_of("v1.8.0")).ephemeral_storage, 150_000_000);
}

/// Returns the names of the containers other than `compute`, each with its CPU request, memory request, CPU limit and
/// memory limit, in thousandths of a CPU and in bytes.
fn other_containers(spec: Value, configuration: &Configuration) -> Vec<(String, [u64; 4])> {
    let pod = render_spec(spec, configuration).pod;
    let all = pod.init_containers.iter().chain(&pod.containers[1..]);
    all.map(|it| {
        let sidecar = if it.is_sidecar { "+" } else { "" };
        let (r, l) = (&it.requests, &it.limits);
        (format!("{sidecar}{}", it.name), [r.cpu_millis, r.memory, l.cpu_millis, l.memory])
    })
    .collect()
}

/// Covers template_test.go: console log, container disks with and without `ImageVolume`, virtiofs.
#[test]
fn other_containers_have_their_requests() {
    const M: u64 = 1_000_000;
    let spec = json!({
        "domain": {"devices": {"filesystems": [{"name": "fs"}]}, "firmware": {"kernelBoot": {"container": {"image": "k"}}}},
        "volumes": [{"name": "disk", "containerDisk": {"image": "i"}}, {"name": "fs", "persistentVolumeClaim": {}}],
    });
    let disk = [1, M, 10, 40 * M];
    let named = |list: &[(&str, [u64; 4])]| -> Vec<_> {
        list.iter().map(|(name, amounts)| ((*name).to_owned(), *amounts)).collect()
    };
    let all = named(&[
        ("+guest-console-log", [5, 35 * M, 15, 60 * M]),
        ("container-disk-binary", [10, M, 100, 40 * M]),
        ("volumedisk-init", disk),
        ("volumekernel-boot-volume-init", disk),
        ("volumedisk", disk),
        ("volumekernel-boot-volume", disk),
        ("virtiofs-fs", [10, M, 100, 80 * M]),
    ]);
    assert_eq!(other_containers(spec.clone(), &configuration_of("v1.8.0")), all);
    // The feature gate ImageVolume has been beta since 1.9, and is therefore enabled by default.
    let images = named(&[
        ("+guest-console-log", [5, 35 * M, 15, 60 * M]),
        ("volumedisk", disk),
        ("volumekernel-boot-volume", disk),
        ("virtiofs-fs", [10, M, 100, 80 * M]),
    ]);
    assert_eq!(other_containers(spec.clone(), &configuration_of("v1.9.0")), images);
    let gate_disabled = Configuration {
        disabled_feature_gates: ["ImageVolume".to_owned()].into(),
        ..configuration_of("v1.9.0")
    };
    assert_eq!(other_containers(spec.clone(), &gate_disabled), all);

    let pinned =
        merge(spec, json!({"domain": {"cpu": {"cores": 1, "dedicatedCpuPlacement": true}}}));
    let old = named(&[
        ("container-disk-binary", [10, 40 * M, 10, 40 * M]),
        ("volumedisk-init", [10, 40 * M, 10, 40 * M]),
        ("volumekernel-boot-volume-init", [10, 40 * M, 10, 40 * M]),
        ("volumedisk", [10, 40 * M, 10, 40 * M]),
        ("volumekernel-boot-volume", [10, 40 * M, 10, 40 * M]),
        ("virtiofs-fs", [100, 80 * M, 100, 80 * M]),
        ("guest-console-log", [15, 60 * M, 15, 60 * M]),
    ]);
    assert_eq!(other_containers(pinned, &configuration_of("v1.5.3")), old);
}

/// Covers the table for hook sidecars in template_test.go ("defaults no dedicated cpu, should return no values", ...).
#[test]
fn hook_sidecars_follow_the_configuration() {
    const M: u64 = 1_000_000;
    let mut support = configuration::SupportContainerResources::default();
    let set = |amounts: &mut BTreeMap<String, berth_api::Quantity>| {
        amounts.insert("cpu".to_owned(), "100m".parse().unwrap());
        amounts.insert("memory".to_owned(), "3M".parse().unwrap());
    };
    let [default, mut requests, mut limits] =
        [support.clone(), support.clone(), std::mem::take(&mut support)];
    set(&mut requests.requests);
    set(&mut limits.limits);
    let few = [100, 3 * M];
    for (support, pinned, expected) in [
        (&default, false, [0, 0, 0, 0]),
        (&default, true, [200, 64 * M, 200, 64 * M]),
        (&requests, false, [few[0], few[1], 0, 0]),
        (&requests, true, [200, 64 * M, 200, 64 * M]),
        // KubeVirt sets only a limit here. The API server uses a limit without a request also as the request.
        (&limits, false, [few[0], few[1], few[0], few[1]]),
        (&limits, true, [few[0], few[1], few[0], few[1]]),
    ] {
        let mut configuration = configuration_of("main");
        configuration.support_containers.insert("sidecar".to_owned(), support.clone());
        configuration.serial_console_log_disabled = true;
        let cpu = json!({"domain": {"cpu": {"cores": 1, "dedicatedCpuPlacement": pinned}}});
        let mut machine = parse_instance(cpu);
        let list = r#"[{"image": "some-image:v1", "imagePullPolicy": "IfNotPresent"}]"#;
        machine.annotations.insert("hooks.kubevirt.io/hookSidecars".to_owned(), list.to_owned());
        let pod = render(&machine, &configuration, &ClusterObjects::default()).unwrap().pod;
        let hook = &pod.containers[1];
        let amounts = [&hook.requests, &hook.limits].map(|it| [it.cpu_millis, it.memory]).concat();
        assert_eq!((hook.name.as_str(), amounts.as_slice()), ("hook-sidecar-0", &expected[..]));
    }
}

/// Covers "with node selectors" and "with cpu model/feature" of template_test.go and nodeselectorrenderer_test.go.
#[test]
fn the_node_selector_is_rendered() {
    let spec = json!({
        "architecture": "amd64",
        "nodeSelector": {"disk": "ssd", "zone": "own"},
        "domain": {
            "machine": {"type": "q35"},
            "cpu": {"cores": 1, "dedicatedCpuPlacement": true, "realtime": {}, "model": "Conroe", "features": [
                {"name": "lahf_lm", "policy": "require"}, {"name": "mmx"}, {"name": "ssse3", "policy": "disable"},
                {"name": "vmx", "policy": "forbid"}, {"name": "invtsc", "policy": "require"},
            ]},
            "launchSecurity": {"sev": {"policy": {"encryptedState": true}}},
            "features": {"hyperv": {"synic": {}, "ipi": {"enabled": false}, "relaxed": {}, "evmcs": {}}},
        },
    });
    let mut configuration = configuration_of("main");
    configuration.node_selectors.insert("zone".to_owned(), "cluster".to_owned());
    configuration.feature_gates.insert("HypervStrictCheck".to_owned());
    configuration.tsc_frequency = Some(12345);
    let launcher = render_spec(spec.clone(), &configuration);
    let mut expected: Vec<_> = [
        "kubevirt.io/schedulable",
        "kubevirt.io/cpumanager",
        "kubevirt.io/realtime",
        "kubevirt.io/sev",
        "kubevirt.io/sev-es",
        "machine-type.node.kubevirt.io/q35",
        "cpu-model.node.kubevirt.io/Conroe",
        "cpu-feature.node.kubevirt.io/lahf_lm",
        "cpu-feature.node.kubevirt.io/mmx",
        "cpu-feature.node.kubevirt.io/invtsc",
        "scheduling.node.kubevirt.io/tsc-frequency-12345",
        "hyperv.node.kubevirt.io/synic",
        "cpu-vendor.node.kubevirt.io/Intel",
    ]
    .map(|label| (label.to_owned(), "true".to_owned()))
    .into();
    for (key, value) in [("disk", "ssd"), ("zone", "own"), ("kubernetes.io/arch", "amd64")] {
        expected.push((key.to_owned(), value.to_owned()));
    }
    assert_eq!(launcher.node_selector, expected.into_iter().collect());
    let old = render_spec(spec, &configuration_of("v1.7.4")).node_selector;
    assert!(old.contains_key("cpumanager") && !old.contains_key("kubevirt.io/cpumanager"));

    let forbidden = serde_json::to_value(launcher.affinity).unwrap();
    let required = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let expected = json!([{"matchExpressions":
        [{"key": "cpu-feature.node.kubevirt.io/vmx", "operator": "DoesNotExist"}]}]);
    assert_eq!(forbidden.pointer(required), Some(&expected));
}

/// Covers "explicitly using host-model", "empty string should be treated as host-model" and "nil ...": every node
/// affinity term must exclude the label.
#[test]
fn nodes_with_an_obsolete_model_are_excluded() {
    let term = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
    let terms = json!([term("a"), term("b")]);
    let required = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    for cpu in [json!({}), json!({"model": ""}), json!({"model": "host-model"})] {
        for (own, count) in [(json!(null), 1), (json!({}), 1), (required.clone(), 2)] {
            let spec = json!({"affinity": own, "domain": {"cpu": cpu}});
            let affinity = render_spec(spec, &configuration_of("main")).affinity.unwrap();
            let required =
                affinity.node_affinity.unwrap().required_during_scheduling_ignored_during_execution;
            let terms = required.unwrap().node_selector_terms;
            assert_eq!(terms.len(), count);
            for term in terms {
                let last = term.match_expressions.unwrap().pop().unwrap();
                assert_eq!(last.key, "node-labeller.kubevirt.io/obsolete-host-model");
                assert_eq!(last.operator, "DoesNotExist");
            }
        }
    }
    let passthrough = json!({"domain": {"cpu": {"model": "host-passthrough"}}});
    assert_eq!(render_spec(passthrough, &configuration_of("main")).affinity, None);
}
