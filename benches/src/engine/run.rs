//! The measured run: the engine places and removes VMs, and afterwards the peer checks all decisions.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use berth_api::Class;
use berth_placement::engine::{Engine, VmRequirements};
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::HostId;
use fastrand::Rng;

use super::scan::FullScan;
use super::workload::{self, Deployment, DeploymentChain};
use super::{FILL_LEVEL, PEER_HOSTS, PEER_PAIRS, Workload};
use crate::fleet::{self, PINNABLE_CPUS};
use crate::full_fleet::PAGE_SIZE;

/// Measured values of one workload.
#[derive(Debug, Default)]
pub(super) struct WorkloadMeasurements {
    pub(super) workload: Workload,
    pub(super) pods: usize,
    pub(super) allocated_fraction: f64,
    pub(super) unplaced: usize,
    /// Checksum of all decisions, including those that filled the hosts before the measurement. Two runs with the
    /// same checksum made the same decisions.
    pub(super) checksum: u64,
    /// Microseconds to parse the placement rules of each pod.
    pub(super) request_micros: Vec<f64>,
    /// Microseconds to choose and reserve a host for each pod.
    pub(super) place_micros: Vec<f64>,
    /// Microseconds to remove a random pod after each placement.
    pub(super) remove_micros: Vec<f64>,
    /// Microseconds of the peer for each pair of a decision and a removal.
    pub(super) peer_micros: Vec<f64>,
}

impl WorkloadMeasurements {
    pub(super) fn decision_micros(&self) -> Vec<f64> {
        self.request_micros
            .iter()
            .zip(&self.place_micros)
            .map(|(request, place)| request + place)
            .collect()
    }

    /// Returns the decisions per second.
    pub(super) fn decisions_per_second(&self) -> f64 {
        self.per_second(&[&self.request_micros, &self.place_micros])
    }

    /// Returns the pairs of a decision and a removal per second.
    pub(super) fn pairs_per_second(&self) -> f64 {
        self.per_second(&[&self.request_micros, &self.place_micros, &self.remove_micros])
    }

    fn per_second(&self, parts: &[&Vec<f64>]) -> f64 {
        let micros: f64 = parts.iter().copied().flatten().sum();
        self.place_micros.len() as f64 / micros * 1e6
    }

    pub(super) fn peer_pairs_per_second(&self) -> f64 {
        self.peer_micros.len() as f64 / self.peer_micros.iter().sum::<f64>() * 1e6
    }
}

/// A decision or a removal. The list of events has the order of the run.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A VM of a `MachineDeployment` was placed on a host.
    Placed {
        vm: u32,
        deployment: u32,
        host: u32,
    },
    /// No host was found for a VM.
    Unplaced,
    Removed {
        vm: u32,
    },
}

/// Fills the hosts, and then measures pairs of a decision and a removal, with the engine only. Afterwards the peer
/// places the same VMs on the same hosts, and checks each decision with the same rules and the same model of the
/// kubelet's admission.
pub(super) fn measure_speed(workload: Workload, pairs: usize) -> Result<WorkloadMeasurements> {
    let Workload { hosts, control_plane_percent } = workload;
    let template = fleet::reported_host("like", PAGE_SIZE)?;
    let mut engine = Engine::new();
    for at in 0..hosts {
        engine.set_host(workload::host(at, &template), Class::Performance)?;
    }
    let target_cpus = hosts as f64 * f64::from(PINNABLE_CPUS) * FILL_LEVEL;
    let vms = u64::try_from(hosts)? * u64::from(PINNABLE_CPUS) / 8;
    let deployments = workload::deployments(vms, control_plane_percent, &mut Rng::with_seed(3))?;
    let chain = DeploymentChain::new(deployments.len());
    let (placed_vms, log) = (Vec::new(), Vec::new());
    let mut bench = MeasuredRun {
        engine,
        chain,
        deployments,
        placed_vms,
        log,
        pinned_cpus: 0,
        next_vm_number: 0,
    };
    let mut speed = WorkloadMeasurements { workload, ..WorkloadMeasurements::default() };
    let is_full = |bench: &MeasuredRun| bench.pinned_cpus as f64 >= target_cpus;
    while !is_full(&bench) {
        bench.place(&mut WorkloadMeasurements::default())?;
    }
    for pair in 0..pairs {
        bench.place(&mut speed)?;
        let unplaced = speed.unplaced;
        ensure!(
            pair < 100 || unplaced * 4 < pair,
            "no host was found for {unplaced} of {pair} VMs"
        );
        // For each new VM, one VM is removed on average, because placed and removed VMs have the same mean size.
        while is_full(&bench) {
            bench.remove(&mut speed);
        }
    }
    speed.pods = bench.engine.pod_count();
    speed.checksum = checksum(&bench.log);
    let mut scan = bench.replay_and_check(&template, hosts)?;
    speed.allocated_fraction = scan.allocated_fraction();
    bench.engine = Engine::new();
    bench.measure_peer(&mut scan, &mut speed, (PEER_PAIRS * PEER_HOSTS / hosts).max(50))?;
    Ok(speed)
}

struct MeasuredRun {
    engine: Engine,
    deployments: Vec<Deployment>,
    chain: DeploymentChain,
    log: Vec<Event>,
    /// Placed VMs, each with its number of CPUs.
    placed_vms: Vec<(u32, u32)>,
    /// Number of CPUs of all placed VMs.
    pinned_cpus: u64,
    next_vm_number: u32,
}

impl MeasuredRun {
    /// Places the next VM.
    fn place(&mut self, speed: &mut WorkloadMeasurements) -> Result<()> {
        let (vm, of) = self.next_vm();
        let deployment = &self.deployments[of];
        let pod = deployment.pod(uid(vm));
        let fields = deployment.pod_fields(&pod);
        let class = Class::Performance;
        let needs =
            VmRequirements { is_vm: true, is_pinned: true, class, ..VmRequirements::default() };
        let begin = Instant::now();
        let request = self.engine.compile_request(&fields, needs)?;
        let middle = Instant::now();
        let host = self.engine.place_pod(&request, None);
        let end = Instant::now();
        speed.request_micros.push((middle - begin).as_secs_f64() * 1e6);
        speed.place_micros.push((end - middle).as_secs_f64() * 1e6);
        let Some(host) = host.map(HostId::index) else {
            speed.unplaced += 1;
            self.log.push(Event::Unplaced);
            return Ok(());
        };
        let (of, host) = (u32::try_from(of)?, u32::try_from(host)?);
        self.log.push(Event::Placed { vm, deployment: of, host });
        let cpus = deployment.size.cpus;
        self.placed_vms.push((vm, cpus));
        self.pinned_cpus += u64::from(cpus);
        Ok(())
    }

    /// Removes a random VM.
    fn remove(&mut self, speed: &mut WorkloadMeasurements) {
        let (vm, cpus) =
            self.placed_vms.swap_remove(self.chain.random_index(self.placed_vms.len()));
        self.pinned_cpus -= u64::from(cpus);
        let uid = uid(vm);
        let begin = Instant::now();
        self.engine.remove_pod(&uid);
        speed.remove_micros.push(begin.elapsed().as_secs_f64() * 1e6);
        self.log.push(Event::Removed { vm });
    }

    /// Returns the next VM and the index of the `MachineDeployment`.
    fn next_vm(&mut self) -> (u32, usize) {
        self.next_vm_number += 1;
        (self.next_vm_number, self.chain.next_deployment())
    }

    /// Replays the events on an empty peer. Returns an error if a decision violates a rule, if the kubelet's
    /// admission would refuse a VM, or if the allocations of engine and peer differ at the end.
    fn replay_and_check(&self, template: &ReportedHost, hosts: usize) -> Result<FullScan> {
        let mut scan = FullScan::new();
        for at in 0..hosts {
            scan.add_host(&workload::host(at, template))?;
        }
        for event in &self.log {
            match *event {
                Event::Placed { vm, deployment: of, host } => {
                    let deployment =
                        self.deployments.get(of as usize).context("unknown MachineDeployment")?;
                    let pod = deployment.pod(uid(vm));
                    scan.add_to_host(deployment, &pod, host as usize)
                        .context("check the engine's decision")?;
                }
                Event::Unplaced => {}
                Event::Removed { vm } => scan.remove(&uid(vm)),
            }
        }
        scan.check_agreement(&self.engine)?;
        Ok(scan)
    }

    /// Measures the same pairs of a decision and a removal with the peer.
    fn measure_peer(
        &mut self,
        scan: &mut FullScan,
        speed: &mut WorkloadMeasurements,
        pairs: usize,
    ) -> Result<()> {
        for _ in 0..pairs {
            let (vm, of) = self.next_vm();
            let deployment = &self.deployments[of];
            let pod = deployment.pod(uid(vm));
            let removed =
                self.placed_vms.swap_remove(self.chain.random_index(self.placed_vms.len()));
            let removed_uid = uid(removed.0);
            let begin = Instant::now();
            let host = scan.place(deployment, &pod)?;
            if host.is_some() {
                scan.remove(&removed_uid);
            }
            speed.peer_micros.push(begin.elapsed().as_secs_f64() * 1e6);
            self.placed_vms.push(if host.is_some() { (vm, deployment.size.cpus) } else { removed });
        }
        Ok(())
    }
}

fn uid(vm: u32) -> String {
    format!("{vm:08x}-aaaa-4bbb-8ccc-dddddddddddd")
}

/// Returns the FNV-1a hash of the events.
fn checksum(log: &[Event]) -> u64 {
    let words = log.iter().flat_map(|event| match *event {
        Event::Placed { vm, deployment: of, host } => [vm, of, host],
        Event::Unplaced => [0; 3],
        Event::Removed { vm } => [vm, u32::MAX, u32::MAX],
    });
    words.flat_map(u32::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
