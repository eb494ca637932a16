//! Cache of compiled templates and of the requests of containers. Nine of ten pods have the same source as the previous
//! pod, because they are created from the same template.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};

use super::compiled::{CompiledTemplate, PodRequests};
use super::object_fields::PodFields;
use super::resource_fit::Amounts;
use berth_kubelet_admission::pod::{Container, Pod};

/// Number of slots of a cache. A new entry replaces the previous entry in its slot, which bounds the memory.
const SLOT_COUNT: usize = 4096;

/// Cache in which the hash of an entry's source selects the entry's slot.
#[derive(Debug)]
struct SlotCache<T> {
    slots: Vec<Option<(u64, T)>>,
}

impl<T> SlotCache<T> {
    fn find(&self, hash: u64, is_match: impl Fn(&T) -> bool) -> Option<&T> {
        let (known, value) = self.slots.get(slot_index(hash))?.as_ref()?;
        (*known == hash && is_match(value)).then_some(value)
    }

    fn store(&mut self, hash: u64, value: T) {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOT_COUNT, || None);
        }
        if let Some(slot) = self.slots.get_mut(slot_index(hash)) {
            *slot = Some((hash, value));
        }
    }
}

fn slot_index(hash: u64) -> usize {
    usize::try_from(hash % SLOT_COUNT as u64).unwrap_or_default()
}

impl<T> Default for SlotCache<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

/// The parts of a pod from which a [`CompiledTemplate`] is compiled.
#[derive(Debug)]
struct TemplateSource {
    namespace: String,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
    tolerations: Vec<Toleration>,
    spread: Vec<TopologySpreadConstraint>,
}

/// Cached compiled templates, and cached requests of containers.
#[derive(Debug, Default)]
pub(super) struct CompileCache {
    templates: SlotCache<(TemplateSource, Arc<CompiledTemplate>)>,
    pod_requests: SlotCache<PodRequests>,
}

impl CompileCache {
    /// Returns the hash of the template's source, and the template if it is cached.
    pub(super) fn find_template(
        &self,
        fields: &PodFields<'_>,
    ) -> (u64, Option<&Arc<CompiledTemplate>>) {
        let hash = hash_rules(fields);
        let found = self.templates.find(hash, |(source, _)| source.matches_fields(fields));
        (hash, found.map(|(_, template)| template))
    }

    /// Caches a template, unless its compilation depends on the labels of the pod.
    pub(super) fn store_template(
        &mut self,
        hash: u64,
        fields: &PodFields<'_>,
        template: &Arc<CompiledTemplate>,
    ) {
        if !uses_own_labels(fields) {
            self.templates.store(hash, (TemplateSource::from_fields(fields), Arc::clone(template)));
        }
    }

    /// Returns the containers of a pod, with the amounts that the scheduler counts for them. `amounts` is called to
    /// compute these amounts if they are not cached.
    pub(super) fn find_or_compute_requests(
        &mut self,
        pod: &Pod,
        compute_amounts: impl FnOnce(&Pod) -> Amounts,
    ) -> PodRequests {
        let hash = hash_requests(pod);
        let is_match = |known: &PodRequests| {
            known.pod.containers == pod.containers
                && known.pod.init_containers == pod.init_containers
                && known.pod.overhead == pod.overhead
        };
        if let Some(known) = self.pod_requests.find(hash, is_match) {
            return known.clone();
        }
        let pod = Arc::new(Pod {
            uid: String::new(),
            init_containers: pod.init_containers.clone(),
            containers: pod.containers.clone(),
            overhead: pod.overhead.clone(),
        });
        let pod_requests =
            PodRequests { amounts: Arc::new(compute_amounts(&pod)), pod, requests_hash: hash };
        self.pod_requests.store(hash, pod_requests.clone());
        pod_requests
    }
}

impl TemplateSource {
    fn from_fields(fields: &PodFields<'_>) -> Self {
        Self {
            namespace: fields.namespace.to_owned(),
            node_selector: fields.node_selector.cloned(),
            affinity: fields.affinity.cloned(),
            tolerations: fields.tolerations.to_vec(),
            spread: fields.spread_constraints.to_vec(),
        }
    }

    fn matches_fields(&self, fields: &PodFields<'_>) -> bool {
        self.namespace == fields.namespace
            && self.node_selector.as_ref() == fields.node_selector
            && self.affinity.as_ref() == fields.affinity
            && self.tolerations == fields.tolerations
            && self.spread == fields.spread_constraints
    }
}

/// Returns true if the compiled rules depend on the pod's own labels: `matchLabelKeys` and `mismatchLabelKeys` build
/// a selector from these labels (KEP-3243, KEP-3633).
fn uses_own_labels(fields: &PodFields<'_>) -> bool {
    let spread_uses_labels =
        fields.spread_constraints.iter().any(|one| one.match_label_keys.is_some());
    let pod_affinity = fields.affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let pod_anti_affinity =
        fields.affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let required = [
        pod_affinity
            .and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref()),
        pod_anti_affinity
            .and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let preferred = [
        pod_affinity
            .and_then(|one| one.preferred_during_scheduling_ignored_during_execution.as_ref()),
        pod_anti_affinity
            .and_then(|one| one.preferred_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let preferred = preferred.into_iter().flatten().flatten().map(|one| &one.pod_affinity_term);
    let mut terms = required.into_iter().flatten().flatten().chain(preferred);
    spread_uses_labels
        || terms.any(|term| term.match_label_keys.is_some() || term.mismatch_label_keys.is_some())
}

/// Returns a hash of the parts of the source that distinguish most templates. Entries with equal hashes are then
/// compared completely.
fn hash_rules(fields: &PodFields<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    fields.namespace.hash(&mut hasher);
    fields.node_selector.hash(&mut hasher);
    for one in fields.tolerations {
        (&one.key, &one.value, &one.effect).hash(&mut hasher);
    }
    for one in fields.spread_constraints {
        one.topology_key.hash(&mut hasher);
        one.label_selector.as_ref().map(|selector| &selector.match_labels).hash(&mut hasher);
    }
    if let Some(affinity) = fields.affinity {
        let nodes = affinity.node_affinity.as_ref();
        let required = nodes
            .and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref())
            .and_then(|required| required.node_selector_terms.first()?.match_expressions.as_ref());
        for one in required.into_iter().flatten() {
            (&one.key, &one.values).hash(&mut hasher);
        }
        let preferred =
            nodes.and_then(|one| one.preferred_during_scheduling_ignored_during_execution.as_ref());
        for one in preferred.into_iter().flatten() {
            one.weight.hash(&mut hasher);
        }
        let is_some = (affinity.pod_affinity.is_some(), affinity.pod_anti_affinity.is_some());
        is_some.hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns a hash of the requests of the pod's containers. Limits are left out because they nearly always equal the
/// requests.
fn hash_requests(pod: &Pod) -> u64 {
    let mut hasher = DefaultHasher::new();
    let hash_containers = |containers: &[Container], hasher: &mut DefaultHasher| {
        containers.len().hash(hasher);
        for container in containers {
            container.requests.hash(hasher);
        }
    };
    hash_containers(&pod.init_containers, &mut hasher);
    hash_containers(&pod.containers, &mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;
    use crate::rules::{ClusterState, Rules};
    use berth_kubelet_admission::pod::Resources;

    #[test]
    fn only_equal_sources_share_a_template() {
        let mut cluster = ClusterState::new();
        let mut compile = |fields: &PodFields<'_>| Rules::compile(&mut cluster, fields).unwrap();
        let text = |key: &str| BTreeMap::from([(key.to_owned(), "x".to_owned())]);
        let (a, b) = (text("a"), text("b"));
        let pod = |uid: &str, limit: u64| {
            let limits = Resources { cpu_millis: limit, ..Resources::default() };
            let containers = vec![Container { limits, ..Container::default() }];
            Pod { uid: uid.to_owned(), containers, ..Pod::default() }
        };
        let (first, second, larger) = (pod("1", 1), pod("2", 1), pod("3", 2));
        let plain = PodFields {
            namespace: "n",
            labels: Some(&a),
            is_terminating: false,
            node_selector: Some(&a),
            affinity: None,
            tolerations: &[],
            spread_constraints: &[],
            containers: &first,
            claims: &[],
        };
        let one = compile(&plain);
        let same = compile(&PodFields { labels: Some(&b), containers: &second, ..plain });
        assert!(Arc::ptr_eq(&one.template, &same.template));
        assert!(Arc::ptr_eq(one.containers(), same.containers()));
        assert_ne!(one.labels, same.labels);

        let other = compile(&PodFields { containers: &larger, ..plain });
        assert_eq!(other.requests_hash(), one.requests_hash());
        assert!(!Arc::ptr_eq(one.containers(), other.containers()));

        let tolerations =
            [Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }];
        let affinity = Affinity::default();
        let mut spread = [TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "zone".to_owned(),
            when_unsatisfiable: "DoNotSchedule".to_owned(),
            label_selector: Some(LabelSelector::default()),
            ..TopologySpreadConstraint::default()
        }];
        for fields in [
            PodFields { namespace: "m", ..plain },
            PodFields { node_selector: Some(&b), ..plain },
            PodFields { node_selector: None, ..plain },
            PodFields { tolerations: &tolerations, ..plain },
            PodFields { affinity: Some(&affinity), ..plain },
            PodFields { spread_constraints: &spread, ..plain },
        ] {
            let [new, again] = [compile(&fields), compile(&fields)];
            assert!(!Arc::ptr_eq(&one.template, &new.template), "{fields:?}");
            assert!(Arc::ptr_eq(&again.template, &new.template), "{fields:?}");
        }
        spread[0].match_label_keys = Some(vec!["a".to_owned()]);
        let fields = PodFields { spread_constraints: &spread, ..plain };
        let [new, again] = [compile(&fields), compile(&fields)];
        assert!(!Arc::ptr_eq(&again.template, &new.template));
    }
}
