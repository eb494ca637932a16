//! Creation and deletion of thousands of VMs while the scheduler and the extender are killed and suspended, reports
//! are late and hosts are drained.
//!
//! [`berth_kubelet_admission`] simulates the kubelets: each kubelet admits or refuses a bound pod immediately, and
//! never changes this decision.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::{Duration, Instant};

use berth_api::InfraNode;
use berth_kubelet_admission::HostState;
use berth_kubevirt_render::launcher::ExistingPod;
use berth_tests::cluster::ControlPlane;
use berth_tests::simulated::{create_client, create_runtime};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;

use crate::allocation::reported_allocation;
use crate::host::HostDescription;
use crate::replicas::Replicas;
use crate::testbed::Testbed;

const HOST_COUNT: usize = 150;
const VM_COUNT: usize = 10_000;
/// Maximum number of VMs that wait for a host at the same time.
const MAX_WAITING_VMS: usize = 150;
/// Time between two faults.
const FAULT_INTERVAL: Duration = Duration::from_secs(30);
/// Time for which processes are suspended, longer than the lease duration of the scheduler.
const SUSPENSION_TIME: Duration = Duration::from_secs(20);
/// Time limit of the whole test.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// Number of concurrent requests.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Pseudorandom numbers with a fixed seed. Each run uses the same sequence of numbers, but the order of events differs
/// between runs.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn next_below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn next_millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.next_below(to - from))
    }
}

/// Simulated kubelet and its agent.
struct Host {
    description: HostDescription,
    state: HostState,
    /// Time at which the agent reports the next change; `None` if there is nothing to report.
    report_due: Option<Instant>,
}

/// Simulated kubelets and agents of all hosts, and the VMs that the test creates and deletes.
struct Churn {
    client: Client,
    pods: Api<Pod>,
    random: RandomNumbers,
    hosts: BTreeMap<String, Host>,
    /// Running VMs by uid: host, name, and end time.
    running: BTreeMap<String, (String, String, Instant)>,
    created_count: usize,
    bound_count: usize,
    refusals: Vec<String>,
    max_running: usize,
}

pub(crate) fn ten_thousand_vms_are_scheduled_despite_faults(
    plane: &ControlPlane,
    bed: &mut Testbed,
) {
    for number in 0..HOST_COUNT {
        bed.add_host(&format!("churn-{number}"), "churn", &[]);
    }
    let mut pairs = Replicas::start(plane);
    let runtime = create_runtime().unwrap();
    let client = runtime.block_on(create_client(&plane.kubeconfig())).unwrap();
    let mut churn = Churn::new(client, bed);
    let begin = Instant::now();
    let (mut mishap, mut fault_count) = (begin + FAULT_INTERVAL, 0);
    while !runtime.block_on(churn.run_round()) {
        assert!(churn.refusals.is_empty(), "kubelets refused pods: {:#?}", churn.refusals);
        assert!(
            begin.elapsed() < TIMEOUT,
            "the time limit has passed: {} of {} VMs were bound; {}",
            churn.bound_count,
            churn.created_count,
            pairs.logs(plane)
        );
        if mishap <= Instant::now() {
            inject_fault(fault_count, plane, &mut churn, &runtime, &mut pairs);
            fault_count += 1;
            mishap = Instant::now() + FAULT_INTERVAL;
            let Churn { bound_count: bound, created_count: made, max_running: most, .. } = churn;
            eprintln!(
                "{:?}: {made} VMs created, {bound} bound, at most {most} running",
                begin.elapsed()
            );
        }
    }
    assert!(churn.refusals.is_empty(), "kubelets refused pods: {:#?}", churn.refusals);
    assert_eq!((churn.created_count, churn.bound_count), (VM_COUNT, VM_COUNT));
    let took = begin.elapsed().as_secs();
    let leader_count = pairs.past_leaders.len();
    eprintln!(
        "{VM_COUNT} VMs on {HOST_COUNT} hosts in {took} s, at most {} running, {fault_count} faults, {leader_count} of 2 schedulers were leader",
        churn.max_running
    );
    assert!(fault_count >= FAULT_KIND_COUNT, "not every kind of fault occurred");
    assert_eq!(leader_count, 2, "the leader never changed");
}

/// Number of kinds of faults.
const FAULT_KIND_COUNT: usize = 6;

fn inject_fault(
    number: usize,
    plane: &ControlPlane,
    churn: &mut Churn,
    runtime: &tokio::runtime::Runtime,
    replicas: &mut Replicas,
) {
    let leader = replicas.leader(plane);
    let host = leader.host.clone();
    let mut wait = || {
        let end = Instant::now() + SUSPENSION_TIME;
        while Instant::now() < end {
            runtime.block_on(churn.run_round());
        }
    };
    match number % FAULT_KIND_COUNT {
        0 => {
            eprintln!("the extender of {host} is killed");
            leader.kill_extender(plane);
        }
        1 => {
            eprintln!("{host} and its extender are suspended for {SUSPENSION_TIME:?}");
            leader.suspend(true);
            wait();
            leader.resume();
        }
        2 => {
            eprintln!("the scheduler of {host} is killed");
            leader.kill_scheduler(plane);
        }
        3 => {
            eprintln!("the extender of {host} is suspended for {SUSPENSION_TIME:?}");
            leader.suspend(false);
            wait();
            leader.resume();
        }
        4 => {
            eprintln!("{host} and its extender are killed");
            leader.kill_scheduler(plane);
            leader.kill_extender(plane);
        }
        _ => {
            let name = format!("churn-{}", churn.random.next_below(HOST_COUNT as u64));
            eprintln!("{name} is drained");
            runtime.block_on(churn.drain(&name));
        }
    }
}

/// Runs the requests with limited concurrency.
async fn run_concurrently<F: Future<Output = ()> + Send + 'static>(all: impl Iterator<Item = F>) {
    let mut tasks = JoinSet::new();
    for one in all {
        if tasks.len() >= MAX_CONCURRENT_REQUESTS {
            tasks.join_next().await.unwrap().unwrap();
        }
        tasks.spawn(one);
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

impl Churn {
    fn new(client: Client, bed: &Testbed) -> Self {
        let ours = bed.hosts.iter().filter(|(name, _)| name.starts_with("churn-"));
        let host = |description: &HostDescription| {
            let (facts, _) = description.reported_host().unwrap();
            Host {
                description: description.clone(),
                state: HostState::new(&facts.admission),
                report_due: None,
            }
        };
        Self {
            pods: Api::namespaced(client.clone(), "vms"),
            client,
            random: RandomNumbers(1),
            hosts: ours.map(|(name, description)| (name.clone(), host(description))).collect(),
            running: BTreeMap::new(),
            created_count: 0,
            bound_count: 0,
            refusals: Vec::new(),
            max_running: 0,
        }
    }

    /// Performs one step of the test: kubelets admit new pods, agents report, and VMs end and are created. Returns true
    /// if the test is complete.
    async fn run_round(&mut self) -> bool {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let all = self.pods.list(&ListParams::default()).await.unwrap().items;
        let uids: BTreeSet<&str> =
            all.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        let gone: Vec<String> =
            self.running.keys().filter(|uid| !uids.contains(uid.as_str())).cloned().collect();
        for uid in gone {
            let Some((host, ..)) = self.running.remove(&uid) else { continue };
            self.hosts.get_mut(&host).unwrap().state.remove(&uid);
            self.schedule_report(&host);
        }
        let mut waiting = 0;
        let mut new = Vec::new();
        for pod in &all {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
                None => waiting += 1,
                Some(_) if self.running.contains_key(uid) => {}
                Some(host) => new.push((resource_version(pod), host.to_owned(), pod)),
            }
        }
        // The binding is the last write to each pod, so the resource versions are in the order of the bindings.
        new.sort_by_key(|(version, ..)| *version);
        for (_, host, pod) in new {
            self.admit(&host, pod);
        }
        self.max_running = self.max_running.max(self.running.len());
        self.write_due_reports().await;
        self.delete_ended_vms().await;
        let new_vms = MAX_WAITING_VMS.saturating_sub(waiting).min(VM_COUNT - self.created_count);
        self.create_vms(new_vms).await;
        self.created_count == VM_COUNT && self.running.is_empty() && waiting == 0 && new_vms == 0
    }

    fn admit(&mut self, host: &str, pod: &Pod) {
        let read = ExistingPod::read(pod).unwrap();
        self.bound_count += 1;
        if let Err(refusal) = self.hosts.get_mut(host).unwrap().state.admit(&read.pod) {
            self.refusals.push(format!("{host}, {}: {refusal}", read.name));
            return;
        }
        let ends = Instant::now() + self.random.next_millis(2_000, 20_000);
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.running.insert(read.pod.uid, (host.to_owned(), name, ends));
        self.schedule_report(host);
    }

    /// Schedules a report of the host's agent after a random delay.
    fn schedule_report(&mut self, host: &str) {
        // One report in twenty is very late.
        let max_delay = if self.random.next_below(20) == 0 { 15_000 } else { 2_000 };
        let delay = self.random.next_millis(100, max_delay);
        self.hosts.get_mut(host).unwrap().report_due.get_or_insert_with(|| Instant::now() + delay);
    }

    async fn write_due_reports(&mut self) {
        let now = Instant::now();
        let api: Api<InfraNode> = Api::all(self.client.clone());
        let mut reports = Vec::new();
        for (name, host) in &mut self.hosts {
            if host.report_due.is_none_or(|when| when > now) {
                continue;
            }
            host.report_due = None;
            let on_host = self.running.iter().filter(|(_, (on, ..))| on == name);
            host.description.allocations =
                on_host.filter_map(|(uid, _)| reported_allocation(&host.state, uid)).collect();
            let mut status = json!(host.description.infra_node().status);
            // Serialization omits an empty list, and a merge patch does not change omitted fields, so the list is set
            // explicitly.
            status["allocations"] = json!(host.description.allocations);
            reports.push((name.clone(), json!({"status": status})));
        }
        run_concurrently(reports.into_iter().map(|(name, status)| {
            let api = api.clone();
            async move {
                let patch = Patch::Merge(status);
                api.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            }
        }))
        .await;
    }

    /// Deletes the VMs whose end time has passed.
    async fn delete_ended_vms(&self) {
        let now = Instant::now();
        let due = self.running.values().filter(|(_, _, ends)| *ends <= now);
        let names: Vec<String> = due.map(|(_, name, _)| name.clone()).collect();
        self.delete(names).await;
    }

    async fn delete(&self, names: Vec<String>) {
        let immediately = DeleteParams::default().grace_period(0);
        run_concurrently(names.into_iter().map(|name| {
            let (pods, how) = (self.pods.clone(), immediately.clone());
            async move {
                match pods.delete(&name, &how).await {
                    // The pod was already deleted by a drain, and the watch has not reported the deletion yet.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    deleted => drop(deleted.unwrap()),
                }
            }
        }))
        .await;
    }

    async fn create_vms(&mut self, count: usize) {
        let mut pods = Vec::new();
        for _ in 0..count {
            self.created_count += 1;
            let cpus =
                [1, 1, 2, 2, 2, 3, 4, 5, 7][usize::try_from(self.random.next_below(9)).unwrap()];
            pods.push(churn_pod(self.created_count, cpus));
        }
        run_concurrently(pods.into_iter().map(|pod| {
            let api = self.pods.clone();
            async move {
                api.create(&PostParams::default(), &pod).await.unwrap();
            }
        }))
        .await;
    }

    /// Cordons a host, deletes its VMs, and uncordons the host.
    async fn drain(&mut self, name: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let cordon =
            |unschedulable: bool| Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        nodes.patch(name, &PatchParams::default(), &cordon(true)).await.unwrap();
        let begin = Instant::now();
        while begin.elapsed() < SUSPENSION_TIME {
            let on_host = self.running.values().filter(|(host, ..)| host == name);
            let names: Vec<String> = on_host.map(|(_, name, _)| name.clone()).collect();
            self.delete(names).await;
            self.run_round().await;
        }
        assert!(!self.running.values().any(|(host, ..)| host == name), "{name} still has VMs");
        nodes.patch(name, &PatchParams::default(), &cordon(false)).await.unwrap();
    }
}

fn resource_version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().unwrap_or_default().parse().unwrap()
}

fn churn_pod(number: usize, cpus: u64) -> Pod {
    let amounts = json!({"cpu": cpus.to_string(), "memory": "256Mi"});
    let name = format!("churn-{number}");
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels":
            {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": format!("vmi-{name}")},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name,
                "uid": format!("vmi-{name}"), "controller": true}]},
        "spec": {
            "schedulerName": "berth-scheduler", "nodeSelector": {"rack": "churn"},
            "automountServiceAccountToken": false,
            "containers": [{"name": "compute", "image": "none",
                "resources": {"requests": amounts, "limits": amounts}}],
        },
    }))
    .unwrap()
}
