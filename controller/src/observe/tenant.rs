//! Reads the objects of one tenant, and requests the version of its API server.

use berth_api::{InfraConfig, InfraConfigSpec, SecretRef, TenantCluster};
use berth_runtime::call::with_timeout;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use serde_json::Value;

use super::kubeconfig::create_client;
use super::requests::{api_resource, get, list};
use crate::check::{
    ApiServerAnswer, Kind, KubeconfigProblem, KubeconfigState, Lists, Read, TenantInput,
};
use crate::tenants::kubeconfig_secret::KubeconfigSecret;

/// Largest number of characters of a version that a tenant's API server returns.
const MAX_VERSION_LENGTH: usize = 40;

/// Reads the objects of a tenant.
pub(super) async fn observe_tenant(client: &Client, name: &str, lists: &Lists) -> TenantInput {
    let tenants = api_resource(Kind::TenantCluster.resource());
    let object = get(client, &tenants, "", name).await;
    let namespace_name = TenantCluster::namespace_of(name);
    let namespaces = api_resource(["", "v1", "Namespace", "namespaces"]);
    let deployments =
        api_resource(["cluster.k8s.io", "v1alpha1", "MachineDeployment", "machinedeployments"]);
    let (namespace, machine_deployments, definition) = tokio::join!(
        get(client, &namespaces, "", &namespace_name),
        list(client, &deployments, &namespace_name, None, |object| object),
        observe_definition(client, &object),
    );
    let (kubeconfig, api_server) = observe_kubeconfig(client, name, &object, lists).await;
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

/// Reads the NetworkAttachmentDefinition that the status of a TenantCluster names.
async fn observe_definition(
    client: &Client,
    tenant: &Read<Value>,
) -> Option<(String, Read<Value>)> {
    let field = tenant.as_ref().ok()?.pointer("/status/networkAttachmentDefinition");
    let definition = field.and_then(Value::as_str)?;
    let (namespace, name) = definition.split_once('/')?;
    let kind = "NetworkAttachmentDefinition";
    let resource = api_resource(["k8s.cni.cncf.io", "v1", kind, "network-attachment-definitions"]);
    Some((definition.to_owned(), get(client, &resource, namespace, name).await))
}

/// Reads the kubeconfig that a TenantCluster names, and requests the version of the tenant's API server.
async fn observe_kubeconfig(
    client: &Client,
    tenant: &str,
    object: &Read<Value>,
    lists: &Lists,
) -> (KubeconfigState, Option<ApiServerAnswer>) {
    let reference = object.as_ref().ok().and_then(|it| it.pointer("/spec/kubeconfigSecretRef"));
    let Some(reference) = reference.filter(|reference| reference.is_object()) else {
        return (KubeconfigState::NotReferenced, None);
    };
    let text = |field: &str| reference[field].as_str().filter(|text| !text.is_empty());
    let reference = SecretRef {
        name: text("name").unwrap_or_default().to_owned(),
        namespace: text("namespace").map(str::to_owned),
        key: text("key").map(str::to_owned),
    };
    let reference = KubeconfigSecret::resolve(tenant, &reference);
    let secret = format!("{}/{}", reference.namespace, reference.name);
    let read = match reference.refusal(&infra_config(lists).spec) {
        None => read_kubeconfig(client, &reference).await,
        Some(refusal) => Err(KubeconfigProblem::NotPermitted(refusal)),
    };
    match read {
        Ok(tenant_client) => {
            let answer = request_version(&tenant_client).await;
            (KubeconfigState::Usable(secret), Some(answer))
        }
        Err(problem) => (KubeconfigState::Unusable { secret, problem }, None),
    }
}

/// Returns the InfraConfig; a config without entries if there is none, or if it is malformed.
fn infra_config(lists: &Lists) -> InfraConfig {
    let configs = lists.get(&(Kind::InfraConfig, "")).and_then(|list| list.as_ref().ok());
    let mut configs = configs.into_iter().flatten();
    let config = configs.find(|one| one["metadata"]["name"] == "default").cloned();
    let parsed = config.and_then(|config| serde_json::from_value(config).ok());
    parsed.unwrap_or_else(|| InfraConfig::new("default", InfraConfigSpec::default()))
}

/// Reads a Secret with a kubeconfig, and returns a client for its API server.
async fn read_kubeconfig(
    client: &Client,
    reference: &KubeconfigSecret,
) -> Result<Client, KubeconfigProblem> {
    let KubeconfigSecret { namespace, name, key, .. } = reference;
    let secrets = api_resource(["", "v1", "Secret", "secrets"]);
    let object = get(client, &secrets, namespace, name).await;
    let object = object.map_err(KubeconfigProblem::Unread)?;
    let secret: Secret = serde_json::from_value(object).map_err(|_| KubeconfigProblem::Invalid)?;
    let no_entry = || KubeconfigProblem::NoEntry(key.clone());
    let data = secret.data.unwrap_or_default();
    let entry = data.get(key).ok_or_else(no_entry)?;
    create_client(&String::from_utf8_lossy(&entry.0)).await
}

/// Requests the version of a tenant's API server. Only the beginning of the version is kept, because the server is not
/// trusted.
async fn request_version(client: &Client) -> ApiServerAnswer {
    match with_timeout(client.apiserver_version()).await {
        Ok(version) => {
            ApiServerAnswer::Version(version.git_version.chars().take(MAX_VERSION_LENGTH).collect())
        }
        Err(error) => match error.status_code() {
            Some(code) => ApiServerAnswer::Status(code),
            None => ApiServerAnswer::NoAnswer,
        },
    }
}
