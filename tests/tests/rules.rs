//! Tests of the stock scheduler's rules in `crates/placement/src/rules` against the real kube-scheduler.
//!
//! Random pods with random rules are created one at a time; the Nodes have no kubelets. The scheduler must bind a
//! pod to a host that Berth's rules allow and to which Berth's scores give the best value. If the scheduler finds
//! no host, it must count the same reasons as Berth's rules.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::panic,
    reason = "tests fail by panicking, run programs, look at files and say what they skip"
)]

#[path = "rules/flaw.rs"]
mod flaw;
#[path = "../../controller/tests/rules/random.rs"]
mod random;
#[path = "rules/server.rs"]
mod server;
#[path = "../../controller/tests/rules/slow.rs"]
mod slow;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use berth_placement::rules::{
    Counts, HostId, HostParts, PodFilter, PodId, PodSpecParts, Rules, SchedulerBugs, Scorer, Scores,
};
use berth_tests::cluster::{ControlPlane, Parts, Version};
use random::{Dice, Kind, MadeHost, MadePod, NAMESPACES};
use serde_json::{Value, json};
use server::Server;
use slow::World;

/// Difference between Berth's rules and kube-scheduler's answer.
#[derive(Debug)]
struct Difference(String);

impl From<String> for Difference {
    fn from(text: String) -> Self {
        Self(text)
    }
}

const HOSTS: u64 = 24;
const PODS: u64 = 320;
/// First version with the tested scores and messages; earlier versions use others.
const SCORES: Version = Version(1, 34);

struct Bed {
    server: Server,
    version: Version,
    world: World,
    counts: Counts,
    ids: BTreeMap<String, PodId>,
}

#[derive(Default, Debug)]
struct Seen {
    bound: usize,
    /// Pods with more than one possible host and different scores of these hosts.
    chosen: usize,
    unschedulable: usize,
    asked_again: usize,
    reasons: BTreeMap<String, usize>,
}

#[test]
fn kube_scheduler_agrees() {
    let mut plane = ControlPlane::start(Parts::default()).unwrap();
    let version = plane.version();
    let current = plane.supports(
        "scores, namespaceSelector, matchLabelKeys, minDomains, inclusion policies, sidecars, spread by a selector of everything",
        SCORES,
    );
    if current {
        let file = plane.folder().join("scheduler.json");
        fs::write(&file, configuration(&plane).to_string()).unwrap();
        plane.start_scheduler(Some(&file)).unwrap();
    } else {
        plane.start_scheduler(None).unwrap();
    }
    let mut dice = Dice(20_261_122);
    let server = Server::of(&plane);
    let is_flawed = current && flaw::is_there(&server);
    eprintln!("Kubernetes {version} takes NotIn in namespaceSelector wrong: {is_flawed}");
    let mut bed = Bed {
        server,
        version,
        world: World { is_flawed, ..World::default() },
        counts: Counts::with(SchedulerBugs { negative_namespace_selectors: is_flawed }),
        ids: BTreeMap::new(),
    };
    bed.add_tenant_objects(&mut dice);
    let kind = Kind { current, for_server: true };
    let mut seen = Seen::default();
    for number in 0..PODS {
        let made = random::pod(&mut dice, kind, &format!("pod-{number}"));
        bed.place(made, &mut seen);
        if bed.ids.len() > 60 || dice.once_in(4) {
            bed.remove_one(&mut dice);
        }
    }
    eprintln!("Kubernetes {version}: {seen:#?}");
    assert!(seen.bound > 60 && seen.unschedulable > 30, "little was tried: {seen:?}");
    assert!(seen.reasons.len() >= 9, "few reasons: {seen:?}");
    assert!(seen.asked_again < 30, "too often it did not agree at first: {seen:?}");
    assert!(!current || seen.chosen > 30, "little to choose: {seen:?}");
}

/// Returns a configuration with only the scores that Berth implements, so the best host depends only on these
/// scores.
fn configuration(plane: &ControlPlane) -> Value {
    let off = ["NodeResourcesFit", "NodeResourcesBalancedAllocation", "ImageLocality"];
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": plane.kubeconfig(), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": false},
        "profiles": [{
            "plugins": {"score": {"disabled": off.map(|name| json!({"name": name}))}},
            "pluginConfig": [{"name": "PodTopologySpread", "args": {"defaultingType": "List", "defaultConstraints": []}}],
        }],
    })
}

fn short_reasons(filter: &PodFilter<'_>, host: HostId) -> Vec<String> {
    filter.reasons(host).iter().map(|reason| reason.summary().into_owned()).collect()
}

impl Bed {
    fn add_tenant_objects(&mut self, dice: &mut Dice) {
        for name in NAMESPACES {
            let labels = random::namespace_labels(dice);
            let namespace = json!({"metadata": {"name": name, "labels": labels}});
            self.server.post("/api/v1/namespaces", &namespace);
            let account = json!({"metadata": {"name": "default"}});
            self.server.post(&format!("/api/v1/namespaces/{name}/serviceaccounts"), &account);
            // The server adds a label to the namespace, and selectors may use this label.
            let there = self.server.get(&format!("/api/v1/namespaces/{name}"));
            let labels = there["metadata"]["labels"].clone();
            let labels: BTreeMap<String, String> =
                serde_json::from_value(labels).unwrap_or_default();
            self.counts.set_namespace(name, &labels);
            self.world.namespaces.insert(name.to_owned(), labels);
        }
        for number in 0..HOSTS {
            let made = random::host(dice, &format!("host-{number}"));
            self.server.post("/api/v1/nodes", &serde_json::to_value(&made.node).unwrap());
            // A new Node has a not-ready taint, which the node controller would remove.
            let path = format!("/api/v1/nodes/host-{number}");
            let mut there = self.server.get(&path);
            there["spec"] = serde_json::to_value(&made.node.spec).unwrap();
            self.server.put(&path, &there);
            self.put(made);
        }
        self.server.wait_for_nodes(HOSTS);
    }

    fn put(&mut self, made: MadeHost) {
        let parts = HostParts::from_node(&made.node, &made.allocatable, made.pods_limit);
        self.counts.set_host(&parts).unwrap();
        self.world.hosts.insert(made.node.metadata.name.clone().unwrap(), made);
    }

    fn hosts(&self) -> BTreeMap<HostId, String> {
        let names = self.world.hosts.keys();
        names.map(|name| (self.counts.host(name).unwrap(), name.clone())).collect()
    }

    fn place(&mut self, made: MadePod, seen: &mut Seen) {
        let parts = PodSpecParts::from_pod(&made.pod, &made.containers);
        let rules = Arc::new(Rules::compile(&mut self.counts, &parts).unwrap());
        let name = made.pod.metadata.name.clone().unwrap();
        let namespace = made.pod.metadata.namespace.as_deref().unwrap();
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let body = serde_json::to_value(&made.pod).unwrap();
        let mut attempts = 0;
        let at = loop {
            self.server.post(&pods, &body);
            let said = self.server.scheduled(&format!("{pods}/{name}"));
            let judged = self.judge(&made, &rules, &said, seen);
            let at = said["spec"]["nodeName"].as_str().map(str::to_owned);
            if judged.is_err() || at.is_none() {
                self.server.delete(&format!("{pods}/{name}"));
            }
            // On a busy machine the scheduler may not have received the last deletion yet; a real difference
            // remains after a retry.
            attempts += 1;
            match judged {
                Ok(()) => break at,
                Err(_) if attempts < 3 => {
                    seen.asked_again += 1;
                    std::thread::sleep(Duration::from_secs(1));
                }
                Err(why) => panic!("{name}: {}\n{:#}\n{:#}", why.0, body["spec"], said["status"]),
            }
        };
        let Some(at) = at else { return };
        let host = self.counts.host(&at).unwrap();
        self.ids.insert(name.clone(), self.counts.add(rules, host).unwrap());
        self.world.pods.insert(name, (made, at));
    }

    /// Compares the scheduler's answer with Berth's rules, and returns the difference.
    fn judge(
        &self,
        made: &MadePod,
        rules: &Rules,
        said: &Value,
        seen: &mut Seen,
    ) -> Result<(), Difference> {
        let filter = self.counts.filter_for(rules);
        let hosts = self.hosts();
        let allowed: Vec<HostId> =
            hosts.keys().copied().filter(|host| filter.allows(*host)).collect();
        let names: Vec<String> = allowed.iter().map(|host| hosts[host].clone()).collect();
        let Some(at) = said["spec"]["nodeName"].as_str() else {
            if !allowed.is_empty() {
                let ours = self.counted(rules);
                let said = server::condition(said);
                return Err(format!("we allow {names:?} and say {ours:?}; it says {said}").into());
            }
            self.compare_reasons(made, rules, said, seen)?;
            seen.unschedulable += 1;
            return Ok(());
        };
        let scores = Scorer::new(&filter, &allowed).scores(&allowed);
        assert_eq!(scores, self.world.scores(made, &names), "ours and the slow ones");
        let host = self.counts.host(at).unwrap();
        let Some(chosen) = allowed.iter().position(|one| *one == host) else {
            let why: Vec<String> = filter.reasons(host).iter().map(ToString::to_string).collect();
            return Err(format!("it takes {at}, we say {why:?}").into());
        };
        if self.version >= SCORES {
            let of = |scores: &Scores| scores.weighted();
            let (best, least) =
                (scores.iter().map(of).max().unwrap(), scores.iter().map(of).min().unwrap());
            if of(&scores[chosen]) != best {
                let all: Vec<_> = names.iter().zip(&scores).collect();
                return Err(format!("it takes {at}, which is not the best of {all:#?}").into());
            }
            seen.chosen += usize::from(best > least);
        }
        seen.bound += 1;
        Ok(())
    }

    /// Compares the reasons of `0/24 nodes are available: 3 Insufficient cpu, 21 node(s) ....`, without the
    /// following text of preemption and other plugins.
    fn compare_reasons(
        &self,
        made: &MadePod,
        rules: &Rules,
        said: &Value,
        seen: &mut Seen,
    ) -> Result<(), Difference> {
        let message = server::condition(said)["message"].as_str().unwrap().to_owned();
        let (_, theirs) = message.split_once(" nodes are available: ").unwrap();
        let theirs = theirs.split(". ").next().unwrap().trim_end_matches('.');
        if theirs == "pod affinity terms conflict" || theirs.contains("didn't satisfy plugin") {
            // The scheduler checks host names first, and does not compute reasons for the other hosts.
            *seen.reasons.entry("(by name)".to_owned()).or_default() += 1;
            return Ok(());
        }
        let filter = self.counts.filter_for(rules);
        for (host, name) in self.hosts() {
            let mut reasons = short_reasons(&filter, host);
            let mut slow = self.world.reasons(made, &name);
            reasons.sort();
            slow.sort();
            assert_eq!(reasons, slow, "ours and the slow ones of {name}");
        }
        let ours = self.counted(rules);
        for reason in ours.keys() {
            *seen.reasons.entry(reason.clone()).or_default() += 1;
        }
        if self.version < SCORES {
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
            Err(format!("it says {theirs}\nwe say  {ours}").into())
        }
    }

    /// Returns the number of hosts for each of Berth's reasons.
    fn counted(&self, rules: &Rules) -> BTreeMap<String, usize> {
        let filter = self.counts.filter_for(rules);
        let mut counted = BTreeMap::new();
        for reason in self.hosts().keys().flat_map(|host| short_reasons(&filter, *host)) {
            *counted.entry(reason).or_default() += 1;
        }
        counted
    }

    fn remove_one(&mut self, dice: &mut Dice) {
        let at = usize::try_from(dice.below(self.ids.len() as u64)).unwrap();
        let Some(name) = self.ids.keys().nth(at).cloned() else { return };
        let (made, _) = self.world.pods.remove(&name).unwrap();
        assert!(self.counts.remove(self.ids.remove(&name).unwrap()));
        let namespace = made.pod.metadata.namespace.unwrap();
        self.server.delete(&format!("/api/v1/namespaces/{namespace}/pods/{name}"));
    }
}
