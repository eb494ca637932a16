//! Reads the objects of one tenant, and requests the version of its API server.

use std::collections::BTreeSet;

use berth_api::names::TENANT_LABEL;
use berth_api::{InfraConfigSpec, SecretRef, TenantCluster};
use berth_runtime::untrusted::{AddressPolicy, UntrustedClient, UntrustedError};
use hyper::Request;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use super::kubeconfig::{address_policy, create_client};
use super::requests::{get, kind_resource, list};
use crate::api_resource::api_resource;
use crate::check::{
    ApiServerAnswer, Kind, KubeconfigProblem, KubeconfigState, Lists, Read, ReadError, TenantInput,
};
use crate::tenants::kubeconfig_rules::RefusedKubeconfig;
use crate::tenants::kubeconfig_secret::KubeconfigSecret;

/// Largest number of bytes of the answer of a tenant's API server: 64 KiB.
const MAX_ANSWER_LENGTH: usize = 1 << 16;
/// Largest number of characters of a version that a tenant's API server returns.
const MAX_VERSION_LENGTH: usize = 40;

/// Reads the objects of a tenant. `server` is the host and port of the infra API server.
pub(super) async fn observe_tenant(
    client: &Client,
    server: &(String, u16),
    name: &str,
    lists: &Lists,
) -> TenantInput {
    let tenants = kind_resource(Kind::TenantCluster);
    let object = get(client, &tenants, "", name).await;
    let namespace_name = TenantCluster::namespace_of(name);
    let namespaces = api_resource("", "v1", "Namespace", "namespaces");
    let (namespace, machine_deployments, definition) = tokio::join!(
        get(client, &namespaces, "", &namespace_name),
        observe_deployments(client, name, &object),
        observe_definition(client, &object),
    );
    let (kubeconfig, api_server) = observe_kubeconfig(client, server, name, &object, lists).await;
    TenantInput {
        name: name.to_owned(),
        object,
        namespace,
        definition,
        machine_deployments,
        kubeconfig,
        api_server,
    }
}

/// Reads the MachineDeployments of a tenant, in its namespace and in the other namespaces that its TenantCluster lists.
async fn observe_deployments(
    client: &Client,
    tenant: &str,
    object: &Read<Value>,
) -> Read<Vec<Value>> {
    let resource =
        api_resource("cluster.k8s.io", "v1alpha1", "MachineDeployment", "machinedeployments");
    let own = TenantCluster::namespace_of(tenant);
    let mut all = list(client, &resource, &own, None, |object| object).await?;
    let listed = object.as_ref().ok().and_then(|it| it.pointer("/spec/machineNamespaces"));
    let listed = listed.and_then(Value::as_array).into_iter().flatten();
    let others: BTreeSet<&str> =
        listed.filter_map(Value::as_str).filter(|name| *name != own).collect();
    for namespace in others {
        let found = list(client, &resource, namespace, None, |object| object).await?;
        all.extend(found.into_iter().filter(|deployment| names_tenant(deployment, tenant)));
    }
    Ok(all)
}

/// Returns true if a MachineDeployment outside the tenant's namespace names the tenant, by its annotation or else by its
/// providerSpec.
fn names_tenant(deployment: &Value, tenant: &str) -> bool {
    let annotation = deployment["metadata"]["annotations"][TENANT_LABEL].as_str();
    if let Some(annotated) = annotation.filter(|name| !name.is_empty()) {
        return annotated == tenant;
    }
    let field = "/spec/template/spec/providerSpec/value/cloudProviderSpec/clusterName";
    let name = deployment.pointer(field).unwrap_or(&Value::Null);
    name.as_str().or_else(|| name["value"].as_str()) == Some(tenant)
}

/// Reads the NetworkAttachmentDefinition that the status of a TenantCluster names.
async fn observe_definition(
    client: &Client,
    tenant: &Read<Value>,
) -> Option<(String, Read<Value>)> {
    let field = tenant.as_ref().ok()?.pointer("/status/networkAttachmentDefinition");
    let definition = field.and_then(Value::as_str)?;
    let (namespace, name) = definition.split_once('/')?;
    let kind = "NetworkAttachmentDefinition";
    let resource = api_resource("k8s.cni.cncf.io", "v1", kind, "network-attachment-definitions");
    Some((definition.to_owned(), get(client, &resource, namespace, name).await))
}

/// Reads the kubeconfig that a TenantCluster names, and requests the version of the tenant's API server.
async fn observe_kubeconfig(
    client: &Client,
    server: &(String, u16),
    tenant: &str,
    object: &Read<Value>,
    lists: &Lists,
) -> (KubeconfigState, Option<ApiServerAnswer>) {
    let reference = object.as_ref().ok().and_then(|it| it.pointer("/spec/kubeconfigSecretRef"));
    let Some(reference) = reference.filter(|reference| reference.is_object()) else {
        return (KubeconfigState::NotReferenced, None);
    };
    let insecure = object.as_ref().ok().and_then(|it| it.pointer("/spec/insecureSkipTLSVerify"));
    let permits_insecure = insecure.and_then(Value::as_bool).unwrap_or(false);
    let text = |field: &str| reference[field].as_str().filter(|text| !text.is_empty());
    let reference = SecretRef {
        name: text("name").unwrap_or_default().to_owned(),
        namespace: text("namespace").map(str::to_owned),
        key: text("key").map(str::to_owned),
    };
    let reference = KubeconfigSecret::resolve(tenant, &reference);
    let secret = format!("{}/{}", reference.namespace, reference.name);
    let parsed = object.as_ref().ok().and_then(|it| serde_json::from_value(it.clone()).ok());
    let read = match check_permission(&reference, parsed.as_ref(), lists) {
        Ok(()) => {
            let policy = address_policy(client, server).await;
            read_kubeconfig(client, &reference, permits_insecure, policy).await
        }
        Err(problem) => Err(problem),
    };
    match read {
        Ok(tenant_client) => {
            let answer = request_version(&tenant_client).await;
            (KubeconfigState::Usable(secret), Some(answer))
        }
        Err(problem) => (KubeconfigState::Unusable { secret, problem }, None),
    }
}

/// Returns an error if the tenant may not refer to the Secret, or if this is unknown.
fn check_permission(
    reference: &KubeconfigSecret,
    tenant: Option<&TenantCluster>,
    lists: &Lists,
) -> Result<(), KubeconfigProblem> {
    let config = match infra_config(lists) {
        Ok(config) => config,
        // The InfraConfig is needed only if the Secret is not in the tenant's own namespace.
        Err(_) if reference.is_own() => InfraConfigSpec::default(),
        Err(error) => return Err(KubeconfigProblem::ConfigUnread(error)),
    };
    let refusal = reference.refusal(tenant, &config);
    refusal.map_or(Ok(()), |text| Err(KubeconfigProblem::NotPermitted(text)))
}

/// Returns the spec of the InfraConfig; a spec without entries if there is none.
fn infra_config(lists: &Lists) -> Read<InfraConfigSpec> {
    let configs = match lists.get(&(Kind::InfraConfig, "")) {
        Some(Ok(configs)) => configs.as_slice(),
        Some(Err(ReadError::NotFound)) => &[],
        Some(Err(error)) => return Err(error.clone()),
        None => return Err(ReadError::NotRequested),
    };
    let config = configs.iter().find(|one| one["metadata"]["name"] == "default");
    let Some(spec) = config.and_then(|config| config.get("spec")) else {
        return Ok(InfraConfigSpec::default());
    };
    let parsed = serde_json::from_value(spec.clone());
    parsed.map_err(|error| ReadError::Refused(format!("spec of the InfraConfig: {error}")))
}

/// Reads a Secret with a kubeconfig, and returns a client for its API server.
async fn read_kubeconfig(
    client: &Client,
    reference: &KubeconfigSecret,
    permits_insecure: bool,
    policy: AddressPolicy,
) -> Result<UntrustedClient, KubeconfigProblem> {
    let KubeconfigSecret { namespace, name, key, .. } = reference;
    let secrets = api_resource("", "v1", "Secret", "secrets");
    let object = get(client, &secrets, namespace, name).await;
    let object = object.map_err(KubeconfigProblem::Unread)?;
    let secret: Secret = serde_json::from_value(object)
        .map_err(|_| KubeconfigProblem::Refused(RefusedKubeconfig::Invalid))?;
    let no_entry = || KubeconfigProblem::NoEntry(key.clone());
    let data = secret.data.unwrap_or_default();
    let entry = data.get(key).ok_or_else(no_entry)?;
    create_client(&String::from_utf8_lossy(&entry.0), permits_insecure, policy).await
}

/// Requests the version of a tenant's API server. The size of the answer is limited, and only the beginning of the
/// version is kept, because the server is not trusted.
async fn request_version(client: &UntrustedClient) -> ApiServerAnswer {
    let Ok(request) = Request::get("/version").body(Body::empty()) else {
        return ApiServerAnswer::Failed(UntrustedError::Malformed);
    };
    match client.request(request, MAX_ANSWER_LENGTH).await {
        Ok(answer) => version_of(&answer),
        Err(UntrustedError::Status(code) | UntrustedError::Busy(code, _)) => {
            ApiServerAnswer::Status(code)
        }
        Err(error) => ApiServerAnswer::Failed(error),
    }
}

fn version_of(answer: &Value) -> ApiServerAnswer {
    match answer["gitVersion"].as_str() {
        Some(version) => {
            ApiServerAnswer::Version(version.chars().take(MAX_VERSION_LENGTH).collect())
        }
        None => ApiServerAnswer::Failed(UntrustedError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn deployments_of_other_namespaces_name_the_tenant() {
        let deployment = |annotation: &str, cluster: Value| {
            json!({
                "metadata": {"annotations": {TENANT_LABEL: annotation}},
                "spec": {"template": {"spec": {"providerSpec": {"value": {"cloudProviderSpec": {"clusterName": cluster}}}}}},
            })
        };
        for (annotation, cluster, is_own) in [
            ("bank", json!(null), true),
            ("", json!("bank"), true),
            ("", json!({"value": "bank"}), true),
            ("shop", json!("bank"), false),
            ("", json!(["bank"]), false),
        ] {
            let object = deployment(annotation, cluster);
            assert_eq!(names_tenant(&object, "bank"), is_own, "{object}");
        }
        assert!(!names_tenant(&json!(7), "bank"));
    }

    #[test]
    fn answers_of_other_servers_have_no_version() {
        let version = version_of(&json!({"major": "1", "gitVersion": "v1.31.0"}));
        assert_eq!(version, ApiServerAnswer::Version("v1.31.0".to_owned()));
        let long = version_of(&json!({"gitVersion": "v".repeat(99)}));
        assert_eq!(long, ApiServerAnswer::Version("v".repeat(MAX_VERSION_LENGTH)));
        let malformed = ApiServerAnswer::Failed(UntrustedError::Malformed);
        for other in [json!([]), json!(7), json!({"gitVersion": 7})] {
            assert_eq!(version_of(&other), malformed, "{other}");
        }
    }

    #[test]
    fn unread_config_is_no_refusal() {
        let check = |namespace: &str, configs: Read<Vec<Value>>| {
            let namespace = Some(namespace.to_owned());
            let reference = SecretRef { name: "admin".to_owned(), namespace, key: None };
            let lists: Lists = BTreeMap::from([((Kind::InfraConfig, ""), configs)]);
            check_permission(&KubeconfigSecret::resolve("bank", &reference), None, &lists)
        };
        let with_spec =
            |spec: Value| Ok(vec![json!({"metadata": {"name": "default"}, "spec": spec})]);
        let listed = json!({"secretReferences": [{"namespace": "infra", "name": "admin"}]});
        assert_eq!(check("infra", with_spec(listed)), Ok(()));
        for configs in [Ok(Vec::new()), with_spec(json!({})), Err(ReadError::NotFound)] {
            let refused = check("infra", configs.clone());
            assert!(matches!(refused, Err(KubeconfigProblem::NotPermitted(_))), "{refused:?}");
            assert_eq!(check("cluster-bank", configs), Ok(()));
        }
        let forbidden = Err(ReadError::Forbidden("infraconfigs".to_owned()));
        for configs in [forbidden, with_spec(json!({"secretReferences": 7}))] {
            let unread = check("infra", configs.clone());
            assert!(matches!(unread, Err(KubeconfigProblem::ConfigUnread(_))), "{unread:?}");
            assert_eq!(check("cluster-bank", configs), Ok(()));
        }
    }
}
