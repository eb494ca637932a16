//! Short description of a pod, converted to a request of the engine.

use std::collections::BTreeMap;

use berth_api::{Class, PageSize};
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_placement::engine::{Engine, NumaGuestMemory, Request, VmRequirements};
use berth_placement::rules::{ClusterState, PodFields, Rules};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use super::host::{KVM_RESOURCE, VF_RESOURCE};

/// Description of a pod. With `cpus`, the pod is Guaranteed and has exclusive CPUs; otherwise it shares CPUs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PodDescription {
    /// Name and UID of the pod.
    pub(crate) name: String,
    /// True if the pod is not a VM.
    #[serde(rename = "plain")]
    pub(crate) is_plain_pod: bool,
    /// True for a VM that runs without KVM.
    #[serde(rename = "emulated")]
    pub(crate) is_emulated: bool,
    pub(crate) cpus: u64,
    /// CPU request in millicores, if the pod shares CPUs.
    pub(crate) millis: u64,
    /// GiB of memory without huge pages; 1 by default.
    pub(crate) memory: Option<u64>,
    /// GiB of memory in pages of 1 GiB.
    #[serde(rename = "huge")]
    pub(crate) huge_pages_gib: u64,
    /// MiB of memory in pages of 2 MiB.
    #[serde(rename = "small")]
    pub(crate) small_pages_mib: u64,
    /// Number of virtual functions of the first container.
    pub(crate) vfs: u64,
    #[serde(rename = "beside")]
    pub(crate) additional_containers: Vec<ContainerDescription>,
    pub(crate) class: Class,
    /// True for `guestMappingPassthrough`.
    #[serde(rename = "numa")]
    pub(crate) has_numa_passthrough: bool,
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(rename = "selector")]
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Keys of tolerated taints, with any value and effect.
    #[serde(rename = "tolerates")]
    pub(crate) tolerated_taints: Vec<String>,
    #[serde(rename = "together")]
    pub(crate) affinities: Vec<AffinityDescription>,
    #[serde(rename = "apart")]
    pub(crate) anti_affinities: Vec<AffinityDescription>,
    pub(crate) spread: Vec<SpreadDescription>,
    #[serde(rename = "prefer")]
    pub(crate) preferences: Vec<PreferenceDescription>,
    #[serde(rename = "terminating")]
    pub(crate) is_terminating: bool,
}

/// An additional container of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ContainerDescription {
    pub(crate) millis: u64,
    /// Memory in MiB.
    pub(crate) memory: u64,
    /// True for an init container.
    #[serde(rename = "first")]
    pub(crate) is_init: bool,
    /// True for a sidecar.
    #[serde(rename = "sidecar")]
    pub(crate) is_sidecar: bool,
}

/// Affinity to pods whose label `app` has this value; required, unless it has a weight.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct AffinityDescription {
    pub(crate) app: String,
    #[serde(rename = "by")]
    pub(crate) topology_key: String,
    #[serde(default)]
    pub(crate) weight: Option<i32>,
}

/// Spread constraint over the values of a label, for pods of the same `app`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct SpreadDescription {
    #[serde(rename = "by")]
    pub(crate) topology_key: String,
    #[serde(rename = "max")]
    pub(crate) max_skew: i32,
    #[serde(default, rename = "soft")]
    pub(crate) is_soft: bool,
}

/// Preferred node affinity of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PreferenceDescription {
    pub(crate) label: String,
    pub(crate) value: String,
    pub(crate) weight: i32,
}

/// A pod, converted to the types that the controller reads.
#[derive(Clone, Debug)]
pub(crate) struct BuiltPod {
    pub(crate) pod: Pod,
    pub(crate) requirements: VmRequirements,
    labels: BTreeMap<String, String>,
    node_selector: BTreeMap<String, String>,
    affinity: v1::Affinity,
    tolerations: Vec<v1::Toleration>,
    spread: Vec<v1::TopologySpreadConstraint>,
    is_terminating: bool,
}

impl BuiltPod {
    fn pod_fields(&self) -> PodFields<'_> {
        PodFields {
            namespace: "default",
            labels: Some(&self.labels),
            is_terminating: self.is_terminating,
            node_selector: Some(&self.node_selector),
            affinity: Some(&self.affinity),
            tolerations: &self.tolerations,
            spread_constraints: &self.spread,
            containers: &self.pod,
            claims: &[],
        }
    }

    pub(crate) fn request(&self, engine: &mut Engine) -> Request {
        engine
            .compile_request(&self.pod_fields(), self.requirements.clone())
            .expect("the rules are valid")
    }

    pub(crate) fn rules(&self, cluster: &mut ClusterState) -> Rules {
        Rules::compile(cluster, &self.pod_fields()).expect("the rules are valid")
    }
}

impl PodDescription {
    pub(crate) fn build(&self) -> BuiltPod {
        BuiltPod {
            pod: self.pod(),
            requirements: VmRequirements {
                is_vm: !self.is_plain_pod,
                is_emulated: self.is_emulated,
                is_pinned: !self.is_plain_pod && self.cpus > 0,
                class: self.class,
                numa_guest_memory: (self.has_numa_passthrough && self.huge_pages_gib > 0)
                    .then_some(NumaGuestMemory {
                        memory: self.huge_pages_gib << 30,
                        page_size: PageSize::GIB_1,
                    }),
            },
            labels: self.labels.clone(),
            node_selector: self.node_selector.clone(),
            affinity: self.affinity(),
            tolerations: self
                .tolerated_taints
                .iter()
                .map(|key| v1::Toleration {
                    key: Some(key.clone()),
                    operator: Some("Exists".to_owned()),
                    ..v1::Toleration::default()
                })
                .collect(),
            spread: self.spread_constraints(),
            is_terminating: self.is_terminating,
        }
    }

    fn pod(&self) -> Pod {
        let pages = [
            (PageSize::GIB_1, self.huge_pages_gib << 30),
            (PageSize::MIB_2, self.small_pages_mib << 20),
        ];
        let kvm = (!self.is_plain_pod && !self.is_emulated).then(|| (KVM_RESOURCE.to_owned(), 1));
        let vfs = (self.vfs > 0).then(|| (VF_RESOURCE.to_owned(), self.vfs));
        let requests = Resources {
            cpu_millis: if self.cpus > 0 { self.cpus * 1000 } else { self.millis },
            memory: self.memory.unwrap_or(1) << 30,
            hugepages: pages.into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
            extended: kvm.into_iter().chain(vfs).collect(),
        };
        let limits = if self.cpus > 0 {
            requests.clone()
        } else {
            Resources { cpu_millis: 0, memory: 0, ..requests.clone() }
        };
        let main = Container { name: "compute".to_owned(), is_sidecar: false, requests, limits };
        let beside = |(at, description): (usize, &ContainerDescription)| {
            let own = Resources {
                cpu_millis: description.millis,
                memory: description.memory << 20,
                ..Resources::default()
            };
            let name = format!("beside-{at}");
            Container {
                name,
                is_sidecar: description.is_sidecar,
                requests: own.clone(),
                limits: own,
            }
        };
        let is_first = |(_, description): &(usize, &ContainerDescription)| {
            description.is_init || description.is_sidecar
        };
        let all = || self.additional_containers.iter().enumerate();
        Pod {
            uid: self.name.clone(),
            init_containers: all().filter(is_first).map(beside).collect(),
            containers: std::iter::once(main)
                .chain(all().filter(|one| !is_first(one)).map(beside))
                .collect(),
            overhead: Resources::default(),
        }
    }

    fn affinity(&self) -> v1::Affinity {
        let term = |near: &AffinityDescription| v1::PodAffinityTerm {
            label_selector: Some(selector(&near.app)),
            topology_key: near.topology_key.clone(),
            ..v1::PodAffinityTerm::default()
        };
        let required = |all: &[AffinityDescription]| {
            all.iter().filter(|near| near.weight.is_none()).map(term).collect::<Vec<_>>()
        };
        let preferred = |all: &[AffinityDescription]| {
            let weighted = all.iter().filter_map(|near| {
                Some(v1::WeightedPodAffinityTerm {
                    weight: near.weight?,
                    pod_affinity_term: term(near),
                })
            });
            weighted.collect::<Vec<_>>()
        };
        let prefer = |description: &PreferenceDescription| v1::PreferredSchedulingTerm {
            weight: description.weight,
            preference: v1::NodeSelectorTerm {
                match_expressions: Some(vec![v1::NodeSelectorRequirement {
                    key: description.label.clone(),
                    operator: "In".to_owned(),
                    values: Some(vec![description.value.clone()]),
                }]),
                ..v1::NodeSelectorTerm::default()
            },
        };
        v1::Affinity {
            node_affinity: Some(v1::NodeAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(
                    self.preferences.iter().map(prefer).collect(),
                ),
                ..v1::NodeAffinity::default()
            }),
            pod_affinity: Some(v1::PodAffinity {
                required_during_scheduling_ignored_during_execution: Some(required(
                    &self.affinities,
                )),
                preferred_during_scheduling_ignored_during_execution: Some(preferred(
                    &self.affinities,
                )),
            }),
            pod_anti_affinity: Some(v1::PodAntiAffinity {
                required_during_scheduling_ignored_during_execution: Some(required(
                    &self.anti_affinities,
                )),
                preferred_during_scheduling_ignored_during_execution: Some(preferred(
                    &self.anti_affinities,
                )),
            }),
        }
    }

    fn spread_constraints(&self) -> Vec<v1::TopologySpreadConstraint> {
        let app = self.labels.get("app").map(String::as_str).unwrap_or_default();
        let one = |description: &SpreadDescription| v1::TopologySpreadConstraint {
            label_selector: Some(selector(app)),
            max_skew: description.max_skew,
            topology_key: description.topology_key.clone(),
            when_unsatisfiable: if description.is_soft {
                "ScheduleAnyway"
            } else {
                "DoNotSchedule"
            }
            .to_owned(),
            ..v1::TopologySpreadConstraint::default()
        };
        self.spread.iter().map(one).collect()
    }
}

fn selector(app: &str) -> LabelSelector {
    let labels = [("app".to_owned(), app.to_owned())];
    LabelSelector { match_labels: Some(labels.into()), ..LabelSelector::default() }
}
