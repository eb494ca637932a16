//! Checks of one tenant (`--tenant`).

use std::collections::BTreeSet;

use berth_api::TenantCluster;
use berth_api::names::TENANT_LABEL;
use berth_runtime::untrusted::UntrustedError;
use serde_json::Value;

use super::definition::Check;
use super::input::Input;
use super::read::{Read, ReadError, Unread};
use super::storage::missing_classes;
use super::tenant_input::{ApiServerAnswer, KubeconfigState};
use super::values::{condition, join_names, text};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "tenant.object",
        title: "the TenantCluster is ready",
        explanation: "The TenantCluster of the given name must exist. WARN if its condition Ready is not True; \
            docs/troubleshooting.md describes each reason.",
        run: check_object,
    },
    Check {
        id: "tenant.namespace",
        title: "namespace of the tenant",
        explanation: "The namespace cluster-NAME must exist, be active and have the label berth.dev/tenant with the name of \
            the tenant; otherwise the tenant's objects are not created.",
        run: check_namespace,
    },
    Check {
        id: "tenant.network",
        title: "NetworkAttachmentDefinition of the tenant",
        explanation: "The NetworkAttachmentDefinition in the status of the TenantCluster must exist; without it, launcher \
            pods stay in ContainerCreating. SKIP for a tenant without a network.",
        run: check_network,
    },
    Check {
        id: "tenant.storage-classes",
        title: "StorageClasses of the tenant's machines",
        explanation: "The StorageClasses that the MachineDeployments of the tenant name must exist; otherwise their disks \
            stay Pending. MachineDeployments are read in the tenant's namespace, and in spec.machineNamespaces if they name \
            the tenant. Names from Secrets or ConfigMaps are not resolved. SKIP if none is named.",
        run: check_storage_classes,
    },
    Check {
        id: "tenant.kubeconfig",
        title: "kubeconfig of the tenant",
        explanation: "The Secret in spec.kubeconfigSecretRef must exist, be permitted for this tenant and contain a \
            kubeconfig that needs no file and no program. Nothing of its content is printed. SKIP without the reference.",
        run: check_kubeconfig,
    },
    Check {
        id: "tenant.api-server",
        title: "API server of the tenant",
        explanation: "Requests /version of the tenant's API server from this machine, with the tenant's kubeconfig: FAIL \
            without an answer, WARN if the credential is refused. A tenant's API server may be reachable from the cluster \
            only.",
        run: check_api_server,
    },
];

/// Returns an object; `None` if it does not exist.
pub(super) fn found<'r>(read: &'r Read<Value>, object: &str) -> Result<Option<&'r Value>, Unread> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(ReadError::NotFound) => Ok(None),
        Err(error) => Err(Unread::new(object, error)),
    }
}

fn check_object(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    let evidence = format!("TenantCluster {}", tenant.name);
    let Some(object) = found(&tenant.object, &evidence)? else {
        return Ok(Outcome::fail("the TenantCluster does not exist")
            .with_evidence(evidence, "does not exist")
            .remedy("kubectl get tenantclusters"));
    };
    let ready = condition(object, "Ready");
    let [status, reason, message] =
        ["/status", "/reason", "/message"].map(|field| text(ready, field));
    Ok(if status == "True" {
        Outcome::pass("ready").with_evidence(evidence, "Ready")
    } else {
        Outcome::warn("the tenant is not ready")
            .with_evidence(evidence, format!("Ready {status} {reason}: {message}"))
            .remedy(format!("kubectl describe tenantcluster {}", tenant.name))
    })
}

fn check_namespace(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    let name = TenantCluster::namespace_of(&tenant.name);
    let evidence = format!("Namespace {name}");
    let Some(namespace) = found(&tenant.namespace, &evidence)? else {
        return Ok(Outcome::fail("the namespace does not exist")
            .with_evidence(evidence, "does not exist")
            .remedy("the controller creates it: see tenant.object and controller.leader"));
    };
    let phase = text(namespace, "/status/phase");
    let label = namespace["metadata"]["labels"][TENANT_LABEL].as_str().unwrap_or_default();
    let outcome = if phase != "Active" {
        Outcome::fail("the namespace is being deleted")
            .remedy(format!("kubectl get namespace {name} -o yaml shows the remaining objects"))
    } else if label != tenant.name {
        Outcome::fail("the namespace does not belong to the tenant: another user created it")
            .remedy(format!(
                "delete the namespace; or, if all its objects belong to the tenant: \
                 kubectl label namespace {name} {TENANT_LABEL}={}",
                tenant.name
            ))
    } else {
        Outcome::pass("active")
    };
    Ok(outcome.with_evidence(evidence, format!("{phase}, {TENANT_LABEL}={label}")))
}

fn check_network(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    let evidence = format!("TenantCluster {}", tenant.name);
    let has_network = found(&tenant.object, &evidence)?
        .is_some_and(|object| object.pointer("/spec/network").is_some_and(Value::is_object));
    if !has_network {
        return Ok(Outcome::skip("the tenant has no network"));
    }
    let Some((name, read)) = &tenant.definition else {
        return Ok(Outcome::fail("the tenant has no NetworkAttachmentDefinition")
            .with_evidence(format!("{evidence} status.networkAttachmentDefinition"), "")
            .remedy(format!(
                "kubectl describe tenantcluster {}; the condition NetworkReady has the reason",
                tenant.name
            )));
    };
    let evidence = format!("NetworkAttachmentDefinition {name}");
    Ok(match found(read, &evidence)? {
        Some(_) => Outcome::pass(name.as_str()).with_evidence(evidence, "exists"),
        None => Outcome::fail("the NetworkAttachmentDefinition does not exist")
            .with_evidence(evidence, "does not exist")
            .remedy("the controller creates it: see controller.leader and network.multus"),
    })
}

fn check_storage_classes(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    let deployments = match &tenant.machine_deployments {
        Ok(deployments) => deployments.as_slice(),
        Err(ReadError::NotFound) => &[],
        Err(error) => return Err(Unread::new("machinedeployments", error)),
    };
    let mut classes = BTreeSet::new();
    for deployment in deployments {
        let provider = "/spec/template/spec/providerSpec/value";
        collect_classes(deployment.pointer(provider).unwrap_or(&Value::Null), &mut classes);
    }
    let classes: Vec<&str> = classes.into_iter().collect();
    if classes.is_empty() {
        return Ok(Outcome::skip("no MachineDeployment of the tenant names a StorageClass"));
    }
    let missing = missing_classes(input, &classes)?;
    let outcome = if missing.is_empty() {
        Outcome::pass(join_names(&classes))
    } else {
        Outcome::fail(format!("StorageClasses that do not exist: {}", join_names(&missing))).remedy(
            "create the StorageClasses, or change storageClassName in the MachineDeployments",
        )
    };
    let evidence = format!("machinedeployments of tenant {}", tenant.name);
    Ok(outcome.with_evidence(evidence, join_names(&classes)))
}

/// Collects the StorageClasses of a providerSpec, at any depth. A name is a string, or an object with the field
/// `value`.
fn collect_classes<'v>(value: &'v Value, classes: &mut BTreeSet<&'v str>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if key == "storageClassName" {
                    let name = value.as_str().or_else(|| value["value"].as_str());
                    classes.extend(name.filter(|name| !name.is_empty()));
                } else {
                    collect_classes(value, classes);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_classes(item, classes)),
        _ => {}
    }
}

/// Returns the outcome of a check that needs the TenantCluster, if it does not exist.
fn not_found() -> Outcome {
    Outcome::skip("the TenantCluster does not exist, see tenant.object")
}

fn check_kubeconfig(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    if found(&tenant.object, &format!("TenantCluster {}", tenant.name))?.is_none() {
        return Ok(not_found());
    }
    Ok(match &tenant.kubeconfig {
        KubeconfigState::NotReferenced => {
            Outcome::skip("the TenantCluster has no spec.kubeconfigSecretRef")
        }
        KubeconfigState::Usable(secret) => {
            Outcome::pass("usable").with_evidence(format!("Secret {secret}"), "a kubeconfig")
        }
        KubeconfigState::Unusable { secret, problem } => {
            if let Some(unread) = problem.unread(secret) {
                return Err(unread);
            }
            Outcome::fail("the kubeconfig cannot be used")
                .with_evidence(format!("Secret {secret}"), problem)
                .remedy(format!(
                    "correct the Secret, or spec.kubeconfigSecretRef: kubectl edit tenantcluster {}",
                    tenant.name
                ))
        }
    })
}

fn check_api_server(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    if found(&tenant.object, &format!("TenantCluster {}", tenant.name))?.is_none() {
        return Ok(not_found());
    }
    let remedy = "check the server and the credential of the kubeconfig, and whether this machine may connect to it";
    let evidence = format!("API server of tenant {}", tenant.name);
    Ok(match &tenant.api_server {
        None => Outcome::skip("there is no kubeconfig that can be used, see tenant.kubeconfig"),
        Some(ApiServerAnswer::Version(version)) => {
            Outcome::pass(version.as_str()).with_evidence(evidence, version)
        }
        Some(ApiServerAnswer::Status(code)) => {
            Outcome::warn("the API server of the tenant refuses the request")
                .with_evidence(evidence, format!("HTTP status {code}"))
                .remedy(remedy)
        }
        Some(ApiServerAnswer::Failed(error @ UntrustedError::AddressRefused(_))) => {
            Outcome::fail("the controller refuses to connect to the address of the tenant's API server")
                .with_evidence(evidence, error)
                .remedy("set clusters[].cluster.server of the kubeconfig to the address of the tenant's own API server")
        }
        Some(ApiServerAnswer::Failed(error)) => {
            Outcome::fail("the API server of the tenant does not answer")
                .with_evidence(evidence, error)
                .remedy(remedy)
        }
    })
}

#[cfg(test)]
mod tests {
    use berth_runtime::untrusted::RefusedAddress;
    use serde_json::json;

    use super::*;
    use crate::check::Status;
    use crate::check::kind::Kind;
    use crate::check::tenant_input::{KubeconfigProblem, TenantInput};
    use crate::check::test_helpers::{input_with, run_check};
    use crate::tenants::kubeconfig_rules::RefusedKubeconfig;

    fn tenant_bank() -> TenantInput {
        TenantInput {
            name: "bank".to_owned(),
            object: Ok(json!({
                "spec": {"network": {"name": "trunk"}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            })),
            namespace: Ok(json!({
                "metadata": {"labels": {"berth.dev/tenant": "bank"}}, "status": {"phase": "Active"},
            })),
            definition: Some(("cluster-bank/tenant-bank".to_owned(), Ok(json!({})))),
            machine_deployments: Ok(Vec::new()),
            kubeconfig: KubeconfigState::Usable("cluster-bank/kubeconfig".to_owned()),
            api_server: Some(ApiServerAnswer::Version("v1.31.0".to_owned())),
        }
    }

    fn status(id: &str, change: impl FnOnce(&mut TenantInput)) -> Status {
        let mut tenant = tenant_bank();
        change(&mut tenant);
        let classes = json!([{"metadata": {"name": "fast"}}]);
        let input = input_with(Kind::StorageClass, &classes);
        run_check(id, &Input { tenant: Some(tenant), ..input }).status
    }

    #[test]
    fn tenant_without_problems_passes() {
        for check in CHECKS.iter().filter(|check| check.id != "tenant.storage-classes") {
            assert_eq!(status(check.id, |_| {}), Status::Pass, "{}", check.id);
        }
        let outcome = run_check("tenant.object", &Input::default());
        assert_eq!((outcome.status, outcome.unread), (Status::Skip, false));
    }

    #[test]
    fn missing_objects_fail() {
        let missing = || Err(ReadError::NotFound);
        assert_eq!(status("tenant.object", |tenant| tenant.object = missing()), Status::Fail);
        assert_eq!(status("tenant.namespace", |tenant| tenant.namespace = missing()), Status::Fail);
        assert_eq!(status("tenant.network", |tenant| tenant.definition = None), Status::Fail);
        let definition = Some(("cluster-bank/tenant-bank".to_owned(), missing()));
        assert_eq!(status("tenant.network", |tenant| tenant.definition = definition), Status::Fail);
        assert_eq!(status("tenant.network", |tenant| tenant.object = Ok(json!({}))), Status::Skip);
        let forbidden = Err(ReadError::Forbidden("namespaces".to_owned()));
        assert_eq!(status("tenant.namespace", |tenant| tenant.namespace = forbidden), Status::Skip);
    }

    #[test]
    fn malformed_objects_do_not_pass() {
        for malformed in [json!(null), json!([7]), json!({"status": 7, "metadata": {"labels": []}})]
        {
            let object = Ok(malformed.clone());
            assert_eq!(status("tenant.object", |tenant| tenant.object = object), Status::Warn);
            let namespace = Ok(malformed);
            let changed = status("tenant.namespace", |tenant| tenant.namespace = namespace);
            assert_eq!(changed, Status::Fail);
        }
        let foreign = json!({"metadata": {"labels": {}}, "status": {"phase": "Active"}});
        let changed = status("tenant.namespace", |tenant| tenant.namespace = Ok(foreign));
        assert_eq!(changed, Status::Fail);
    }

    #[test]
    fn storage_classes_of_machines_must_exist() {
        let check = |disks: Value| {
            let value = json!({"virtualMachine": {"template": disks}});
            let deployment =
                json!({"spec": {"template": {"spec": {"providerSpec": {"value": value}}}}});
            let changed = |tenant: &mut TenantInput| {
                tenant.machine_deployments = Ok(vec![deployment, json!(7)]);
            };
            status("tenant.storage-classes", changed)
        };
        assert_eq!(check(json!({"primaryDisk": {"storageClassName": "fast"}})), Status::Pass);
        let disks = json!({"secondaryDisks": [{"storageClassName": {"value": "slow"}}]});
        assert_eq!(check(disks), Status::Fail);
        assert_eq!(check(json!({"primaryDisk": {"storageClassName": 7}})), Status::Skip);
    }

    #[test]
    fn kubeconfig_and_api_server_are_reported_without_content() {
        let with_problem = |problem| {
            status("tenant.kubeconfig", |tenant| {
                let secret = "cluster-bank/kubeconfig".to_owned();
                tenant.kubeconfig = KubeconfigState::Unusable { secret, problem };
            })
        };
        assert_eq!(
            with_problem(KubeconfigProblem::Refused(RefusedKubeconfig::UsesMachine)),
            Status::Fail
        );
        assert_eq!(with_problem(KubeconfigProblem::Unread(ReadError::NotFound)), Status::Fail);
        let forbidden = ReadError::Forbidden("secrets".to_owned());
        assert_eq!(with_problem(KubeconfigProblem::Unread(forbidden)), Status::Skip);
        let forbidden = ReadError::Forbidden("infraconfigs".to_owned());
        assert_eq!(with_problem(KubeconfigProblem::ConfigUnread(forbidden)), Status::Skip);
        let id = "tenant.api-server";
        let refused = Some(ApiServerAnswer::Status(401));
        assert_eq!(status(id, |tenant| tenant.api_server = refused), Status::Warn);
        for error in
            [UntrustedError::Timeout, UntrustedError::AddressRefused(RefusedAddress::Loopback)]
        {
            let failed = Some(ApiServerAnswer::Failed(error));
            assert_eq!(status(id, |tenant| tenant.api_server = failed), Status::Fail);
        }
        assert_eq!(status(id, |tenant| tenant.api_server = None), Status::Skip);
    }

    /// Without the TenantCluster it is unknown whether it names a Secret.
    #[test]
    fn unread_tenant_has_an_unknown_kubeconfig() {
        for id in ["tenant.kubeconfig", "tenant.api-server"] {
            let object = Err(ReadError::Forbidden("tenantclusters".to_owned()));
            let tenant = TenantInput {
                object,
                kubeconfig: KubeconfigState::NotReferenced,
                api_server: None,
                ..tenant_bank()
            };
            let outcome = run_check(id, &Input { tenant: Some(tenant), ..Input::default() });
            assert_eq!(outcome.status, Status::Skip);
            assert_eq!(outcome.message, "TenantCluster bank could not be read");
            assert!(outcome.unread);
        }
    }
}
