//! Random events in random order: pods, reports, bindings, restarts. The tests fail if a kubelet does not admit a pod
//! that is bound to its host.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::cluster::SimulatedCluster;
use super::host::{HostDescription, ZoneDescription};
use super::pod::{PodBuilder, observe_pod};

/// Random bytes, of which each choice consumes some. After the last byte, every choice reads zero.
pub(crate) struct RandomChoices<'a>(pub(crate) &'a [u8]);

impl RandomChoices<'_> {
    pub(crate) fn random_below(&mut self, limit: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % limit.max(1)
    }

    pub(crate) fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random_below(all.len())]
    }

    fn random_host(&mut self, at: usize) -> HostDescription {
        let zone = ZoneDescription {
            cpus: self.choose(&[8, 6, 12]),
            memory: 32,
            huge_pages_gib: self.choose(&[8, 4]),
            small_pages_mib: 0,
        };
        HostDescription {
            name: format!("host-{at}"),
            zones: vec![zone; self.choose(&[2, 2, 1])],
            topology_policy: self.choose(&["single-numa-node", "restricted"]).to_owned(),
            topology_scope: self.choose(&["pod", "container"]).to_owned(),
            has_static_memory_policy: self.random_below(4) > 0,
            ..HostDescription::default()
        }
    }

    fn random_pod_builder(&mut self, number: usize) -> PodBuilder {
        let mut builder = PodBuilder::vm(&format!("pod-{number}"), self.choose(&[2, 1, 4, 3, 6]));
        builder.huge_pages_gib = self.choose(&[0, 0, 1, 3]);
        builder.second_container_millis = self.choose(&[0, 0, 200, 1000]);
        if self.random_below(5) == 4 {
            builder.anti_affinity_app = Some("web".to_owned());
        }
        if self.random_below(8) == 7 {
            builder.instance = None;
        }
        builder
    }
}

#[derive(Default)]
struct ActionCounts {
    bound_count: Cell<usize>,
    refused_count: Cell<usize>,
    refused_binding_count: Cell<usize>,
    repeated_filter_count: Cell<usize>,
}

fn random_pod(
    cluster: &SimulatedCluster,
    choices: &mut RandomChoices<'_>,
    is_bound: bool,
) -> Option<String> {
    let all = cluster
        .pods
        .values()
        .filter(|pod| observe_pod(pod).existing.node_name.is_some() == is_bound);
    let all: Vec<&str> = all.filter_map(|pod| pod.metadata.uid.as_deref()).collect();
    (!all.is_empty()).then(|| all[choices.random_below(all.len())].to_owned())
}

fn run_random_step(
    cluster: &mut SimulatedCluster,
    choices: &mut RandomChoices<'_>,
    number: usize,
    counts: &ActionCounts,
) {
    let at = choices.random_below(cluster.kubelets.len());
    match choices.random_below(16) {
        0..=2 => {
            let pod = choices.random_pod_builder(number).build();
            cluster.create_pod(pod);
        }
        3..=5 => {
            let Some(uid) = random_pod(cluster, choices, false) else { return };
            let mut names = cluster.host_names();
            if choices.random_below(4) == 3 {
                names.truncate(1 + choices.random_below(names.len()));
                names.push("no-such-host".to_owned());
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let first = cluster.filter_pod(&uid, &names);
            if choices.random_below(3) == 2 {
                let second = cluster.filter_pod(&uid, &names);
                assert_eq!(
                    first, second,
                    "a repeated filter call for {uid} should return the same host"
                );
                counts.repeated_filter_count.set(counts.repeated_filter_count.get() + 1);
            }
        }
        6..=8 => {
            if !cluster.pending_bindings.is_empty() {
                let (pod, is_known) = (
                    choices.random_below(cluster.pending_bindings.len()),
                    choices.random_below(6) < 5,
                );
                cluster.bind_pod(pod, is_known);
            }
        }
        9..=10 => cluster.deliver_event(),
        11 => cluster.run_task(at),
        12 => {
            cluster.publish_report(at);
            if choices.random_below(2) == 1 {
                cluster.deliver_stale_report(at);
            }
        }
        13 => {
            let keep_queued = choices.random_below(4) == 3;
            if choices.random_below(8) == 7 {
                cluster.delete_node(at);
            }
            cluster.deliver_report(at, keep_queued);
        }
        14 => {
            let (is_bound, is_forced) = (choices.random_below(3) > 0, choices.random_below(3) == 2);
            if let Some(uid) = random_pod(cluster, choices, is_bound) {
                cluster.delete_pod(&uid, is_forced);
            }
        }
        _ => match choices.random_below(4) {
            0 => cluster.restart(),
            time => cluster.advance_time(Duration::from_secs([1, 4, 40][time - 1])),
        },
    }
}

/// Runs random steps until all random bytes are used, and then completes all pending bindings.
fn run_all_steps(
    cluster: &mut SimulatedCluster,
    choices: &mut RandomChoices<'_>,
    counts: &ActionCounts,
) {
    let mut number = 0;
    while !choices.0.is_empty() {
        number += 1;
        run_random_step(cluster, choices, number, counts);
    }
    while !cluster.pending_bindings.is_empty() {
        cluster.bind_pod(0, true);
    }
    cluster.advance_time(Duration::from_secs(40));
}

#[test]
fn kubelets_admit_all_bound_pods() {
    let counts = ActionCounts::default();
    let mut runner = TestRunner::new(ProptestConfig { cases: 1_500, ..ProptestConfig::default() });
    let add = |cell: &Cell<usize>, more: usize| cell.set(cell.get() + more);
    let result = runner.run(&prop::collection::vec(any::<u8>(), 40..700), |bytes| {
        let mut choices = RandomChoices(&bytes);
        let hosts = (0..1 + choices.random_below(4)).map(|at| choices.random_host(at)).collect();
        let mut cluster = SimulatedCluster::new(hosts);
        run_all_steps(&mut cluster, &mut choices, &counts);
        add(&counts.bound_count, cluster.bound_count);
        add(&counts.refused_count, cluster.refused_count);
        add(&counts.refused_binding_count, cluster.refused_binding_count);
        Ok(())
    });
    result.expect("kubelets should admit all bound pods");
    let seen = [
        counts.bound_count.get(),
        counts.refused_count.get(),
        counts.refused_binding_count.get(),
        counts.repeated_filter_count.get(),
    ];
    assert!(seen[0] > 3_000, "too few pods were bound: {seen:?}");
    assert!(
        seen[1] > 300 && seen[2] > 10 && seen[3] > 300,
        "too few refusals or repeated calls occurred: {seen:?}"
    );
}

/// The Memory Managers' checkpoints list the memory of an ended pod until the kubelet admits another pod. No host may
/// refuse pods forever because of this memory.
#[test]
fn hosts_with_stale_memory_accept_pods() {
    let counts = ActionCounts::default();
    let pods_with_stale_memory = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    let result = runner.run(&prop::collection::vec(any::<u8>(), 40..400), |bytes| {
        let mut choices = RandomChoices(&bytes);
        let hosts = (0..1 + choices.random_below(3)).map(|at| choices.random_host(at)).collect();
        let mut cluster = SimulatedCluster::new(hosts);
        cluster.keeps_stale_memory = true;
        run_all_steps(&mut cluster, &mut choices, &counts);
        let uids: Vec<String> = cluster.pods.keys().cloned().collect();
        for uid in uids {
            cluster.delete_pod(&uid, false);
        }
        // A host may await a report for a minute. After a restart of the extender, it may also await, for another
        // minute, the removal of a pod that the extender does not know.
        for _ in 0..5 {
            cluster.advance_time(Duration::from_secs(40));
        }
        for host in cluster.host_names() {
            let pod = PodBuilder::vm(&format!("last-{host}"), 1).build();
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            cluster.create_pod(pod);
            let reserved = cluster.filter_pod(&uid, &[&host]);
            assert_eq!(reserved.as_ref(), Some(&host), "{}", cluster.log.join("\n"));
        }
        pods_with_stale_memory.set(pods_with_stale_memory.get() + cluster.pods_with_stale_memory);
        Ok(())
    });
    result.expect("kubelets should admit all bound pods, and hosts should accept pods");
    assert!(
        pods_with_stale_memory.get() > 50,
        "too few pods had stale memory: {}",
        pods_with_stale_memory.get()
    );
}
