//! Cache of compiled templates and containers. Nine of ten pods have the same source as the previous pod, because
//! they are created from the same template.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};

use super::compiled::{PodRequests, Template};
use super::parts::PodSpecParts;
use super::resource_fit::Amounts;
use berth_kubelet_admission::pod::{Container, Pod};

/// Number of slots of a cache. A new entry replaces the previous entry of its slot, so that the memory is bounded.
const SLOT_COUNT: usize = 4096;

/// Entries in slots that are selected by the hash of the entry's source.
#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Option<(u64, T)>>,
}

impl<T> Slots<T> {
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

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

/// The parts of a pod from which a [`Template`] is compiled.
#[derive(Debug)]
struct Source {
    namespace: String,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
    tolerations: Vec<Toleration>,
    spread: Vec<TopologySpreadConstraint>,
}

/// Cached templates and cached containers with requests.
#[derive(Debug, Default)]
pub(super) struct CompileCache {
    templates: Slots<(Source, Arc<Template>)>,
    pod_requests: Slots<PodRequests>,
}

impl CompileCache {
    /// Returns the hash of the template's source, and the template if it is cached.
    pub(super) fn template(&self, parts: &PodSpecParts<'_>) -> (u64, Option<&Arc<Template>>) {
        let hash = hash_of_rules(parts);
        let found = self.templates.find(hash, |(source, _)| source.matches_parts(parts));
        (hash, found.map(|(_, template)| template))
    }

    /// Caches a template, unless its compilation depends on the labels of the pod.
    pub(super) fn store_template(
        &mut self,
        number: u64,
        parts: &PodSpecParts<'_>,
        template: &Arc<Template>,
    ) {
        if !uses_own_labels(parts) {
            self.templates.store(number, (Source::from_parts(parts), Arc::clone(template)));
        }
    }

    /// Returns the containers of a pod with the amounts that the scheduler counts. `amounts` computes the amounts if
    /// the containers are not cached.
    pub(super) fn pod_requests(
        &mut self,
        pod: &Pod,
        amounts: impl FnOnce(&Pod) -> Amounts,
    ) -> PodRequests {
        let hash = hash_of_requests(pod);
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
            PodRequests { amounts: Arc::new(amounts(&pod)), pod, requests_hash: hash };
        self.pod_requests.store(hash, pod_requests.clone());
        pod_requests
    }
}

impl Source {
    fn from_parts(parts: &PodSpecParts<'_>) -> Self {
        Self {
            namespace: parts.namespace.to_owned(),
            node_selector: parts.node_selector.cloned(),
            affinity: parts.affinity.cloned(),
            tolerations: parts.tolerations.to_vec(),
            spread: parts.spread.to_vec(),
        }
    }

    fn matches_parts(&self, parts: &PodSpecParts<'_>) -> bool {
        self.namespace == parts.namespace
            && self.node_selector.as_ref() == parts.node_selector
            && self.affinity.as_ref() == parts.affinity
            && self.tolerations == parts.tolerations
            && self.spread == parts.spread
    }
}

/// Returns true if the compiled rules depend on the pod's own labels: `matchLabelKeys` and `mismatchLabelKeys` build
/// a selector from these labels (KEP-3243, KEP-3633).
fn uses_own_labels(parts: &PodSpecParts<'_>) -> bool {
    let spread_uses_labels = parts.spread.iter().any(|one| one.match_label_keys.is_some());
    let pod_affinity = parts.affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let pod_anti_affinity = parts.affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
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

/// Returns a hash of those parts of the source that distinguish most templates. All parts are compared for equality
/// afterwards.
fn hash_of_rules(parts: &PodSpecParts<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.namespace.hash(&mut hasher);
    parts.node_selector.hash(&mut hasher);
    for one in parts.tolerations {
        (&one.key, &one.value, &one.effect).hash(&mut hasher);
    }
    for one in parts.spread {
        one.topology_key.hash(&mut hasher);
        one.label_selector.as_ref().map(|selector| &selector.match_labels).hash(&mut hasher);
    }
    if let Some(affinity) = parts.affinity {
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
fn hash_of_requests(pod: &Pod) -> u64 {
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
    use crate::rules::{Counts, Rules};
    use berth_kubelet_admission::pod::Resources;

    #[test]
    fn only_equal_sources_share_a_template() {
        let mut counts = Counts::new();
        let mut compile = |parts: &PodSpecParts<'_>| Rules::compile(&mut counts, parts).unwrap();
        let text = |key: &str| BTreeMap::from([(key.to_owned(), "x".to_owned())]);
        let (a, b) = (text("a"), text("b"));
        let pod = |uid: &str, limit: u64| {
            let limits = Resources { cpu_millis: limit, ..Resources::default() };
            let containers = vec![Container { limits, ..Container::default() }];
            Pod { uid: uid.to_owned(), containers, ..Pod::default() }
        };
        let (first, second, larger) = (pod("1", 1), pod("2", 1), pod("3", 2));
        let plain = PodSpecParts {
            namespace: "n",
            labels: Some(&a),
            is_terminating: false,
            node_selector: Some(&a),
            affinity: None,
            tolerations: &[],
            spread: &[],
            containers: &first,
        };
        let one = compile(&plain);
        let same = compile(&PodSpecParts { labels: Some(&b), containers: &second, ..plain });
        assert!(Arc::ptr_eq(&one.template, &same.template));
        assert!(Arc::ptr_eq(one.containers(), same.containers()));
        assert_ne!(one.labels, same.labels);

        let other = compile(&PodSpecParts { containers: &larger, ..plain });
        assert_eq!(other.hash_of_requests(), one.hash_of_requests());
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
        for parts in [
            PodSpecParts { namespace: "m", ..plain },
            PodSpecParts { node_selector: Some(&b), ..plain },
            PodSpecParts { node_selector: None, ..plain },
            PodSpecParts { tolerations: &tolerations, ..plain },
            PodSpecParts { affinity: Some(&affinity), ..plain },
            PodSpecParts { spread: &spread, ..plain },
        ] {
            let [new, again] = [compile(&parts), compile(&parts)];
            assert!(!Arc::ptr_eq(&one.template, &new.template), "{parts:?}");
            assert!(Arc::ptr_eq(&again.template, &new.template), "{parts:?}");
        }
        spread[0].match_label_keys = Some(vec!["a".to_owned()]);
        let parts = PodSpecParts { spread: &spread, ..plain };
        let [new, again] = [compile(&parts), compile(&parts)];
        assert!(!Arc::ptr_eq(&again.template, &new.template));
    }
}
