//! The peer: the same rules, admission and preferences as in the engine, in the simplest implementation, which
//! checks every host for every VM.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use berth_kubelet_admission::HostState;
use berth_kubelet_admission::pod::Pod;
use berth_placement::engine::Engine;
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::{ClusterState, HostId, PodId, Rules};

use super::workload::Deployment;
use crate::fleet::Size;
use crate::full_fleet::PAGE_SIZE;

/// All hosts and the pods on them.
#[derive(Debug)]
pub(super) struct FullScan {
    cluster: ClusterState,
    hosts: Vec<Host>,
    pods: HashMap<String, (usize, PodId)>,
}

#[derive(Debug)]
struct Host {
    id: HostId,
    state: HostState,
    zones: [Zone; 2],
}

/// Free CPUs and GiB of a NUMA zone.
#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    cpus: u32,
    gib: u64,
}

impl FullScan {
    pub(super) fn new() -> Self {
        Self { cluster: ClusterState::new(), hosts: Vec::new(), pods: HashMap::new() }
    }

    pub(super) fn add_host(&mut self, facts: &ReportedHost) -> Result<()> {
        let id = self.cluster.set_host(&facts.node_fields())?;
        let state = HostState::new(&facts.admission);
        let mut host = Host { id, state, zones: [Zone::default(); 2] };
        host.update_zones();
        self.hosts.push(host);
        Ok(())
    }

    /// Finds the best host for a VM, and allocates the resources of the VM there. `None` if no host has room.
    pub(super) fn place(&mut self, deployment: &Deployment, pod: &Pod) -> Result<Option<usize>> {
        let rules = Arc::new(Rules::compile(&mut self.cluster, &deployment.pod_fields(pod))?);
        let filter = self.cluster.pod_filter(&rules);
        let preference_scores = filter.pod_preference_scores();
        let mut possible: Vec<(i64, usize)> = Vec::new();
        for (at, host) in self.hosts.iter().enumerate() {
            let Some(free_score) = host.free_score(deployment.size) else { continue };
            if !filter.allows(host.id) {
                continue;
            }
            let preference = filter.host_preference(host.id);
            let mut points = free_score + preference.untolerated_taints * 200;
            if preference.total_weight > 0 {
                points += 400 * (preference.total_weight - preference.matching_weight)
                    / preference.total_weight;
            }
            if let Some(score) =
                preference_scores.as_ref().map(|scores| scores.score_for_host(host.id))
            {
                points += score.skew.unwrap_or(20) * 300 - score.affinity * 3;
            }
            possible.push((points, at));
        }
        possible.sort_unstable();
        for (_, at) in possible {
            if self.hosts[at].state.check(pod).is_ok() {
                self.allocate(rules, pod, at)?;
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Adds a VM to the host that the engine chose. Returns an error if the choice violates a rule or if the kubelet
    /// admission refuses the VM.
    pub(super) fn add_to_host(
        &mut self,
        deployment: &Deployment,
        pod: &Pod,
        index: usize,
    ) -> Result<()> {
        let rules = Arc::new(Rules::compile(&mut self.cluster, &deployment.pod_fields(pod))?);
        let id = self.hosts.get(index).context("unknown host")?.id;
        let filter = self.cluster.pod_filter(&rules);
        if let Some(reason) = filter.reasons(id).first() {
            anyhow::bail!("host {index}, pod {}: the placement violates a rule: {reason}", pod.uid);
        }
        self.allocate(rules, pod, index)
    }

    fn allocate(&mut self, rules: Arc<Rules>, pod: &Pod, at: usize) -> Result<()> {
        let host = &mut self.hosts[at];
        let refused = |refusal| anyhow::anyhow!("host {at}, pod {}: {refusal}", pod.uid);
        host.state.admit(pod).map(|_| ()).map_err(refused)?;
        host.update_zones();
        let pod_id = self.cluster.add_pod(rules, host.id).context("unknown host")?;
        self.pods.insert(pod.uid.clone(), (at, pod_id));
        Ok(())
    }

    pub(super) fn remove(&mut self, uid: &str) {
        if let Some((at, pod_id)) = self.pods.remove(uid) {
            self.cluster.remove_pod(pod_id);
            let host = &mut self.hosts[at];
            host.state.remove(uid);
            host.update_zones();
        }
    }

    /// Checks that the engine has allocated the same CPUs and memory to each pod as the peer.
    pub(super) fn check_agreement(&self, engine: &Engine) -> Result<()> {
        for host in &self.hosts {
            let other = engine.kubelet_state(host.id).context("unknown host")?;
            let same = host.state.free_cpus() == other.free_cpus()
                && host.state.memory_by_zone() == other.memory_by_zone()
                && host.state.pod_count() == other.pod_count();
            ensure!(same, "host {}: the allocations differ", host.id.index());
        }
        for (uid, (at, _)) in &self.pods {
            let host = &self.hosts[*at];
            let placements_of =
                |state: &HostState| Some(state.admission(uid)?.placements(state.host()));
            let same =
                placements_of(&host.state) == engine.kubelet_state(host.id).and_then(placements_of);
            ensure!(
                same && placements_of(&host.state).is_some(),
                "pod {uid}: the placements differ"
            );
        }
        Ok(())
    }

    /// Returns the pinned CPUs as a fraction of all pinnable CPUs.
    pub(super) fn allocated_fraction(&self) -> f64 {
        let zones = || self.hosts.iter().flat_map(|host| host.state.free_by_zone());
        let (free, all) = zones().fold((0.0, 0.0), |(free, all), zone| {
            (free + f64::from(zone.cpus), all + f64::from(zone.total_cpus))
        });
        1.0 - free / all
    }
}

impl Host {
    fn update_zones(&mut self) {
        for (zone, seen) in self.zones.iter_mut().zip(self.state.free_by_zone()) {
            *zone = Zone { cpus: seen.cpus, gib: seen.free_and_total_pages(PAGE_SIZE).0 >> 30 };
        }
    }

    /// Returns the score of this host: the resources that would stay free in its first zone with enough room. A
    /// lower score is better; `None` if no zone has enough room.
    fn free_score(&self, size: Size) -> Option<i64> {
        let zone = self.zones.iter().find(|zone| size.cpus <= zone.cpus && size.gib <= zone.gib)?;
        let cpus = i64::from(zone.cpus - size.cpus) * 1024 / 46;
        let gib = i64::try_from(zone.gib - size.gib).unwrap_or(i64::MAX).saturating_mul(1024) / 192;
        Some(600 * (cpus + gib) / 2048 + 200 * (cpus - gib).abs() / 1024)
    }
}
