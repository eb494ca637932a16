//! User data of machines: read from the Secret that the MachineDeployment or its tenant names, and copied to a separate
//! Secret for each machine.

use berth_api::{InfraConfigSpec, SecretRef, TenantCluster, names};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};

use super::context::MachineContext;
use super::errors::{RequestError, none_if_not_found, with_request};
use crate::run::api_requests::{Forbidden, catch_forbidden};
use berth_kubevirt_render::machines::{MachineDeployment, ReferenceScope, SecretRefusal};

/// User data of the machines of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UserData {
    pub(super) user_data: String,
    pub(super) network_data: Option<String>,
}

/// Reason why the user data of a MachineDeployment's machines cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum UserDataError {
    #[error(
        "user data are missing, and a machine cannot join its cluster without them: set a Secret \
         in annotation {}, or in the \
         TenantCluster's spec.userDataSecretRef",
        names::USER_DATA_SECRET_ANNOTATION
    )]
    NoReference,
    #[error("{referenced_by}: Secret {secret}{problem}")]
    Secret {
        /// Annotation or field that names the Secret.
        referenced_by: String,
        /// Namespace and name of the Secret.
        secret: String,
        problem: SecretProblem,
    },
}

/// Reason why a Secret contains no user data. The text completes a sentence that begins with the name of the Secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecretProblem {
    #[error(" {0}")]
    NotPermitted(String),
    #[error(" does not exist")]
    NotFound,
    #[error(": {0}")]
    Forbidden(Forbidden),
    #[error(" {0}")]
    Refused(SecretRefusal),
    #[error(" has entry {0}, which is not valid UTF-8")]
    NotText(String),
    #[error(" has no entry {0}")]
    NoEntry(String),
}

impl MachineContext {
    /// Returns the user data of a MachineDeployment's machines, or the reason why the user data cannot be read.
    pub(super) async fn read_user_data(
        &self,
        deployment: &MachineDeployment,
        tenant: Option<&TenantCluster>,
        namespace: &str,
        config: &InfraConfigSpec,
    ) -> Result<Result<UserData, UserDataError>, RequestError> {
        let annotated = deployment.metadata.annotations.get(names::USER_DATA_SECRET_ANNOTATION);
        let (place, secret) =
            match (annotated, tenant.and_then(|tenant| tenant.spec.user_data_secret_ref.clone())) {
                (Some(name), _) => (
                    format!("metadata.annotations[{}]", names::USER_DATA_SECRET_ANNOTATION),
                    SecretRef { name: name.clone(), ..SecretRef::default() },
                ),
                (None, Some(secret)) => ("its tenant's spec.userDataSecretRef".to_owned(), secret),
                (None, None) => {
                    return Ok(Err(UserDataError::NoReference));
                }
            };
        let secret_namespace = secret.namespace.clone().unwrap_or_else(|| namespace.to_owned());
        let key = secret.key.as_deref().unwrap_or("userdata");
        // The annotation refers to this namespace only. Administrators write TenantClusters, also those of requested tenants.
        let scope = ReferenceScope::new(&[namespace], config);
        let error = |problem| UserDataError::Secret {
            referenced_by: place.clone(),
            secret: format!("{secret_namespace}/{}", secret.name),
            problem,
        };
        if !scope.is_permitted(&secret_namespace, &secret.name) {
            return Ok(Err(error(SecretProblem::NotPermitted(scope.not_permitted_message()))));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &secret_namespace);
        let request = || format!("get Secret {secret_namespace}/{}", secret.name);
        let found = match with_request(
            request,
            catch_forbidden(none_if_not_found(api.get(&secret.name).await)),
        )? {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Err(error(SecretProblem::NotFound))),
            Err(forbidden) => return Ok(Err(error(SecretProblem::Forbidden(forbidden)))),
        };
        let labels = found.metadata.labels.unwrap_or_default();
        let managed_by = labels.get(names::MANAGED_BY_LABEL.0).map(String::as_str);
        if let Some(refusal) = SecretRefusal::find(found.type_.as_deref(), managed_by) {
            return Ok(Err(error(SecretProblem::Refused(refusal))));
        }
        let data = found.data.unwrap_or_default();
        let text = |key: &str| data.get(key).map(|bytes| String::from_utf8(bytes.0.clone()));
        match text(key) {
            Some(Ok(user)) => {
                let network = text("networkdata").and_then(Result::ok);
                Ok(Ok(UserData { user_data: user, network_data: network }))
            }
            Some(Err(_)) => Ok(Err(error(SecretProblem::NotText(key.to_owned())))),
            None => Ok(Err(error(SecretProblem::NoEntry(key.to_owned())))),
        }
    }
}

/// Returns the Secret with the user data of one machine. `uid` is the UID of the VirtualMachine that owns the Secret.
pub(super) fn user_data_secret(
    machine: &str,
    namespace: &str,
    uid: &str,
    data: &UserData,
) -> Value {
    let mut entries = json!({"userdata": data.user_data});
    if let Some(network) = &data.network_data {
        entries["networkdata"] = network.as_str().into();
    }
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": format!("userdata-{machine}"), "namespace": namespace,
            "labels": {names::MACHINE_LABEL: machine, names::MANAGED_BY_LABEL.0: names::MANAGED_BY_LABEL.1},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "stringData": entries,
    })
}
