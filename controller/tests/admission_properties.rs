//! Properties of admission that must hold for any host and any pods.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{CpuSet, PageSize};
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_kubelet_admission::{
    CoreSpec, CpuOptions, CpuPolicy, DevicePool, HostSpec, HostState, Kubelet, KubeletHost,
    MemoryPolicy, ReservedMemory, RestartPrediction, TopologyOptions, TopologyPolicy,
    TopologyScope, ZoneSpec,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use support::{admission_state, host_spec, launcher_pod, launcher_pod_with_log};

const PAGE_SIZES: [PageSize; 2] = [PageSize::MIB_2, PageSize::GIB_1];

fn any_amount() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, (0..64u64).prop_map(|gib| gib << 30), any::<u64>()]
}

fn any_resources() -> impl Strategy<Value = Resources> {
    let cpu = prop_oneof![(0..12u64).prop_map(|cpus| cpus * 1000), 0..3000u64, any::<u64>()];
    let pages = btree_map(select(&PAGE_SIZES[..]), any_amount(), 0..2);
    let extended = btree_map(select(&["a/vf", "b/kvm"][..]), any_amount(), 0..2);
    (cpu, any_amount(), pages, extended).prop_map(|(cpu_millis, memory, hugepages, extended)| {
        let extended = extended.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        Resources { cpu_millis, memory, hugepages, extended }
    })
}

fn any_container() -> impl Strategy<Value = Container> {
    (any::<bool>(), any::<bool>(), any_resources(), any_resources()).prop_map(
        |(is_sidecar, same, a, b)| {
            let limits = if same { a.clone() } else { b };
            Container { name: "c".to_owned(), is_sidecar, requests: a, limits }
        },
    )
}

fn any_pod() -> impl Strategy<Value = Pod> {
    (0..6u8, vec(any_container(), 0..3), vec(any_container(), 0..3), any_resources()).prop_map(
        |(uid, init_containers, containers, overhead)| {
            let overhead = if uid == 0 { overhead } else { Resources::default() };
            Pod { uid: uid.to_string(), init_containers, containers, overhead }
        },
    )
}

fn any_host() -> impl Strategy<Value = HostSpec> {
    let core = (vec(0..30u32, 0..3), 0..3u32, proptest::option::of(0..3u32));
    let core = core.prop_map(|(cpus, socket, cache)| CoreSpec { cpus, socket, cache });
    let pages = btree_map(select(&PAGE_SIZES[..]), 0..8u64, 0..2);
    let zone = (0..9u32, vec(core, 0..4), any_amount(), pages, vec(any::<u64>(), 0..4)).prop_map(
        |(id, cores, memory, pages, distances)| {
            let hugepages = pages.into_iter().map(|(size, count)| (size, count << 30)).collect();
            ZoneSpec { id, cores, memory, hugepages, distances }
        },
    );
    let pool = (select(&["a/vf", "b/kvm"][..]), btree_map(0..9u32, 0..5u32, 0..3), 0..5u32);
    let pool = pool.prop_map(|(name, zones, without_zone)| DevicePool {
        name: name.to_owned(),
        zones,
        count_without_zone: without_zone,
    });
    (vec(zone, 0..6), vec(pool, 0..2), any_resources(), 0..4u64).prop_map(
        |(zones, devices, allocatable, pods)| HostSpec {
            zones,
            devices,
            allocatable,
            max_pods: pods,
        },
    )
}

fn any_kubelet() -> impl Strategy<Value = Kubelet> {
    let policies = [
        TopologyPolicy::None,
        TopologyPolicy::BestEffort,
        TopologyPolicy::Restricted,
        TopologyPolicy::SingleNumaNode,
    ];
    let options = any::<[bool; 6]>();
    (select(policies.to_vec()), any::<[bool; 4]>(), options, vec(0..30u32, 0..4), any_amount())
        .prop_map(|(topology_policy, [by_pod, cpu, memory, new], options, reserved, kept)| {
            let [full, distribute, socket, strict, cache, closest] = options.map(|on| on && new);
            Kubelet {
                version: (if new { "v1.36.2" } else { "v1.20.2" })
                    .parse()
                    .expect("the version should be valid"),
                cpu_policy: if cpu { CpuPolicy::Static } else { CpuPolicy::None },
                cpu_options: CpuOptions {
                    full_pcpus_only: full,
                    distribute_across_numa: distribute && !cache,
                    align_by_socket: socket && topology_policy != TopologyPolicy::SingleNumaNode,
                    strict_reservation: strict,
                    prefer_uncore_cache: cache,
                },
                reserved_cpus: reserved.into_iter().collect(),
                memory_policy: if memory && new {
                    MemoryPolicy::Static
                } else {
                    MemoryPolicy::None
                },
                reserved_memory: vec![ReservedMemory {
                    zone: 0,
                    memory: kept % 8,
                    hugepages: BTreeMap::new(),
                }],
                topology_policy,
                topology_scope: if by_pod { TopologyScope::Pod } else { TopologyScope::Container },
                topology_options: TopologyOptions {
                    prefers_closest_zones: closest,
                    ..TopologyOptions::default()
                },
            }
        })
}

/// Generates realistic hosts that are small enough for fast tests: all sockets are equal. On hosts with unequal sockets
/// the kubelet allocates CPUs twice (`takes_cpus_in_use`).
fn valid_host() -> impl Strategy<Value = (HostSpec, Kubelet)> {
    let shape = (1..4u32, 1..3u32, 2..7u32, 1..3u32);
    (shape, any_kubelet()).prop_map(|((zones, sockets, cores, threads), mut settings)| {
        let zones = zones * sockets;
        settings.reserved_cpus = "0".parse().expect("the CPU list should be valid");
        (host_spec(zones, sockets, cores, threads), settings)
    })
}

fn any_vm() -> impl Strategy<Value = Pod> {
    (0..8u8, 1..10u64, 1..40u64, any::<bool>()).prop_map(|(uid, cpus, pages, log)| {
        let make = if log { launcher_pod_with_log } else { launcher_pod };
        make(&uid.to_string(), cpus, pages)
    })
}

/// Returns every exclusive CPU of the pods, with the number of pods to which it is allocated.
fn cpu_owner_counts(state: &HostState) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for uid in 0..8 {
        let Some(admission) = state.admission(&uid.to_string()) else { continue };
        for cpu in admission.cpus(state.host()).iter() {
            *counts.entry(cpu).or_default() += 1;
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_inputs_do_not_panic(host in any_host(), settings in any_kubelet(), pods in vec(any_pod(), 1..6)) {
        let host_zones = host.zones.len();
        if let Ok(host) = KubeletHost::new(&host, &settings) {
            let mut state = HostState::new(&Arc::new(host));
            for pod in &pods {
                let was_admitted = state.admission(&pod.uid).is_some();
                let predicted = state.check(pod);
                let answer = state.admit(pod).cloned();
                prop_assert_eq!(&predicted, &answer);
                if let Ok(admission) = answer {
                    let placements = admission.placements(state.host());
                    let containers = pod.init_containers.len() + pod.containers.len();
                    prop_assert!(was_admitted || placements.len() == containers);
                    let guest = admission.guest_memory_by_zone(state.host(), 0, u64::MAX, None);
                    prop_assert!(guest.len() <= host_zones);
                }
                state.start_containers(&pod.uid, ["c"]);
                prop_assert!(settings.memory_policy == MemoryPolicy::Static || state.predict_restart() == RestartPrediction::Accepted);
            }
            for pod in &pods {
                state.remove(&pod.uid);
            }
            prop_assert_eq!(state.pod_count(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cpus_are_never_allocated_twice(
        (host, settings) in valid_host(),
        events in vec((any_vm(), any::<bool>()), 1..20),
    ) {
        let mut state = admission_state(&host, &settings);
        for (pod, comes) in events {
            if comes {
                // A rejected pod must not change the free CPUs.
                let before = state.shared_cpus();
                if state.admit(&pod).is_err() {
                    prop_assert_eq!(before, state.shared_cpus());
                }
            } else {
                state.remove(&pod.uid);
            }
            let shares = cpu_owner_counts(&state);
            prop_assert!(shares.values().all(|&count| count == 1), "{:?}", shares);
            let taken: CpuSet = shares.keys().copied().collect();
            prop_assert!(!taken.intersects(&state.shared_cpus()));
            prop_assert!(!taken.contains(0), "a reserved CPU is allocated");
        }
    }

    #[test]
    fn all_resources_are_released_when_all_pods_are_removed(
        (host, settings) in valid_host(),
        pods in vec(any_vm(), 1..12),
    ) {
        let mut state = admission_state(&host, &settings);
        let before = (state.shared_cpus(), state.memory_by_zone());
        for pod in &pods {
            // A refusal must name resources that are really insufficient.
            if let Err(refusal) = state.admit(pod) {
                prop_assert!(!refusal.explanation.is_empty() && !refusal.message.is_empty());
            }
        }
        for pod in &pods {
            state.remove(&pod.uid);
        }
        let after = (state.shared_cpus(), state.memory_by_zone());
        prop_assert_eq!(&before.0, &after.0);
        // With best-effort, the kubelet may release memory of a group of zones to the wrong zone (`memory.rs` of
        // `berth_kubelet_admission`).
        if settings.topology_policy != TopologyPolicy::BestEffort {
            prop_assert_eq!(before.1, after.1);
        }
        prop_assert!(state.free_cpus().is_subset(&before.0));
    }
}
