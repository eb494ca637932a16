//! Hosts, kubelets and pods for tests of admission.
#![allow(dead_code, reason = "each test uses only some of the functions")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::PageSize;
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_kubelet_admission::{
    CoreSpec, CpuOptions, CpuPolicy, HostSpec, HostState, Kubelet, KubeletHost, MemoryPolicy,
    ReservedMemory, TopologyOptions, TopologyPolicy, TopologyScope, ZoneSpec,
};

pub(crate) const GIB: u64 = 1 << 30;

/// Returns a host with identical zones. As on Intel hosts, the first threads of all cores have the lowest CPU numbers,
/// followed by the second threads.
pub(crate) fn host_spec(zones: u32, sockets: u32, cores: u32, threads: u32) -> HostSpec {
    let all = zones * cores;
    let zone = |id: u32| ZoneSpec {
        id,
        cores: (id * cores..(id + 1) * cores)
            .map(|core| CoreSpec {
                cpus: (0..threads).map(|thread| thread * all + core).collect(),
                socket: id * sockets / zones.max(1),
                cache: None,
            })
            .collect(),
        memory: 64 * GIB,
        hugepages: [(PageSize::GIB_1, 32 * GIB)].into(),
        distances: (0..zones).map(|other| if other == id { 10 } else { 21 }).collect(),
    };
    HostSpec {
        zones: (0..zones).map(zone).collect(),
        devices: Vec::new(),
        allocatable: Resources {
            cpu_millis: u64::from(all * threads) * 1000,
            memory: u64::from(zones) * 32 * GIB,
            hugepages: [(PageSize::GIB_1, u64::from(zones) * 32 * GIB)].into(),
            extended: BTreeMap::new(),
        },
        max_pods: 110,
    }
}

pub(crate) fn kubelet_settings(policy: TopologyPolicy, scope: TopologyScope) -> Kubelet {
    Kubelet {
        version: "v1.36.2".parse().expect("the version should be valid"),
        cpu_policy: CpuPolicy::Static,
        cpu_options: CpuOptions::default(),
        reserved_cpus: "0".parse().expect("the CPU list should be valid"),
        memory_policy: MemoryPolicy::Static,
        reserved_memory: vec![ReservedMemory { zone: 0, memory: GIB, ..ReservedMemory::default() }],
        topology_policy: policy,
        topology_scope: scope,
        topology_options: TopologyOptions::default(),
    }
}

pub(crate) fn admission_state(spec: &HostSpec, kubelet: &Kubelet) -> HostState {
    HostState::new(&Arc::new(KubeletHost::new(spec, kubelet).expect("the host should be valid")))
}

pub(crate) fn container(name: &str, cpu_millis: u64, memory: u64, pages: u64) -> Container {
    let hugepages = if pages > 0 { [(PageSize::GIB_1, pages)].into() } else { BTreeMap::new() };
    let amounts = Resources { cpu_millis, memory, hugepages, extended: BTreeMap::new() };
    Container {
        name: name.to_owned(),
        is_sidecar: false,
        requests: amounts.clone(),
        limits: amounts,
    }
}

/// Returns a pod with the resources of a launcher pod: an integer number of CPUs, huge pages, and a small amount of
/// memory.
pub(crate) fn launcher_pod(uid: &str, cpus: u64, pages: u64) -> Pod {
    Pod {
        uid: uid.to_owned(),
        containers: vec![container("compute", cpus * 1000, 300 << 20, pages * GIB)],
        ..Pod::default()
    }
}

/// Returns a launcher pod with a console log container.
pub(crate) fn launcher_pod_with_log(uid: &str, cpus: u64, pages: u64) -> Pod {
    let log = Container { is_sidecar: true, ..container("guest-console-log", 15, 60 << 20, 0) };
    Pod { init_containers: vec![log], ..launcher_pod(uid, cpus, pages) }
}
