//! Determines the tenant of a MachineDeployment, and the namespace of its VirtualMachines.

use berth_api::names::{TENANT_LABEL, TENANT_PREFIX};
use berth_api::{Problem, TenantCluster};
use serde_json::Value;

use super::deployment::MachineDeployment;
use super::render_context::RenderContext;

/// Tenant and namespace of the VirtualMachines of a MachineDeployment.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineNamespace<'a> {
    /// Tenant of the MachineDeployment; `None` if it belongs to no tenant.
    pub tenant: Option<&'a TenantCluster>,
    /// Namespace of the VirtualMachines.
    pub namespace: String,
}

/// Returns the names of all TenantClusters to which a MachineDeployment refers: by its namespace, its annotation and
/// its providerSpec.
#[must_use]
pub fn referenced_tenants(deployment: &MachineDeployment) -> Vec<String> {
    let by_namespace = deployment.metadata.namespace.strip_prefix(TENANT_PREFIX);
    let annotated = deployment.metadata.annotations.get(TENANT_LABEL).cloned();
    let all = [
        by_namespace.map(str::to_owned),
        annotated,
        cloud_provider_field(deployment, "clusterName"),
    ];
    all.into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

/// Determines the tenant and the namespace: from the MachineDeployment's namespace, or else its annotation, or else
/// `clusterName` in its providerSpec. A MachineDeployment outside the tenant's namespace may name a tenant only if
/// the tenant lists the MachineDeployment's namespace.
///
/// # Errors
/// Returns the field that names a tenant or namespace that the MachineDeployment may not use.
pub fn determine_machine_namespace<'a>(
    deployment: &MachineDeployment,
    context: &'a RenderContext,
) -> Result<MachineNamespace<'a>, Problem> {
    const CLUSTER_NAME: &str =
        "spec.template.spec.providerSpec.value.cloudProviderSpec.clusterName";
    let deployment_namespace = deployment.metadata.namespace.as_str();
    let annotation = format!("metadata.annotations[{TENANT_LABEL}]");
    let error = |field: &str, name: &str, message: String| {
        let problem = Problem::new(deployment.qualified_name(), field, name, message);
        Err(problem.into_fatal("no machine is created"))
    };
    let of_tenant = |tenant: &'a TenantCluster, name: &str| MachineNamespace {
        tenant: Some(tenant),
        namespace: TenantCluster::namespace_of(name),
    };
    let annotated =
        deployment.metadata.annotations.get(TENANT_LABEL).filter(|name| !name.is_empty());
    let by_namespace = deployment_namespace.strip_prefix(TENANT_PREFIX);
    if let Some((tenant, id)) = by_namespace.and_then(|id| Some((context.tenants.get(id)?, id))) {
        return match annotated {
            Some(name) if name != id => {
                let message =
                    format!("must be {id}, the tenant of namespace {deployment_namespace}");
                error(&annotation, name, message)
            }
            _ => Ok(of_tenant(tenant, id)),
        };
    }
    let check_listed = |field: &str, name: &str, tenant: &'a TenantCluster| {
        if tenant.accepts_namespace(deployment_namespace) {
            return Ok(of_tenant(tenant, name));
        }
        let message = format!(
            "TenantCluster {name} does not list namespace {deployment_namespace} in spec.machineNamespaces"
        );
        error(field, name, message)
    };
    if let Some(name) = annotated.filter(|name| Some(name.as_str()) != by_namespace) {
        return match context.tenants.get(name) {
            Some(tenant) => check_listed(&annotation, name, tenant),
            // Without the TenantCluster, the machines would be created in another namespace, and would become orphans
            // once the TenantCluster exists.
            None => error(&annotation, name, "TenantCluster not found".to_owned()),
        };
    }
    if let Some(name) = cloud_provider_field(deployment, "clusterName")
        && let Some(tenant) = context.tenants.get(&name)
    {
        return check_listed(CLUSTER_NAME, &name, tenant);
    }
    let given = cloud_provider_field(deployment, "namespace").filter(|name| !name.is_empty());
    let namespace = match given {
        // Without this check, users could create VMs in any namespace. If not all objects are known, the caller is a
        // command that creates no VM, so the check is not needed.
        Some(other) if context.is_exhaustive && other != deployment_namespace => {
            let field = "spec.template.spec.providerSpec.value.cloudProviderSpec.namespace";
            let message = format!(
                "must be {deployment_namespace}, the namespace of the MachineDeployment, because the MachineDeployment names no tenant"
            );
            return error(field, &other, message);
        }
        Some(given) => given,
        None if deployment_namespace.is_empty() => "default".to_owned(),
        None => deployment_namespace.to_owned(),
    };
    Ok(MachineNamespace { tenant: None, namespace })
}

/// Returns a string field of cloudProviderSpec. References to Secrets are ignored, because the tenant of a
/// MachineDeployment must not change when another object changes.
fn cloud_provider_field(deployment: &MachineDeployment, name: &str) -> Option<String> {
    let field = |value: &Value, name: &str| {
        let fields = value.as_object()?;
        let found = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    };
    let provider = deployment.spec.template.spec.provider_spec.value.as_ref()?;
    let value = field(&field(provider, "cloudProviderSpec")?, name)?;
    let value = if value.is_object() { field(&value, "value")? } else { value };
    value.as_str().map(str::to_owned)
}
