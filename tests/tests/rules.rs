//! Tests of the stock scheduler's rules in `crates/placement/src/rules` against the real kube-scheduler.
//!
//! Random pods with random rules are created one at a time; the Nodes have no kubelets. The scheduler must bind a
//! pod to a host that Berth's rules allow and to which Berth's scores give the best value. If the scheduler finds
//! no host, it must count the same reasons as Berth's rules.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::panic,
    reason = "tests fail by panicking and compute statistics"
)]

#[path = "../../controller/tests/rules/random.rs"]
mod random;
#[path = "../../controller/tests/rules/reference_model.rs"]
mod reference_model;
#[path = "rules/scheduler_bug.rs"]
mod scheduler_bug;
#[path = "rules/scheduling_client.rs"]
mod scheduling_client;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use berth_placement::rules::{
    ClusterState, HostId, NodeFields, NormalizedScores, PodFields, PodFilter, PodId, Rules,
    SchedulerBugs, Scorer,
};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, Version};
use random::{GeneratedHost, GeneratedPod, GeneratorOptions, NAMESPACES, RandomGenerator};
use reference_model::ReferenceModel;
use scheduling_client::SchedulingClient;
use serde_json::{Value, json};

/// Difference between Berth's rules and kube-scheduler's answer.
#[derive(Debug)]
struct Difference(String);

impl From<String> for Difference {
    fn from(text: String) -> Self {
        Self(text)
    }
}

const HOST_COUNT: u64 = 24;
const POD_COUNT: u64 = 320;
/// First Kubernetes version with the tested scores and messages.
const MIN_VERSION: Version = Version(1, 34);

struct Testbed {
    client: SchedulingClient,
    version: Version,
    reference_model: ReferenceModel,
    cluster_state: ClusterState,
    pod_ids: BTreeMap<String, PodId>,
}

#[derive(Default, Debug)]
struct Coverage {
    bound: usize,
    /// Pods with more than one possible host and different scores of these hosts.
    scored: usize,
    unschedulable: usize,
    retries: usize,
    reasons: BTreeMap<String, usize>,
}

#[test]
fn rules_agree_with_kube_scheduler() {
    let mut plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    let version = plane.version();
    let current = plane.supports(
        "scores, namespaceSelector, matchLabelKeys, minDomains, inclusion policies, sidecars, spread by a selector of everything",
        MIN_VERSION,
    );
    if current {
        let file = plane.folder().join("scheduler.json");
        fs::write(&file, configuration(&plane).to_string()).unwrap();
        plane.start_scheduler(Some(&file)).unwrap();
    } else {
        plane.start_scheduler(None).unwrap();
    }
    let mut generator = RandomGenerator(20_261_122);
    let client = SchedulingClient::new(&plane);
    let has_bug = current && scheduler_bug::has_namespace_selector_bug(&client);
    eprintln!("Kubernetes {version} has the bug of NotIn in namespaceSelector: {has_bug}");
    let mut bed = Testbed {
        client,
        version,
        reference_model: ReferenceModel { has_scheduler_bug: has_bug, ..ReferenceModel::default() },
        cluster_state: ClusterState::with_scheduler_bugs(SchedulerBugs {
            negative_namespace_selectors: has_bug,
        }),
        pod_ids: BTreeMap::new(),
    };
    bed.add_tenant_objects(&mut generator);
    let kind = GeneratorOptions { uses_current_features: current, is_for_api_server: true };
    let mut coverage = Coverage::default();
    for number in 0..POD_COUNT {
        let random_pod = random::random_pod(&mut generator, kind, &format!("pod-{number}"));
        bed.schedule_pod(random_pod, &mut coverage);
        if bed.pod_ids.len() > 60 || generator.is_one_in(4) {
            bed.remove_random_pod(&mut generator);
        }
    }
    eprintln!("Kubernetes {version}: {coverage:#?}");
    assert!(
        coverage.bound > 60 && coverage.unschedulable > 30,
        "too few pods were bound or unschedulable: {coverage:?}"
    );
    assert!(coverage.reasons.len() >= 9, "too few reasons occurred: {coverage:?}");
    assert!(coverage.retries < 30, "too many comparisons agreed only after a retry: {coverage:?}");
    assert!(!current || coverage.scored > 30, "too few pods with different scores: {coverage:?}");
}

/// Returns a configuration with only the scores that Berth implements, so the best host depends only on these
/// scores.
fn configuration(plane: &ControlPlane) -> Value {
    let disabled = ["NodeResourcesFit", "NodeResourcesBalancedAllocation", "ImageLocality"];
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": plane.kubeconfig(), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": false},
        "profiles": [{
            "plugins": {"score": {"disabled": disabled.map(|name| json!({"name": name}))}},
            "pluginConfig": [{"name": "PodTopologySpread", "args": {"defaultingType": "List", "defaultConstraints": []}}],
        }],
    })
}

fn short_reasons(filter: &PodFilter<'_>, host: HostId) -> Vec<String> {
    filter.reasons(host).iter().map(|reason| reason.summary().into_owned()).collect()
}

impl Testbed {
    fn add_tenant_objects(&mut self, generator: &mut RandomGenerator) {
        for name in NAMESPACES {
            let labels = random::random_namespace_labels(generator);
            let namespace = json!({"metadata": {"name": name, "labels": labels}});
            self.client.post("/api/v1/namespaces", &namespace);
            let account = json!({"metadata": {"name": "default"}});
            self.client.post(&format!("/api/v1/namespaces/{name}/serviceaccounts"), &account);
            // The server adds a label to the namespace, and selectors may use this label.
            let namespace_object = self.client.get(&format!("/api/v1/namespaces/{name}"));
            let labels = namespace_object["metadata"]["labels"].clone();
            let labels: BTreeMap<String, String> =
                serde_json::from_value(labels).unwrap_or_default();
            self.cluster_state.set_namespace(name, &labels);
            self.reference_model.namespaces.insert(name.to_owned(), labels);
        }
        for number in 0..HOST_COUNT {
            let random_host = random::random_host(generator, &format!("host-{number}"));
            self.client.post("/api/v1/nodes", &serde_json::to_value(&random_host.node).unwrap());
            // The API server adds a not-ready taint to a new Node. The test removes the taint, because no node
            // controller runs here.
            let path = format!("/api/v1/nodes/host-{number}");
            let mut current = self.client.get(&path);
            current["spec"] = serde_json::to_value(&random_host.node.spec).unwrap();
            self.client.put(&path, &current);
            self.add_host(random_host);
        }
        self.client.wait_until_nodes_are_counted(HOST_COUNT);
    }

    fn add_host(&mut self, generated: GeneratedHost) {
        let parts =
            NodeFields::from_node(&generated.node, &generated.allocatable, generated.pods_limit);
        self.cluster_state.set_host(&parts).unwrap();
        self.reference_model.hosts.insert(generated.node.metadata.name.clone().unwrap(), generated);
    }

    fn hosts(&self) -> BTreeMap<HostId, String> {
        let names = self.reference_model.hosts.keys();
        names.map(|name| (self.cluster_state.host(name).unwrap(), name.clone())).collect()
    }

    fn schedule_pod(&mut self, generated: GeneratedPod, coverage: &mut Coverage) {
        let parts = PodFields::from_pod(&generated.pod, &generated.containers);
        let rules = Arc::new(Rules::compile(&mut self.cluster_state, &parts).unwrap());
        let name = generated.pod.metadata.name.clone().unwrap();
        let namespace = generated.pod.metadata.namespace.as_deref().unwrap();
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let body = serde_json::to_value(&generated.pod).unwrap();
        let mut attempts = 0;
        let node_name = loop {
            self.client.post(&pods, &body);
            let scheduled = self.client.wait_until_scheduled(&format!("{pods}/{name}"));
            let comparison = self.compare_decision(&generated, &rules, &scheduled, coverage);
            let node_name = scheduled["spec"]["nodeName"].as_str().map(str::to_owned);
            if comparison.is_err() || node_name.is_none() {
                self.client.delete(&format!("{pods}/{name}"));
            }
            // On a busy machine the scheduler may not have received the last deletion yet; a real difference
            // remains after a retry.
            attempts += 1;
            match comparison {
                Ok(()) => break node_name,
                Err(_) if attempts < 3 => {
                    coverage.retries += 1;
                    std::thread::sleep(Duration::from_secs(1));
                }
                Err(difference) => panic!(
                    "{name}: {}\n{:#}\n{:#}",
                    difference.0, body["spec"], scheduled["status"]
                ),
            }
        };
        let Some(node_name) = node_name else { return };
        let host = self.cluster_state.host(&node_name).unwrap();
        self.pod_ids.insert(name.clone(), self.cluster_state.add_pod(rules, host).unwrap());
        self.reference_model.pods.insert(name, (generated, node_name));
    }

    /// Compares the scheduler's answer with Berth's rules, and returns the difference.
    fn compare_decision(
        &self,
        generated: &GeneratedPod,
        rules: &Rules,
        scheduled: &Value,
        coverage: &mut Coverage,
    ) -> Result<(), Difference> {
        let filter = self.cluster_state.pod_filter(rules);
        let hosts = self.hosts();
        let allowed: Vec<HostId> =
            hosts.keys().copied().filter(|host| filter.allows(*host)).collect();
        let names: Vec<String> = allowed.iter().map(|host| hosts[host].clone()).collect();
        let Some(node_name) = scheduled["spec"]["nodeName"].as_str() else {
            if !allowed.is_empty() {
                let ours = self.count_reasons(rules);
                let condition = scheduling_client::condition(scheduled);
                return Err(
                    format!("Berth allows {names:?} and reports {ours:?}; kube-scheduler reports {condition}").into()
                );
            }
            self.compare_reasons(generated, rules, scheduled, coverage)?;
            coverage.unschedulable += 1;
            return Ok(());
        };
        let scores = Scorer::new(&filter, &allowed).normalized_scores(&allowed);
        assert_eq!(
            scores,
            self.reference_model.scores(generated, &names),
            "Berth's scores and the reference scores differ"
        );
        let host = self.cluster_state.host(node_name).unwrap();
        let Some(chosen) = allowed.iter().position(|one| *one == host) else {
            let reasons: Vec<String> =
                filter.reasons(host).iter().map(ToString::to_string).collect();
            return Err(
                format!("kube-scheduler chose {node_name}, Berth reports {reasons:?}").into()
            );
        };
        if self.version >= MIN_VERSION {
            let weighted = |scores: &NormalizedScores| scores.weighted_sum();
            let (best, least) = (
                scores.iter().map(weighted).max().unwrap(),
                scores.iter().map(weighted).min().unwrap(),
            );
            if weighted(&scores[chosen]) != best {
                let all: Vec<_> = names.iter().zip(&scores).collect();
                return Err(format!(
                    "kube-scheduler chose {node_name}, which is not the best of {all:#?}"
                )
                .into());
            }
            coverage.scored += usize::from(best > least);
        }
        coverage.bound += 1;
        Ok(())
    }

    /// Compares the reasons of `0/24 nodes are available: 3 Insufficient cpu, 21 node(s) ....`, without the
    /// following text of preemption and other plugins.
    fn compare_reasons(
        &self,
        generated: &GeneratedPod,
        rules: &Rules,
        scheduled: &Value,
        coverage: &mut Coverage,
    ) -> Result<(), Difference> {
        let message =
            scheduling_client::condition(scheduled)["message"].as_str().unwrap().to_owned();
        let (_, theirs) = message.split_once(" nodes are available: ").unwrap();
        let theirs = theirs.split(". ").next().unwrap().trim_end_matches('.');
        if theirs == "pod affinity terms conflict" || theirs.contains("didn't satisfy plugin") {
            // The scheduler checks host names first, and does not compute reasons for the other hosts.
            *coverage.reasons.entry("(by name)".to_owned()).or_default() += 1;
            return Ok(());
        }
        let filter = self.cluster_state.pod_filter(rules);
        for (host, name) in self.hosts() {
            let mut reasons = short_reasons(&filter, host);
            let mut slow = self.reference_model.rejection_reasons(generated, &name);
            reasons.sort();
            slow.sort();
            assert_eq!(
                reasons, slow,
                "Berth's reasons and the reference reasons differ for {name}"
            );
        }
        let ours = self.count_reasons(rules);
        for reason in ours.keys() {
            *coverage.reasons.entry(reason.clone()).or_default() += 1;
        }
        if self.version < MIN_VERSION {
            // Earlier versions use other messages, and check resources before taints.
            return Ok(());
        }
        let mut ours: Vec<String> =
            ours.into_iter().map(|(reason, hosts)| format!("{hosts} {reason}")).collect();
        ours.sort();
        let ours = ours.join(", ");
        if theirs == ours {
            Ok(())
        } else {
            Err(format!("kube-scheduler: {theirs}\nBerth: {ours}").into())
        }
    }

    /// Returns the number of hosts for each of Berth's reasons.
    fn count_reasons(&self, rules: &Rules) -> BTreeMap<String, usize> {
        let filter = self.cluster_state.pod_filter(rules);
        let mut counts = BTreeMap::new();
        for reason in self.hosts().keys().flat_map(|host| short_reasons(&filter, *host)) {
            *counts.entry(reason).or_default() += 1;
        }
        counts
    }

    fn remove_random_pod(&mut self, generator: &mut RandomGenerator) {
        let index = usize::try_from(generator.next_below(self.pod_ids.len() as u64)).unwrap();
        let Some(name) = self.pod_ids.keys().nth(index).cloned() else { return };
        let (generated, _) = self.reference_model.pods.remove(&name).unwrap();
        assert!(self.cluster_state.remove_pod(self.pod_ids.remove(&name).unwrap()));
        let namespace = generated.pod.metadata.namespace.unwrap();
        self.client.delete(&format!("/api/v1/namespaces/{namespace}/pods/{name}"));
    }
}
