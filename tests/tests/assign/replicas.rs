//! Two replicas of the scheduler, each with its own extender; one scheduler holds the Lease.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Instant;

use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use berth_tests::running::Running;

use crate::testbed::SHORT_TIMEOUT;

/// Scheduler and its extender. Both see the same host name, like two containers of a pod.
pub(crate) struct Replica {
    pub(crate) host: String,
    port: u16,
    extender: Controller,
    scheduler: Running,
}

pub(crate) struct Replicas {
    all: Vec<Replica>,
    /// Host names of the replicas that have held the Lease so far.
    pub(crate) past_leaders: BTreeSet<String>,
}

impl Replicas {
    pub(crate) fn start(plane: &ControlPlane) -> Self {
        let all = ["replica-a", "replica-b"].map(|host| Replica::start(plane, host));
        Self { all: all.into(), past_leaders: BTreeSet::new() }
    }

    /// Returns the replica that holds the Lease.
    pub(crate) fn leader(&mut self, plane: &ControlPlane) -> &mut Replica {
        let begin = Instant::now();
        let index = loop {
            let lease = plane.get_json(&["lease", "-n", "kube-system", "berth-scheduler"]).unwrap();
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            let host = holder.rsplit_once('_').map_or("", |(host, _)| host);
            if let Some(at) = self.all.iter().position(|pair| pair.host == host) {
                break at;
            }
            assert!(
                begin.elapsed() < SHORT_TIMEOUT,
                "the Lease is held by `{holder}`, not by a replica"
            );
        };
        let leader = &mut self.all[index];
        self.past_leaders.insert(leader.host.clone());
        leader
    }

    pub(crate) fn logs(&self, plane: &ControlPlane) -> String {
        self.all
            .iter()
            .map(|pair| format!("{}: {}\n", pair.host, plane.log_tail(&pair.host)))
            .collect()
    }
}

impl Replica {
    fn start(plane: &ControlPlane, host: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self {
            host: host.to_owned(),
            port,
            extender: start_extender(plane, host, port),
            scheduler: start_scheduler(plane, host, port),
        }
    }

    /// Kills the extender and immediately starts a new one, as the kubelet does.
    pub(crate) fn kill_extender(&mut self, plane: &ControlPlane) {
        self.extender.running.stop();
        self.extender = start_extender(plane, &self.host, self.port);
    }

    /// Kills the scheduler and immediately starts a new one, as the kubelet does.
    pub(crate) fn kill_scheduler(&mut self, plane: &ControlPlane) {
        self.scheduler.stop();
        self.scheduler = start_scheduler(plane, &self.host, self.port);
    }

    /// Suspends the extender, and also the scheduler if `both` is true.
    pub(crate) fn suspend(&self, both: bool) {
        if both {
            self.scheduler.send_signal("STOP").unwrap();
        }
        self.extender.running.send_signal("STOP").unwrap();
    }

    pub(crate) fn resume(&self) {
        self.extender.running.send_signal("CONT").unwrap();
        self.scheduler.send_signal("CONT").unwrap();
    }
}

fn start_extender(plane: &ControlPlane, host: &str, port: u16) -> Controller {
    let listen = format!("--extender-listen=127.0.0.1:{port}");
    let lease = "--scheduler-lease=kube-system/berth-scheduler";
    Controller::start_on_host(plane, host, &[&listen, lease]).unwrap()
}

fn start_scheduler(plane: &ControlPlane, host: &str, port: u16) -> Running {
    let file = plane.scheduler_configuration(Some(port)).unwrap();
    plane.start_scheduler_on_host(host, &file).unwrap()
}
