//! Starts and ends the tasks that verify trunks, and passes targets and results between the tasks and the daemon's
//! cycle.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use berth_api::LinkName;
use berth_host_facts::links::Links;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::key_file::{self, NoKeys};
use super::results::{Results, TrunkReport};
use super::targets::Targets;
use super::{lldp_task, probe_task};
use crate::plan::network::state::NetworkState;

/// Handle of the tasks, which the cycle owns. Dropping this value ends the tasks.
#[derive(Debug)]
pub(crate) struct TrunkMonitor {
    key_file: PathBuf,
    targets: watch::Sender<Arc<Targets>>,
    results: Arc<Results>,
    last_error: Option<NoKeys>,
}

impl TrunkMonitor {
    /// Starts the tasks. `wake` starts a cycle of the daemon, which publishes new results.
    pub(crate) fn start(key_file: PathBuf, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let no_targets = Targets {
            node: String::new(),
            keys: Err(NoKeys::Absent { path: key_file.display().to_string() }),
            networks: Default::default(),
            lldp_links: Default::default(),
        };
        let (targets, receiver) = watch::channel(Arc::new(no_targets));
        let results = Arc::new(Results::new(wake));
        tokio::spawn(supervise(receiver, Arc::clone(&results)));
        Self { key_file, targets, results, last_error: None }
    }

    /// Updates the targets from the networks and links of a cycle.
    pub(crate) fn update(&mut self, node: &str, networks: &[NetworkState], links: &Links) {
        let has_trunk = networks.iter().any(|network| network.trunk.is_some());
        let keys = key_file::read_keys(&self.key_file);
        let error = keys.as_ref().err().filter(|_| has_trunk).cloned();
        if let Some(error) = &error
            && self.last_error.as_ref() != Some(error)
        {
            tracing::warn!(%error, "trunks are not probed, because there is no valid key");
        }
        self.last_error = error;
        let targets = Targets::new(node, keys, networks, links);
        self.targets.send_if_modified(|current| {
            let is_new = **current != targets;
            if is_new {
                *current = Arc::new(targets);
            }
            is_new
        });
    }

    /// Returns the report to publish. `previous` is the report that was published last.
    pub(crate) fn report(&self, previous: &TrunkReport) -> TrunkReport {
        self.results.report(previous)
    }
}

/// Identifies a task by the network that it probes, or by the link on which it receives LLDP.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum TaskName {
    Probe(String),
    Lldp(LinkName),
}

/// Starts a task for each new target. A task ends by itself when its target is removed.
async fn supervise(mut targets: watch::Receiver<Arc<Targets>>, results: Arc<Results>) {
    let mut tasks = JoinSet::new();
    let mut running = BTreeSet::new();
    loop {
        let current = Arc::clone(&targets.borrow_and_update());
        let probes = current.networks.keys().cloned().map(TaskName::Probe);
        let listeners = current.lldp_links.keys().cloned().map(TaskName::Lldp);
        for name in probes.chain(listeners) {
            if !running.insert(name.clone()) {
                continue;
            }
            let (targets, results) = (targets.clone(), Arc::clone(&results));
            tasks.spawn(async move {
                match &name {
                    TaskName::Probe(network) => {
                        probe_task::run(network.clone(), targets, results).await;
                    }
                    TaskName::Lldp(link) => lldp_task::run(link.clone(), targets, results).await,
                }
                name
            });
        }
        tokio::select! {
            changed = targets.changed() => if changed.is_err() { return },
            Some(ended) = tasks.join_next() => {
                if let Ok(name) = ended {
                    running.remove(&name);
                }
            }
        }
    }
}
