//! Workload of the engine's benchmark: hosts in several pools, and MachineDeployments of many tenants with all
//! kinds of placement rules.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use berth_api::names::{CONTROL_PLANE_ROLE, ROLE_LABEL};
use berth_kubelet_admission::pod::Pod;
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::PodFields;
use fastrand::Rng;
use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fleet::{self, Size};
use crate::full_fleet::{self, PAGE_SIZE, host_labels, taints};

/// Probability that the next VM belongs to the same MachineDeployment as the previous VM. At Azure, 91 to 98 % of
/// the VMs have the same size and rules as the previous VM.
const SAME_DEPLOYMENT_PROBABILITY: f64 = 0.91;
/// Number of VMs of a MachineDeployment.
const VMS_PER_DEPLOYMENT: u64 = 25;
/// Number of MachineDeployments of a tenant.
const DEPLOYMENTS_PER_TENANT: usize = 10;

/// Sizes of VMs: CPUs, GiB, and the percentage of VMs with this size.
const SIZES: [(u32, u64, u32); 8] = [
    (2, 4, 31),
    (4, 8, 16),
    (4, 16, 12),
    (8, 28, 10),
    (8, 16, 7),
    (16, 56, 11),
    (16, 32, 7),
    (32, 112, 6),
];
/// Number of kinds of placement rules. Combined with the sizes, they result in 40 request classes.
const RULE_KINDS: usize = 5;

/// A MachineDeployment, which creates identical VMs.
#[derive(Debug)]
pub(super) struct Deployment {
    pub(super) size: Size,
    pub(super) namespace: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    pub(super) affinity: Option<Affinity>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) topology_spread: Vec<TopologySpreadConstraint>,
}

impl Deployment {
    pub(super) fn pod(&self, uid: String) -> Pod {
        fleet::launcher_pod(uid, self.size, PAGE_SIZE)
    }

    pub(super) fn pod_fields<'a>(&'a self, pod: &'a Pod) -> PodFields<'a> {
        PodFields {
            namespace: &self.namespace,
            labels: Some(&self.labels),
            is_terminating: false,
            node_selector: self.node_selector.as_ref(),
            affinity: self.affinity.as_ref(),
            tolerations: &self.tolerations,
            spread_constraints: &self.topology_spread,
            containers: pod,
            claims: &[],
        }
    }
}

/// Returns a host. The hosts are in two pools and ten failure domains, and some hosts are tainted.
pub(super) fn host(at: usize, template: &ReportedHost) -> ReportedHost {
    let mut facts = template.clone();
    facts.name = full_fleet::host_name(at);
    facts.labels.extend(host_labels(at, &facts.name));
    facts.taints = taints(at);
    facts
}

/// Returns the MachineDeployments for this number of VMs. In `control_plane_percent` of the MachineDeployments, the
/// VMs are control planes.
pub(super) fn deployments(
    vms: u64,
    control_plane_percent: usize,
    rng: &mut Rng,
) -> Result<Vec<Deployment>> {
    let count = usize::try_from(vms / VMS_PER_DEPLOYMENT)?.max(200);
    let mut all = (0..count).map(|at| deployment(at, rng)).collect::<Result<Vec<_>>>()?;
    let control_planes =
        all.iter_mut().enumerate().filter(|(at, _)| at % 100 < control_plane_percent);
    for (_, deployment) in control_planes {
        deployment.labels.insert(ROLE_LABEL.to_owned(), CONTROL_PLANE_ROLE.to_owned());
    }
    Ok(all)
}

fn deployment(at: usize, rng: &mut Rng) -> Result<Deployment> {
    let kind = at % RULE_KINDS;
    let (cpus, gib) = random_size(rng);
    let name = format!("md-{at}");
    let labels = BTreeMap::from([
        ("kubevirt.io".to_owned(), "virt-launcher".to_owned()),
        ("md".to_owned(), name.clone()),
    ]);
    let selector = json!({"matchLabels": {"md": name}});
    let zone = |values: &[&str]| {
        json!({"matchExpressions":
            [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": values}]})
    };
    let mut affinity = serde_json::Map::new();
    match kind {
        3 => drop(affinity.insert(
            "nodeAffinity".to_owned(),
            json!({
                "requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [zone(&["z0", "z1", "z2", "z3", "z4"])]},
            }),
        )),
        4 => drop(affinity.insert(
            "nodeAffinity".to_owned(),
            json!({
                "preferredDuringSchedulingIgnoredDuringExecution":
                    [{"weight": 50, "preference": zone(&["z0"])}],
            }),
        )),
        _ => {}
    }
    if at % 10 == 6 {
        let term = json!({"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"});
        affinity.insert(
            "podAntiAffinity".to_owned(),
            json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]}),
        );
    }
    let spread = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector});
    let toleration = json!({"key": "dedicated", "operator": "Equal", "value": "large"});
    Ok(Deployment {
        size: Size { cpus, gib, has_sidecar: kind == 4 },
        namespace: format!("cluster-{}", at / DEPLOYMENTS_PER_TENANT),
        labels,
        node_selector: (kind == 1).then(|| BTreeMap::from([("pool".to_owned(), "p0".to_owned())])),
        affinity: (!affinity.is_empty()).then(|| from_json(affinity.into())).transpose()?,
        tolerations: if kind == 2 { vec![from_json(toleration)?] } else { Vec::new() },
        topology_spread: vec![from_json(spread)?],
    })
}

fn from_json<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("parse a rule")
}

fn random_size(rng: &mut Rng) -> (u32, u64) {
    let all: u32 = SIZES.iter().map(|size| size.2).sum();
    let mut remaining = rng.u32(..all);
    let found = SIZES.iter().find(|(_, _, part)| {
        let is_match = remaining < *part;
        remaining = remaining.saturating_sub(*part);
        is_match
    });
    found.map_or((2, 4), |(cpus, gib, _)| (*cpus, *gib))
}

/// Random sequence that selects the MachineDeployment of each next VM.
#[derive(Debug)]
pub(super) struct DeploymentChain {
    rng: Rng,
    current: usize,
    deployment_count: usize,
}

impl DeploymentChain {
    pub(super) fn new(deployments: usize) -> Self {
        Self { rng: Rng::with_seed(4), current: 0, deployment_count: deployments }
    }

    /// Returns the index of the next VM's MachineDeployment.
    pub(super) fn next_deployment(&mut self) -> usize {
        if self.rng.f64() >= SAME_DEPLOYMENT_PROBABILITY {
            self.current = self.rng.usize(..self.deployment_count);
        }
        self.current
    }

    /// Returns a random index below `count`, for the VM to remove.
    pub(super) fn random_index(&mut self, count: usize) -> usize {
        self.rng.usize(..count)
    }
}
