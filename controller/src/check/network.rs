//! Checks of the pod network and of Multus.

use serde_json::Value;

use super::definition::Check;
use super::input::Input;
use super::kind::Kind;
use super::read::Unread;
use super::values::{items, join_names, name, text, texts};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "network.multus",
        title: "Multus runs on all Nodes",
        explanation: "VMs with a tenant network need Multus. The check looks for a DaemonSet with an image of Multus, and \
            compares its ready pods with the desired number: FAIL if none is ready, WARN if some are not. No version of \
            Multus is known not to work. SKIP if no DaemonSet is found: Multus may be installed in another way.",
        run: check_multus,
    },
    Check {
        id: "network.policies",
        title: "NetworkPolicies are enforced",
        explanation: "NetworkPolicies isolate tenants on the pod network, but only if the network plugin enforces them. The \
            check searches for the DaemonSets of plugins that are known to do so: PASS if all pods of one are ready, WARN if \
            some are not, FAIL if none is ready. WARN if only flannel is found, which enforces none itself. SKIP for other \
            plugins: test with two pods.",
        run: check_policies,
    },
];

/// Names of DaemonSets that enforce NetworkPolicies by default, and of containers that do so.
const ENFORCERS: [&str; 8] = [
    "calico-node",
    "canal",
    "cilium",
    "antrea-agent",
    "kube-router",
    "ovnkube-node",
    "weave-net",
    "kube-network-policies",
];
/// Part of the names of DaemonSets and containers of flannel.
const FLANNEL: &str = "flannel";
/// Option that disables kube-router's NetworkPolicies.
const ROUTER_OPTION: &str = "--run-firewall=false";

/// Returns the containers of a DaemonSet.
fn containers(set: &Value) -> std::slice::Iter<'_, Value> {
    items(set, "/spec/template/spec/containers")
}

/// Returns the namespace and the name of a DaemonSet, for evidence.
fn set_name(set: &Value) -> String {
    format!("DaemonSet {}/{}", text(set, "/metadata/namespace"), name(set))
}

/// Returns the numbers of ready and of desired pods of a DaemonSet.
fn pod_counts(set: &Value) -> (u64, u64) {
    let number = |field: &str| set["status"][field].as_u64().unwrap_or_default();
    (number("numberReady"), number("desiredNumberScheduled"))
}

fn check_multus(input: &Input) -> Result<Outcome, Unread> {
    let sets = input.objects(Kind::DaemonSet)?;
    let has_image =
        |set: &&Value| containers(set).any(|one| text(one, "/image").contains("multus"));
    let Some(set) = sets.iter().find(has_image) else {
        return Ok(Outcome::skip("no DaemonSet has an image of Multus")
            .with_evidence("daemonsets", sets.len()));
    };
    let images: Vec<&str> = containers(set).map(|one| text(one, "/image")).collect();
    let (ready, desired) = pod_counts(set);
    let remedy = format!("kubectl -n {} get pods -o wide", text(set, "/metadata/namespace"));
    let outcome = match ready {
        _ if ready >= desired && ready > 0 => Outcome::pass(join_names(&images)),
        0 => Outcome::fail("no pod of Multus is ready").remedy(remedy),
        _ => Outcome::warn(format!("{ready} of {desired} pods are ready")).remedy(remedy),
    };
    Ok(outcome
        .with_evidence(set_name(set), format!("{ready} of {desired} pods ready"))
        .with_evidence("images", join_names(&images)))
}

/// Returns true if a DaemonSet is known to enforce NetworkPolicies.
fn enforces_policies(set: &Value) -> bool {
    let is_disabled = containers(set).any(|one| {
        ["/command", "/args"].iter().any(|field| texts(one, field).contains(&ROUTER_OPTION))
    });
    let is_enforcer = |name: &str| ENFORCERS.contains(&name);
    !is_disabled
        && (is_enforcer(name(set)) || containers(set).any(|one| is_enforcer(text(one, "/name"))))
}

fn check_policies(input: &Input) -> Result<Outcome, Unread> {
    let sets = input.objects(Kind::DaemonSet)?;
    let enforcers: Vec<&Value> = sets.iter().filter(|set| enforces_policies(set)).collect();
    if let Some(set) = enforcers.iter().max_by_key(|set| pod_counts(set)) {
        let (ready, desired) = pod_counts(set);
        let evidence = format!("{ready} of {desired} pods ready");
        let remedy = format!("kubectl -n {} get pods -o wide", text(set, "/metadata/namespace"));
        let outcome = match ready {
            0 => Outcome::fail("the network plugin does not run: tenants are not isolated")
                .remedy(remedy),
            _ if ready < desired => Outcome::warn(format!(
                "{}: {ready} of {desired} pods are ready; on the other Nodes tenants may not be isolated",
                name(set)
            ))
            .remedy(remedy),
            _ => Outcome::pass(name(set)),
        };
        return Ok(outcome.with_evidence(set_name(set), evidence));
    }
    let is_flannel = |set: &&Value| {
        name(set).contains(FLANNEL)
            || containers(set).any(|one| text(one, "/name").contains(FLANNEL))
    };
    if let Some(set) = sets.iter().find(is_flannel) {
        return Ok(Outcome::warn("flannel enforces no NetworkPolicies: tenants are not isolated")
            .with_evidence(set_name(set), "no known enforcer beside it")
            .remedy("install an enforcer beside flannel, such as kubernetes-sigs/kube-network-policies, or another plugin"));
    }
    let names: Vec<&str> = sets.iter().map(name).collect();
    Ok(Outcome::skip("the network plugin is unknown: test with two pods")
        .with_evidence("daemonsets", join_names(&names)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{input_with, run_check};

    fn set(name: &str, container: &Value, ready: u64) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "kube-system"},
            "spec": {"template": {"spec": {"containers": [container]}}},
            "status": {"numberReady": ready, "desiredNumberScheduled": 3},
        })
    }

    fn status(id: &str, sets: &[Value]) -> Status {
        run_check(id, &input_with(Kind::DaemonSet, &json!(sets))).status
    }

    #[test]
    fn multus_is_found_by_its_image() {
        let multus = json!({"image": "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.2.2-thick"});
        let id = "network.multus";
        assert_eq!(status(id, &[set("kube-multus-ds", &multus, 3)]), Status::Pass);
        assert_eq!(status(id, &[set("kube-multus-ds", &multus, 2)]), Status::Warn);
        assert_eq!(status(id, &[set("kube-multus-ds", &multus, 0)]), Status::Fail);
        assert_eq!(status(id, &[set("multus", &json!({"image": 7}), 3), json!([])]), Status::Skip);
    }

    #[test]
    fn enforcement_is_never_guessed() {
        let id = "network.policies";
        let none = json!({});
        assert_eq!(status(id, &[set("calico-node", &none, 3)]), Status::Pass);
        assert_eq!(status(id, &[set("cilium", &none, 1)]), Status::Warn);
        assert_eq!(status(id, &[set("cilium", &none, 0)]), Status::Fail);
        // Kube-OVN may be a secondary network only.
        assert_eq!(status(id, &[set("ovs-ovn", &none, 3)]), Status::Skip);
        assert_eq!(status(id, &[set("kube-flannel-ds", &none, 3)]), Status::Warn);
        let enforcer = json!({"name": "kube-network-policies"});
        assert_eq!(status(id, &[set("kube-flannel-ds", &enforcer, 3)]), Status::Pass);
        let router = json!({"args": ["--run-router=true", "--run-firewall=false"]});
        assert_eq!(status(id, &[set("kube-router", &router, 3)]), Status::Skip);
        assert_eq!(status(id, &[set("aws-node", &none, 3), json!(null)]), Status::Skip);
        assert_eq!(status(id, &[]), Status::Skip);
    }
}
