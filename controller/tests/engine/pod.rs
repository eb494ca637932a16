//! Short description of a pod, converted to a request of the engine.

use std::collections::BTreeMap;

use berth_api::{Class, PageSize};
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_placement::engine::{Engine, NumaGuestMemory, Request, VmRequirements};
use berth_placement::rules::{Counts, PodSpecParts, Rules};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use super::host::{KVM, VF};

/// Description of a pod. With `cpus`, the pod is Guaranteed and has exclusive CPUs; otherwise it shares CPUs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PodForm {
    /// Name and UID of the pod.
    pub(crate) name: String,
    /// True if the pod is not a VM.
    #[serde(rename = "plain")]
    pub(crate) plain: bool,
    /// True for a VM that runs without KVM.
    #[serde(rename = "emulated")]
    pub(crate) emulated: bool,
    pub(crate) cpus: u64,
    /// CPU request in millicores, if the pod shares CPUs.
    pub(crate) millis: u64,
    /// GiB of memory without huge pages; 1 by default.
    pub(crate) memory: Option<u64>,
    /// GiB of memory in pages of 1 GiB.
    #[serde(rename = "huge")]
    pub(crate) huge: u64,
    /// MiB of memory in pages of 2 MiB.
    #[serde(rename = "small")]
    pub(crate) small: u64,
    /// Number of virtual functions of the first container.
    pub(crate) vfs: u64,
    /// Additional containers.
    #[serde(rename = "beside")]
    pub(crate) beside: Vec<ContainerForm>,
    pub(crate) class: Class,
    /// True for `guestMappingPassthrough`.
    #[serde(rename = "numa")]
    pub(crate) numa: bool,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) selector: BTreeMap<String, String>,
    /// Keys of tolerated taints, with any value and effect.
    #[serde(rename = "tolerates")]
    pub(crate) tolerates: Vec<String>,
    #[serde(rename = "together")]
    pub(crate) together: Vec<AffinityForm>,
    #[serde(rename = "apart")]
    pub(crate) apart: Vec<AffinityForm>,
    pub(crate) spread: Vec<SpreadForm>,
    #[serde(rename = "prefer")]
    pub(crate) prefer: Vec<PreferForm>,
    #[serde(rename = "terminating")]
    pub(crate) terminating: bool,
}

/// An additional container of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ContainerForm {
    pub(crate) millis: u64,
    /// Memory in MiB.
    pub(crate) memory: u64,
    /// True for an init container.
    #[serde(rename = "first")]
    pub(crate) first: bool,
    /// True for a sidecar.
    #[serde(rename = "sidecar")]
    pub(crate) sidecar: bool,
}

/// Affinity to pods whose label `app` has this value; required, unless it has a weight.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct AffinityForm {
    pub(crate) app: String,
    #[serde(rename = "by")]
    pub(crate) by: String,
    #[serde(default)]
    pub(crate) weight: Option<i32>,
}

/// Spread constraint over the values of a label, for pods of the same `app`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct SpreadForm {
    #[serde(rename = "by")]
    pub(crate) by: String,
    #[serde(rename = "max")]
    pub(crate) max: i32,
    #[serde(default, rename = "soft")]
    pub(crate) soft: bool,
}

/// Preferred node affinity of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PreferForm {
    pub(crate) label: String,
    pub(crate) value: String,
    pub(crate) weight: i32,
}

/// A pod, converted to the types that the controller reads.
#[derive(Clone, Debug)]
pub(crate) struct BuiltPod {
    pub(crate) pod: Pod,
    pub(crate) needs: VmRequirements,
    labels: BTreeMap<String, String>,
    selector: BTreeMap<String, String>,
    affinity: v1::Affinity,
    tolerations: Vec<v1::Toleration>,
    spread: Vec<v1::TopologySpreadConstraint>,
    is_terminating: bool,
}

impl BuiltPod {
    fn parts(&self) -> PodSpecParts<'_> {
        PodSpecParts {
            namespace: "default",
            labels: Some(&self.labels),
            is_terminating: self.is_terminating,
            node_selector: Some(&self.selector),
            affinity: Some(&self.affinity),
            tolerations: &self.tolerations,
            spread: &self.spread,
            containers: &self.pod,
        }
    }

    pub(crate) fn request(&self, engine: &mut Engine) -> Request {
        engine.compile_request(&self.parts(), self.needs.clone()).expect("the rules are valid")
    }

    pub(crate) fn rules(&self, counts: &mut Counts) -> Rules {
        Rules::compile(counts, &self.parts()).expect("the rules are valid")
    }
}

impl PodForm {
    pub(crate) fn build(&self) -> BuiltPod {
        BuiltPod {
            pod: self.pod(),
            needs: VmRequirements {
                is_vm: !self.plain,
                is_emulated: self.emulated,
                is_pinned: !self.plain && self.cpus > 0,
                class: self.class,
                numa: (self.numa && self.huge > 0).then_some(NumaGuestMemory {
                    memory: self.huge << 30,
                    page_size: PageSize::GIB_1,
                }),
            },
            labels: self.labels.clone(),
            selector: self.selector.clone(),
            affinity: self.affinity(),
            tolerations: self
                .tolerates
                .iter()
                .map(|key| v1::Toleration {
                    key: Some(key.clone()),
                    operator: Some("Exists".to_owned()),
                    ..v1::Toleration::default()
                })
                .collect(),
            spread: self.spread(),
            is_terminating: self.terminating,
        }
    }

    fn pod(&self) -> Pod {
        let pages = [(PageSize::GIB_1, self.huge << 30), (PageSize::MIB_2, self.small << 20)];
        let kvm = (!self.plain && !self.emulated).then(|| (KVM.to_owned(), 1));
        let vfs = (self.vfs > 0).then(|| (VF.to_owned(), self.vfs));
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
        let beside = |(at, form): (usize, &ContainerForm)| {
            let own = Resources {
                cpu_millis: form.millis,
                memory: form.memory << 20,
                ..Resources::default()
            };
            let name = format!("beside-{at}");
            Container { name, is_sidecar: form.sidecar, requests: own.clone(), limits: own }
        };
        let is_first = |(_, form): &(usize, &ContainerForm)| form.first || form.sidecar;
        let all = || self.beside.iter().enumerate();
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
        let term = |near: &AffinityForm| v1::PodAffinityTerm {
            label_selector: Some(selector(&near.app)),
            topology_key: near.by.clone(),
            ..v1::PodAffinityTerm::default()
        };
        let required = |all: &[AffinityForm]| {
            all.iter().filter(|near| near.weight.is_none()).map(term).collect::<Vec<_>>()
        };
        let preferred = |all: &[AffinityForm]| {
            let weighted = all.iter().filter_map(|near| {
                Some(v1::WeightedPodAffinityTerm {
                    weight: near.weight?,
                    pod_affinity_term: term(near),
                })
            });
            weighted.collect::<Vec<_>>()
        };
        let prefer = |form: &PreferForm| v1::PreferredSchedulingTerm {
            weight: form.weight,
            preference: v1::NodeSelectorTerm {
                match_expressions: Some(vec![v1::NodeSelectorRequirement {
                    key: form.label.clone(),
                    operator: "In".to_owned(),
                    values: Some(vec![form.value.clone()]),
                }]),
                ..v1::NodeSelectorTerm::default()
            },
        };
        v1::Affinity {
            node_affinity: Some(v1::NodeAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(
                    self.prefer.iter().map(prefer).collect(),
                ),
                ..v1::NodeAffinity::default()
            }),
            pod_affinity: Some(v1::PodAffinity {
                required_during_scheduling_ignored_during_execution: Some(required(&self.together)),
                preferred_during_scheduling_ignored_during_execution: Some(preferred(
                    &self.together,
                )),
            }),
            pod_anti_affinity: Some(v1::PodAntiAffinity {
                required_during_scheduling_ignored_during_execution: Some(required(&self.apart)),
                preferred_during_scheduling_ignored_during_execution: Some(preferred(&self.apart)),
            }),
        }
    }

    fn spread(&self) -> Vec<v1::TopologySpreadConstraint> {
        let app = self.labels.get("app").map(String::as_str).unwrap_or_default();
        let one = |form: &SpreadForm| v1::TopologySpreadConstraint {
            label_selector: Some(selector(app)),
            max_skew: form.max,
            topology_key: form.by.clone(),
            when_unsatisfiable: if form.soft { "ScheduleAnyway" } else { "DoNotSchedule" }
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
