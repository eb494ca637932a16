//! `filter` over HTTP with the names of all hosts: pinned VMs, VMs that share CPUs, and the peer, one after the other.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::connection::{Answer, Connection};
use crate::full::{self, Launcher, VMS};

/// Calls of each before any is measured.
const WARM: usize = 50;
/// A VM of this size, with pages and pinned, or without.
const CPUS: u32 = 4;
const GIB: u64 = 14;
/// VMs of a MachineDeployment: the next one's rules are new.
const DEPLOYMENT: usize = 25;

/// Milliseconds of every call.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) pinned: Vec<f64>,
    pub(super) plain: Vec<f64>,
    /// Of the peer, with the bodies of pinned ones.
    pub(super) peer: Vec<f64>,
    /// Bytes of a body.
    pub(super) bytes: usize,
}

/// What kube-scheduler would ask with all hosts right so far.
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

    /// The body for a pod, as Go would write it.
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

/// Asks in turn, so that what else the machine does meets all alike.
pub(super) fn measure(
    sidecar: u16,
    peer: u16,
    question: &Question,
    requests: usize,
) -> Result<Times> {
    // Half a host's free CPUs: there must be room for all of them at once, as they are not bound.
    ensure!(
        requests + WARM <= question.hosts * 2,
        "{requests} requests are too many for {} hosts with {} VMs each",
        question.hosts,
        VMS.len()
    );
    let (mut ours, mut theirs) = (Connection::to(sidecar)?, Connection::to(peer)?);
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

/// Milliseconds of one call, which must name so many hosts.
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
    fn a_question_is_what_the_sidecar_reads() {
        let question = Question::of(3);
        let body = question.body(7, false);
        let read = wire::filter(&body).unwrap();
        assert_eq!(read.names, ["host-00000", "host-00001", "host-00002"]);
        assert_eq!(read.pod.metadata.name.as_deref(), Some("virt-launcher-plain-7"));
    }
}
