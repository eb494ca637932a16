//! Reads the facts on which grants depend: labels of namespaces, sizes of instance types, names that are in use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{ConditionReason, TenantQuota, TenantRequest};
use berth_runtime::call::with_timeout;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DynamicObject;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::service::SelfService;
use crate::api_resource::api_resource;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::assignment::NamespaceLabels;
use crate::self_service::demand::FlavorSizes;
use crate::self_service::flavor::{FlavorSize, built_in_size, read_size};
use crate::self_service::objects::request_uid;
use crate::self_service::orphans::earlier_request_fault;
use crate::self_service::plan::name_in_use;
use crate::self_service::reserved::reserved_names;
use crate::tenants::fault::Fault;

/// API group and version of instance types.
pub(super) const INSTANCETYPE_API: (&str, &str) = ("instancetype.kubevirt.io", "v1beta1");

impl SelfService {
    /// Reads the labels of the namespaces of requests whose spec is not granted. Without quotas that select by labels, sends no
    /// request.
    pub(super) async fn read_namespaces(
        &self,
        quotas: &[Arc<TenantQuota>],
        requests: &[Arc<TenantRequest>],
    ) -> Result<NamespaceLabels, ReconcileFailure> {
        let mut all = NamespaceLabels::new();
        if quotas.iter().all(|quota| quota.spec.namespaces.selector.is_none()) {
            return Ok(all);
        }
        let granted: BTreeSet<(&str, i64)> = quotas
            .iter()
            .flat_map(|quota| quota.grants())
            .map(|grant| (grant.uid.as_str(), grant.generation))
            .collect();
        let is_granted = |request: &TenantRequest| {
            let uid = request.metadata.uid.as_deref().unwrap_or_default();
            granted.contains(&(uid, request.metadata.generation.unwrap_or_default()))
        };
        let undecided = requests.iter().filter(|request| !is_granted(request));
        let names: BTreeSet<String> = undecided.filter_map(|request| request.namespace()).collect();
        let api: Api<Namespace> = Api::all(self.context.client.clone());
        for name in names {
            let found = with_timeout(api.get_metadata_opt(&name)).await;
            let request = format!("get Namespace {name}");
            let found = found.map_err(ReconcileFailure::with_request(request))?;
            if let Some(namespace) = found {
                all.insert(name, namespace.metadata.labels.unwrap_or_default());
            }
        }
        Ok(all)
    }

    /// Reads the sizes of the instance types that requests name and their quota permits. Those that it does not permit are
    /// refused without a request to the API server.
    pub(super) async fn read_sizes(
        &self,
        quota: &TenantQuota,
        requests: &[Arc<TenantRequest>],
    ) -> Result<FlavorSizes, ReconcileFailure> {
        let permitted = &quota.spec.limits.flavors;
        let named = requests.iter().flat_map(|request| &request.spec.machines.flavors);
        let names: BTreeSet<&String> = named.filter(|name| permitted.contains(*name)).collect();
        let mut sizes = FlavorSizes::new();
        for name in names {
            sizes.insert(name.clone(), self.read_size(name).await?);
        }
        Ok(sizes)
    }

    async fn read_size(&self, name: &str) -> Result<Result<FlavorSize, Fault>, ReconcileFailure> {
        if let Some(size) = built_in_size(name) {
            return Ok(Ok(size));
        }
        let found = match self.read_shared("VirtualMachineInstancetype", name).await? {
            Some(shared) => Some(shared),
            None => {
                let (group, version) = INSTANCETYPE_API;
                let kind = "VirtualMachineClusterInstancetype";
                let plural = "virtualmachineclusterinstancetypes";
                let resource = api_resource(group, version, kind, plural);
                let api: Api<DynamicObject> = Api::all_with(self.context.client.clone(), &resource);
                let found = with_timeout(api.get_opt(name)).await;
                found.map_err(ReconcileFailure::with_request(format!("get {kind} {name}")))?
            }
        };
        Ok(match found.and_then(|object| serde_json::to_value(object).ok()) {
            Some(object) => read_size(name, &object),
            None => {
                let message = format!("machines.flavors: there is no instance type {name}");
                Err(Fault::new(ConditionReason::FlavorUnknown, message))
            }
        })
    }

    /// Reads an instance type or a preference in the shared namespace; `None` if there is none.
    pub(super) async fn read_shared(
        &self,
        kind: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, ReconcileFailure> {
        let Some(namespace) = self.shared_namespace() else { return Ok(None) };
        let plural = format!("{}s", kind.to_lowercase());
        let resource = api_resource(INSTANCETYPE_API.0, INSTANCETYPE_API.1, kind, &plural);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), &namespace, &resource);
        let request = format!("get {kind} {namespace}/{name}");
        with_timeout(api.get_opt(name)).await.map_err(ReconcileFailure::with_request(request))
    }

    /// Returns the namespace of shared instance types and preferences.
    pub(super) fn shared_namespace(&self) -> Option<String> {
        self.context.config().spec.self_service.as_ref()?.flavors_namespace.clone()
    }

    /// Returns the requests whose tenant's name belongs to another tenant, or to one that was deleted a moment ago.
    pub(super) fn names_in_use(
        &self,
        quotas: &[Arc<TenantQuota>],
        requests: &[Arc<TenantRequest>],
    ) -> BTreeMap<String, Fault> {
        let unknown = self.context.unknown_tenants();
        let claimed: BTreeSet<String> = {
            let vlans = self.context.vlan_claims.all();
            let prefixes = self.context.prefix_claims.all();
            let vlans = vlans.iter().map(|claim| claim.spec.tenant.clone());
            vlans.chain(prefixes.iter().map(|claim| claim.spec.tenant.clone())).collect()
        };
        let mut granted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for grant in quotas.iter().flat_map(|quota| quota.grants()) {
            granted.entry(&grant.tenant).or_default().push(&grant.uid);
        }
        let mut reserved: Option<BTreeSet<String>> = None;
        let mut all = BTreeMap::new();
        for request in requests {
            let (uid, name) = (request.uid().unwrap_or_default(), request.tenant_name());
            let has_other_grant =
                granted.get(name).is_some_and(|others| others.iter().any(|other| *other != uid));
            let problem = match self.context.tenants.get(name) {
                Some(tenant) if request_uid(&tenant) == Some(uid.as_str()) => continue,
                Some(tenant) => match earlier_request_fault(&tenant, request) {
                    Some(fault) => {
                        all.insert(uid, fault);
                        continue;
                    }
                    None => "another TenantCluster has it",
                },
                None if unknown.contains(name) => "another TenantCluster has it",
                None if has_other_grant => "another TenantRequest has it",
                // A tenant of the same name would get the VLAN and the prefix of the deleted one at once.
                None if claimed.contains(name) => {
                    "the VLAN or the prefix of a deleted tenant of this name is in quarantine"
                }
                None if reserved.get_or_insert_with(|| self.reserved_names()).contains(name) => {
                    "the InfraConfig or a TenantCluster refers to a tenant of this name or to its namespace"
                }
                None => continue,
            };
            all.insert(uid, name_in_use(name, problem));
        }
        all
    }

    fn reserved_names(&self) -> BTreeSet<String> {
        let tenants = self.context.tenants.all();
        reserved_names(&self.context.config().spec, tenants.iter().map(AsRef::as_ref))
    }
}

/// Returns the spec of an instance type or a preference.
pub(super) fn spec_of(object: &DynamicObject) -> Value {
    object.data.get("spec").cloned().unwrap_or_default()
}
