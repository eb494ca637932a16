//! Reference model of the rules, derived from the Kubernetes documentation. The model is slow and simple: it scans
//! all pods and hosts each time.

use std::collections::{BTreeMap, BTreeSet};

use berth_kubelet_admission::pod::{Pod, Resources};
use berth_placement::rules::Scores;
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorTerm, PodAffinityTerm, Taint, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::random::{MadeHost, MadePod};

type Labels = BTreeMap<String, String>;

/// All objects of the model.
#[derive(Default)]
pub(crate) struct World {
    /// True for the behaviour of `SchedulerBugs::negative_namespace_selectors`.
    pub(crate) is_flawed: bool,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) hosts: BTreeMap<String, MadeHost>,
    /// Pods with the names of their hosts.
    pub(crate) pods: BTreeMap<String, (MadePod, String)>,
}

fn requirement(key: &str, operator: &str, values: Option<&Vec<String>>, labels: &Labels) -> bool {
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
        other => panic!("operator {other}"),
    }
}

fn selector(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return false };
    let pairs = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    pairs.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions
            .into_iter()
            .all(|one| requirement(&one.key, &one.operator, one.values.as_ref(), labels))
}

fn node_term(term: &NodeSelectorTerm, host: &MadeHost) -> bool {
    let labels = host.labels();
    let name = host.node.metadata.name.clone().unwrap();
    let fields = Labels::from([("metadata.name".to_owned(), name)]);
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let by_fields = term.match_fields.as_deref().unwrap_or_default();
    let all = |all: &[k8s_openapi::api::core::v1::NodeSelectorRequirement], of: &Labels| {
        all.iter().all(|one| requirement(&one.key, &one.operator, one.values.as_ref(), of))
    };
    !(expressions.is_empty() && by_fields.is_empty())
        && all(expressions, labels)
        && all(by_fields, &fields)
}

fn tolerates(pod: &MadePod, taint: &Taint) -> bool {
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

impl MadeHost {
    fn labels(&self) -> &Labels {
        self.node.metadata.labels.as_ref().unwrap()
    }

    fn taints(&self, hard: bool) -> impl Iterator<Item = &Taint> {
        let taints = self.node.spec.as_ref().unwrap().taints.iter().flatten();
        taints.filter(move |taint| (taint.effect != "PreferNoSchedule") == hard)
    }
}

impl MadePod {
    fn labels(&self) -> &Labels {
        self.pod.metadata.labels.as_ref().unwrap()
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap()
    }

    fn affinity(&self) -> Affinity {
        self.pod.spec.as_ref().unwrap().affinity.clone().unwrap_or_default()
    }

    fn constraints(&self, when: &str) -> Vec<TopologySpreadConstraint> {
        let all = self.pod.spec.as_ref().unwrap().topology_spread_constraints.iter().flatten();
        all.filter(|one| one.when_unsatisfiable == when).cloned().collect()
    }

    fn right_host(&self, host: &MadeHost) -> bool {
        let spec = self.pod.spec.as_ref().unwrap();
        let selected = spec.node_selector.iter().flatten();
        let affinity = self.affinity().node_affinity.unwrap_or_default();
        selected.into_iter().all(|(key, value)| host.labels().get(key) == Some(value))
            && affinity
                .required_during_scheduling_ignored_during_execution
                .is_none_or(|it| it.node_selector_terms.iter().any(|term| node_term(term, host)))
    }

    fn required(&self, anti: bool) -> Vec<PodAffinityTerm> {
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

    /// Returns the preferred terms with their weights. The weight of anti-affinity is negative.
    fn preferred(&self) -> Vec<(PodAffinityTerm, i64)> {
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

/// Returns all requests by resource name.
fn named(of: &Resources) -> BTreeMap<String, u64> {
    let mut all =
        BTreeMap::from([("cpu".to_owned(), of.cpu_millis), ("memory".to_owned(), of.memory)]);
    all.extend(of.hugepages.iter().map(|(size, bytes)| (format!("hugepages-{size}"), *bytes)));
    all.extend(of.extended.clone());
    all
}

/// Returns the effective requests of a pod. According to "Resource sharing within containers" in the documentation
/// of sidecars, they are the maximum over time.
fn effective(pod: &Pod) -> BTreeMap<String, u64> {
    let mut names: BTreeSet<String> = named(&pod.overhead).into_keys().collect();
    names.insert("hugepages-2Mi".to_owned());
    names.insert("example.com/gpu".to_owned());
    let of = |resources: &Resources, name: &str| named(resources).get(name).copied().unwrap_or(0);
    let need = |name: &String| {
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
    names.iter().map(|name| (name.clone(), need(name))).collect()
}

impl World {
    fn on<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a MadePod> {
        self.pods.values().filter(move |(_, at)| at == host).map(|(pod, _)| pod)
    }

    /// Returns true if a term of the owner selects a pod that does not exist yet.
    fn new_means(&self, owner: &MadePod, term: &PodAffinityTerm, pod: &MadePod) -> bool {
        let everywhere = selector(term.namespace_selector.as_ref(), &Labels::new());
        if self.is_flawed && everywhere {
            let namespace_selector = Some(LabelSelector::default());
            return self.means(owner, &PodAffinityTerm { namespace_selector, ..term.clone() }, pod);
        }
        self.means(owner, term, pod)
    }

    /// Returns true if a term of the owner selects this pod.
    fn means(&self, owner: &MadePod, term: &PodAffinityTerm, pod: &MadePod) -> bool {
        let no_labels = Labels::new();
        let labels = self.namespaces.get(pod.namespace()).unwrap_or(&no_labels);
        let named = term.namespaces.as_deref().unwrap_or_default();
        let here = if named.is_empty() && term.namespace_selector.is_none() {
            owner.namespace() == pod.namespace()
        } else {
            named.iter().any(|name| name == pod.namespace())
                || selector(term.namespace_selector.as_ref(), labels)
        };
        let own = |key: &String| owner.labels().get(key);
        let same = |key: &String| own(key).is_none_or(|value| pod.labels().get(key) == Some(value));
        let other =
            |key: &String| own(key).is_none_or(|value| pod.labels().get(key) != Some(value));
        here && selector(term.label_selector.as_ref(), pod.labels())
            && term.match_label_keys.iter().flatten().all(same)
            && term.mismatch_label_keys.iter().flatten().all(other)
    }

    /// Returns the pods in the domain of a host; no pods if the host is in no domain.
    fn near<'a>(&'a self, host: &'a MadeHost, key: &'a str) -> Vec<&'a MadePod> {
        let Some(domain) = host.labels().get(key) else { return Vec::new() };
        let here = |(_, at): &&(MadePod, String)| self.hosts[at].labels().get(key) == Some(domain);
        self.pods.values().filter(here).map(|(pod, _)| pod).collect()
    }

    /// Returns kube-scheduler's reasons why the pod is not allowed on the host; empty if the pod is allowed.
    pub(crate) fn reasons(&self, pod: &MadePod, name: &str) -> Vec<String> {
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
        if !pod.right_host(host) {
            return one("node(s) didn't match Pod's node affinity/selector");
        }
        let lacking = self.lacking(pod, name, host);
        if !lacking.is_empty() {
            return lacking;
        }
        if let Some(reason) = self.spread_reason(pod, host).or_else(|| self.near_reason(pod, host))
        {
            return one(reason);
        }
        Vec::new()
    }

    fn lacking(&self, pod: &MadePod, name: &str, host: &MadeHost) -> Vec<String> {
        let mut lacking = Vec::new();
        if self.on(name).count() as u64 >= host.pods_limit {
            lacking.push("Too many pods".to_owned());
        }
        let all = named(&host.allocatable);
        for (name_of, wanted) in effective(&pod.containers) {
            let used: u64 = self.on(name).map(|pod| effective(&pod.containers)[&name_of]).sum();
            if wanted > all[&name_of].saturating_sub(used) {
                lacking.push(format!("Insufficient {name_of}"));
            }
        }
        lacking
    }

    fn near_reason(&self, pod: &MadePod, host: &MadeHost) -> Option<&'static str> {
        let terms = pod.required(false);
        let is_of_all = |other: &MadePod| terms.iter().all(|term| self.new_means(pod, term, other));
        let has =
            |term: &PodAffinityTerm| self.near(host, &term.topology_key).into_iter().any(is_of_all);
        let is_in = |term: &PodAffinityTerm| host.labels().contains_key(&term.topology_key);
        let anywhere = self.pods.values().any(|(other, at)| {
            let labels = self.hosts[at].labels();
            is_of_all(other) && terms.iter().any(|term| labels.contains_key(&term.topology_key))
        });
        let begins = !anywhere && is_of_all(pod);
        if !terms.iter().all(is_in) || !(terms.iter().all(has) || begins) {
            return Some("node(s) didn't match pod affinity rules");
        }
        let must_not = |term: &PodAffinityTerm| {
            self.near(host, &term.topology_key)
                .into_iter()
                .any(|one| self.new_means(pod, term, one))
        };
        if pod.required(true).iter().any(must_not) {
            return Some("node(s) didn't match pod anti-affinity rules");
        }
        let refuses = |(other, at): &(MadePod, String)| {
            let same = |term: &PodAffinityTerm| {
                let domain = host.labels().get(&term.topology_key);
                domain.is_some() && domain == self.hosts[at].labels().get(&term.topology_key)
            };
            other.required(true).iter().any(|term| same(term) && self.means(other, term, pod))
        };
        if self.pods.values().any(refuses) {
            return Some("node(s) didn't satisfy existing pods anti-affinity rules");
        }
        None
    }

    /// Returns true if a constraint counts the pods of this host.
    fn counts(&self, pod: &MadePod, one: &TopologySpreadConstraint, host: &MadeHost) -> bool {
        let honours =
            |policy: &Option<String>, absent: &str| policy.as_deref().unwrap_or(absent) == "Honor";
        (!honours(&one.node_affinity_policy, "Honor") || pod.right_host(host))
            && (!honours(&one.node_taints_policy, "Ignore")
                || host.taints(true).all(|taint| tolerates(pod, taint)))
    }

    fn is_spread(pod: &MadePod, one: &TopologySpreadConstraint, other: &MadePod) -> bool {
        let same = |key: &String| {
            pod.labels().get(key).is_none_or(|value| other.labels().get(key) == Some(value))
        };
        pod.namespace() == other.namespace()
            && selector(one.label_selector.as_ref(), other.labels())
            && one.match_label_keys.iter().flatten().all(same)
    }

    /// Returns the pods of each domain that a constraint counts.
    fn domains(
        &self,
        pod: &MadePod,
        all: &[TopologySpreadConstraint],
        one: &TopologySpreadConstraint,
    ) -> BTreeMap<String, i64> {
        let mut domains = BTreeMap::new();
        // The scheduler counts no pods for an empty selector.
        let keys = |of: &TopologySpreadConstraint| {
            of.match_label_keys.iter().flatten().any(|key| pod.labels().contains_key(key))
        };
        let is_everything =
            one.label_selector.as_ref().is_some_and(|s| *s == LabelSelector::default())
                && !keys(one);
        for (name, host) in &self.hosts {
            let has_keys = all.iter().all(|one| host.labels().contains_key(&one.topology_key));
            if has_keys && self.counts(pod, one, host) {
                let pods = self.on(name).filter(|other| {
                    !is_everything && !other.is_terminating() && Self::is_spread(pod, one, other)
                });
                let pods = i64::try_from(pods.count()).unwrap();
                *domains.entry(host.labels()[&one.topology_key].clone()).or_default() += pods;
            }
        }
        domains
    }

    fn spread_reason(&self, pod: &MadePod, host: &MadeHost) -> Option<&'static str> {
        let all = pod.constraints("DoNotSchedule");
        for one in &all {
            let Some(domain) = host.labels().get(&one.topology_key) else {
                return Some(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            };
            let domains = self.domains(pod, &all, one);
            let enough = domains.len() >= usize::try_from(one.min_domains.unwrap_or(1)).unwrap();
            let least = if enough { domains.values().copied().min().unwrap() } else { 0 };
            let itself = i64::from(Self::is_spread(pod, one, pod));
            let here = domains.get(domain).copied().unwrap_or(0);
            if here + itself - least > i64::from(one.max_skew) {
                return Some("node(s) didn't match pod topology spread constraints");
            }
        }
        None
    }

    /// Returns the scores of hosts on which the pod is allowed.
    pub(crate) fn scores(&self, pod: &MadePod, names: &[String]) -> Vec<Scores> {
        let hosts: Vec<&MadeHost> = names.iter().map(|name| &self.hosts[name]).collect();
        let preferred = pod.affinity().node_affinity.unwrap_or_default();
        let preferred =
            preferred.preferred_during_scheduling_ignored_during_execution.unwrap_or_default();
        let labels: Vec<i64> = hosts
            .iter()
            .map(|host| {
                let matching = preferred.iter().filter(|one| node_term(&one.preference, host));
                matching.map(|one| i64::from(one.weight)).sum()
            })
            .collect();
        let taints: Vec<i64> = hosts
            .iter()
            .map(|host| host.taints(false).filter(|taint| !tolerates(pod, taint)).count())
            .map(|count| i64::try_from(count).unwrap())
            .collect();
        let near: Vec<i64> = hosts.iter().map(|host| self.liking(pod, host)).collect();
        let crowds = self.crowds(pod, &hosts);
        let best = |all: &[i64]| all.iter().copied().max().unwrap_or(0);
        let (least, most) = (near.iter().copied().min().unwrap_or(0), best(&near));
        let known: Vec<i64> = crowds.iter().flatten().copied().collect();
        let (empty, full) = (known.iter().copied().min().unwrap_or(0), best(&known));
        let has_soft = !pod.constraints("ScheduleAnyway").is_empty();
        (0..hosts.len())
            .map(|at| Scores {
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
                spread: match crowds[at] {
                    Some(_) if has_soft && full == 0 => 100,
                    Some(here) if has_soft => 100 * (full + empty - here) / full,
                    _ => 0,
                },
            })
            .collect()
    }

    fn liking(&self, pod: &MadePod, host: &MadeHost) -> i64 {
        let mut sum = 0;
        for (term, weight) in pod.preferred() {
            let near = self.near(host, &term.topology_key);
            let meant = near.into_iter().filter(|other| self.new_means(pod, &term, other));
            sum += weight * i64::try_from(meant.count()).unwrap();
        }
        for (other, _) in self.pods.values() {
            let required = other.required(false).into_iter().map(|term| (term, 1));
            for (term, weight) in other.preferred().into_iter().chain(required) {
                let near = self.near(host, &term.topology_key);
                let is_near = near.into_iter().any(|one| std::ptr::eq(one, other));
                if is_near && self.means(other, &term, pod) {
                    sum += weight;
                }
            }
        }
        sum
    }

    fn crowds(&self, pod: &MadePod, hosts: &[&MadeHost]) -> Vec<Option<i64>> {
        let all = pod.constraints("ScheduleAnyway");
        let is_scored =
            |host: &MadeHost| all.iter().all(|one| host.labels().contains_key(&one.topology_key));
        let scored: Vec<&MadeHost> = hosts.iter().copied().filter(|host| is_scored(host)).collect();
        let crowd = |host: &MadeHost| {
            let mut sum = 0.0;
            for one in &all {
                let domain = &host.labels()[&one.topology_key];
                let domains: BTreeSet<&String> =
                    scored.iter().map(|host| &host.labels()[&one.topology_key]).collect();
                let here = self.domains(pod, &all, one).get(domain).copied().unwrap_or(0);
                sum +=
                    here as f64 * (domains.len() as f64 + 2.0).ln() + f64::from(one.max_skew - 1);
            }
            sum.round() as i64
        };
        hosts.iter().map(|host| is_scored(host).then(|| crowd(host))).collect()
    }
}
