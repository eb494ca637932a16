//! Reference model of the rules, derived from the Kubernetes documentation. The model is slow and simple: it scans
//! all pods and hosts each time.

use std::collections::{BTreeMap, BTreeSet};

use berth_kubelet_admission::pod::{Pod, Resources};
use berth_placement::rules::NormalizedScores;
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorTerm, PodAffinityTerm, Taint, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::random::{GeneratedHost, GeneratedPod};

type Labels = BTreeMap<String, String>;

/// Hosts, pods and namespaces of a cluster.
#[derive(Default)]
pub(crate) struct ReferenceModel {
    /// True if the model has the scheduler bug `SchedulerBugs::negative_namespace_selectors`.
    pub(crate) has_scheduler_bug: bool,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) hosts: BTreeMap<String, GeneratedHost>,
    /// Pods by name, each with the name of its host.
    pub(crate) pods: BTreeMap<String, (GeneratedPod, String)>,
}

fn matches_requirement(
    key: &str,
    operator: &str,
    values: Option<&Vec<String>>,
    labels: &Labels,
) -> bool {
    let value = labels.get(key);
    let values = values.map(Vec::as_slice).unwrap_or_default();
    let number = |text: &String| text.parse::<i64>().ok();
    match operator {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => !value.is_some_and(|value| values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).is_some_and(|n| n > number(&values[0]).unwrap()),
        "Lt" => value.and_then(number).is_some_and(|n| n < number(&values[0]).unwrap()),
        other => panic!("unknown operator {other}"),
    }
}

fn matches_selector(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return false };
    let pairs = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    pairs.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions
            .into_iter()
            .all(|one| matches_requirement(&one.key, &one.operator, one.values.as_ref(), labels))
}

fn matches_node_term(term: &NodeSelectorTerm, host: &GeneratedHost) -> bool {
    let labels = host.labels();
    let name = host.node.metadata.name.clone().unwrap();
    let fields = Labels::from([("metadata.name".to_owned(), name)]);
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let by_fields = term.match_fields.as_deref().unwrap_or_default();
    let all = |all: &[k8s_openapi::api::core::v1::NodeSelectorRequirement], of: &Labels| {
        all.iter().all(|one| matches_requirement(&one.key, &one.operator, one.values.as_ref(), of))
    };
    !(expressions.is_empty() && by_fields.is_empty())
        && all(expressions, labels)
        && all(by_fields, &fields)
}

fn tolerates(pod: &GeneratedPod, taint: &Taint) -> bool {
    let tolerates = |one: &Toleration| {
        let same = |wanted: &Option<String>, found: &str| wanted.as_deref().unwrap_or("") == found;
        let any = |wanted: &Option<String>| wanted.as_deref().unwrap_or("").is_empty();
        (any(&one.effect) || same(&one.effect, &taint.effect))
            && (any(&one.key) || same(&one.key, &taint.key))
            && (one.operator.as_deref() == Some("Exists")
                || same(&one.value, taint.value.as_deref().unwrap_or("")))
    };
    pod.pod.spec.as_ref().unwrap().tolerations.iter().flatten().any(tolerates)
}

impl GeneratedHost {
    fn labels(&self) -> &Labels {
        self.node.metadata.labels.as_ref().unwrap()
    }

    fn taints(&self, hard: bool) -> impl Iterator<Item = &Taint> {
        let taints = self.node.spec.as_ref().unwrap().taints.iter().flatten();
        taints.filter(move |taint| (taint.effect != "PreferNoSchedule") == hard)
    }
}

impl GeneratedPod {
    fn labels(&self) -> &Labels {
        self.pod.metadata.labels.as_ref().unwrap()
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap()
    }

    fn affinity(&self) -> Affinity {
        self.pod.spec.as_ref().unwrap().affinity.clone().unwrap_or_default()
    }

    fn spread_constraints(&self, when: &str) -> Vec<TopologySpreadConstraint> {
        let all = self.pod.spec.as_ref().unwrap().topology_spread_constraints.iter().flatten();
        all.filter(|one| one.when_unsatisfiable == when).cloned().collect()
    }

    fn matches_node_affinity(&self, host: &GeneratedHost) -> bool {
        let spec = self.pod.spec.as_ref().unwrap();
        let selected = spec.node_selector.iter().flatten();
        let affinity = self.affinity().node_affinity.unwrap_or_default();
        selected.into_iter().all(|(key, value)| host.labels().get(key) == Some(value))
            && affinity.required_during_scheduling_ignored_during_execution.is_none_or(|it| {
                it.node_selector_terms.iter().any(|term| matches_node_term(term, host))
            })
    }

    fn required_terms(&self, anti: bool) -> Vec<PodAffinityTerm> {
        let affinity = self.affinity();
        let required = if anti {
            affinity
                .pod_anti_affinity
                .unwrap_or_default()
                .required_during_scheduling_ignored_during_execution
        } else {
            affinity
                .pod_affinity
                .unwrap_or_default()
                .required_during_scheduling_ignored_during_execution
        };
        required.unwrap_or_default()
    }

    /// Returns the preferred pod affinity and anti-affinity terms with their weights. Weights of anti-affinity terms
    /// are negative.
    fn preferred_terms(&self) -> Vec<(PodAffinityTerm, i64)> {
        let affinity = self.affinity();
        let near = affinity.pod_affinity.unwrap_or_default();
        let far = affinity.pod_anti_affinity.unwrap_or_default();
        let [near, far] = [
            near.preferred_during_scheduling_ignored_during_execution,
            far.preferred_during_scheduling_ignored_during_execution,
        ];
        let near =
            near.into_iter().flatten().map(|one| (one.pod_affinity_term, i64::from(one.weight)));
        let far =
            far.into_iter().flatten().map(|one| (one.pod_affinity_term, -i64::from(one.weight)));
        near.chain(far).collect()
    }

    fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }
}

/// Returns the amounts of all resources by resource name.
fn requests_by_name(resources: &Resources) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::from([
        ("cpu".to_owned(), resources.cpu_millis),
        ("memory".to_owned(), resources.memory),
    ]);
    all.extend(
        resources.hugepages.iter().map(|(size, bytes)| (format!("hugepages-{size}"), *bytes)),
    );
    all.extend(resources.extended.clone());
    all
}

/// Returns the effective requests of a pod by resource name: the maximum over time ("Resource sharing within
/// containers" in the documentation of sidecars).
fn effective_requests(pod: &Pod) -> BTreeMap<String, u64> {
    let mut names: BTreeSet<String> = requests_by_name(&pod.overhead).into_keys().collect();
    names.insert("hugepages-2Mi".to_owned());
    names.insert("example.com/gpu".to_owned());
    let of = |resources: &Resources, name: &str| {
        requests_by_name(resources).get(name).copied().unwrap_or(0)
    };
    let max_request = |name: &String| {
        let mut most = 0;
        let mut sidecars = 0;
        for init in &pod.init_containers {
            most = most.max(sidecars + of(&init.requests, name));
            if init.is_sidecar {
                sidecars += of(&init.requests, name);
            }
        }
        let running: u64 = pod.containers.iter().map(|one| of(&one.requests, name)).sum();
        most.max(running + sidecars) + of(&pod.overhead, name)
    };
    names.iter().map(|name| (name.clone(), max_request(name))).collect()
}

impl ReferenceModel {
    fn pods_on<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a GeneratedPod> {
        self.pods.values().filter(move |(_, at)| at == host).map(|(pod, _)| pod)
    }

    /// Returns true if an affinity term of the pod `owner` selects `pod`, which is to be scheduled.
    /// [`has_scheduler_bug`](Self::has_scheduler_bug) only has an effect here.
    fn selects_new_pod(
        &self,
        owner: &GeneratedPod,
        term: &PodAffinityTerm,
        pod: &GeneratedPod,
    ) -> bool {
        let everywhere = matches_selector(term.namespace_selector.as_ref(), &Labels::new());
        if self.has_scheduler_bug && everywhere {
            let namespace_selector = Some(LabelSelector::default());
            return self.selects(
                owner,
                &PodAffinityTerm { namespace_selector, ..term.clone() },
                pod,
            );
        }
        self.selects(owner, term, pod)
    }

    /// Returns true if an affinity term of the pod `owner` selects `pod`, which is on a host.
    fn selects(&self, owner: &GeneratedPod, term: &PodAffinityTerm, pod: &GeneratedPod) -> bool {
        let no_labels = Labels::new();
        let labels = self.namespaces.get(pod.namespace()).unwrap_or(&no_labels);
        let named = term.namespaces.as_deref().unwrap_or_default();
        let here = if named.is_empty() && term.namespace_selector.is_none() {
            owner.namespace() == pod.namespace()
        } else {
            named.iter().any(|name| name == pod.namespace())
                || matches_selector(term.namespace_selector.as_ref(), labels)
        };
        let own = |key: &String| owner.labels().get(key);
        let same = |key: &String| own(key).is_none_or(|value| pod.labels().get(key) == Some(value));
        let other =
            |key: &String| own(key).is_none_or(|value| pod.labels().get(key) != Some(value));
        here && matches_selector(term.label_selector.as_ref(), pod.labels())
            && term.match_label_keys.iter().flatten().all(same)
            && term.mismatch_label_keys.iter().flatten().all(other)
    }

    /// Returns the pods in the topology domain of a host; no pods if the host lacks the label `key`.
    fn pods_in_domain<'a>(
        &'a self,
        host: &'a GeneratedHost,
        key: &'a str,
    ) -> Vec<&'a GeneratedPod> {
        let Some(domain) = host.labels().get(key) else { return Vec::new() };
        let here =
            |(_, at): &&(GeneratedPod, String)| self.hosts[at].labels().get(key) == Some(domain);
        self.pods.values().filter(here).map(|(pod, _)| pod).collect()
    }

    /// Returns kube-scheduler's reasons why the pod is not allowed on the host; empty if the pod is allowed.
    pub(crate) fn rejection_reasons(&self, pod: &GeneratedPod, name: &str) -> Vec<String> {
        let host = &self.hosts[name];
        let one = |reason: &str| vec![reason.to_owned()];
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        if host.node.spec.as_ref().unwrap().unschedulable == Some(true) && !tolerates(pod, &cordon)
        {
            return one("node(s) were unschedulable");
        }
        if host.taints(true).any(|taint| !tolerates(pod, taint)) {
            return one("node(s) had untolerated taint(s)");
        }
        if !pod.matches_node_affinity(host) {
            return one("node(s) didn't match Pod's node affinity/selector");
        }
        let insufficient = self.insufficient_resources(pod, name, host);
        if !insufficient.is_empty() {
            return insufficient;
        }
        if let Some(reason) =
            self.spread_reason(pod, host).or_else(|| self.affinity_reason(pod, host))
        {
            return one(reason);
        }
        Vec::new()
    }

    fn insufficient_resources(
        &self,
        pod: &GeneratedPod,
        name: &str,
        host: &GeneratedHost,
    ) -> Vec<String> {
        let mut insufficient = Vec::new();
        if self.pods_on(name).count() as u64 >= host.pods_limit {
            insufficient.push("Too many pods".to_owned());
        }
        let all = requests_by_name(&host.allocatable);
        for (name_of, wanted) in effective_requests(&pod.containers) {
            let used: u64 =
                self.pods_on(name).map(|pod| effective_requests(&pod.containers)[&name_of]).sum();
            if wanted > all[&name_of].saturating_sub(used) {
                insufficient.push(format!("Insufficient {name_of}"));
            }
        }
        insufficient
    }

    fn affinity_reason(&self, pod: &GeneratedPod, host: &GeneratedHost) -> Option<&'static str> {
        let terms = pod.required_terms(false);
        let is_of_all =
            |other: &GeneratedPod| terms.iter().all(|term| self.selects_new_pod(pod, term, other));
        let has = |term: &PodAffinityTerm| {
            self.pods_in_domain(host, &term.topology_key).into_iter().any(is_of_all)
        };
        let is_in = |term: &PodAffinityTerm| host.labels().contains_key(&term.topology_key);
        let anywhere = self.pods.values().any(|(other, at)| {
            let labels = self.hosts[at].labels();
            is_of_all(other) && terms.iter().any(|term| labels.contains_key(&term.topology_key))
        });
        let is_first_of_group = !anywhere && is_of_all(pod);
        if !terms.iter().all(is_in) || !(terms.iter().all(has) || is_first_of_group) {
            return Some("node(s) didn't match pod affinity rules");
        }
        let has_excluded_pod = |term: &PodAffinityTerm| {
            self.pods_in_domain(host, &term.topology_key)
                .into_iter()
                .any(|one| self.selects_new_pod(pod, term, one))
        };
        if pod.required_terms(true).iter().any(has_excluded_pod) {
            return Some("node(s) didn't match pod anti-affinity rules");
        }
        let is_refused_by = |(other, at): &(GeneratedPod, String)| {
            let same = |term: &PodAffinityTerm| {
                let domain = host.labels().get(&term.topology_key);
                domain.is_some() && domain == self.hosts[at].labels().get(&term.topology_key)
            };
            other
                .required_terms(true)
                .iter()
                .any(|term| same(term) && self.selects(other, term, pod))
        };
        if self.pods.values().any(is_refused_by) {
            return Some("node(s) didn't satisfy existing pods anti-affinity rules");
        }
        None
    }

    /// Returns true if a spread constraint of a pod counts the pods of a host.
    fn counts_host(
        &self,
        pod: &GeneratedPod,
        constraint: &TopologySpreadConstraint,
        host: &GeneratedHost,
    ) -> bool {
        let honours =
            |policy: &Option<String>, absent: &str| policy.as_deref().unwrap_or(absent) == "Honor";
        (!honours(&constraint.node_affinity_policy, "Honor") || pod.matches_node_affinity(host))
            && (!honours(&constraint.node_taints_policy, "Ignore")
                || host.taints(true).all(|taint| tolerates(pod, taint)))
    }

    fn is_counted(
        pod: &GeneratedPod,
        constraint: &TopologySpreadConstraint,
        other: &GeneratedPod,
    ) -> bool {
        let same = |key: &String| {
            pod.labels().get(key).is_none_or(|value| other.labels().get(key) == Some(value))
        };
        pod.namespace() == other.namespace()
            && matches_selector(constraint.label_selector.as_ref(), other.labels())
            && constraint.match_label_keys.iter().flatten().all(same)
    }

    /// Returns the number of pods that a constraint counts, by topology domain.
    fn pods_by_domain(
        &self,
        pod: &GeneratedPod,
        all: &[TopologySpreadConstraint],
        constraint: &TopologySpreadConstraint,
    ) -> BTreeMap<String, i64> {
        let mut domains = BTreeMap::new();
        // kube-scheduler counts no pods if the selector is empty.
        let keys = |of: &TopologySpreadConstraint| {
            of.match_label_keys.iter().flatten().any(|key| pod.labels().contains_key(key))
        };
        let is_empty_selector =
            constraint.label_selector.as_ref().is_some_and(|s| *s == LabelSelector::default())
                && !keys(constraint);
        for (name, host) in &self.hosts {
            let has_keys =
                all.iter().all(|constraint| host.labels().contains_key(&constraint.topology_key));
            if has_keys && self.counts_host(pod, constraint, host) {
                let pods = self.pods_on(name).filter(|other| {
                    !is_empty_selector
                        && !other.is_terminating()
                        && Self::is_counted(pod, constraint, other)
                });
                let pods = i64::try_from(pods.count()).unwrap();
                *domains.entry(host.labels()[&constraint.topology_key].clone()).or_default() +=
                    pods;
            }
        }
        domains
    }

    fn spread_reason(&self, pod: &GeneratedPod, host: &GeneratedHost) -> Option<&'static str> {
        let all = pod.spread_constraints("DoNotSchedule");
        for constraint in &all {
            let Some(domain) = host.labels().get(&constraint.topology_key) else {
                return Some(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            };
            let domains = self.pods_by_domain(pod, &all, constraint);
            let enough =
                domains.len() >= usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap();
            let least = if enough { domains.values().copied().min().unwrap() } else { 0 };
            let itself = i64::from(Self::is_counted(pod, constraint, pod));
            let here = domains.get(domain).copied().unwrap_or(0);
            if here + itself - least > i64::from(constraint.max_skew) {
                return Some("node(s) didn't match pod topology spread constraints");
            }
        }
        None
    }

    /// Returns the scores of hosts on which the pod is allowed.
    pub(crate) fn scores(&self, pod: &GeneratedPod, names: &[String]) -> Vec<NormalizedScores> {
        let hosts: Vec<&GeneratedHost> = names.iter().map(|name| &self.hosts[name]).collect();
        let preferred = pod.affinity().node_affinity.unwrap_or_default();
        let preferred =
            preferred.preferred_during_scheduling_ignored_during_execution.unwrap_or_default();
        let labels: Vec<i64> = hosts
            .iter()
            .map(|host| {
                let matching =
                    preferred.iter().filter(|one| matches_node_term(&one.preference, host));
                matching.map(|one| i64::from(one.weight)).sum()
            })
            .collect();
        let taints: Vec<i64> = hosts
            .iter()
            .map(|host| host.taints(false).filter(|taint| !tolerates(pod, taint)).count())
            .map(|count| i64::try_from(count).unwrap())
            .collect();
        let near: Vec<i64> = hosts.iter().map(|host| self.affinity_score(pod, host)).collect();
        let spread_scores = self.spread_scores(pod, &hosts);
        let best = |all: &[i64]| all.iter().copied().max().unwrap_or(0);
        let (least, most) = (near.iter().copied().min().unwrap_or(0), best(&near));
        let known: Vec<i64> = spread_scores.iter().flatten().copied().collect();
        let (empty, full) = (known.iter().copied().min().unwrap_or(0), best(&known));
        let has_soft = !pod.spread_constraints("ScheduleAnyway").is_empty();
        (0..hosts.len())
            .map(|at| NormalizedScores {
                node_affinity: if best(&labels) == 0 {
                    0
                } else {
                    100 * labels[at] / best(&labels)
                },
                taints: if best(&taints) == 0 {
                    100
                } else {
                    100 - 100 * taints[at] / best(&taints)
                },
                pod_affinity: if most == least {
                    0
                } else {
                    (100.0 * ((near[at] - least) as f64 / (most - least) as f64)) as i64
                },
                spread: match spread_scores[at] {
                    Some(_) if has_soft && full == 0 => 100,
                    Some(here) if has_soft => 100 * (full + empty - here) / full,
                    _ => 0,
                },
            })
            .collect()
    }

    fn affinity_score(&self, pod: &GeneratedPod, host: &GeneratedHost) -> i64 {
        let mut sum = 0;
        for (term, weight) in pod.preferred_terms() {
            let near = self.pods_in_domain(host, &term.topology_key);
            let meant = near.into_iter().filter(|other| self.selects_new_pod(pod, &term, other));
            sum += weight * i64::try_from(meant.count()).unwrap();
        }
        for (other, _) in self.pods.values() {
            let required = other.required_terms(false).into_iter().map(|term| (term, 1));
            for (term, weight) in other.preferred_terms().into_iter().chain(required) {
                let near = self.pods_in_domain(host, &term.topology_key);
                let is_near = near.into_iter().any(|one| std::ptr::eq(one, other));
                if is_near && self.selects(other, &term, pod) {
                    sum += weight;
                }
            }
        }
        sum
    }

    fn spread_scores(&self, pod: &GeneratedPod, hosts: &[&GeneratedHost]) -> Vec<Option<i64>> {
        let all = pod.spread_constraints("ScheduleAnyway");
        let is_scored = |host: &GeneratedHost| {
            all.iter().all(|constraint| host.labels().contains_key(&constraint.topology_key))
        };
        let scored: Vec<&GeneratedHost> =
            hosts.iter().copied().filter(|host| is_scored(host)).collect();
        let spread_score = |host: &GeneratedHost| {
            let mut sum = 0.0;
            for constraint in &all {
                let domain = &host.labels()[&constraint.topology_key];
                let domains: BTreeSet<&String> =
                    scored.iter().map(|host| &host.labels()[&constraint.topology_key]).collect();
                let here =
                    self.pods_by_domain(pod, &all, constraint).get(domain).copied().unwrap_or(0);
                sum += here as f64 * (domains.len() as f64 + 2.0).ln()
                    + f64::from(constraint.max_skew - 1);
            }
            sum.round() as i64
        };
        hosts.iter().map(|host| is_scored(host).then(|| spread_score(host))).collect()
    }
}
