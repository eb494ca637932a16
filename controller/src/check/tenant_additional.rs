//! Check of the networks of other tenants to which one tenant's machines may be attached (`--tenant`).

use serde_json::Value;

use super::definition::Check;
use super::input::Input;
use super::kind::Kind;
use super::read::Unread;
use super::tenant::found;
use super::values::{condition, items, join_names, name, text, texts};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "tenant.additional-networks",
    title: "networks of other tenants",
    explanation: "Each TenantCluster in spec.network.additional must exist, have a network with address pools, and be \
        permitted by additionalNetworks of the InfraConfig: FAIL otherwise, because machines with an interface in its network \
        are not created. WARN if its condition NetworkReady or AddressesReady is not True, or if status.additionalNetworks of \
        the tenant does not list it yet. SKIP if the tenant lists no other TenantCluster. Entries NAMESPACE/NAME are not examined.",
    run: check_additional_networks,
}];

/// Problem of an entry of `spec.network.additional`.
enum EntryProblem {
    /// No machine can have an interface in the network.
    Fatal { found: &'static str, remedy: String },
    /// Machines wait, or machines may wait soon.
    Temporary { found: String },
}

fn check_additional_networks(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    let evidence = format!("TenantCluster {}", tenant.name);
    let object = found(&tenant.object, &evidence)?.unwrap_or(&Value::Null);
    let mut listed = texts(object, "/spec/network/additional");
    listed.retain(|entry| !entry.contains('/'));
    if listed.is_empty() {
        return Ok(Outcome::skip("the tenant lists no network of another TenantCluster"));
    }
    let tenants = input.objects(Kind::TenantCluster)?;
    let permitted = permitted_networks(input)?;
    let (mut fatal, mut temporary, mut remedies) = (Vec::new(), Vec::new(), Vec::new());
    let mut outcome_evidence = Vec::new();
    for other in &listed {
        let owner = tenants.iter().find(|one| name(one) == *other);
        let problem = match owner {
            Some(_) if *other == tenant.name => Some(EntryProblem::Fatal {
                found: "is the tenant itself",
                remedy: format!(
                    "kubectl edit tenantcluster {other}: remove it from spec.network.additional"
                ),
            }),
            None => Some(EntryProblem::Fatal {
                found: "does not exist",
                remedy: format!(
                    "create TenantCluster {other}, or remove it from spec.network.additional: kubectl edit tenantcluster {}",
                    tenant.name
                ),
            }),
            Some(_) if !permitted.contains(other) => Some(EntryProblem::Fatal {
                found: "is not in additionalNetworks of the InfraConfig",
                remedy: format!(
                    "kubectl edit infraconfig default: add {other} to spec.additionalNetworks, if its owner agrees"
                ),
            }),
            Some(owner) => problem_of_owner(owner, other)
                .or_else(|| problem_of_attachment(object, other, &tenant.name)),
        };
        let state = match problem {
            None => "ready".to_owned(),
            Some(EntryProblem::Fatal { found, remedy }) => {
                fatal.push(*other);
                remedies.push(remedy);
                found.to_owned()
            }
            Some(EntryProblem::Temporary { found }) => {
                temporary.push(*other);
                remedies.push(format!("kubectl describe tenantcluster {other}"));
                found
            }
        };
        outcome_evidence.push((format!("TenantCluster {other}"), state));
    }
    let outcome = if !fatal.is_empty() {
        Outcome::fail(format!("networks that cannot be attached: {}", join_names(&fatal)))
    } else if !temporary.is_empty() {
        Outcome::warn(format!("networks that are not ready: {}", join_names(&temporary)))
    } else {
        Outcome::pass(join_names(&listed))
    };
    let outcome = outcome_evidence
        .into_iter()
        .fold(outcome, |outcome, (object, state)| outcome.with_evidence(object, state));
    Ok(if remedies.is_empty() { outcome } else { outcome.remedy(remedies.join("; ")) })
}

/// Returns the TenantClusters whose networks the InfraConfig permits.
fn permitted_networks(input: &Input) -> Result<Vec<&str>, Unread> {
    let configs = input.objects(Kind::InfraConfig)?;
    let own = configs.iter().filter(|config| name(config) == "default");
    Ok(own.flat_map(|config| texts(config, "/spec/additionalNetworks")).collect())
}

/// Returns the problem of the TenantCluster that owns the network.
fn problem_of_owner(owner: &Value, other: &str) -> Option<EntryProblem> {
    let has = |field: &str| owner.pointer(field).is_some_and(Value::is_object);
    if !has("/spec/network/ipv4") && !has("/spec/network/ipv6") {
        return Some(EntryProblem::Fatal {
            found: "has no address pools",
            remedy: format!(
                "kubectl edit tenantcluster {other}: set spec.network.ipv4 or spec.network.ipv6"
            ),
        });
    }
    ["NetworkReady", "AddressesReady"].into_iter().find_map(|kind| {
        let state = condition(owner, kind);
        let [status, reason, message] =
            ["/status", "/reason", "/message"].map(|field| text(state, field));
        let found = if status.is_empty() {
            format!("has no condition {kind}")
        } else {
            format!("{kind} {status} {reason}: {message}")
        };
        (status != "True").then_some(EntryProblem::Temporary { found })
    })
}

/// Returns the problem if machines of the tenant cannot be attached yet.
fn problem_of_attachment(tenant: &Value, other: &str, tenant_name: &str) -> Option<EntryProblem> {
    let is_attachable =
        items(tenant, "/status/additionalNetworks").any(|entry| entry.as_str() == Some(other));
    let found = format!("is not in status.additionalNetworks of TenantCluster {tenant_name} yet");
    (!is_attachable).then_some(EntryProblem::Temporary { found })
}

#[cfg(test)]
mod tests {
    use berth_runtime::check::Status;
    use serde_json::json;

    use super::*;
    use crate::check::tenant_input::{KubeconfigState, TenantInput};
    use crate::check::test_helpers::{empty_cluster, run_check, with_objects};

    fn condition_of(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "reason": "SomeReason", "message": "some message"})
    }

    /// Returns a TenantCluster with an address pool, and with these states of its conditions.
    fn owner(network_ready: &str, addresses_ready: &str) -> Value {
        let conditions = [
            condition_of("NetworkReady", network_ready),
            condition_of("AddressesReady", addresses_ready),
        ];
        json!({
            "metadata": {"name": "bank-storage"},
            "spec": {"network": {"name": "trunk", "ipv4": {"cidr": "10.9.0.0/24"}}},
            "status": {"conditions": conditions},
        })
    }

    /// Returns the outcome for the tenant `bank` that lists the networks `additional`, of which `attachable` are in its
    /// status.
    fn outcome(additional: Value, attachable: Value, owner: Value, permitted: Value) -> Outcome {
        let tenant = TenantInput {
            name: "bank".to_owned(),
            object: Ok(json!({
                "spec": {"network": {"additional": additional}},
                "status": {"additionalNetworks": attachable},
            })),
            namespace: Ok(json!({})),
            definition: None,
            machine_deployments: Ok(Vec::new()),
            kubeconfig: KubeconfigState::NotReferenced,
            api_server: None,
        };
        let tenants = json!([owner, {"metadata": {"name": "bank"}}, 7]);
        let input = with_objects(empty_cluster(), Kind::TenantCluster, &tenants);
        let config =
            json!([{"metadata": {"name": "default"}, "spec": {"additionalNetworks": permitted}}]);
        let input = with_objects(input, Kind::InfraConfig, &config);
        run_check("tenant.additional-networks", &Input { tenant: Some(tenant), ..input })
    }

    #[test]
    fn a_permitted_and_ready_network_passes() {
        let listed = || json!(["bank-storage", "storage/ceph"]);
        let ready = outcome(listed(), listed(), owner("True", "True"), listed());
        assert_eq!((ready.status, ready.message.as_str()), (Status::Pass, "bank-storage"));
        let nad_only =
            outcome(json!(["storage/ceph"]), json!([]), owner("True", "True"), json!([]));
        assert_eq!(nad_only.status, Status::Skip);
        assert_eq!(
            outcome(Value::Null, json!([]), owner("True", "True"), json!([])).status,
            Status::Skip
        );
    }

    #[test]
    fn networks_that_cannot_be_attached_fail() {
        let listed = || json!(["bank-storage"]);
        let without_pools =
            json!({"metadata": {"name": "bank-storage"}, "spec": {"network": {"name": "trunk"}}});
        let absent = json!({"metadata": {"name": "other"}});
        let forbidden = owner("True", "True");
        for (additional, owner, permitted, words) in [
            (listed(), without_pools, listed(), "set spec.network.ipv4"),
            (listed(), absent, listed(), "create TenantCluster bank-storage"),
            (listed(), forbidden.clone(), json!([]), "add bank-storage to spec.additionalNetworks"),
            (listed(), forbidden, json!(7), "add bank-storage to spec.additionalNetworks"),
            (json!(["bank"]), json!({}), json!(["bank"]), "remove it from spec.network.additional"),
        ] {
            let found = outcome(additional, listed(), owner, permitted);
            assert_eq!(found.status, Status::Fail, "{found:?}");
            assert!(found.remedy.as_ref().unwrap().contains(words), "{found:?}");
        }
    }

    #[test]
    fn networks_that_are_not_ready_are_warnings() {
        let listed = || json!(["bank-storage"]);
        let malformed = json!({"metadata": {"name": "bank-storage"},
            "spec": {"network": {"ipv6": {}}}, "status": {"conditions": 7}});
        for (owner, attachable) in [
            (owner("False", "True"), listed()),
            (owner("True", "False"), listed()),
            (malformed, listed()),
            (owner("True", "True"), json!([])),
            (owner("True", "True"), json!(7)),
        ] {
            let found = outcome(listed(), attachable, owner, listed());
            assert_eq!(found.status, Status::Warn, "{found:?}");
            assert!(found.remedy.is_some(), "{found:?}");
        }
    }
}
