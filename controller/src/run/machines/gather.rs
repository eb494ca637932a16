//! What a machine is rendered with: asked for when one is made, and only what its MachineDeployment refers to.

use std::collections::BTreeSet;

use berth_api::{InfraConfig, InfraConfigSpec, SecretRef, TenantCluster, names};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DynamicObject;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::errors::{Error, at, found};
use super::{Context, resource};
use crate::run::calls::forbidden;
use berth_kubevirt_render::machines::{
    MachineDeployment, RenderContext, Scope, referenced_tenants,
};

/// User data of a deployment's machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UserData {
    pub(super) user: String,
    pub(super) network: Option<String>,
}

impl Context {
    /// Defaults and the tenants that a deployment may belong to, which stores have.
    pub(super) fn known(&self, deployment: &MachineDeployment) -> RenderContext {
        let mut around = RenderContext { is_exhaustive: true, ..RenderContext::default() };
        let named = referenced_tenants(deployment);
        for tenant in named.iter().filter_map(|name| self.tenants.named(name)) {
            let value = serde_json::to_value(&*tenant).unwrap_or_default();
            if let Ok(tenant) = serde_json::from_value::<TenantCluster>(value) {
                around.tenants.insert(tenant.name_any(), tenant);
            }
        }
        let config = self.configs.named("default");
        let config = config.and_then(|config| serde_json::to_value(&*config).ok());
        if let Some(config) =
            config.and_then(|config| serde_json::from_value::<InfraConfig>(config).ok())
        {
            around.config = config.spec;
        }
        around
    }

    /// Everything that the deployment refers to.
    pub(super) async fn gather(
        &self,
        deployment: &MachineDeployment,
        namespace: &str,
        around: &mut RenderContext,
    ) -> Result<(), Error> {
        let value = deployment.spec.template.spec.provider_spec.value.clone().unwrap_or_default();
        let mut wanted = References::default();
        wanted.walk(&value, namespace);
        let scope = Scope::new(&[&deployment.metadata.namespace, namespace], &around.config);
        // What it may not refer to is not read either.
        wanted.entries.retain(|(_, namespace, name)| scope.permits(namespace, name));
        for class in around
            .config
            .infra_storage_classes
            .iter()
            .filter(|class| class.is_default_class == Some(true))
        {
            wanted.classes.insert(class.name.clone());
        }
        for (kind, namespace, name) in &wanted.entries {
            let what = || format!("get {kind} {namespace}/{name}");
            let read = if *kind == "Secret" {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
                let secret = at(what, forbidden(found(api.get(name).await)))?;
                secret.map(|secret| secret.and_then(|secret| serde_json::to_value(secret).ok()))
            } else {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
                let map = at(what, forbidden(found(api.get(name).await)))?;
                map.map(|map| map.and_then(|map| serde_json::to_value(map).ok()))
            };
            match read {
                Ok(object) => self.take_in(around, object, kind),
                Err(why) => {
                    let key = (*kind, namespace.clone(), name.clone());
                    around.forbidden.insert(key, why.to_string());
                }
            }
        }
        for class in &wanted.classes {
            for (group, kind, plural, version) in [
                ("storage.k8s.io", "StorageClass", "storageclasses", "v1"),
                ("cdi.kubevirt.io", "StorageProfile", "storageprofiles", "v1beta1"),
            ] {
                let resource = resource(group, version, kind, plural);
                let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
                let object = at(|| format!("get {kind} {class}"), found(api.get(class).await))?;
                self.take_in(
                    around,
                    object.and_then(|object| serde_json::to_value(object).ok()),
                    kind,
                );
            }
        }
        for name in &wanted.instancetypes {
            let group = "instancetype.kubevirt.io";
            let kind = "VirtualMachineInstancetype";
            let own = resource(group, "v1beta1", kind, "virtualmachineinstancetypes");
            let own: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, &own);
            let object =
                at(|| format!("get {kind} {namespace}/{name}"), found(own.get(name).await))?;
            self.take_in(around, object.and_then(|object| serde_json::to_value(object).ok()), kind);
            let kind = "VirtualMachineClusterInstancetype";
            let all = resource(group, "v1beta1", kind, "virtualmachineclusterinstancetypes");
            let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &all);
            let object = at(|| format!("get {kind} {name}"), found(all.get(name).await))?;
            self.take_in(around, object.and_then(|object| serde_json::to_value(object).ok()), kind);
        }
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "reads as the others")]
    fn take_in(&self, around: &mut RenderContext, object: Option<Value>, kind: &str) {
        if let Some(mut object) = object {
            object["kind"] = kind.into();
            around.add(&object);
        }
    }

    /// The user data that a deployment's machines get; why there are none otherwise.
    pub(super) async fn user_data(
        &self,
        deployment: &MachineDeployment,
        tenant: Option<&TenantCluster>,
        namespace: &str,
        config: &InfraConfigSpec,
    ) -> Result<Result<UserData, String>, Error> {
        let annotated = deployment.metadata.annotations.get(names::USER_DATA_SECRET);
        let (place, secret) = match (
            annotated,
            tenant.and_then(|tenant| tenant.spec.user_data_secret_ref.clone()),
        ) {
            (Some(name), _) => (
                format!("metadata.annotations[{}]", names::USER_DATA_SECRET),
                SecretRef { name: name.clone(), ..SecretRef::default() },
            ),
            (None, Some(secret)) => ("its tenant's spec.userDataSecretRef".to_owned(), secret),
            (None, None) => {
                let message = format!(
                    "there are no user data, and without them no machine joins its cluster: name a Secret in annotation {}, \
                     or in the TenantCluster's spec.userDataSecretRef",
                    names::USER_DATA_SECRET
                );
                return Ok(Err(message));
            }
        };
        let of = secret.namespace.clone().unwrap_or_else(|| namespace.to_owned());
        let key = secret.key.as_deref().unwrap_or("userdata");
        let scope = Scope::new(&[namespace], config);
        if !scope.permits(&of, &secret.name) {
            return Ok(Err(format!("{place}: Secret {of}/{} {}", secret.name, scope.refusal())));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &of);
        let what = || format!("get Secret {of}/{}", secret.name);
        let found = match at(what, forbidden(found(api.get(&secret.name).await)))? {
            Ok(Some(found)) => found,
            Ok(None) => {
                return Ok(Err(format!("{place}: Secret {of}/{} does not exist", secret.name)));
            }
            Err(why) => return Ok(Err(format!("{place}: Secret {of}/{}: {why}", secret.name))),
        };
        let data = found.data.unwrap_or_default();
        let text = |key: &str| data.get(key).map(|bytes| String::from_utf8(bytes.0.clone()));
        match text(key) {
            Some(Ok(user)) => {
                let network = text("networkdata").and_then(Result::ok);
                Ok(Ok(UserData { user, network }))
            }
            Some(Err(_)) => {
                Ok(Err(format!("{place}: entry {key} of Secret {of}/{} is no text", secret.name)))
            }
            None => Ok(Err(format!("{place}: Secret {of}/{} has no entry {key}", secret.name))),
        }
    }
}

/// What a providerSpec refers to.
#[derive(Debug, Default)]
struct References {
    entries: BTreeSet<(&'static str, String, String)>,
    classes: BTreeSet<String>,
    instancetypes: BTreeSet<String>,
}

impl References {
    fn walk(&mut self, value: &Value, namespace: &str) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match key.to_ascii_lowercase().as_str() {
                        "secretkeyref" => {
                            self.entries.insert((
                                "Secret",
                                text(&value["namespace"]),
                                text(&value["name"]),
                            ));
                        }
                        "configmapkeyref" => {
                            self.entries.insert((
                                "ConfigMap",
                                text(&value["namespace"]),
                                text(&value["name"]),
                            ));
                        }
                        "extraheaderssecretref" => {
                            self.entries.insert(("Secret", namespace.to_owned(), text(value)));
                        }
                        "storageclassname" => {
                            self.classes.insert(text(value));
                        }
                        "instancetype" | "flavor" => {
                            self.instancetypes.insert(text(&value["name"]));
                        }
                        _ => {}
                    }
                    self.walk(value, namespace);
                }
                // A name that is itself a reference is looked up when it is read; an empty one is none.
                self.entries
                    .retain(|(_, namespace, name)| !namespace.is_empty() && !name.is_empty());
                self.classes.retain(|name| !name.is_empty());
                self.instancetypes.retain(|name| !name.is_empty());
            }
            Value::Array(items) => items.iter().for_each(|item| self.walk(item, namespace)),
            _ => {}
        }
    }
}

/// The Secret of one machine.
pub(super) fn secret(machine: &str, namespace: &str, uid: &str, data: &UserData) -> Value {
    let mut entries = json!({"userdata": data.user});
    if let Some(network) = &data.network {
        entries["networkdata"] = network.as_str().into();
    }
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": format!("userdata-{machine}"), "namespace": namespace,
            "labels": {names::MACHINE: machine, names::MANAGED_BY.0: names::MANAGED_BY.1},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "stringData": entries,
    })
}
