//! Replays a trace with a policy: VMs start and stop, and the kubelet's admission may refuse the chosen host.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use anyhow::Result;
use fastrand::Rng;

use super::arrivals::Vm;
use super::cluster::Cluster;
use super::policy::{BestFit, Policy, VmToPlace};
use crate::fleet::{Size, launcher_pod};

/// Upper limits of the size classes, in CPUs of a VM, for the statistics of rejected VMs.
pub(super) const SIZE_CLASSES: [u32; 6] = [2, 4, 8, 16, 32, u32::MAX];
/// Number of points per day of the curves in an [`Outcome`].
const POINTS_PER_DAY: f64 = 12.0;

/// Result of the replay of one trace with one policy.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Pinned CPUs as a fraction of all CPUs, over time from day 0.
    pub(super) pinned_curve: Vec<f64>,
    /// Requested CPUs as a fraction of all CPUs, over time from day 0.
    pub(super) requested_curve: Vec<f64>,
    /// Time-weighted mean of the pinned CPUs, as a fraction of all CPUs.
    pub(super) mean_pinned: f64,
    /// Time-weighted mean of the requested CPUs, as a fraction of all CPUs.
    pub(super) mean_requested: f64,
    /// Average number of hosts without VMs, as a fraction of all hosts.
    pub(super) empty_fraction: f64,
    /// Number of all VMs, by size class.
    pub(super) vms_by_class: [usize; SIZE_CLASSES.len()],
    /// Number of VMs that did not run, by size class.
    pub(super) rejected_by_class: [usize; SIZE_CLASSES.len()],
    /// Number of VMs that the kubelet of the chosen host refused. `rejected_by_class` includes these VMs.
    pub(super) refused_count: usize,
    /// Free CPUs as a fraction of all CPUs, when the first of the VMs that [`fill_cluster`] adds finds no host.
    pub(super) free_at_first_unplaced: f64,
    /// Free CPUs as a fraction of all CPUs, when none of the VMs that [`fill_cluster`] adds finds a host.
    pub(super) stranded_fraction: f64,
    /// Nanoseconds of each decision.
    pub(super) decision_nanos: Vec<f64>,
}

impl Outcome {
    pub(super) fn rejected_fraction(&self) -> f64 {
        self.rejected_by_class.iter().sum::<usize>() as f64
            / self.vms_by_class.iter().sum::<usize>().max(1) as f64
    }
}

/// Returns the size class of a VM.
fn size_class(size: Size) -> usize {
    SIZE_CLASSES.iter().position(|most| size.cpus <= *most).unwrap_or(0)
}

/// End of a VM, for a heap: the bits of the end time, which sort like the time, and the index of the VM.
type VmEnd = Reverse<(u64, usize)>;

/// Replays `vms` on an empty cluster. `vms` is sorted by start time, so VMs that already run at day 0 come first.
///
/// If a VM gets no host or is refused by the kubelet, it is not retried, as with `runStrategy: Once`.
pub(super) fn replay(
    policy: &mut dyn Policy,
    cluster: &mut Cluster,
    vms: &[Vm],
    days: f64,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut clock = Clock::new(days);
    let mut vm_ends: BinaryHeap<VmEnd> = BinaryHeap::new();
    let mut guests: Vec<Option<(usize, VmToPlace)>> = vec![None; vms.len()];
    let (mut pinned, mut requested) = (0_u32, 0_u32);
    let mut empty = cluster.hosts.len();
    let all = cluster.pinnable_cpus();
    let remove_vm =
        |cluster: &mut Cluster, policy: &mut dyn Policy, vm: Option<(usize, VmToPlace)>| {
            let Some((host, vm)) = vm else { return (0, 0) };
            cluster.remove(host, &vm.pod);
            policy.on_removed(&vm.pod.uid);
            (vm.size.cpus, usize::from(cluster.hosts[host].state.pod_count() == 0))
        };
    for (at, vm) in vms.iter().enumerate() {
        while let Some(Reverse((when, _))) = vm_ends.peek()
            && f64::from_bits(*when) <= vm.start.max(0.0)
        {
            let Some(Reverse((when, ended))) = vm_ends.pop() else { break };
            clock.advance(
                f64::from_bits(when),
                [pinned, requested].map(|cpus| f64::from(cpus) / all),
                empty,
            );
            let (cpus, hosts) = remove_vm(cluster, policy, guests[ended].take());
            pinned -= cpus;
            empty += hosts;
            requested -= vms[ended].size.cpus;
        }
        clock.advance(vm.start, [pinned, requested].map(|cpus| f64::from(cpus) / all), empty);
        let vm_to_place = VmToPlace {
            pod: launcher_pod(format!("vm-{at}"), vm.size, cluster.page),
            size: vm.size,
        };
        let begin = Instant::now();
        let chosen = policy.choose(&vm_to_place, cluster)?;
        outcome.decision_nanos.push(begin.elapsed().as_secs_f64() * 1e9);
        let class = size_class(vm.size);
        outcome.vms_by_class[class] += 1;
        requested += vm.size.cpus;
        // For numbers that are not negative, the bits sort like the numbers.
        vm_ends.push(Reverse((vm.end.max(0.0).to_bits(), at)));
        match chosen.map(|host| (host, cluster.admit(host, &vm_to_place.pod))) {
            Some((host, Ok(()))) => {
                pinned += vm.size.cpus;
                empty -= usize::from(cluster.hosts[host].state.pod_count() == 1);
                guests[at] = Some((host, vm_to_place));
            }
            Some((_, Err(_))) => {
                policy.on_removed(&vm_to_place.pod.uid);
                outcome.rejected_by_class[class] += 1;
                outcome.refused_count += 1;
            }
            None => outcome.rejected_by_class[class] += 1,
        }
    }
    clock.advance(days, [pinned, requested].map(|cpus| f64::from(cpus) / all), empty);
    let hosts = cluster.hosts.len() as f64;
    [outcome.mean_pinned, outcome.mean_requested] = clock.weighted_sums.map(|sum| sum / days);
    outcome.empty_fraction = clock.empty_hosts / days / hosts;
    [outcome.pinned_curve, outcome.requested_curve] = clock.curves;
    Ok(outcome)
}

/// Simulated time, and time-weighted sums of the measured values.
struct Clock {
    now: f64,
    days: f64,
    weighted_sums: [f64; 2],
    empty_hosts: f64,
    curves: [Vec<f64>; 2],
}

impl Clock {
    const fn new(days: f64) -> Self {
        Self {
            now: 0.0,
            days,
            weighted_sums: [0.0; 2],
            empty_hosts: 0.0,
            curves: [Vec::new(), Vec::new()],
        }
    }

    /// Advances the simulated time to `time`, and adds the measured values, weighted with the elapsed time.
    fn advance(&mut self, time: f64, values: [f64; 2], empty_hosts: usize) {
        let time = time.clamp(self.now, self.days);
        while (self.curves[0].len() as f64) / POINTS_PER_DAY < time {
            self.curves.iter_mut().zip(values).for_each(|(curve, value)| curve.push(value));
        }
        let elapsed = time - self.now;
        self.weighted_sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * elapsed);
        self.empty_hosts += empty_hosts as f64 * elapsed;
        self.now = time;
    }
}

/// Adds VMs with the sizes of the trace by best fit until no VM fits. The CPUs that are still free are stranded (a
/// term of LAVA, MLSys'25).
pub(super) fn fill_cluster(outcome: &mut Outcome, mut cluster: Cluster, vms: &[Vm]) -> Result<()> {
    let mut policy = BestFit::default();
    let mut rng = Rng::with_seed(2);
    let all = cluster.pinnable_cpus();
    let mut sizes: Vec<Size> = vms.iter().map(|vm| vm.size).collect();
    rng.shuffle(&mut sizes);
    let mut first_miss = None;
    let mut added = 0_usize;
    while !sizes.is_empty() {
        let size = sizes[added % sizes.len()];
        added += 1;
        let vm = VmToPlace { pod: launcher_pod(format!("more-{added}"), size, cluster.page), size };
        let chosen = policy.choose(&vm, &cluster)?;
        if let Some(host) = chosen
            && cluster.admit(host, &vm.pod).is_ok()
        {
            continue;
        }
        first_miss.get_or_insert_with(|| f64::from(cluster.free_cpus()) / all);
        // Free resources only decrease here, so a size that does not fit now will never fit.
        sizes.retain(|other| *other != size);
    }
    outcome.stranded_fraction = f64::from(cluster.free_cpus()) / all;
    outcome.free_at_first_unplaced = first_miss.unwrap_or(outcome.stranded_fraction);
    Ok(())
}

#[cfg(test)]
mod tests {
    use berth_api::PageSize;

    use super::*;
    use crate::trace::policy::{BERTH_POLICY, BEST_FIT_POLICY, POLICY_NAMES, create_policy};

    fn vm(cpus: u32, start: f64, end: f64) -> Vm {
        Vm { tenant: 1, size: Size { cpus, gib: 4, has_sidecar: false }, start, end }
    }

    fn run(at: usize, vms: &[Vm]) -> Outcome {
        let mut policy = create_policy(at, 2, PageSize::GIB_1).unwrap();
        let mut cluster = Cluster::new(2, PageSize::GIB_1).unwrap();
        let mut outcome = replay(policy.as_mut(), &mut cluster, vms, 2.0).unwrap();
        fill_cluster(&mut outcome, cluster, vms).unwrap();
        outcome
    }

    #[test]
    fn usage_is_weighted_by_time() {
        let vms = [vm(46, -3.0, 0.5), vm(23 * 2, 0.0, 9.0), vm(46, 1.0, f64::INFINITY)];
        for at in [BEST_FIT_POLICY, BERTH_POLICY] {
            let outcome = run(at, &vms);
            assert_eq!(outcome.rejected_fraction(), 0.0, "{}", POLICY_NAMES[at]);
            // 46 of 184 CPUs are a quarter. Two VMs run in the first half of the first day, one VM in its second
            // half, and two VMs on the second day.
            assert!((outcome.mean_pinned - (0.25 + 0.125 + 0.5) / 2.0).abs() < 1e-9, "{outcome:?}");
            assert_eq!(outcome.pinned_curve.len(), 24);
            assert_eq!(outcome.vms_by_class, [0, 0, 0, 0, 0, 3]);
        }
    }

    #[test]
    fn vms_that_the_kubelet_refuses_are_counted_as_rejected() {
        // The Node's totals have room for ten more CPUs. On each host, 40 CPUs of each zone are in use, and no zone
        // has ten free CPUs.
        let vms = [
            vm(40, -1.0, 9.0),
            vm(40, -1.0, 9.0),
            vm(40, -1.0, 9.0),
            vm(40, -1.0, 9.0),
            vm(10, 0.0, 9.0),
        ];
        let stock = run(1, &vms);
        assert_eq!((stock.refused_count, stock.rejected_by_class), (1, [0, 0, 0, 1, 0, 0]));
        let berth = run(BERTH_POLICY, &vms);
        assert_eq!((berth.refused_count, berth.rejected_by_class), (0, [0, 0, 0, 1, 0, 0]));
        assert_eq!(berth.mean_pinned, stock.mean_pinned);
        assert!(
            (berth.stranded_fraction * 184.0 - 24.0).abs() < 1e-9,
            "no VM of 10 or 40 CPUs fits"
        );
    }
}
