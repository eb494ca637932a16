//! Checks of the kube-scheduler with the controller as its extender.

use berth_api::names::{NAMESPACE, SCHEDULER_NAME};
use serde_json::Value;

use super::controller::{check_lease, readyz_command};
use super::definition::Check;
use super::input::Input;
use super::kind::Kind;
use super::lease::Election;
use super::read::Unread;
use super::values::{condition, items, join_names, name, text, texts};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "scheduler.leader",
        title: "a berth-scheduler is the leader",
        explanation: "One kube-scheduler of the component scheduler must hold the Lease kube-system/berth-scheduler and \
            renew it; otherwise pods with schedulerName berth-scheduler stay Pending. If the component is not installed: \
            FAIL if a TenantCluster or an instancetype names this scheduler, as those in deploy/instancetypes do, otherwise \
            SKIP.",
        run: check_leader,
    },
    Check {
        id: "scheduler.extender",
        title: "the leader's extender is ready",
        explanation: "The extender listens on the loopback of its pod only, so nothing outside can connect to it. The pod \
            of the scheduler that holds the Lease must have an extender (--extender-listen) and be Ready: its readiness \
            probe succeeds once the extender has listed all objects.",
        run: check_extender,
    },
];

/// Name of the Lease in the evidence of the checks.
const LEASE: &str = "Lease kube-system/berth-scheduler";
/// Option of the controller that enables the extender.
const EXTENDER_OPTION: &str = "--extender-listen=";
/// Command that installs the component `scheduler`.
const INSTALL_COMMAND: &str = "kubectl apply -k deploy/overlays/scheduler";

fn check_leader(input: &Input) -> Result<Outcome, Unread> {
    // The manifests of the component contain the Lease, without a holder: if it does not exist, the component is not
    // installed.
    if let Some(state) = input.lease(Election::Scheduler)? {
        return Ok(check_lease(Election::Scheduler, state));
    }
    let tenants = input.objects(Kind::TenantCluster)?;
    let needs_scheduler = |one: &&Value| text(one, "/spec/schedulerName") == SCHEDULER_NAME;
    let names: Vec<&str> = tenants.iter().filter(needs_scheduler).map(name).collect();
    if !names.is_empty() {
        return Ok(not_installed(
            "the component scheduler is not installed: VMs of tenants stay Pending",
            "tenants with schedulerName berth-scheduler",
            &names,
        ));
    }
    let mut types = Vec::new();
    for kind in [Kind::ClusterInstancetype, Kind::Instancetype] {
        types.extend(input.objects(kind)?.iter().filter(needs_scheduler).map(name));
    }
    if !types.is_empty() {
        return Ok(not_installed(
            "the component scheduler is not installed: VMs of these instancetypes stay Pending",
            "instancetypes with schedulerName berth-scheduler",
            &types,
        ));
    }
    Ok(Outcome::skip(
        "the component scheduler is not installed, and no TenantCluster or instancetype has its schedulerName",
    )
    .with_evidence(LEASE, "does not exist"))
}

/// Returns the outcome for objects that name the scheduler, although it is not installed.
fn not_installed(message: &str, path: &str, names: &[&str]) -> Outcome {
    Outcome::fail(message)
        .with_evidence(path, join_names(names))
        .with_evidence(LEASE, "does not exist")
        .remedy(INSTALL_COMMAND)
}

fn check_extender(input: &Input) -> Result<Outcome, Unread> {
    let Some(state) = input.lease(Election::Scheduler)?.filter(|state| state.is_fresh) else {
        return Ok(Outcome::skip("no berth-scheduler is the leader, see scheduler.leader"));
    };
    let pods = input.objects_in(Kind::ControllerPod, NAMESPACE)?;
    let (holder, host) = (state.holder.as_str(), state.pod());
    let lease = "Lease kube-system/berth-scheduler holder";
    let Some(pod) = pods.iter().find(|pod| name(pod) == host) else {
        let message =
            "the leader is not in a pod of the controller, so the state of its extender is unknown";
        return Ok(Outcome::skip(message).with_evidence(lease, holder));
    };
    let evidence = format!("Pod berth-system/{host}");
    if !has_extender(pod) {
        return Ok(Outcome::fail("the scheduler that is the leader has no extender")
            .with_evidence(evidence, format!("no {EXTENDER_OPTION}"))
            .remedy(INSTALL_COMMAND));
    }
    let ready = condition(pod, "Ready");
    if text(ready, "/status") == "True" {
        return Ok(Outcome::pass("ready").with_evidence(evidence, "Ready"));
    }
    Ok(Outcome::fail("the extender has not listed all objects, or its pod does not run")
        .with_evidence(evidence, format!("not Ready: {}", text(ready, "/message")))
        .remedy(format!(
            "{} names the missing kinds; kubectl -n berth-system logs {host} -c berth-controller",
            readyz_command(host)
        )))
}

/// Returns true if a container of the pod runs the extender.
fn has_extender(pod: &Value) -> bool {
    items(pod, "/spec/containers").any(|container| {
        let arguments = ["/command", "/args"].map(|field| texts(container, field)).concat();
        let mut address =
            arguments.iter().filter_map(|argument| argument.strip_prefix(EXTENDER_OPTION));
        address.any(|address| address != "none")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::lease::LeaseState;
    use crate::check::read::ReadError;
    use crate::check::test_helpers::{input_with, run_check};
    use crate::check::{Read, Status};

    fn with_lease(mut input: Input, lease: Read<LeaseState>) -> Input {
        input.leases.insert(Election::Scheduler, lease);
        input
    }

    #[test]
    fn scheduler_is_needed_if_a_tenant_names_it() {
        let status = |scheduler: &str| {
            let tenant =
                json!([{"metadata": {"name": "bank"}, "spec": {"schedulerName": scheduler}}]);
            let input = input_with(Kind::TenantCluster, &tenant);
            run_check("scheduler.leader", &with_lease(input, Err(ReadError::NotFound))).status
        };
        assert_eq!(status("berth-scheduler"), Status::Fail);
        assert_eq!(status("default-scheduler"), Status::Skip);
    }

    #[test]
    fn scheduler_is_needed_if_an_instancetype_names_it() {
        let check = |kind: Kind, scheduler: &str| {
            let all =
                json!([{"metadata": {"name": "density-1"}, "spec": {"schedulerName": scheduler}}]);
            let input = input_with(kind, &all);
            run_check("scheduler.leader", &with_lease(input, Err(ReadError::NotFound)))
        };
        for kind in [Kind::ClusterInstancetype, Kind::Instancetype] {
            let outcome = check(kind, "berth-scheduler");
            assert_eq!(outcome.status, Status::Fail);
            assert_eq!(outcome.evidence[0].value, "density-1");
            assert_eq!(check(kind, "default-scheduler").status, Status::Skip);
        }
    }

    #[test]
    fn pod_of_the_leader_must_be_ready() {
        let check = |holder: &str, argument: &str, ready: &str| {
            let pod = json!([{
                "metadata": {"name": "berth-controller-a", "namespace": "berth-system"},
                "spec": {"containers": [{"args": ["run", argument]}, {"args": 7}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }]);
            let holder = holder.to_owned();
            let lease = LeaseState { holder, is_fresh: true, ..LeaseState::default() };
            let input = with_lease(input_with(Kind::ControllerPod, &pod), Ok(lease));
            run_check("scheduler.extender", &input)
        };
        let (holder, option) = ("berth-controller-a_b1f4", "--extender-listen=127.0.0.1:10262");
        assert_eq!(check(holder, option, "True").status, Status::Pass);
        let outcome = check(holder, option, "False");
        assert_eq!(outcome.status, Status::Fail);
        let remedy = outcome.remedy.unwrap_or_default();
        let path = "/api/v1/namespaces/berth-system/pods/berth-controller-a:9478/proxy/readyz ";
        assert!(remedy.starts_with(&format!("kubectl get --raw {path}")), "{remedy}");
        assert_eq!(check(holder, "--extender-listen=none", "True").status, Status::Fail);
        assert_eq!(check(holder, "--resync=600", "True").status, Status::Fail);
        assert_eq!(check("other_b1f4", option, "True").status, Status::Skip);
        let input = with_lease(Input::default(), Ok(LeaseState::default()));
        assert_eq!(run_check("scheduler.extender", &input).status, Status::Skip);
    }
}
