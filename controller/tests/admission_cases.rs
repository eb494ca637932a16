//! Cases that the recorded answers of kubelets do not cover, derived from the kubelet's source.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use berth_api::PageSize;
use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{
    CoreSpec, CpuOptions, DevicePool, HostError, KubeletHost, MemoryKind, RefusingComponent,
    ReportedContainer, ReportedPod, RestartPrediction, TopologyOptions, TopologyPolicy,
    TopologyScope, ZoneSpec,
};
use support::{
    GIB, admission_state, container, host_spec, kubelet_settings, launcher_pod,
    launcher_pod_with_log,
};

use TopologyPolicy::{BestEffort, None as NoPolicy, Restricted, SingleNumaNode};
use TopologyScope::{Container as ByContainer, Pod as ByPod};

fn allocated_cpus(state: &berth_kubelet_admission::HostState, uid: &str) -> String {
    state.admission(uid).expect("the pod is admitted").cpus(state.host()).to_string()
}

/// cpu_assignment.go `takeUncoreCache`: the kubelet takes a whole cache if enough CPUs are requested, and allocates the
/// remaining CPUs from the fullest cache that has enough CPUs. Without `prefer-align-cpus-by-uncorecache`, it allocates
/// cores in the order of their numbers.
#[test]
fn whole_caches_are_allocated_first_if_configured() {
    let mut host = host_spec(1, 1, 8, 2);
    for (place, core) in (0..).zip(&mut host.zones[0].cores) {
        core.cache = Some(place / 4);
    }
    let mut settings = kubelet_settings(NoPolicy, ByContainer);
    settings.reserved_cpus = "0,8".parse().expect("the CPU list should be valid");
    let mut packed = admission_state(&host, &settings);
    packed.admit(&launcher_pod("a", 8, 1)).expect("the pod fits");
    assert_eq!(allocated_cpus(&packed, "a"), "1-4,9-12");
    settings.cpu_options.prefer_uncore_cache = true;
    let mut by_cache = admission_state(&host, &settings);
    by_cache.admit(&launcher_pod("a", 8, 1)).expect("the pod fits");
    assert_eq!(allocated_cpus(&by_cache, "a"), "4-7,12-15");
    by_cache.admit(&launcher_pod("b", 4, 1)).expect("the pod fits");
    assert_eq!(allocated_cpus(&by_cache, "b"), "1-2,9-10");
    // For an odd number of CPUs, the highest CPU of the selected cores stays free: CPUs 3 and 11 are one core, and
    // CPU 11 stays free.
    by_cache.admit(&launcher_pod("c", 1, 1)).expect("the pod fits");
    assert_eq!(allocated_cpus(&by_cache, "c"), "3");
}

/// policy_static.go `isHintSocketAligned`: a hint for several zones of one socket is preferred in the same way as a
/// hint for a single zone.
#[test]
fn zones_of_a_socket_are_aligned_if_configured() {
    let host = host_spec(4, 2, 4, 1);
    let mut settings = kubelet_settings(Restricted, ByContainer);
    settings.memory_policy = berth_kubelet_admission::MemoryPolicy::None;
    settings.reserved_cpus = "0-1,4-5,8-9,12-13".parse().expect("the CPU list should be valid");
    let refusal = admission_state(&host, &settings)
        .check(&launcher_pod("a", 3, 1))
        .expect_err("the kubelet should refuse the pod: no hint is preferred");
    assert_eq!(refusal.reason, "TopologyAffinityError");
    settings.cpu_options.align_by_socket = true;
    let mut aligned = admission_state(&host, &settings);
    aligned.admit(&launcher_pod("a", 3, 1)).expect("the pod fits on one socket");
    assert_eq!(allocated_cpus(&aligned, "a"), "2-3,6");
    let admission = aligned.admission("a").expect("the pod is admitted");
    assert_eq!(admission.placements(aligned.host())[0].affinity, Some(vec![0, 1]));
    settings.topology_policy = SingleNumaNode;
    let fault = KubeletHost::new(&host, &settings).expect_err("the two options conflict");
    assert!(
        matches!(fault, HostError::UnsupportedSetting { setting: "align-by-socket", .. }),
        "{fault}"
    );
}

/// topology.go counts only zones with CPUs, but the Memory Manager counts all zones.
#[test]
fn zones_without_cpus_or_memory_are_counted() {
    let mut host = host_spec(2, 2, 4, 1);
    host.zones.push(ZoneSpec { id: 2, memory: 512 * GIB, ..ZoneSpec::default() });
    host.zones.push(ZoneSpec {
        id: 3,
        cores: vec![CoreSpec { cpus: vec![100], socket: 1, cache: None }],
        ..ZoneSpec::default()
    });
    host.allocatable.memory = 1 << 50;
    let mut state = admission_state(&host, &kubelet_settings(Restricted, ByPod));
    state.admit(&launcher_pod("a", 4, 1)).expect("the pod fits in zone 1");
    assert_eq!(allocated_cpus(&state, "a"), "4-7");
    // The pod requests more memory than any zone with CPUs has. Zone 2 has enough memory, but no CPUs.
    let wide = Pod {
        uid: "b".to_owned(),
        containers: vec![container("compute", 1000, 100 * GIB, 0)],
        ..Pod::default()
    };
    assert_eq!(
        state.check(&wide).expect_err("no zone should have CPUs and memory for the pod").reason,
        "TopologyAffinityError"
    );
    // A single CPU of zone 3 would be sufficient, but the zone has no memory.
    let burstable = Pod {
        uid: "c".to_owned(),
        containers: vec![container("compute", 0, GIB, 0)],
        ..Pod::default()
    };
    let admission = state.check(&burstable).expect("the pod allocates no exclusive resource");
    assert_eq!(admission.placements(state.host())[0].affinity, Some(vec![0, 1, 2, 3]));
}

/// topology_manager.go `NewManager`: by default, the kubelet supports at most 8 zones.
#[test]
fn more_zones_than_hints_support_are_refused() {
    let nine = host_spec(9, 1, 2, 1);
    let mut settings = kubelet_settings(Restricted, ByPod);
    let fault = KubeletHost::new(&nine, &settings).expect_err("the host has too many zones");
    assert_eq!(fault, HostError::TooManyZones { zones: 9, limit: 8 });
    settings.topology_policy = NoPolicy;
    settings.memory_policy = berth_kubelet_admission::MemoryPolicy::None;
    let mut state = admission_state(&nine, &settings);
    state.admit(&launcher_pod("a", 3, 1)).expect("the pod fits without hints");
    assert_eq!(allocated_cpus(&state, "a"), "1-3");
    let eight = host_spec(8, 2, 2, 1);
    let mut wide = support::admission_state(&eight, &kubelet_settings(Restricted, ByPod));
    wide.admit(&launcher_pod("a", 5, 70)).expect("the pod fits on three zones");
    assert_eq!(allocated_cpus(&wide, "a"), "1-5");
}

/// policy_static.go `GetAvailablePhysicalCPUs`: a core with a reserved CPU is not a free physical core, so its other
/// CPU does not count.
#[test]
fn siblings_of_reserved_cpus_are_not_whole_cores() {
    let mut settings = kubelet_settings(NoPolicy, ByContainer);
    settings.cpu_options.full_pcpus_only = true;
    let mut host = admission_state(&host_spec(1, 1, 4, 2), &settings);
    let refusal = host.check(&launcher_pod("a", 8, 1)).expect_err("the pod requests too many CPUs");
    assert_eq!(
        refusal.message,
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, \
         requested CPUs = 8, CPUs per core = 2"
    );
    host.admit(&launcher_pod("b", 6, 1)).expect("the pod fits on three cores");
    assert_eq!(allocated_cpus(&host, "b"), "1-3,5-7");
    // Each of the two zones has a core with one reserved and one free CPU. `distribute-cpus-across-numa` would need one
    // CPU of each, but allocates only whole cores: the kubelet would loop forever.
    settings.cpu_options.distribute_across_numa = true;
    settings.reserved_cpus = "0,2".parse().expect("the CPU list should be valid");
    let split = admission_state(&host_spec(2, 1, 2, 2), &settings);
    let refusal = split.check(&launcher_pod("a", 6, 1)).expect_err("too few whole cores are free");
    assert_eq!(refusal.reason, "SMTAlignmentError");
}

/// numa_info.go `CalculateAverageFor` indexes distances by zone number: if zone numbers have gaps, the kubelet
/// crashes at the first comparison.
#[test]
fn prefer_closest_crashes_if_zone_numbers_have_gaps() {
    let mut host = host_spec(2, 2, 4, 1);
    host.zones[1].id = 2;
    let mut settings = kubelet_settings(Restricted, ByPod);
    settings.topology_options =
        TopologyOptions { prefers_closest_zones: true, ..TopologyOptions::default() };
    let state = admission_state(&host, &settings);
    let refusal = state.check(&launcher_pod("a", 2, 1)).expect_err("the kubelet should crash");
    assert_eq!(refusal.refused_by, RefusingComponent::Crash);
    assert!(refusal.explanation.contains("index out of range"), "{refusal}");
    // With a single candidate mask of zones, the kubelet compares no distances. Zone 0 has 3 free CPUs.
    assert!(state.check(&launcher_pod("b", 4, 1)).is_ok());
    let mut close = host_spec(4, 1, 2, 1);
    for (zone, row) in close.zones.iter_mut().zip([
        [10, 30, 30, 12],
        [30, 10, 20, 30],
        [30, 20, 10, 30],
        [12, 30, 30, 10],
    ]) {
        zone.distances = row.to_vec();
    }
    let near = support::admission_state(&close, &settings);
    let admission = near.check(&launcher_pod("a", 3, 40)).expect("the pod fits");
    let memory = admission.placements(near.host())[0].affinity.clone();
    assert_eq!(memory, Some(vec![0, 3]));
}

/// policy_static.go of the Memory Manager dereferences the table entry of a huge page size without checking that it
/// exists.
#[test]
fn missing_huge_page_size_crashes_the_memory_manager() {
    let mut pod = launcher_pod("a", 2, 0);
    let compute = &mut pod.containers[0];
    for resources in [&mut compute.requests, &mut compute.limits] {
        resources.hugepages.insert(PageSize::MIB_2, GIB);
    }
    let managed = admission_state(&host_spec(1, 1, 4, 1), &kubelet_settings(BestEffort, ByPod));
    assert_eq!(
        managed.check(&pod).expect_err("the kubelet should crash").refused_by,
        RefusingComponent::Crash
    );
    let mut settings = kubelet_settings(BestEffort, ByPod);
    settings.memory_policy = berth_kubelet_admission::MemoryPolicy::None;
    let refusal = admission_state(&host_spec(1, 1, 4, 1), &settings)
        .check(&pod)
        .expect_err("the host has no such pages");
    assert_eq!(refusal.refused_by, RefusingComponent::NodeResourcesFit);
    assert_eq!(refusal.reason, "OutOfhugepages-2Mi");
}

#[test]
fn invalid_hosts_are_refused() {
    let settings = kubelet_settings(Restricted, ByPod);
    let fault = |change: &dyn Fn(&mut berth_kubelet_admission::HostSpec)| {
        let mut host = host_spec(2, 2, 2, 1);
        change(&mut host);
        KubeletHost::new(&host, &settings).expect_err("the host is invalid")
    };
    assert_eq!(fault(&|host| host.zones[1].id = 0), HostError::DuplicateZone(0));
    assert_eq!(fault(&|host| host.zones[1].id = 64), HostError::ZoneNumberTooLarge(64));
    assert_eq!(fault(&|host| host.zones[1].cores[0].cpus = vec![1]), HostError::DuplicateCpu(1));
    assert_eq!(fault(&|host| host.zones.clear()), HostError::InvalidCpuCount(0));
    assert_eq!(
        fault(&|host| host.zones[0].cores[0].cpus = vec![9]),
        HostError::UnknownReservedCpu(0)
    );
    let memory = HostError::ReservedMemoryTooLarge { zone: 0, kind: "memory".to_owned() };
    assert_eq!(fault(&|host| host.zones[0].memory = 1), memory);
    let pool_of_unknown_zone =
        DevicePool { name: "a/b".to_owned(), zones: [(7, 1)].into(), count_without_zone: 0 };
    let zone = HostError::UnknownDeviceZone { name: "a/b".to_owned(), zone: 7 };
    assert_eq!(fault(&|host| host.devices.push(pool_of_unknown_zone.clone())), zone);
    let mut old = kubelet_settings(Restricted, ByPod);
    old.version = "v1.20.2".parse().expect("the version should be valid");
    let setting = KubeletHost::new(&host_spec(1, 1, 2, 1), &old)
        .expect_err("version 1.20 has no Memory Manager");
    assert!(setting.to_string().starts_with("memoryManagerPolicy: "), "{setting}");
}

/// In container scope, the kubelet aligns a sidecar of a launcher first and independently of the VM. The Memory Manager
/// does not add a zone with a single-zone allocation to a group of zones, so a VM that needs several zones does not fit
/// afterwards. In pod scope, the sidecar shares the group of the VM.
#[test]
fn sidecar_in_container_scope_prevents_a_wide_vm() {
    let host = host_spec(2, 2, 4, 1);
    let wide = launcher_pod_with_log("a", 6, 40);
    let refusal = admission_state(&host, &kubelet_settings(Restricted, ByContainer))
        .check(&wide)
        .expect_err("the sidecar blocks a zone");
    assert_eq!(refusal.reason, "UnexpectedAdmissionError");
    let mut by_pod = admission_state(&host, &kubelet_settings(Restricted, ByPod));
    let admission = by_pod.admit(&wide).expect("the pod fits on a group of zones").clone();
    let on = by_pod.host();
    // The guest has an odd number of pages on two zones.
    let needs = admission.guest_memory_by_zone(on, 1, 41 * GIB, Some(PageSize::GIB_1));
    assert_eq!(needs, [(0, 21 * GIB), (1, 20 * GIB)]);
    assert!(admission.guest_memory_by_zone(on, 0, GIB, None).is_empty());
    assert_eq!(by_pod.memory_by_zone()[0].group, [0, 1]);
    assert_eq!(by_pod.predict_restart(), RestartPrediction::Accepted);
}

#[test]
fn memory_of_init_containers_is_released_when_containers_start() {
    let mut pod = launcher_pod("a", 2, 1);
    pod.init_containers.push(container("prepare", 1000, 8 * GIB, 0));
    let mut state =
        admission_state(&host_spec(1, 1, 4, 1), &kubelet_settings(SingleNumaNode, ByPod));
    let before = state.memory_by_zone();
    state.admit(&pod).expect("the pod fits");
    let with_init = state.memory_by_zone()[0].free[0].1;
    state.start_containers("a", ["prepare"]);
    assert_eq!(state.memory_by_zone()[0].free[0].1, with_init);
    state.start_containers("a", ["compute"]);
    let released = state.memory_by_zone()[0].free[0].1 - with_init;
    assert_eq!(released, 8 * GIB - (300 << 20));
    assert_eq!(allocated_cpus(&state, "a"), "1-2");
    assert!(state.remove("a"));
    assert!(!state.remove("a"));
    assert_eq!(state.memory_by_zone(), before);
}

#[test]
fn restored_pods_occupy_resources_until_removed() {
    let host = host_spec(2, 2, 4, 1);
    let mut state = admission_state(&host, &kubelet_settings(SingleNumaNode, ByPod));
    let (cpus_before, memory_before) = (state.free_cpus(), state.memory_by_zone());
    let container = ReportedContainer {
        cpus: "1-3,99".parse().expect("the CPU list should be valid"),
        memory: vec![(MemoryKind::HugePages(PageSize::GIB_1), vec![0], 32 * GIB)],
        devices: Vec::new(),
    };
    let requests = Resources { cpu_millis: 3000, ..Resources::default() };
    let restored = ReportedPod { containers: vec![container], requests };
    state.restore("known", &restored);
    state.restore("known", &restored);
    assert_eq!(state.pod_count(), 1);
    assert_eq!(state.free_cpus().to_string(), "4-7");
    assert_eq!(state.memory_by_zone()[0].free[1].1, 0);
    state.admit(&launcher_pod("a", 3, 1)).expect("the pod fits in zone 1");
    let refusal =
        state.check(&launcher_pod("b", 3, 1)).expect_err("the CPUs of zone 0 are allocated");
    assert_eq!(
        refusal.explanation,
        "no combination of zones that the Topology Manager's policy permits has all requested resources"
    );
    assert!(state.remove("known") && state.remove("a"));
    assert_eq!((state.free_cpus(), state.memory_by_zone()), (cpus_before, memory_before));
}

/// The zone of a device determines the zone of CPUs and memory, and vice versa.
#[test]
fn device_zone_determines_the_placement() {
    let mut host = host_spec(2, 2, 4, 1);
    let name = "example.com/vf".to_owned();
    host.devices.push(DevicePool {
        name: name.clone(),
        zones: [(1, 1)].into(),
        count_without_zone: 0,
    });
    host.allocatable.extended.insert(name.clone(), 1);
    let mut pod = launcher_pod("a", 2, 1);
    let compute = &mut pod.containers[0];
    for resources in [&mut compute.requests, &mut compute.limits] {
        resources.extended.insert(name.clone(), 1);
    }
    let mut state = admission_state(&host, &kubelet_settings(Restricted, ByContainer));
    let admission = state.admit(&pod).expect("the pod fits in zone 1").clone();
    let placement = &admission.placements(state.host())[0];
    assert_eq!(placement.devices, [(name, Some(1), 1)]);
    assert_eq!(placement.cpus.to_string(), "4-5");
    pod.uid = "b".to_owned();
    assert_eq!(
        state.check(&pod).expect_err("the device is allocated").reason,
        "TopologyAffinityError"
    );
    // A pod that is already admitted keeps its resources.
    pod.uid = "a".to_owned();
    assert_eq!(state.check(&pod), Ok(admission));
}

/// cpu_assignment.go `isSocketFree` compares the free CPUs of a socket with the average. With two sockets of 4 and 2
/// CPUs, the average is 3. The socket with reserved CPU 0 has 3 free CPUs, so the kubelet treats it as free and takes
/// it completely.
#[test]
fn unequal_sockets_are_allocated_although_in_use() {
    let mut host =
        admission_state(&host_spec(3, 2, 2, 1), &kubelet_settings(NoPolicy, ByContainer));
    let admission =
        host.admit(&launcher_pod("a", 4, 1)).expect("the kubelet admits the pod").clone();
    assert!(admission.takes_cpus_in_use());
    assert_eq!(allocated_cpus(&host, "a"), "0-3");
    let mut equal =
        admission_state(&host_spec(4, 2, 2, 1), &kubelet_settings(NoPolicy, ByContainer));
    assert!(!equal.admit(&launcher_pod("a", 4, 1)).expect("the pod fits").takes_cpus_in_use());
    assert_eq!(allocated_cpus(&equal, "a"), "4-7");
}

#[test]
fn kubelet_options_are_parsed() {
    let options =
        |name: &str, value: &str| CpuOptions::parse(&[(name.to_owned(), value.to_owned())].into());
    assert_eq!(options("full-pcpus-only", "T").map(|o| o.full_pcpus_only), Ok(true));
    assert!(options("full-pcpus-only", "yes").is_err());
    assert!(options("distribute-cpus-across-cores", "true").is_err());
    let topology = |value: &str| {
        TopologyOptions::parse(&[("max-allowable-numa-nodes".to_owned(), value.to_owned())].into())
    };
    assert_eq!(topology("16").map(|o| o.max_allowable_zones), Ok(16));
    assert!(topology("7").is_err());
    assert_eq!("best-effort".parse(), Ok(BestEffort));
    assert_eq!(
        "Best".parse::<TopologyPolicy>().expect_err("no such policy exists").to_string(),
        "topologyManagerPolicy: `Best` is not none, best-effort, restricted or single-numa-node"
    );
    let version: berth_kubelet_admission::KubeletVersion =
        "v1.30.4+k3s1".parse().expect("the version should be valid");
    assert_eq!(version.to_string(), "1.30");
    assert!("1".parse::<berth_kubelet_admission::KubeletVersion>().is_err());
}
