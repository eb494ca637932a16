//! Pods of PodGroups: kube-scheduler 1.36 calls `filter` for each placement that it simulates, discards most placements
//! without a notification (`podGroupPodSchedulingAlgorithm`), and binds some pods. No reservation may remain after all
//! pods were deleted.

use std::time::{Duration, Instant};

use berth_extender::{BindAnswer, Extender, FilterAnswer};
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::pod::{PodBuilder, bind_to, observe_pod, uid};
use super::random::RandomChoices;
use super::scenarios::extender_with_hosts;
use super::volumes::host_with_one_zone;

const HOSTS: [&str; 4] = ["a", "b", "c", "d"];
/// Number of scheduling cycles in each test case, each of which schedules one PodGroup. All [`CASES`] together have
/// 10,000 cycles.
const CYCLES: usize = 100;
const CASES: u32 = 100;
/// Average number of random bytes per cycle. A cycle takes as many bytes as it needs from the bytes of its case.
const BYTES_PER_CYCLE: usize = 12;

#[derive(Default)]
struct CycleCounts {
    simulated: usize,
    bound: usize,
    refused: usize,
}

/// Runs one scheduling cycle of a PodGroup: simulates several placements, then binds the pods of the last placement or
/// discards it.
fn run_cycle(
    extender: &mut Extender,
    choices: &mut RandomChoices<'_>,
    now: Instant,
    number: usize,
    bound: &mut Vec<Pod>,
) -> CycleCounts {
    let mut counts = CycleCounts::default();
    let pods: Vec<Pod> = (0..1 + choices.random_below(3))
        .map(|at| PodBuilder::vm(&format!("pod-{number}-{at}"), choices.choose(&[2, 4, 8])).build())
        .collect();
    let is_watched = choices.random_below(2) == 0;
    if is_watched {
        for pod in &pods {
            extender.update_pod(now, pod.clone(), &observe_pod(pod)).expect("the pod is queued");
        }
    }
    let mut placement: Vec<Option<String>> = vec![None; pods.len()];
    for _ in 0..1 + choices.random_below(3) {
        let first = choices.random_below(HOSTS.len());
        let hosts = &HOSTS[first..(first + 1 + choices.random_below(3)).min(HOSTS.len())];
        for (pod, host) in pods.iter().zip(&mut placement) {
            counts.simulated += 1;
            *host = match extender.answer_pod_group_filter(now, pod, hosts) {
                FilterAnswer::ReservedHost(name) => Some(name.to_owned()),
                _ => None,
            };
            counts.refused += usize::from(host.is_none());
        }
    }
    let is_kept = choices.random_below(3) == 0;
    for (pod, host) in pods.into_iter().zip(placement) {
        match host.filter(|_| is_kept) {
            Some(host) => {
                let answer = extender.answer_bind(now, &uid(&pod), &host, Some(&pod));
                assert_eq!(
                    answer,
                    BindAnswer::SendBinding,
                    "a reservation that is a moment old should be valid"
                );
                extender.record_binding_success(now, &uid(&pod));
                let pod = bind_to(pod, &host);
                extender
                    .update_pod(now, pod.clone(), &observe_pod(&pod))
                    .expect("the pod should be counted");
                counts.bound += 1;
                bound.push(pod);
            }
            // The scheduler discards the placement of this pod. If the extender watches the pod, the pod is also
            // deleted.
            None if is_watched => extender.delete_pod(now, &uid(&pod)),
            None => {}
        }
    }
    counts
}

#[test]
fn no_reservation_of_a_pod_group_remains() {
    let mut runner = TestRunner::new(ProptestConfig { cases: CASES, ..ProptestConfig::default() });
    let total = std::cell::RefCell::new(CycleCounts::default());
    let bytes = prop::collection::vec(any::<u8>(), CYCLES * BYTES_PER_CYCLE);
    let result = runner.run(&bytes, |bytes| {
        let mut choices = RandomChoices(&bytes);
        let mut extender = extender_with_hosts(&HOSTS.map(host_with_one_zone));
        let mut now = Instant::now();
        let initial = extender.free_resources();
        let mut bound: Vec<Pod> = Vec::new();
        for number in 0..CYCLES {
            let counts = run_cycle(&mut extender, &mut choices, now, number, &mut bound);
            let mut total = total.borrow_mut();
            total.simulated += counts.simulated;
            total.bound += counts.bound;
            total.refused += counts.refused;
            while bound.len() > choices.random_below(4) {
                extender.delete_pod(now, &uid(&bound.remove(0)));
            }
            now += Duration::from_secs([0, 1, 4, 11][choices.random_below(4)]);
            extender.expire_timeouts(now);
            let reserved = extender.stage_counts().reserved;
            prop_assert!(
                reserved <= 12 * 3,
                "too many reservations after cycle {number}: {reserved}"
            );
        }
        for pod in bound {
            extender.delete_pod(now, &uid(&pod));
        }
        // A deleted pod counts until a report no longer lists it or, without reports as in this test, until a timeout.
        extender.expire_timeouts(now + Duration::from_secs(3600));
        prop_assert_eq!(extender.stage_counts().reserved, 0);
        prop_assert_eq!(extender.engine().pod_count(), 0);
        prop_assert_eq!(extender.free_resources(), initial);
        Ok(())
    });
    result.expect("no reservation should remain");
    let CycleCounts { simulated, bound, refused } = total.into_inner();
    assert!(
        simulated > 20_000 && bound > 1_000 && refused > 1_000,
        "the cycles cover too little: {simulated} simulated, {bound} bound, {refused} refused"
    );
}
