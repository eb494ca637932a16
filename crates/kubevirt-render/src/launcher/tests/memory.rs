//! Tests of the memory overhead, and of the pod's memory requests.

use super::*;

/// Covers "`GetMemoryOverhead` calculation" of hypervisorbackend_test.go.
#[test]
fn overhead_equals_that_of_kubevirt() {
    let base = json!({"domain": {"resources": {"requests": {"memory": "1Gi"}}}});
    let exec = json!({"exec": {"command": ["true"]}});
    let resources = |it: Value| json!({"domain": {"resources": it}});
    let devices = |it: Value| json!({"domain": {"devices": it}});
    for (more, mib) in [
        (json!({}), 290),
        (json!({"domain": {"cpu": {"cores": 2, "threads": 2, "sockets": 2}}}), 290 + 56),
        (resources(json!({"requests": {"cpu": "3"}, "limits": {"cpu": "5"}})), 290 + 32),
        (resources(json!({"requests": {"cpu": "3"}})), 290 + 16),
        (devices(json!({"autoattachGraphicsDevice": false})), 290 - 32),
        (json!({"architecture": "arm64"}), 290 + 128),
        (devices(json!({"hostDevices": [{"name": "test"}]})), 290 + 1024),
        (devices(json!({"gpus": [{"name": "test"}]})), 290 + 1024),
        (devices(json!({"interfaces": [{"name": "test", "sriov": {}}]})), 290 + 1024),
        (json!({"volumes": [{"name": "v", "downwardMetrics": {}}]}), 291),
        (json!({"livenessProbe": exec}), 290 + 110),
        (json!({"readinessProbe": exec}), 290 + 110),
        (json!({"readinessProbe": exec, "livenessProbe": exec}), 290 + 120),
        (json!({"domain": {"launchSecurity": {"sev": {}}}}), 290 + 256),
        (devices(json!({"tpm": {}})), 290 + 53),
        (devices(json!({"tpm": {"enabled": false}})), 290),
        (json!({"domain": {"cpu": {"cores": 1, "dedicatedCpuPlacement": true}}}), 390),
        (
            json!({"domain": {"cpu": {"cores": 1}, "resources": {
                "requests": {"memory": "1Gi", "cpu": "4"}, "limits": {"memory": "1Gi", "cpu": "4"}}}}),
            390,
        ),
        (
            json!({"domain": {"memory": {"reservedOverhead": {"addedOverhead": "100Gi"}}}}),
            290 + 102_400,
        ),
        (json!({"domain": {"memory": {"reservedOverhead": {"addedOverhead": "0"}}}}), 290),
    ] {
        let launcher = render_spec(merge(base.clone(), more.clone()), &configuration_of("main"));
        assert_eq!(launcher.memory_overhead, mib * MIB, "{more}");
    }
}

/// Covers the first entry of the table "`GetMemoryOverhead` calculation", whose expected value differs between
/// releases: base, static, video and core overhead.
#[test]
fn overhead_changed_with_releases() {
    let base = json!({"domain": {"resources": {"requests": {"memory": "1Gi"}}}});
    for (version, mib) in [
        ("main", 290),
        ("v1.9.0", 270),
        ("v1.8.4", 270),
        ("v1.7.0", 270),
        ("v1.6.0", 270),
        ("v1.5.3", 254),
        ("v1.5.0", 254),
        ("v1.4.1", 249),
        ("v1.4.0", 244),
        ("v1.3.0", 244),
    ] {
        assert_eq!(
            render_spec(base.clone(), &configuration_of(version)).memory_overhead,
            mib * MIB,
            "{version}"
        );
    }
}

/// Covers "the additionalOverheadRatio is provided". KubeVirt multiplies the overhead in units of 1,000 bytes, rounded
/// up: 290Mi are 304,088 units.
#[test]
fn overhead_is_multiplied_in_thousands_of_bytes() {
    let base = json!({"domain": {"resources": {"requests": {"memory": "1Gi"}}}});
    for (ratio, bytes) in
        [(3.2, 973_080_040), (2.332, 709_132_040), (1.234, 375_243_040), (1.0, 304_087_040)]
    {
        let configuration =
            Configuration { overhead_ratio: Some(ratio), ..configuration_of("main") };
        assert_eq!(render_spec(base.clone(), &configuration).memory_overhead, bytes, "{ratio}");
    }
    // In releases up to 1.5.2, the ratio did not apply to the overhead of dedicated CPUs.
    let pinned =
        merge(base, json!({"domain": {"cpu": {"cores": 1, "dedicatedCpuPlacement": true}}}));
    let twice = |version| Configuration { overhead_ratio: Some(2.0), ..configuration_of(version) };
    let [old, new] =
        ["v1.5.2", "v1.5.3"].map(|v| render_spec(pinned.clone(), &twice(v)).memory_overhead);
    assert!(new - old > 99 * MIB && new - old < 101 * MIB, "{old} {new}");
}

/// Covers "should add ... to the container" of template_test.go. Expected values are in bytes, or in units of 10^6
/// bytes, rounded up.
#[test]
fn memory_equals_that_of_kubevirt() {
    let given = |request: &str, limit: &str| {
        json!({"domain": {"resources": {
            "requests": {"cpu": "1m", "memory": request}, "limits": {"cpu": "2m", "memory": limit}}}})
    };
    for (version, architecture, request, limit) in [
        ("main", "amd64", 1_303_943_013, 2_303_943_013),
        ("main", "arm64", 1_438_160_741, 2_438_160_741),
        ("v1.9.0", "amd64", 1_282_971_493, 2_282_971_493),
        ("v1.5.3", "amd64", 1_266_194_277, 2_266_194_277),
    ] {
        let spec = merge(given("1G", "2G"), json!({"architecture": architecture}));
        let container = compute_container(spec.clone(), &configuration_of(version));
        assert_eq!((container.requests.memory, container.limits.memory), (request, limit));
        assert_eq!((container.requests.cpu_millis, container.limits.cpu_millis), (1, 2));
        let overcommitted = json!({"domain": {"resources": {"overcommitGuestOverhead": true}}});
        let container = compute_container(merge(spec, overcommitted), &configuration_of(version));
        assert_eq!((container.requests.memory, container.limits.memory), (1_000_000_000, limit));
    }
    for (architecture, graphics, millions) in [
        ("amd64", json!(null), 383),
        ("amd64", json!(true), 383),
        ("amd64", json!(false), 350),
        ("arm64", json!(null), 518),
        ("arm64", json!(false), 484),
    ] {
        let spec = json!({"architecture": architecture, "domain": {
            "cpu": {"cores": 3}, "devices": {"autoattachGraphicsDevice": graphics},
            "resources": {"requests": {"cpu": "1m", "memory": "64M"}}}});
        let container = compute_container(spec, &configuration_of("main"));
        assert_eq!(container.requests.memory.div_ceil(1_000_000), millions);
        assert_eq!((container.limits.memory, container.requests.cpu_millis), (0, 1));
    }
}

/// Covers "with hugepages constraints" of template_test.go.
#[test]
fn hugepages_back_the_guests_memory() {
    for (architecture, size, millions) in
        [("amd64", "2Mi", 303), ("amd64", "1Gi", 303), ("arm64", "2Mi", 437), ("arm64", "1Gi", 437)]
    {
        let spec = |memory: &str| {
            json!({"architecture": architecture, "domain": {
                "memory": {"hugepages": {"pageSize": size}},
                "resources": {"requests": {"memory": memory}, "limits": {"memory": memory}}}})
        };
        let size = size.parse().unwrap();
        let container = compute_container(spec("64M"), &configuration_of("main"));
        assert_eq!(container.requests.memory.div_ceil(1_000_000), millions);
        assert_eq!(container.limits.memory, container.requests.memory);
        assert_eq!(container.requests.hugepages[&size], 64_000_000);
        assert_eq!(container.limits.hugepages[&size], 64_000_000);
        // Covers "should account for difference between guest and container requested memory".
        let guest = json!({"domain": {"memory": {"guest": "64M"}}});
        let container = compute_container(merge(spec("70M"), guest), &configuration_of("main"));
        assert_eq!(container.requests.memory.div_ceil(1_000_000), millions + 6);
        assert_eq!(container.limits.memory, container.requests.memory);
        assert_eq!(container.requests.hugepages[&size], 64_000_000);
    }
}

/// Covers "should honor memoryOvercommit when set in the CR" of template_test.go.
#[test]
fn memory_is_overcommitted_if_only_guest_memory_is_set() {
    const GIB: u64 = 1 << 30;
    let setters = [
        json!({"resources": {"requests": {"memory": "1Gi"}}}),
        json!({"resources": {"limits": {"memory": "1Gi"}}}),
        json!({"memory": {"guest": "1Gi"}}),
        json!({"memory": {"hugepages": {"pageSize": "1Gi"}}}),
    ];
    for chosen in 1..16 {
        let is_chosen = |index: usize| chosen >> index & 1 == 1;
        let domain = (0..4)
            .filter(|i| is_chosen(*i))
            .fold(json!({}), |all, i| merge(all, setters[i].clone()));
        let requested = |percent| {
            let configuration =
                Configuration { memory_overcommit: percent, ..configuration_of("main") };
            let container = compute_container(json!({"domain": domain}), &configuration);
            container.requests.memory + container.requests.hugepages.values().sum::<u64>()
        };
        let reduction = requested(100) - requested(110);
        let expected = if is_chosen(0) || is_chosen(1) { 0 } else { GIB - GIB * 100 / 110 };
        assert_eq!(reduction, expected, "{domain}");
    }
}

/// Covers "`WithAutoMemoryLimits` option" of renderresources_test.go.
#[test]
fn resource_quotas_cause_limits() {
    let spec = json!({"domain": {"resources": {"requests": {"memory": "64M"}}}});
    for (ratio, text) in
        [(2.0, None), (3.2, Some("3.200000")), (2.0, Some("0.5")), (2.0, Some("x"))]
    {
        let mut objects = ClusterObjects::default();
        let labels = text
            .map(|text| ("alpha.kubevirt.io/auto-memory-limits-ratio".to_owned(), text.to_owned()));
        objects.namespaces.insert("default".to_owned(), labels.into_iter().collect());
        objects.memory_limited_namespaces.insert("default".to_owned());
        let launcher =
            render(&parse_instance(spec.clone()), &configuration_of("main"), &objects).unwrap();
        let request = 64_000_000 + launcher.memory_overhead;
        let limit = launcher.pod.containers[0].limits.memory;
        assert!((limit as f64 - request as f64 * ratio).abs() < 1.0, "{text:?}: {limit}");
        let own =
            merge(spec.clone(), json!({"domain": {"resources": {"limits": {"memory": "64M"}}}}));
        let launcher = render(&parse_instance(own), &configuration_of("main"), &objects).unwrap();
        assert_eq!(launcher.pod.containers[0].limits.memory, request);
    }
}
