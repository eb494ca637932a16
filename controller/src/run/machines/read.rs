//! Reads the objects from which machines are rendered. The InfraConfig and tenants come from stores; the other
//! objects to which a MachineDeployment refers are read from the API server when a machine is created.

use berth_api::TenantCluster;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DynamicObject;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::context::MachineContext;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::references::References;
use crate::api_resource::api_resource;
use crate::run::api_requests::catch_forbidden;
use crate::run::context::INFRA_CONFIG;
use berth_kubevirt_render::machines::{
    MachineDeployment, ReferenceScope, RenderContext, referenced_tenants,
};

impl MachineContext {
    /// Returns the InfraConfig, and the tenants to which a MachineDeployment may belong with those to whose networks its
    /// machines may be attached, from stores.
    pub(super) fn render_context(&self, deployment: &MachineDeployment) -> RenderContext {
        let mut render_context = RenderContext { is_exhaustive: true, ..RenderContext::default() };
        let tenant_names = referenced_tenants(deployment);
        for tenant in tenant_names.iter().filter_map(|name| self.tenants.get(name)) {
            let attachable = tenant.additional_tenants().filter_map(|name| self.tenants.get(name));
            for other in attachable {
                render_context.tenants.insert(other.name_any(), (*other).clone());
            }
            render_context.tenants.insert(tenant.name_any(), (*tenant).clone());
        }
        if let Some(config) = self.configs.get(INFRA_CONFIG) {
            render_context.config = config.spec.clone();
        }
        render_context
    }

    /// Reads every object to which the MachineDeployment refers, and adds it to `render_context`.
    pub(super) async fn read_references(
        &self,
        deployment: &MachineDeployment,
        tenant: Option<&TenantCluster>,
        namespace: &str,
        render_context: &mut RenderContext,
    ) -> Result<(), RequestError> {
        let value = deployment.spec.template.spec.provider_spec.value.clone().unwrap_or_default();
        let mut references = References::default();
        references.collect_references(&value, namespace);
        let scope = ReferenceScope::for_tenant(
            &[&deployment.metadata.namespace, namespace],
            tenant,
            &render_context.config,
        );
        // Objects to which the MachineDeployment may not refer are not read.
        references
            .secrets_and_config_maps
            .retain(|(_, namespace, name)| scope.is_permitted(namespace, name));
        for class in render_context
            .config
            .infra_storage_classes
            .iter()
            .filter(|class| class.is_default_class == Some(true) && class.is_for_machines())
        {
            references.storage_classes.insert(class.name.clone());
        }
        for (kind, namespace, name) in &references.secrets_and_config_maps {
            let request = || format!("get {kind} {namespace}/{name}");
            let read = if *kind == "Secret" {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
                let secret =
                    with_request(request, catch_forbidden(none_if_not_found(api.get(name).await)))?;
                secret.map(|secret| secret.and_then(|secret| serde_json::to_value(secret).ok()))
            } else {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
                let map =
                    with_request(request, catch_forbidden(none_if_not_found(api.get(name).await)))?;
                map.map(|map| map.and_then(|map| serde_json::to_value(map).ok()))
            };
            match read {
                Ok(object) => Self::add_object(render_context, object, kind),
                Err(forbidden) => {
                    render_context
                        .forbidden_objects
                        .insert((kind, namespace.clone(), name.clone()), forbidden.to_string());
                }
            }
        }
        for class in &references.storage_classes {
            for (group, kind, plural, version) in [
                ("storage.k8s.io", "StorageClass", "storageclasses", "v1"),
                ("cdi.kubevirt.io", "StorageProfile", "storageprofiles", "v1beta1"),
            ] {
                let resource = api_resource(group, version, kind, plural);
                let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
                let object = with_request(
                    || format!("get {kind} {class}"),
                    none_if_not_found(api.get(class).await),
                )?;
                Self::add_object(
                    render_context,
                    object.and_then(|object| serde_json::to_value(object).ok()),
                    kind,
                );
            }
        }
        for name in &references.instancetypes {
            let group = "instancetype.kubevirt.io";
            let kind = "VirtualMachineInstancetype";
            let own = api_resource(group, "v1beta1", kind, "virtualmachineinstancetypes");
            let own: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, &own);
            let object = with_request(
                || format!("get {kind} {namespace}/{name}"),
                none_if_not_found(own.get(name).await),
            )?;
            Self::add_object(
                render_context,
                object.and_then(|object| serde_json::to_value(object).ok()),
                kind,
            );
            let kind = "VirtualMachineClusterInstancetype";
            let all = api_resource(group, "v1beta1", kind, "virtualmachineclusterinstancetypes");
            let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &all);
            let object = with_request(
                || format!("get {kind} {name}"),
                none_if_not_found(all.get(name).await),
            )?;
            Self::add_object(
                render_context,
                object.and_then(|object| serde_json::to_value(object).ok()),
                kind,
            );
        }
        Ok(())
    }

    fn add_object(render_context: &mut RenderContext, object: Option<Value>, kind: &str) {
        if let Some(mut object) = object {
            object["kind"] = kind.into();
            render_context.add(&object);
        }
    }
}
