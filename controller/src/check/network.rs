//! Checks of the pod network and of Multus.

use std::collections::BTreeSet;

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
        title: "Multus runs",
        explanation: "VMs with a tenant network need Multus. The check searches for DaemonSets with the name or an \
            image of Multus, and compares the number of their ready pods with the desired number; the DaemonSets may \
            not select all Nodes. FAIL if no pod is ready, WARN if some are not. All versions of Multus are accepted. \
            SKIP if no DaemonSet is found: Multus may be installed in another way.",
        run: check_multus,
    },
    Check {
        id: "network.policies",
        title: "NetworkPolicies are enforced",
        explanation: "NetworkPolicies isolate tenants on the pod network, but only if the network plugin enforces \
            them. The check searches for the DaemonSets of plugins that are known to do so: PASS if all pods of such a \
            DaemonSet are ready, WARN if some are not, FAIL if none is ready. WARN if only flannel is found, which \
            does not enforce NetworkPolicies. SKIP for other plugins: test with two pods.",
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
/// Part of the names of images of Multus. Its DaemonSets are `multus` and `kube-multus-ds`.
const MULTUS: &str = "multus";
/// Part of the image name of multus-dynamic-networks-controller, which needs Multus but does not contain it.
const MULTUS_USER: &str = "dynamic-networks";
/// Part of the names of DaemonSets and containers of flannel.
const FLANNEL: &str = "flannel";
/// Option with which kube-router does not enforce NetworkPolicies.
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

/// Returns the last part of an image's name, without tag and digest.
fn image_name(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').map_or(last, |(name, _)| name)
}

/// Returns true for a DaemonSet of Multus. Its image may have a name without `multus`, as on OpenShift.
fn is_multus(set: &Value) -> bool {
    let is_image = |image: &str| image.contains(MULTUS) && !image.contains(MULTUS_USER);
    name(set) == MULTUS
        || name(set).starts_with("kube-multus")
        || containers(set).any(|one| is_image(image_name(text(one, "/image"))))
}

fn check_multus(input: &Input) -> Result<Outcome, Unread> {
    let all = input.objects(Kind::DaemonSet)?;
    let mut sets: Vec<&Value> = all.iter().filter(|set| is_multus(set)).collect();
    // Some manifests of Multus have one DaemonSet for each CPU architecture. Those without matching Nodes want no pods.
    if sets.iter().any(|set| pod_counts(set).1 > 0) {
        sets.retain(|set| pod_counts(set).1 > 0);
    }
    let Some(first) = sets.first() else {
        return Ok(Outcome::skip("no DaemonSet of Multus was found")
            .with_evidence("daemonsets", all.len()));
    };
    let images: BTreeSet<&str> =
        sets.iter().flat_map(|set| containers(set)).map(|one| text(one, "/image")).collect();
    let images: Vec<&str> = images.into_iter().collect();
    let (ready, desired) = sets.iter().fold((0, 0), |(ready, desired): (u64, u64), set| {
        let (more_ready, more_desired) = pod_counts(set);
        (ready.saturating_add(more_ready), desired.saturating_add(more_desired))
    });
    let names: Vec<String> = sets.iter().map(|set| set_name(set)).collect();
    let remedy = format!("kubectl -n {} get pods -o wide", text(first, "/metadata/namespace"));
    let outcome = match ready {
        _ if ready >= desired && ready > 0 => Outcome::pass(join_names(&images)),
        0 => Outcome::fail("no pod of Multus is ready").remedy(remedy),
        _ => Outcome::warn(format!("{ready} of {desired} pods of Multus are ready")).remedy(remedy),
    };
    Ok(outcome
        .with_evidence(join_names(&names), format!("{ready} of {desired} pods ready"))
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
            .with_evidence(set_name(set), "no other known plugin that enforces NetworkPolicies")
            .remedy(
                "install a program that enforces NetworkPolicies beside flannel, such as \
                 kubernetes-sigs/kube-network-policies, or another network plugin",
            ));
    }
    let names: Vec<&str> = sets.iter().map(name).collect();
    Ok(Outcome::skip(
        "the network plugin is unknown: test with two pods whether NetworkPolicies are enforced",
    )
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
    fn multus_is_found_by_its_name_or_its_image() {
        let multus = json!({"image": "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.2.2-thick"});
        let id = "network.multus";
        assert_eq!(status(id, &[set("kube-multus-ds", &multus, 3)]), Status::Pass);
        assert_eq!(status(id, &[set("kube-multus-ds", &multus, 2)]), Status::Warn);
        assert_eq!(status(id, &[set("kube-multus-ds", &multus, 0)]), Status::Fail);
        assert_eq!(status(id, &[set("other", &json!({"image": 7}), 3), json!([])]), Status::Skip);
        // OpenShift's images have digests and no names.
        let digest = json!({"image": "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:0a1b"});
        assert_eq!(status(id, &[set("multus", &digest, 3)]), Status::Pass);
        // The name of this controller sorts before that of Multus, but the check must not take it for Multus.
        let user = json!({"image": "ghcr.io/k8snetworkplumbingwg/multus-dynamic-networks-controller:v0.3.7"});
        let user = set("a", &user, 3);
        assert_eq!(status(id, std::slice::from_ref(&user)), Status::Skip);
        let folder = json!({"image": "registry:5000/multus/whereabouts:latest"});
        assert_eq!(status(id, &[set("whereabouts", &folder, 3)]), Status::Skip);
        assert_eq!(status(id, &[user, set("kube-multus-ds", &multus, 0)]), Status::Fail);
        // DaemonSets for other architectures have no pods.
        let mut other = set("kube-multus-ds-arm64", &multus, 0);
        other["status"]["desiredNumberScheduled"] = 0.into();
        let amd64 = |ready| set("kube-multus-ds-amd64", &multus, ready);
        assert_eq!(status(id, &[other.clone(), amd64(3)]), Status::Pass);
        assert_eq!(status(id, &[other, amd64(2), set("multus", &multus, 3)]), Status::Warn);
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
