//! Checks of the controller: its leader election and its permissions.

use berth_api::names::CONTROLLER_TENANT_CLUSTER_ROLE;
use serde_json::Value;

use super::definition::Check;
use super::input::Input;
use super::kind::Kind;
use super::lease::{Election, LeaseState};
use super::rbac::{BoundRule, permissions_of, rules_of_controller};
use super::read::Unread;
use super::values::{join_names, name, text};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "controller.leader",
        title: "a controller is the leader",
        explanation: "One of the controllers must hold the Lease berth-system/berth-controller and renew it; \
            otherwise specs, tenants and machines are not reconciled. If the Lease has expired by the clock of this \
            machine, the check waits for the duration of the Lease and reads it again, because the clocks may differ.",
        run: check_leader,
    },
    Check {
        id: "controller.permissions",
        title: "permissions of the controller",
        explanation: "Compares the roles that are bound to the controller's ServiceAccount with those in \
            deploy/base/rbac-controller.yaml of this release. FAIL if a permission is missing. The check reads roles \
            and bindings, because a SelfSubjectAccessReview would answer for the user of the kubeconfig. Permissions \
            that an authorizer other than RBAC grants are not considered.",
        run: check_permissions,
    },
];

/// Manifest of the controller's roles and bindings.
const MANIFEST: &str = include_str!("../../../deploy/base/rbac-controller.yaml");
/// Name of the Role and the ClusterRole of the controller in the manifest.
const ROLE: &str = "berth-controller";

/// Returns the command that shows for which condition the controller in this pod still waits.
pub(super) fn readyz_command(pod: &str) -> String {
    format!("kubectl get --raw /api/v1/namespaces/berth-system/pods/{pod}:9478/proxy/readyz")
}

/// Returns the remedy for a Lease that is not renewed: commands that show the log of the pod that holds the Lease,
/// or the logs of all pods.
fn lease_remedy(election: Election, state: &LeaseState) -> String {
    let container = match election {
        Election::Controller => "berth-controller",
        Election::Scheduler => "kube-scheduler",
    };
    let logs = "kubectl -n berth-system get pods; kubectl -n berth-system logs";
    match state.pod() {
        "" => format!("{logs} -l app.kubernetes.io/name=berth-controller -c {container}"),
        pod => format!("{logs} {pod} -c {container}; {}", readyz_command(pod)),
    }
}

/// Returns the outcome of the check of a Lease for leader election.
pub(super) fn check_lease(election: Election, state: &LeaseState) -> Outcome {
    let (namespace, name) = election.lease();
    let remedy = lease_remedy(election, state);
    let outcome = match state {
        LeaseState { is_fresh: true, holder, .. } => Outcome::pass(holder.as_str()),
        LeaseState { holder, .. } if holder.is_empty() => {
            Outcome::fail("there is no leader: the Lease has no holder").remedy(remedy)
        }
        LeaseState { holder, .. } => {
            Outcome::fail(format!("{holder} does not renew its Lease")).remedy(remedy)
        }
    };
    outcome.with_evidence(
        format!("Lease {namespace}/{name}"),
        format!(
            "holder {}, renewed {}, expires after {} s",
            state.holder, state.renew_time, state.duration
        ),
    )
}

fn check_leader(input: &Input) -> Result<Outcome, Unread> {
    Ok(match input.lease(Election::Controller)? {
        Some(state) => check_lease(Election::Controller, state),
        None => Outcome::fail("no controller has run in this cluster")
            .with_evidence("Lease berth-system/berth-controller", "does not exist")
            .remedy("kubectl apply -k deploy/"),
    })
}

fn check_permissions(input: &Input) -> Result<Outcome, Unread> {
    let granted = rules_of_controller(input)?;
    let manifest: Vec<Value> = serde_saphyr::from_multiple(MANIFEST).unwrap_or_default();
    let mut missing = Vec::new();
    let mut count = 0;
    for role in manifest.iter().filter(|one| is_role_of_controller(one)) {
        for permission in permissions_of(role, text(role, "/metadata/namespace")) {
            count += 1;
            if !granted.iter().any(|rule| rule.grants(&permission)) {
                missing.push(permission.to_string());
            }
        }
    }
    // ClusterRole that the controller binds to its own ServiceAccount in each tenant's namespace.
    let for_tenants = |roles: &[Value]| roles.iter().position(is_role_for_tenants);
    let cluster_roles = input.objects(Kind::ClusterRole)?;
    if let Some(desired) = for_tenants(&manifest) {
        let actual = for_tenants(cluster_roles).map(|index| &cluster_roles[index]);
        let rules: Vec<BoundRule<'_>> =
            actual.into_iter().flat_map(|role| BoundRule::all_of(role, "")).collect();
        for permission in permissions_of(&manifest[desired], "") {
            count += 1;
            if !rules.iter().any(|rule| rule.grants(&permission)) {
                missing
                    .push(format!("{permission} in ClusterRole {CONTROLLER_TENANT_CLUSTER_ROLE}"));
            }
        }
    }
    if missing.is_empty() {
        return Ok(Outcome::pass(format!("{count} permissions"))
            .with_evidence("roles of ServiceAccount berth-system/berth-controller", "complete"));
    }
    Ok(Outcome::fail(format!("{} of {count} permissions are missing", missing.len()))
        .with_evidence("missing", join_names(&missing))
        .remedy("kubectl apply -f deploy/base/rbac-controller.yaml"))
}

/// Returns true for a Role or ClusterRole of the manifest that is bound to the controller's ServiceAccount.
fn is_role_of_controller(object: &Value) -> bool {
    ["ClusterRole", "Role"].contains(&text(object, "/kind")) && name(object) == ROLE
}

/// Returns true for the ClusterRole that the controller binds to its own ServiceAccount in tenants' namespaces.
fn is_role_for_tenants(object: &Value) -> bool {
    // The API server omits the kind of the items of a list.
    ["ClusterRole", ""].contains(&text(object, "/kind"))
        && name(object) == CONTROLLER_TENANT_CLUSTER_ROLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{empty_cluster, run_check, with_objects};
    use serde_json::json;

    #[test]
    fn leader_must_renew_its_lease() {
        let check = |holder: &str, is_fresh: bool| {
            let state = LeaseState { holder: holder.to_owned(), is_fresh, ..LeaseState::default() };
            let leases = [(Election::Controller, Ok(state))].into();
            run_check("controller.leader", &Input { leases, ..Input::default() })
        };
        let status = |holder: &str, is_fresh: bool| check(holder, is_fresh).status;
        assert_eq!(status("berth-controller-a", true), Status::Pass);
        assert_eq!(status("berth-controller-a", false), Status::Fail);
        assert_eq!(status("", false), Status::Fail);
        let remedy = check("berth-controller-a_00ab", false).remedy.unwrap_or_default();
        assert!(remedy.contains("logs berth-controller-a -c berth-controller;"), "{remedy}");
        assert!(remedy.ends_with("/pods/berth-controller-a:9478/proxy/readyz"), "{remedy}");
        let remedy = check("", false).remedy.unwrap_or_default();
        assert!(remedy.contains("logs -l app.kubernetes.io/name=berth-controller"), "{remedy}");
    }

    /// Returns a cluster with the roles and bindings of the manifest, after `change` was called for each object.
    fn cluster(change: impl Fn(&mut Value)) -> Input {
        let mut manifest: Vec<Value> = serde_saphyr::from_multiple(MANIFEST).unwrap();
        manifest.iter_mut().for_each(change);
        let of_kind = |name: &str| {
            Value::Array(manifest.iter().filter(|one| one["kind"] == name).cloned().collect())
        };
        let kinds = [
            (Kind::ClusterRole, "ClusterRole"),
            (Kind::ClusterRoleBinding, "ClusterRoleBinding"),
            (Kind::Role, "Role"),
            (Kind::RoleBinding, "RoleBinding"),
        ];
        kinds
            .into_iter()
            .fold(empty_cluster(), |input, (kind, name)| with_objects(input, kind, &of_kind(name)))
    }

    #[test]
    fn manifest_grants_its_own_permissions() {
        let outcome = run_check("controller.permissions", &cluster(|_| {}));
        assert_eq!(outcome.status, Status::Pass, "{outcome:?}");
        let count = outcome.message.split(' ').next().and_then(|count| count.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count > 100), "{outcome:?}");
    }

    #[test]
    fn missing_permissions_are_named() {
        let without_rule = |index: usize, role: &'static str| {
            cluster(move |object| {
                if object["kind"] == "ClusterRole" && object["metadata"]["name"] == role {
                    object["rules"][index] = Value::Null;
                }
            })
        };
        let missing = |input: &Input| {
            let outcome = run_check("controller.permissions", input);
            assert_eq!(outcome.status, Status::Fail, "{outcome:?}");
            outcome.evidence[0].value.clone()
        };
        let first = missing(&without_rule(0, ROLE));
        assert!(
            first.starts_with("get infranodes.berth.dev, list infranodes.berth.dev"),
            "{first}"
        );
        let tenants = missing(&without_rule(0, CONTROLLER_TENANT_CLUSTER_ROLE));
        assert!(
            tenants.contains("get secrets in ClusterRole berth-controller-tenant"),
            "{tenants}"
        );
        let unbound = cluster(|object| {
            if object["kind"] == "RoleBinding" && object["metadata"]["namespace"] == "kube-system" {
                object["subjects"] = json!([{"kind": "ServiceAccount", "name": "other"}]);
            }
        });
        let unbound = missing(&unbound);
        assert!(
            unbound.starts_with("get leases.coordination.k8s.io berth-scheduler in kube-system")
        );
    }
}
