//! Random events in random order: pods, reports, bindings, restarts. Kubelets must admit all pods that are bound to
//! their hosts.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::cluster::Cluster;
use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, observed};

/// Random bytes, followed by zeros.
struct Dice<'a>(&'a [u8]);

impl Dice<'_> {
    fn below(&mut self, limit: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % limit.max(1)
    }

    fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn host(&mut self, at: usize) -> HostForm {
        let zone = ZoneForm {
            cpus: self.choose(&[8, 6, 12]),
            memory: 32,
            huge: self.choose(&[8, 4]),
            small: 0,
        };
        HostForm {
            name: format!("host-{at}"),
            zones: vec![zone; self.choose(&[2, 2, 1])],
            policy: self.choose(&["single-numa-node", "restricted"]).to_owned(),
            scope: self.choose(&["pod", "container"]).to_owned(),
            keeps_memory: self.below(4) > 0,
            ..HostForm::default()
        }
    }

    fn pod(&mut self, number: usize) -> PodForm {
        let mut form = PodForm::vm(&format!("pod-{number}"), self.choose(&[2, 1, 4, 3, 6]));
        form.huge = self.choose(&[0, 0, 1, 3]);
        form.second_container_millis = self.choose(&[0, 0, 200, 1000]);
        if self.below(5) == 4 {
            form.anti_affinity_app = Some("web".to_owned());
        }
        if self.below(8) == 7 {
            form.instance = None;
        }
        form
    }
}

#[derive(Default)]
struct Tally {
    bound: Cell<usize>,
    refused: Cell<usize>,
    not_bound: Cell<usize>,
    repeated_filters: Cell<usize>,
}

fn random_pod(cluster: &Cluster, dice: &mut Dice<'_>, is_bound: bool) -> Option<String> {
    let all =
        cluster.pods.values().filter(|pod| observed(pod).existing.node_name.is_some() == is_bound);
    let all: Vec<&str> = all.filter_map(|pod| pod.metadata.uid.as_deref()).collect();
    (!all.is_empty()).then(|| all[dice.below(all.len())].to_owned())
}

fn step(cluster: &mut Cluster, dice: &mut Dice<'_>, number: usize, tally: &Tally) {
    let at = dice.below(cluster.kubelets.len());
    match dice.below(16) {
        0..=2 => {
            let pod = dice.pod(number).build();
            cluster.create(pod);
        }
        3..=5 => {
            let Some(uid) = random_pod(cluster, dice, false) else { return };
            let mut names = cluster.names();
            if dice.below(4) == 3 {
                names.truncate(1 + dice.below(names.len()));
                names.push("no-such-host".to_owned());
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let first = cluster.filter(&uid, &names);
            if dice.below(3) == 2 {
                let second = cluster.filter(&uid, &names);
                assert_eq!(first, second, "a repeated filter call for {uid} returns the same host");
                tally.repeated_filters.set(tally.repeated_filters.get() + 1);
            }
        }
        6..=8 => {
            if !cluster.inflight.is_empty() {
                let (pod, is_known) = (dice.below(cluster.inflight.len()), dice.below(6) < 5);
                cluster.bind(pod, is_known);
            }
        }
        9..=10 => cluster.deliver_event(),
        11 => cluster.run_task(at),
        12 => {
            cluster.publish_report(at);
            if dice.below(2) == 1 {
                cluster.deliver_stale_report(at);
            }
        }
        13 => {
            let keep_queued = dice.below(4) == 3;
            if dice.below(8) == 7 {
                cluster.delete_node(at);
            }
            cluster.deliver_report(at, keep_queued);
        }
        14 => {
            let (is_bound, is_forced) = (dice.below(3) > 0, dice.below(3) == 2);
            if let Some(uid) = random_pod(cluster, dice, is_bound) {
                cluster.delete(&uid, is_forced);
            }
        }
        _ => match dice.below(4) {
            0 => cluster.restart(),
            time => cluster.wait(Duration::from_secs([1, 4, 40][time - 1])),
        },
    }
}

#[test]
fn kubelets_admit_all_pods_that_are_bound() {
    let tally = Tally::default();
    let mut runner = TestRunner::new(ProptestConfig { cases: 1_500, ..ProptestConfig::default() });
    let add = |cell: &Cell<usize>, more: usize| cell.set(cell.get() + more);
    let result = runner.run(&prop::collection::vec(any::<u8>(), 40..700), |bytes| {
        let mut dice = Dice(&bytes);
        let hosts = (0..1 + dice.below(4)).map(|at| dice.host(at)).collect();
        let mut cluster = Cluster::new(hosts);
        let mut number = 0;
        while !dice.0.is_empty() {
            number += 1;
            step(&mut cluster, &mut dice, number, &tally);
        }
        // Completes all calls in flight.
        while !cluster.inflight.is_empty() {
            cluster.bind(0, true);
        }
        cluster.wait(Duration::from_secs(40));
        add(&tally.bound, cluster.bound);
        add(&tally.refused, cluster.refused);
        add(&tally.not_bound, cluster.not_bound);
        Ok(())
    });
    result.expect("kubelets should admit all bound pods");
    let seen = [
        tally.bound.get(),
        tally.refused.get(),
        tally.not_bound.get(),
        tally.repeated_filters.get(),
    ];
    assert!(seen[0] > 3_000, "too few pods were bound: {seen:?}");
    assert!(
        seen[1] > 300 && seen[2] > 10 && seen[3] > 300,
        "too few refusals or repeated calls occurred: {seen:?}"
    );
}
