//! Measures pods bound per second: the same kube-scheduler binds the same pods, alternately with and without the
//! scheduler extender.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::ControlPlane;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};

use super::process::Extender;
use super::setup::create_namespaces;
use crate::cluster::{Cluster, NewObject, collection_path};
use crate::full_fleet::Launcher;
use crate::progress::print_step;

const NAMESPACE: &str = "bound";
const LEASE: (&str, &str) = ("kube-system", "berth-scheduler");
/// Time limit until all pods are bound, and until all pods are deleted.
const TIMEOUT: Duration = Duration::from_secs(900);
/// CPUs and GiB of the VMs, which have these sizes in turn. Four sizes are enough, because tenants typically use
/// only a few.
const SIZES: [(u32, u64); 4] = [(2, 4), (4, 14), (8, 28), (16, 56)];

/// Pods bound per second. Each list has one value for each pair of runs.
#[derive(Debug, Default)]
pub(super) struct BindingRates {
    pub(super) with_extender: Vec<f64>,
    pub(super) without_extender: Vec<f64>,
}

/// The control plane, the client and the controller under test.
#[derive(Debug)]
pub(super) struct Testbed<'a> {
    pub(super) plane: &'a mut ControlPlane,
    pub(super) cluster: &'a Cluster,
    pub(super) controller: &'a Path,
    pub(super) pods: usize,
}

impl Testbed<'_> {
    /// Measures pairs of runs, one with and one without the extender. Every second pair starts with the run without
    /// the extender.
    pub(super) fn measure(&mut self, pairs: usize) -> Result<BindingRates> {
        create_namespaces(self.cluster, &[NAMESPACE.to_owned()])?;
        let mut rates = BindingRates::default();
        for pair in 0..pairs {
            print_step(format_args!("bind {} pods, pair {} of {pairs}", self.pods, pair + 1));
            let is_first = pair.is_multiple_of(2);
            for with_extender in [is_first, !is_first] {
                let name = format!("pair-{pair}");
                let rate = self.run(with_extender.then_some(name.as_str()));
                let rates = if with_extender {
                    &mut rates.with_extender
                } else {
                    &mut rates.without_extender
                };
                rates.push(rate.with_context(|| format!("pair {pair}"))?);
            }
        }
        Ok(rates)
    }

    /// Measures one run; `extender` is the URL of the extender, if it is used. All pods exist before the scheduler
    /// starts, so that the scheduler never waits for pods.
    fn run(&mut self, extender: Option<&str>) -> Result<f64> {
        let path = collection_path("v1", NAMESPACE, "pods");
        let pods: Vec<NewObject> =
            (0..self.pods).map(|at| NewObject::new(&path, &launcher_of_size(at).pod())).collect();
        self.cluster.create(&pods)?;
        let lease = format!("{}/{}", LEASE.0, LEASE.1);
        let start = |name: &str| -> Result<Extender> {
            let mut extender = Extender::start(self.controller, self.plane, name, &lease)?;
            extender.wait_for_lists(self.plane)?;
            Ok(extender)
        };
        let extender = extender.map(start).transpose()?;
        // Releases the Lease as a scheduler does when it exits, so that the next scheduler need not wait until the
        // Lease expires.
        let release_patch = r#"{"spec":{"holderIdentity":"","leaseDurationSeconds":1}}"#;
        let patch = ["patch", "lease", "-n", LEASE.0, LEASE.1, "--type=merge", "-p", release_patch];
        self.plane.kubectl(&patch)?;
        let file =
            self.plane.scheduler_configuration(extender.as_ref().map(|extender| extender.port))?;
        self.plane.start_scheduler(Some(&file))?;
        let rate = self.binding_rate();
        self.plane.stop_scheduler();
        let rate = rate.with_context(|| {
            format!("the log of kube-scheduler: {}", self.plane.log_tail("kube-scheduler"))
        })?;
        if let Some(extender) = extender {
            extender.terminate()?;
        }
        self.cluster.delete_all(&path)?;
        self.cluster.wait_until("pods are deleted", TIMEOUT, |cluster| {
            let remaining = cluster.count(&path)?;
            Ok(if remaining == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(format!("{remaining} pods remain"))
            })
        })?;
        Ok(rate)
    }

    /// Returns the pods bound per second, from the first binding to the last binding.
    fn binding_rate(&self) -> Result<f64> {
        let (first, last) = self.cluster.block_on(async {
            let bound = first_and_last_binding(self.cluster, self.pods);
            tokio::time::timeout(TIMEOUT, bound).await.context("not all pods are bound")?
        })?;
        Ok((self.pods - 1) as f64 / (last - first).as_secs_f64())
    }
}

/// Returns the times at which a watch received the first and the last of `count` bindings.
async fn first_and_last_binding(cluster: &Cluster, count: usize) -> Result<(Instant, Instant)> {
    let pods = cluster.api::<Pod>(NAMESPACE);
    let list = pods.list(&ListParams::default()).await?;
    let is_bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    ensure!(!list.items.iter().any(is_bound), "a pod was bound before the watch started");
    let mut version =
        list.metadata.resource_version.context("the pod list has no resourceVersion")?;
    let mut first = None;
    let mut bound = BTreeSet::new();
    loop {
        let mut events = pods.watch(&WatchParams::default(), &version).await?.boxed();
        while let Some(event) = events.next().await {
            let pod = match event? {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => pod,
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
                WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => continue,
            };
            if let Some(newer) = pod.metadata.resource_version.clone() {
                version = newer;
            }
            if !is_bound(&pod) {
                continue;
            }
            let now = Instant::now();
            let first = *first.get_or_insert(now);
            bound.extend(pod.metadata.name);
            if bound.len() == count {
                return Ok((first, now));
            }
        }
    }
}

/// Returns a launcher pod without scheduling preferences, because their cost in kube-scheduler is proportional to
/// the number of hosts.
fn launcher_of_size(at: usize) -> Launcher {
    let (cpus, gib) = SIZES.get(at % SIZES.len()).copied().unwrap_or_default();
    Launcher {
        name: format!("virt-launcher-vm-{at}"),
        namespace: NAMESPACE.to_owned(),
        instance_uid: format!("instance-{at}"),
        cpus,
        gib,
        deployment: None,
    }
}
