//! Checks of the hosts, from the conditions and reports in their InfraNodes.

use berth_api::ConditionReason;
use berth_api::infra_node::{MIN_CORES, MIN_MEMORY, is_enough_memory};

use super::definition::Check;
use super::host::{ConditionStatus, Host, HostCondition};
use super::input::Input;
use super::read::Unread;
use super::values::{count, join_names};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "hosts.count",
        title: "number of hosts",
        explanation: "Berth assigns VMs only to hosts with an InfraNode: FAIL without any InfraNode. WARN with \
            only one, because its VMs have no other host during a drain.",
        run: check_count,
    },
    Check {
        id: "hosts.minimum",
        title: "hosts have the minimum size",
        explanation: "Production minimum for an infra node: 16 physical cores and 64 GiB of memory (8 cores and 32 \
            GiB for testing). WARN if a host is smaller, or if its size is unknown; SKIP if the size of no host is \
            known. `berth-agent check host` on a host also checks its disks.",
        run: check_minimum,
    },
    Check {
        id: "hosts.responsive",
        title: "agents are responsive",
        explanation: "The agent of every InfraNode must have reported its status, and the controller must not have \
            set the reason AgentUnresponsive. No VM with dedicated CPUs is placed on a host without a report. FAIL if \
            all hosts are affected, WARN if some are. Only the controller that is the leader sets the reason (see \
            controller.leader).",
        run: check_responsive,
    },
    Check {
        id: "hosts.virtualization",
        title: "hosts can run VMs",
        explanation: "Condition VirtualizationReady of the InfraNodes: FAIL if no host can run VMs, WARN if some cannot, or \
            if it is unknown whether they can.",
        run: check_virtualization,
    },
    Check {
        id: "hosts.ready",
        title: "hosts match their specs",
        explanation: "Condition Ready of the InfraNodes: WARN if it is not True. It includes tuning, tenant networks, the \
            kubelet and the HostProfile; docs/troubleshooting.md describes each reason.",
        run: check_ready,
    },
    Check {
        id: "hosts.certificates",
        title: "client certificates of agents",
        explanation: "Condition CredentialValid of the InfraNodes, which agents with a client certificate set. \
            FAIL if a certificate has expired. WARN if a certificate expires soon, or if the condition is unknown \
            because the agent is unresponsive.",
        run: check_certificates,
    },
];

/// Returns the outcome of a check that needs at least one host, for a cluster without hosts.
fn no_hosts() -> Outcome {
    Outcome::skip("there are no InfraNodes, see hosts.count")
}

/// Adds the names and the descriptions of the first hosts as evidence.
fn with_hosts(outcome: Outcome, hosts: &[&Host], describe: impl Fn(&Host) -> String) -> Outcome {
    const SHOWN_HOSTS: usize = 5;
    hosts.iter().take(SHOWN_HOSTS).fold(outcome, |outcome, host| {
        outcome.with_evidence(format!("InfraNode {}", host.name), describe(host))
    })
}

/// Returns a text with the reason and the message of a condition.
fn describe_condition(condition: &HostCondition) -> String {
    match condition {
        HostCondition { status: ConditionStatus::Absent, .. } => {
            "the condition does not exist".to_owned()
        }
        HostCondition { cause: Some(cause), message, .. } => format!("{cause}: {message}"),
        HostCondition { message, .. } => message.clone(),
    }
}

/// Returns the outcome for hosts whose state is unknown, because their agents have not reported it.
fn unknown_hosts(some: &[&Host], all: &[Host]) -> Outcome {
    Outcome::warn(format!("unknown on {}", count_text(some, all)))
        .remedy("the agents do not report: see berth-controller check hosts.responsive")
}

/// Returns a text such as `3 of 5 hosts: a, b, c`.
fn count_text(some: &[&Host], all: &[Host]) -> String {
    let names: Vec<&str> = some.iter().map(|host| host.name.as_str()).collect();
    format!("{} of {} hosts: {}", some.len(), all.len(), join_names(&names))
}

fn check_count(input: &Input) -> Result<Outcome, Unread> {
    let names: Vec<&str> = input.hosts()?.iter().map(|host| host.name.as_str()).collect();
    let outcome = match names.len() {
        0 => Outcome::fail("there are no hosts")
            .remedy("install the agent on the hosts: docs/install.md"),
        1 => Outcome::warn("only one host: its VMs have no other host during a drain")
            .remedy("install the agent on further hosts: docs/install.md"),
        number => Outcome::pass(count(number, "host")),
    };
    Ok(outcome.with_evidence("infranodes", join_names(&names)))
}

fn check_minimum(input: &Input) -> Result<Outcome, Unread> {
    let hosts = input.hosts()?;
    let is_known = |host: &&Host| host.cores.is_some() && host.memory.is_some();
    let is_small = |host: &&Host| {
        host.cores.is_some_and(|cores| cores < MIN_CORES)
            || host.memory.is_some_and(|memory| !is_enough_memory(memory))
    };
    let small: Vec<&Host> = hosts.iter().filter(is_small).collect();
    if !small.is_empty() {
        let message = format!("size below the production minimum: {}", count_text(&small, hosts));
        let outcome = Outcome::warn(message).remedy(format!(
            "{MIN_CORES} cores and {} are the minimum; 8 cores and 32 GiB are sufficient for testing",
            MIN_MEMORY.to_human_readable()
        ));
        return Ok(with_hosts(outcome, &small, |host| {
            let unknown = || "unknown".to_owned();
            let cores = host.cores.map_or_else(unknown, |cores| cores.to_string());
            let memory = host.memory.map_or_else(unknown, |memory| memory.to_human_readable());
            format!("cores: {cores}, memory: {memory}")
        }));
    }
    let unknown: Vec<&Host> = hosts.iter().filter(|host| !is_known(host)).collect();
    Ok(match unknown.len() {
        number if number == hosts.len() => Outcome::skip("the size of no host is known"),
        0 => Outcome::pass(count(hosts.len(), "host"))
            .with_evidence("infranodes", "at least the minimum"),
        _ => with_hosts(unknown_hosts(&unknown, hosts), &unknown, |_| "unknown size".to_owned()),
    })
}

fn check_responsive(input: &Input) -> Result<Outcome, Unread> {
    let hosts = input.hosts()?;
    let is_affected = |host: &&Host| !host.is_reported || host.is_unresponsive();
    let affected: Vec<&Host> = hosts.iter().filter(is_affected).collect();
    let outcome = match affected.len() {
        _ if hosts.is_empty() => return Ok(no_hosts()),
        0 => {
            return Ok(Outcome::pass(count(hosts.len(), "agent"))
                .with_evidence("infranodes", "all agents have reported"));
        }
        number if number == hosts.len() => Outcome::fail("no agent is responsive"),
        _ => Outcome::warn(format!("unresponsive: {}", count_text(&affected, hosts))),
    };
    let outcome = outcome.remedy(
        "kubectl -n berth-system get pods -l app.kubernetes.io/name=berth-agent -o wide; \
         on a host with the package: systemctl status berth-agent",
    );
    Ok(with_hosts(outcome, &affected, |host| {
        let text = if host.is_reported { "AgentUnresponsive" } else { "no report" };
        text.to_owned()
    }))
}

fn check_virtualization(input: &Input) -> Result<Outcome, Unread> {
    let hosts = input.hosts()?;
    if hosts.iter().all(|host| host.virtualization.status == ConditionStatus::Absent) {
        return Ok(Outcome::skip("no InfraNode has the condition VirtualizationReady"));
    }
    let describe = |host: &Host| describe_condition(&host.virtualization);
    let is_affected = |host: &&Host| host.virtualization.status == ConditionStatus::False;
    let affected: Vec<&Host> = hosts.iter().filter(is_affected).collect();
    let is_unknown = |host: &&Host| {
        [ConditionStatus::Absent, ConditionStatus::Unknown].contains(&host.virtualization.status)
    };
    let unknown: Vec<&Host> = hosts.iter().filter(is_unknown).collect();
    let outcome = match affected.len() {
        0 if unknown.is_empty() => {
            return Ok(Outcome::pass(count(hosts.len(), "host"))
                .with_evidence("infranodes", "VirtualizationReady"));
        }
        0 => return Ok(with_hosts(unknown_hosts(&unknown, hosts), &unknown, describe)),
        number if number == hosts.len() => Outcome::fail("no host can run VMs"),
        _ if unknown.is_empty() => {
            Outcome::warn(format!("hosts that cannot run VMs: {}", count_text(&affected, hosts)))
        }
        _ => Outcome::warn(format!(
            "hosts that cannot run VMs: {}; unknown on {}",
            count_text(&affected, hosts),
            count_text(&unknown, hosts)
        )),
    };
    let outcome = outcome.remedy("run on the host: berth-agent check kvm");
    Ok(with_hosts(outcome, &affected, describe))
}

fn check_ready(input: &Input) -> Result<Outcome, Unread> {
    let hosts = input.hosts()?;
    if hosts.is_empty() {
        return Ok(no_hosts());
    }
    let is_affected = |host: &&Host| host.ready.status != ConditionStatus::True;
    let affected: Vec<&Host> = hosts.iter().filter(is_affected).collect();
    if affected.is_empty() {
        return Ok(Outcome::pass(count(hosts.len(), "host")).with_evidence("infranodes", "Ready"));
    }
    let outcome = Outcome::warn(format!("not ready: {}", count_text(&affected, hosts)))
        .remedy("kubectl describe inode HOST; docs/troubleshooting.md describes each reason");
    Ok(with_hosts(outcome, &affected, |host| describe_condition(&host.ready)))
}

fn check_certificates(input: &Input) -> Result<Outcome, Unread> {
    let hosts = input.hosts()?;
    let with_status = |status: ConditionStatus| -> Vec<&Host> {
        hosts.iter().filter(|host| host.credential.status == status).collect()
    };
    let describe = |host: &Host| describe_condition(&host.credential);
    let affected = with_status(ConditionStatus::False);
    // The controller sets this condition to Unknown if the agent is unresponsive, which may be so because the
    // agent's certificate has expired.
    let unknown = with_status(ConditionStatus::Unknown);
    let valid = with_status(ConditionStatus::True).len();
    let outcome = if affected.is_empty() && !unknown.is_empty() {
        return Ok(with_hosts(unknown_hosts(&unknown, hosts), &unknown, describe));
    } else if affected.is_empty() && valid == 0 {
        return Ok(Outcome::skip("no agent has a client certificate"));
    } else if affected.is_empty() {
        return Ok(Outcome::pass(count(valid, "certificate"))
            .with_evidence("infranodes", "CredentialValid"));
    } else if affected.iter().any(|host| host.credential.cause == Some(ConditionReason::Expired)) {
        Outcome::fail(format!(
            "client certificates have expired or expire soon: {}",
            count_text(&affected, hosts)
        ))
    } else {
        Outcome::warn(format!("expires soon: {}", count_text(&affected, hosts)))
    };
    let outcome = outcome.remedy(
        "run deploy/agent-kubeconfig.sh NODE >kubeconfig, and replace /etc/berth/kubeconfig on the host with this file",
    );
    Ok(with_hosts(outcome, &affected, describe))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{host, run_check};

    fn status_of(id: &str, statuses: &[Value]) -> Status {
        let hosts = statuses.iter().enumerate();
        let hosts = hosts.map(|(index, status)| host(&format!("rack1-{index}"), status)).collect();
        run_check(id, &Input { hosts: Ok(hosts), ..Input::default() }).status
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({"agent": {}, "conditions": [{"type": kind, "status": status, "reason": reason, "message": "m"}]})
    }

    #[test]
    fn at_least_two_hosts_are_needed() {
        let any = json!({});
        assert_eq!(status_of("hosts.count", &[]), Status::Fail);
        assert_eq!(status_of("hosts.count", std::slice::from_ref(&any)), Status::Warn);
        assert_eq!(status_of("hosts.count", &[any.clone(), any]), Status::Pass);
    }

    #[test]
    fn size_is_compared_with_the_minimum() {
        let size = |cores: u32, memory: &str| json!({"capabilities": {"cpu": {"cores": cores}, "memory": {"total": memory}}});
        assert_eq!(status_of("hosts.minimum", &[size(16, "64Gi")]), Status::Pass);
        assert_eq!(status_of("hosts.minimum", &[size(16, "64Gi"), size(8, "64Gi")]), Status::Warn);
        assert_eq!(status_of("hosts.minimum", &[size(16, "32Gi")]), Status::Warn);
        let malformed = json!({"capabilities": {"cpu": {"cores": -1}, "memory": {"total": 7}}});
        assert_eq!(status_of("hosts.minimum", &[malformed, json!(7)]), Status::Skip);
        assert_eq!(status_of("hosts.minimum", &[size(16, "64Gi"), json!({})]), Status::Warn);
    }

    #[test]
    fn agents_without_report_are_unresponsive() {
        let responsive = condition("Ready", "True", "Applied");
        let lost = condition("Ready", "Unknown", "AgentUnresponsive");
        let id = "hosts.responsive";
        assert_eq!(status_of(id, &[]), Status::Skip);
        assert_eq!(status_of(id, std::slice::from_ref(&responsive)), Status::Pass);
        assert_eq!(status_of(id, &[responsive.clone(), lost.clone()]), Status::Warn);
        assert_eq!(status_of(id, &[responsive, json!({})]), Status::Warn);
        assert_eq!(status_of(id, &[lost]), Status::Fail);
    }

    #[test]
    fn conditions_of_hosts_are_counted() {
        let (yes, no) = (
            condition("VirtualizationReady", "True", "Ready"),
            condition("VirtualizationReady", "False", "NoCpuSupport"),
        );
        let id = "hosts.virtualization";
        assert_eq!(status_of(id, &[json!({})]), Status::Skip);
        assert_eq!(status_of(id, std::slice::from_ref(&yes)), Status::Pass);
        assert_eq!(status_of(id, &[yes.clone(), no.clone()]), Status::Warn);
        assert_eq!(status_of(id, std::slice::from_ref(&no)), Status::Fail);
        // The state of the other hosts is unknown, so they may be able to run VMs.
        let unknown = condition("VirtualizationReady", "Unknown", "AgentUnresponsive");
        assert_eq!(status_of(id, &[no, unknown.clone()]), Status::Warn);
        assert_eq!(status_of(id, &[yes.clone(), unknown.clone()]), Status::Warn);
        assert_eq!(status_of(id, &[yes, json!({})]), Status::Warn);
        assert_eq!(status_of(id, &[unknown]), Status::Warn);
        let ready = condition("Ready", "True", "Applied");
        assert_eq!(status_of("hosts.ready", std::slice::from_ref(&ready)), Status::Pass);
        assert_eq!(status_of("hosts.ready", &[ready, json!({"conditions": 7})]), Status::Warn);
        assert_eq!(status_of("hosts.ready", &[]), Status::Skip);
    }

    #[test]
    fn expired_certificates_fail() {
        let valid = |status: &str, reason: &str| condition("CredentialValid", status, reason);
        let id = "hosts.certificates";
        assert_eq!(status_of(id, &[json!({})]), Status::Skip);
        assert_eq!(status_of(id, &[valid("True", "Valid")]), Status::Pass);
        assert_eq!(status_of(id, &[valid("False", "ExpiresSoon")]), Status::Warn);
        let unknown = valid("Unknown", "AgentUnresponsive");
        assert_eq!(status_of(id, &[valid("True", "Valid"), unknown]), Status::Warn);
        assert_eq!(
            status_of(id, &[valid("True", "Valid"), valid("False", "Expired")]),
            Status::Fail
        );
    }
}
