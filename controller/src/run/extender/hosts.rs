//! Watch of hosts: passes the agent's report and the Node of a host to the extender as soon as either changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use berth_api::names::CAPACITY_GENERATION_ANNOTATION;
use berth_api::{Class, InfraNode};
use berth_kubelet_admission::pod::Resources;
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::NodeFields;
use berth_runtime::watch::Change;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::service::ExtenderService;
use super::settings::ExtenderInformers;
use super::unlisted_kinds::ListedKind;
use crate::profiles::{Selection, select_profile};

static NO_RESOURCES: Resources =
    Resources { cpu_millis: 0, memory: 0, hugepages: BTreeMap::new(), extended: BTreeMap::new() };

/// Number of hosts that are passed to the extender before the task yields to other tasks.
const HOSTS_PER_YIELD: usize = 64;

/// Passes hosts to the extender; never ends.
pub(super) async fn watch_hosts(service: Arc<ExtenderService>, shared: ExtenderInformers) {
    let ExtenderInformers { nodes, infra_nodes, profiles, .. } = &shared;
    let (mut node_changes, mut infra_node_changes) = (nodes.subscribe(), infra_nodes.subscribe());
    let mut profile_changes = profiles.subscribe();
    tokio::join!(
        nodes.wait_until_ready(),
        infra_nodes.wait_until_ready(),
        profiles.wait_until_ready()
    );
    // Earlier changes are discarded, because all objects in the stores are read now.
    while node_changes.try_recv().is_ok() {}
    while infra_node_changes.try_recv().is_ok() {}
    while profile_changes.try_recv().is_ok() {}
    let (problems, unreported) = (BTreeMap::new(), BTreeSet::new());
    let mut reader = HostReader {
        service,
        shared: &shared,
        logged_problems: problems,
        nodes_without_report: unreported,
    };
    reader.read_all_hosts().await;
    reader.service.readiness_gate.set_listed(ListedKind::Hosts, true);
    loop {
        tokio::select! {
            Some(change) = node_changes.recv() => match change {
                Change::Relisted => reader.read_all_hosts().await,
                Change::Object(before, after) => {
                    if relevant_node_fields(before.as_deref()) != relevant_node_fields(after.as_deref()) {
                        reader.read_changed_host(&changed_object_name(before.as_deref(), after.as_deref()));
                    }
                }
            },
            Some(change) = infra_node_changes.recv() => match change {
                Change::Relisted => reader.read_all_hosts().await,
                Change::Object(before, after) => {
                    if relevant_infra_node_fields(before.as_deref())
                        != relevant_infra_node_fields(after.as_deref())
                    {
                        reader.read_changed_host(&changed_object_name(before.as_deref(), after.as_deref()));
                    }
                }
            },
            Some(change) = profile_changes.recv() => {
                let is_relevant = match &change {
                    Change::Relisted => true,
                    Change::Object(before, after) => {
                        before.as_ref().map(|profile| &profile.spec)
                            != after.as_ref().map(|profile| &profile.spec)
                    }
                };
                if is_relevant {
                    reader.read_all_hosts().await;
                }
            }
            // The branch is never reached: the informers run as long as the program.
            else => std::future::pending().await,
        }
    }
}

struct HostReader<'a> {
    service: Arc<ExtenderService>,
    shared: &'a ExtenderInformers,
    /// Problems of each host that were logged last.
    logged_problems: BTreeMap<String, String>,
    /// Nodes without a readable report.
    nodes_without_report: BTreeSet<String>,
}

impl HostReader<'_> {
    async fn read_all_hosts(&mut self) {
        let started_at = Instant::now();
        let nodes = self.shared.nodes.all();
        let infra_nodes = self.shared.infra_nodes.all();
        let names = nodes.iter().map(|node| node.name_any());
        let names = names.chain(infra_nodes.iter().map(|host| host.name_any()));
        let known = self.known_hosts();
        let names: BTreeSet<String> = names.chain(known).collect();
        self.service.extender().handle_host_relist();
        for (index, name) in names.iter().enumerate() {
            self.read_host(name);
            // The task yields, so that calls and other watches can run in between.
            if index % HOSTS_PER_YIELD == HOSTS_PER_YIELD - 1 {
                tokio::task::yield_now().await;
            }
        }
        self.service.notify();
        let (hosts, took) = (names.len(), started_at.elapsed());
        self.service.metrics.assignment.record_count_time("hosts", took);
        tracing::info!(hosts, seconds = took.as_secs_f64(), "listed and read the hosts");
    }

    fn known_hosts(&self) -> Vec<String> {
        let extender = self.service.extender();
        let reported = extender.engine().hosts().map(|(_, facts)| facts.name.clone());
        reported.chain(self.nodes_without_report.iter().cloned()).collect()
    }

    fn read_changed_host(&mut self, name: &str) {
        self.read_host(name);
        self.service.notify();
    }

    fn read_host(&mut self, name: &str) {
        let (node, infra_node) = (self.shared.nodes.get(name), self.shared.infra_nodes.get(name));
        let Some(node) = node else {
            self.service.extender().delete_node(name);
            self.logged_problems.remove(name);
            self.nodes_without_report.remove(name);
            return;
        };
        let mut problems = Vec::new();
        let version = infra_node.as_ref().and_then(|host| host.resource_version()?.parse().ok());
        let facts = infra_node.and_then(|infra_node| {
            let facts = ReportedHost::read(&infra_node, Some(&node), &mut problems);
            facts.map_err(|problem| problems.push(problem)).ok()
        });
        let facts = facts.map(|facts| {
            let class = self.host_class(&facts);
            (facts, class)
        });
        let set = {
            let mut extender = self.service.extender();
            let has_reported = facts.is_some();
            let set = extender.update_host(Instant::now(), name, facts, version);
            if has_reported {
                self.nodes_without_report.remove(name);
                set
            } else {
                self.nodes_without_report.insert(name.to_owned());
                // A Node without a report accepts no pods, so its resources do not matter and are not passed.
                let counted = extender.update_node(&NodeFields::from_node(&node, &NO_RESOURCES, 0));
                set.and(counted)
            }
        };
        let invalid = set.err().map(|error| error.to_string());
        let problems = problems.iter().map(ToString::to_string).chain(invalid);
        self.log_new_problems(name, problems.collect::<Vec<_>>().join("; "));
    }

    /// Logs the problems of a host if they differ from those that were logged last.
    fn log_new_problems(&mut self, name: &str, problems: String) {
        if problems.is_empty() {
            self.logged_problems.remove(name);
        } else if self.logged_problems.get(name) != Some(&problems) {
            tracing::warn!(node = name, error = problems, "failed to read some fields of a host");
            self.logged_problems.insert(name.to_owned(), problems);
        }
    }

    fn host_class(&self, facts: &ReportedHost) -> Class {
        match select_profile(&self.shared.profiles.all(), &facts.labels) {
            Selection::One(profile) => profile.spec.class,
            Selection::None | Selection::Tie(_) => Class::default(),
        }
    }
}

fn changed_object_name<K: kube::Resource>(before: Option<&K>, after: Option<&K>) -> String {
    after.or(before).and_then(|object| object.meta().name.clone()).unwrap_or_default()
}

/// Returns the fields of a Node that the extender uses, for comparison. A kubelet writes its Node every few minutes,
/// but the data that it writes is mostly unchanged or not used here.
fn relevant_node_fields(node: Option<&Node>) -> impl PartialEq {
    node.map(|node| {
        let status = node.status.as_ref();
        let version =
            status.and_then(|status| Some(status.node_info.as_ref()?.kubelet_version.clone()));
        let allocatable = status.and_then(|status| status.allocatable.clone());
        // Ignores the capacity generation, which the waker writes as a label for schedulers that do not watch
        // annotations.
        let mut labels = node.metadata.labels.clone().unwrap_or_default();
        labels.remove(CAPACITY_GENERATION_ANNOTATION);
        (node.metadata.uid.clone(), labels, node.spec.clone(), allocatable, version)
    })
}

fn relevant_infra_node_fields(host: Option<&InfraNode>) -> impl PartialEq {
    host.map(|host| (host.metadata.uid.clone(), host.spec.clone(), host.status.clone()))
}
