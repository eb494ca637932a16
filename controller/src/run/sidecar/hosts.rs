//! Hosts: what their agents report and their Nodes say, read as soon as either changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use berth_api::names::CAPACITY_GENERATION;
use berth_api::{Class, InfraNode};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::gate::Kind;
use super::{Shared, Sidecar};
use crate::profiles::{Selection, select_profile};
use berth_kubelet_admission::pod::Resources;
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::HostParts;
use berth_runtime::watch::Change;

static NOTHING: Resources =
    Resources { cpu_millis: 0, memory: 0, hugepages: BTreeMap::new(), extended: BTreeMap::new() };

/// Follows hosts for ever.
pub(super) async fn follow(sidecar: Arc<Sidecar>, shared: Shared) {
    let Shared { nodes, infra_nodes, profiles } = &shared;
    let (mut of_nodes, mut of_infra_nodes) = (nodes.changes(), infra_nodes.changes());
    let mut of_profiles = profiles.changes();
    tokio::join!(nodes.ready(), infra_nodes.ready(), profiles.ready());
    // What was told so far is in the stores, and all of them are looked at now.
    while of_nodes.try_recv().is_ok() {}
    while of_infra_nodes.try_recv().is_ok() {}
    while of_profiles.try_recv().is_ok() {}
    let (said, unreported) = (BTreeMap::new(), BTreeSet::new());
    let mut hosts = Hosts { sidecar, shared: &shared, said, unreported };
    hosts.all().await;
    hosts.sidecar.gate.listed(Kind::Hosts, true);
    loop {
        tokio::select! {
            Some(change) = of_nodes.recv() => match change {
                Change::Relisted => hosts.all().await,
                Change::Object(before, after) => {
                    if facts_of_node(before.as_deref()) != facts_of_node(after.as_deref()) {
                        hosts.one(&name(before.as_deref(), after.as_deref()));
                    }
                }
            },
            Some(change) = of_infra_nodes.recv() => match change {
                Change::Relisted => hosts.all().await,
                Change::Object(before, after) => {
                    if facts_of_host(before.as_deref()) != facts_of_host(after.as_deref()) {
                        hosts.one(&name(before.as_deref(), after.as_deref()));
                    }
                }
            },
            Some(change) = of_profiles.recv() => {
                let is_other = match &change {
                    Change::Relisted => true,
                    Change::Object(before, after) => {
                        before.as_ref().map(|one| &one.spec) != after.as_ref().map(|one| &one.spec)
                    }
                };
                if is_other {
                    hosts.all().await;
                }
            }
            // They last as long as the program.
            else => std::future::pending().await,
        }
    }
}

struct Hosts<'a> {
    sidecar: Arc<Sidecar>,
    shared: &'a Shared,
    /// What was wrong with each, as it was said.
    said: BTreeMap<String, String>,
    /// Nodes whose agents have reported nothing that could be read.
    unreported: BTreeSet<String>,
}

impl Hosts<'_> {
    async fn all(&mut self) {
        let began = Instant::now();
        let nodes = self.shared.nodes.all();
        let infra_nodes = self.shared.infra_nodes.all();
        let names = nodes.iter().map(|node| node.name_any());
        let names = names.chain(infra_nodes.iter().map(|host| host.name_any()));
        let known = self.known();
        let names: BTreeSet<String> = names.chain(known).collect();
        self.sidecar.extender().hosts_relisted();
        for (at, name) in names.iter().enumerate() {
            self.read(name);
            // Calls and other watches go on meanwhile.
            if at % 64 == 63 {
                tokio::task::yield_now().await;
            }
        }
        self.sidecar.stir();
        let (count, took) = (names.len(), began.elapsed());
        self.sidecar.metrics.assignment.counted("hosts", took);
        tracing::info!("{count} hosts are listed, and read in {:.2} s", took.as_secs_f64());
    }

    fn known(&self) -> Vec<String> {
        let extender = self.sidecar.extender();
        let reported = extender.engine().hosts().map(|(_, facts)| facts.name.clone());
        reported.chain(self.unreported.iter().cloned()).collect()
    }

    fn one(&mut self, name: &str) {
        self.read(name);
        self.sidecar.stir();
    }

    fn read(&mut self, name: &str) {
        let (node, infra_node) = (self.shared.nodes.get(name), self.shared.infra_nodes.get(name));
        let Some(node) = node else {
            self.sidecar.extender().node_deleted(name);
            self.said.remove(name);
            self.unreported.remove(name);
            return;
        };
        let mut problems = Vec::new();
        let version = infra_node.as_ref().and_then(|host| host.resource_version()?.parse().ok());
        let facts = infra_node.and_then(|infra_node| {
            let facts = ReportedHost::read(&infra_node, Some(&node), &mut problems);
            facts.map_err(|problem| problems.push(problem)).ok()
        });
        let facts = facts.map(|facts| {
            let class = self.class(&facts);
            (facts, class)
        });
        let set = {
            let mut extender = self.sidecar.extender();
            let has_reported = facts.is_some();
            let set = extender.host(Instant::now(), name, facts, version);
            if has_reported {
                self.unreported.remove(name);
                set
            } else {
                self.unreported.insert(name.to_owned());
                // Nothing is placed there, so its amounts do not matter.
                let counted = extender.node(&HostParts::from_node(&node, &NOTHING, 0));
                set.and(counted)
            }
        };
        let wrong = set.err().map(|error| error.to_string());
        let wrong = problems.iter().map(ToString::to_string).chain(wrong);
        let wrong = wrong.collect::<Vec<_>>().join("; ");
        if self.said.get(name) != Some(&wrong) && !wrong.is_empty() {
            tracing::warn!("{wrong}");
        }
        if wrong.is_empty() {
            self.said.remove(name);
        } else {
            self.said.insert(name.to_owned(), wrong);
        }
    }

    fn class(&self, facts: &ReportedHost) -> Class {
        match select_profile(&self.shared.profiles.all(), &facts.labels) {
            Selection::One(profile) => profile.spec.class,
            Selection::None | Selection::Tie(_) => Class::default(),
        }
    }
}

fn name<K: kube::Resource>(before: Option<&K>, after: Option<&K>) -> String {
    after.or(before).and_then(|object| object.meta().name.clone()).unwrap_or_default()
}

/// What a kubelet writes every few minutes is mostly the same.
fn facts_of_node(node: Option<&Node>) -> impl PartialEq {
    node.map(|node| {
        let status = node.status.as_ref();
        let version =
            status.and_then(|status| Some(status.node_info.as_ref()?.kubelet_version.clone()));
        let allocatable = status.and_then(|status| status.allocatable.clone());
        // Old schedulers are woken by this label, which tells nobody else anything.
        let mut labels = node.metadata.labels.clone().unwrap_or_default();
        labels.remove(CAPACITY_GENERATION);
        (node.metadata.uid.clone(), labels, node.spec.clone(), allocatable, version)
    })
}

fn facts_of_host(host: Option<&InfraNode>) -> impl PartialEq {
    host.map(|host| (host.metadata.uid.clone(), host.spec.clone(), host.status.clone()))
}
