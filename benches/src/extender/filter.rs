//! Measures `filter` calls over HTTP with the names of all hosts. The calls alternate between pinned VMs, VMs that
//! share CPUs, and the peer.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::connection::{Connection, FilterResponse};
use crate::full_fleet::{self, Launcher, VMS_OF_HOST};

/// Number of calls of each kind before the measurement.
const WARM_UP_CALLS: usize = 50;
/// Number of CPUs of each VM.
const CPUS: u32 = 4;
/// Memory of each VM in GiB. A pinned VM has huge pages; a VM that shares CPUs has none.
const VM_MEMORY_GIB: u64 = 14;
/// Number of VMs of a MachineDeployment. After this number of calls, the next VM has rules that the extender has
/// not seen.
const VMS_PER_DEPLOYMENT: usize = 25;

/// Milliseconds of each call.
#[derive(Debug, Default)]
pub(super) struct FilterTimes {
    pub(super) pinned_millis: Vec<f64>,
    pub(super) shared_millis: Vec<f64>,
    /// Milliseconds of the peer, for the requests of the pinned VMs.
    pub(super) peer_millis: Vec<f64>,
    /// Size of a request body in bytes.
    pub(super) request_bytes: usize,
}

/// Data of a `filter` request in which all hosts are candidates.
#[derive(Debug)]
pub(super) struct FilterRequest {
    names_json: String,
    host_count: usize,
}

impl FilterRequest {
    pub(super) fn new(hosts: usize) -> Self {
        let names: Vec<String> = (0..hosts).map(full_fleet::host_name).collect();
        Self { names_json: json!(names).to_string(), host_count: hosts }
    }

    /// Returns the request body for a pod in the format of Go's JSON encoder. `number` identifies the pod.
    pub(super) fn body(&self, number: usize, is_pinned: bool) -> Vec<u8> {
        let kind = if is_pinned { "pinned" } else { "plain" };
        let launcher = Launcher {
            name: format!("virt-launcher-{kind}-{number}"),
            namespace: "pending".to_owned(),
            instance_uid: format!("instance-{kind}-{number}"),
            cpus: CPUS,
            gib: if is_pinned { VM_MEMORY_GIB } else { 0 },
            deployment: Some(format!("{kind}-{}", number / VMS_PER_DEPLOYMENT)),
        };
        let mut pod = launcher.pod();
        pod["metadata"]["uid"] = format!("uid-{kind}-{number}").into();
        pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod["status"] = json!({"phase": "Pending", "qosClass": "Guaranteed"});
        format!("{{\"Pod\":{pod},\"Nodes\":null,\"NodeNames\":{}}}", self.names_json).into_bytes()
    }
}

/// Calls `filter` for each kind of VM in turn, so that other load on the machine affects all kinds equally.
pub(super) fn measure(
    extender_port: u16,
    peer_port: u16,
    request: &FilterRequest,
    requests: usize,
) -> Result<FilterTimes> {
    // The pods are never bound, so all VMs must have room at the same time. They may use at most half of the hosts'
    // free CPUs.
    ensure!(
        requests + WARM_UP_CALLS <= request.host_count * 2,
        "{requests} requests are too many for {} hosts with {} VMs each",
        request.host_count,
        VMS_OF_HOST.len()
    );
    let (mut ours, mut theirs) =
        (Connection::connect(extender_port)?, Connection::connect(peer_port)?);
    let mut times = FilterTimes::default();
    for number in 0..WARM_UP_CALLS + requests {
        let (pinned, plain) = (request.body(number, true), request.body(number, false));
        times.request_bytes = pinned.len();
        let pinned_millis = timed_call(&mut ours, &pinned, 1)?;
        let plain_millis = timed_call(&mut ours, &plain, 1)?;
        let peer_millis = timed_call(&mut theirs, &pinned, request.host_count)?;
        if number >= WARM_UP_CALLS {
            times.pinned_millis.push(pinned_millis);
            times.shared_millis.push(plain_millis);
            times.peer_millis.push(peer_millis);
        }
    }
    Ok(times)
}

/// Returns the milliseconds of one call. The answer must contain this number of hosts.
fn timed_call(connection: &mut Connection, body: &[u8], hosts: usize) -> Result<f64> {
    let (took, answer) = connection.filter(body)?;
    let FilterResponse { node_names, error } = answer;
    ensure!(error.is_empty(), "filter: {error}");
    let host_count = node_names.context("filter: the response has no NodeNames")?.len();
    ensure!(host_count == hosts, "filter: the response has {host_count} hosts, not {hosts}");
    Ok(took.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use berth_extender::scheduler_api;

    use super::*;

    #[test]
    fn extender_parses_the_request() {
        let request = FilterRequest::new(3);
        let body = request.body(7, false);
        let read = scheduler_api::parse_filter_args(&body).unwrap();
        assert_eq!(read.node_names, ["host-00000", "host-00001", "host-00002"]);
        assert_eq!(read.pod.metadata.name.as_deref(), Some("virt-launcher-plain-7"));
    }
}
