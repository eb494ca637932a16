//! Measures `filter` over HTTP with the names of all hosts, in turn for pinned VMs, for VMs that share CPUs, and for
//! the peer.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::connection::{Answer, Connection};
use crate::full::{self, Launcher, VMS};

/// Number of calls of each kind before the measurement.
const WARM: usize = 50;
/// Size of the VMs. A VM is either pinned with huge pages, or has neither.
const CPUS: u32 = 4;
const GIB: u64 = 14;
/// Number of VMs of a MachineDeployment. The first VM of the next MachineDeployment has new rules.
const DEPLOYMENT: usize = 25;

/// Milliseconds of each call.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) pinned: Vec<f64>,
    pub(super) plain: Vec<f64>,
    /// Milliseconds of the peer, for the requests of the pinned VMs.
    pub(super) peer: Vec<f64>,
    /// Size of a request body in bytes.
    pub(super) bytes: usize,
}

/// Data for a `filter` request in which all hosts are still candidates.
#[derive(Debug)]
pub(super) struct Question {
    names: String,
    hosts: usize,
}

impl Question {
    pub(super) fn of(hosts: usize) -> Self {
        let names: Vec<String> = (0..hosts).map(full::name).collect();
        Self { names: json!(names).to_string(), hosts }
    }

    /// Returns the request body for a pod, in the format of the JSON encoder of Go.
    pub(super) fn body(&self, number: usize, is_pinned: bool) -> Vec<u8> {
        let kind = if is_pinned { "pinned" } else { "plain" };
        let launcher = Launcher {
            name: format!("virt-launcher-{kind}-{number}"),
            namespace: "asked".to_owned(),
            instance: format!("instance-{kind}-{number}"),
            cpus: CPUS,
            gib: if is_pinned { GIB } else { 0 },
            deployment: Some(format!("{kind}-{}", number / DEPLOYMENT)),
        };
        let mut pod = launcher.pod();
        pod["metadata"]["uid"] = format!("uid-{kind}-{number}").into();
        pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod["status"] = json!({"phase": "Pending", "qosClass": "Guaranteed"});
        format!("{{\"Pod\":{pod},\"Nodes\":null,\"NodeNames\":{}}}", self.names).into_bytes()
    }
}

/// Calls `filter` for each kind in turn, so that other load on the machine affects all kinds equally.
pub(super) fn measure(
    extender: u16,
    peer: u16,
    question: &Question,
    requests: usize,
) -> Result<Times> {
    // Half of the free CPUs of the hosts. All VMs must have room at once, because the pods are not bound.
    ensure!(
        requests + WARM <= question.hosts * 2,
        "{requests} requests are too many for {} hosts with {} VMs each",
        question.hosts,
        VMS.len()
    );
    let (mut ours, mut theirs) = (Connection::to(extender)?, Connection::to(peer)?);
    let mut times = Times::default();
    for number in 0..WARM + requests {
        let (pinned, plain) = (question.body(number, true), question.body(number, false));
        times.bytes = pinned.len();
        let of_pinned = one(&mut ours, &pinned, 1)?;
        let of_plain = one(&mut ours, &plain, 1)?;
        let of_peer = one(&mut theirs, &pinned, question.hosts)?;
        if number >= WARM {
            times.pinned.push(of_pinned);
            times.plain.push(of_plain);
            times.peer.push(of_peer);
        }
    }
    Ok(times)
}

/// Returns the milliseconds of one call. The answer must contain the given number of hosts.
fn one(connection: &mut Connection, body: &[u8], hosts: usize) -> Result<f64> {
    let (took, answer) = connection.filter(body)?;
    let Answer { node_names, error } = answer;
    ensure!(error.is_empty(), "filter: {error}");
    let named = node_names.context("filter: no NodeNames")?.len();
    ensure!(named == hosts, "filter: {named} hosts are named, not {hosts}");
    Ok(took.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use berth_extender::wire;

    use super::*;

    #[test]
    fn a_question_is_what_the_extender_reads() {
        let question = Question::of(3);
        let body = question.body(7, false);
        let read = wire::filter(&body).unwrap();
        assert_eq!(read.names, ["host-00000", "host-00001", "host-00002"]);
        assert_eq!(read.pod.metadata.name.as_deref(), Some("virt-launcher-plain-7"));
    }
}
