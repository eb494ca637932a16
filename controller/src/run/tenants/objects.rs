//! Applies and deletes single objects that belong to tenants.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use berth_api::names::{CONTROLLER_FIELD_MANAGER, MANAGED_BY_LABEL, TENANT_LABEL};
use berth_api::{ConditionReason, TenantCluster};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use serde_json::Value;

use super::context::TenantContext;
use super::error::{Error, none_if_not_found, with_request};
use crate::managed_by::is_created_by_berth;
use crate::run::api_requests::post_params;
use crate::run::packed_content::{pack_content, unpack_content};
use crate::tenants::fault::Fault;
use crate::tenants::objects::csi_access::{CSI_NAME as CSI, csi_token_secret};
use crate::tenants::objects::{DesiredObject, ObjectKind};
use berth_runtime::watch::OptionalInformer;

/// Maximum time after a write until the watch delivers the written object.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(10);

impl TenantContext {
    fn api(&self, kind: ObjectKind, namespace: &str) -> Api<DynamicObject> {
        let resource = kind.resource();
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }
    }

    /// Returns the newest known version of an object: that in the store, or, if it is newer, that in the response to
    /// the last write.
    pub(super) fn cached_object(
        &self,
        kind: ObjectKind,
        namespace: &str,
        name: &str,
    ) -> Option<DynamicObject> {
        let stored = self.stores.store_of_kind(kind).and_then(|all| all.get(namespace, name));
        let version = |object: &DynamicObject| -> Option<u64> {
            object.metadata.resource_version.as_ref()?.parse().ok()
        };
        let recent =
            self.stores.triggers.recent_writes.lock().unwrap_or_else(PoisonError::into_inner);
        let written = recent.get(&(kind, namespace.to_owned(), name.to_owned()));
        let newer = written.filter(|(at, object)| {
            let watched = stored.as_ref().and_then(|stored| version(stored));
            at.elapsed() < MAX_WATCH_DELAY && watched < version(object)
        });
        newer
            .map(|(_, object)| unpack_content(object))
            .or_else(|| stored.as_deref().map(unpack_content))
    }

    /// Returns the objects of a kind that were written a moment ago, and that the store may therefore lack.
    pub(super) fn recently_written(&self, kind: ObjectKind) -> Vec<DynamicObject> {
        let recent =
            self.stores.triggers.recent_writes.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = recent.iter().filter(|((one, ..), _)| *one == kind);
        let newest = of_kind.filter(|(_, (at, _))| at.elapsed() < MAX_WATCH_DELAY);
        newest.map(|(_, (_, object))| object.clone()).collect()
    }

    /// Applies an object if it differs from the observed object. `may_adopt` must be false in a namespace that Berth
    /// did not create: another user may have created objects of the same names there, which must not be changed.
    pub(super) async fn apply_object(
        &self,
        desired: DesiredObject,
        may_adopt: bool,
    ) -> Result<(), Fault> {
        let wanted = desired.with_content_hash();
        let (kind, name) = (wanted.kind, wanted.name().to_owned());
        let namespace =
            wanted.body["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let what = format!("{} {name}", kind.name());
        let to_fault = |error: kube::Error| {
            Fault::new(
                ConditionReason::ApplyFailed,
                format!("{what} could not be applied: {error}"),
            )
        };
        if self.stores.store_of_kind(kind).is_none_or(OptionalInformer::is_not_installed) {
            let crd = kind.crd_name().unwrap_or_default();
            let message = format!("CustomResourceDefinition {crd} is not installed");
            return Err(Fault::new(ConditionReason::CrdMissing, message));
        }
        let known = self.cached_object(kind, &namespace, &name);
        let known = known
            .filter(|object| kind == ObjectKind::Namespace || is_created_by_berth(object.labels()));
        let api = self.api(kind, &namespace);
        match &known {
            Some(object) if !wanted.differs_from(object) => return Ok(()),
            None if !may_adopt => {
                let unmanaged =
                    none_if_not_found(api.get_metadata(&name).await).map_err(to_fault)?;
                if unmanaged.is_some_and(|there| !is_created_by_berth(there.labels())) {
                    let message = format!(
                        "{what} exists and was not created by Berth; delete it, or let Berth adopt it with label {}={}",
                        MANAGED_BY_LABEL.0, MANAGED_BY_LABEL.1
                    );
                    return Err(Fault::new(ConditionReason::NotOwned, message));
                }
            }
            Some(_) | None => {}
        }
        let mut params = PatchParams::apply(CONTROLLER_FIELD_MANAGER);
        // The apply is forced only if Berth is known to own the object. So an object that another user has just created
        // is not overwritten.
        params.force = known.is_some();
        match api.patch(&name, &params, &Patch::Apply(&wanted.body)).await {
            Ok(mut object) => {
                object.metadata.managed_fields = None;
                pack_content(&mut object);
                let mut recent = self
                    .stores
                    .triggers
                    .recent_writes
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                recent.retain(|_, (at, _)| at.elapsed() < MAX_WATCH_DELAY);
                recent.insert((kind, namespace, name), (Instant::now(), object));
                Ok(())
            }
            Err(error) => Err(to_fault(error)),
        }
    }

    /// Ensures that the ServiceAccount of the tenant's CSI driver has a token Secret. The driver runs in the tenant's
    /// cluster, and has no other credential for the infra cluster. API servers before 1.24 create the token Secret
    /// themselves.
    pub(super) async fn ensure_csi_token(&self, tenant: &str) -> Result<(), Fault> {
        let namespace = TenantCluster::namespace_of(tenant);
        // If the store lacks the ServiceAccount, it has just been created. The event of the watch then triggers the
        // next reconcile.
        let Some(account) = self.cached_object(ObjectKind::ServiceAccount, &namespace, CSI) else {
            return Ok(());
        };
        let uid = account.uid().unwrap_or_default();
        let is_non_empty = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        let is_known = || {
            self.accounts_with_token.lock().unwrap_or_else(PoisonError::into_inner).contains(&uid)
        };
        if is_non_empty(&account.data["secrets"]) || is_known() {
            return Ok(());
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let to_fault = |error: kube::Error| {
            let message = format!("Secret {CSI} could not be created: {error}");
            Fault::new(ConditionReason::ApplyFailed, message)
        };
        if none_if_not_found(api.get_metadata(CSI).await).map_err(to_fault)?.is_none() {
            let params = post_params();
            api.create(&params, &csi_token_secret(tenant)).await.map_err(to_fault)?;
        }
        self.accounts_with_token.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
        Ok(())
    }

    /// Returns the objects of a kind that Berth has created for a tenant.
    pub(super) fn owned_objects(&self, kind: ObjectKind, tenant: &str) -> Vec<DynamicObject> {
        let Some(known) = self.stores.store_of_kind(kind) else { return Vec::new() };
        let namespace = TenantCluster::namespace_of(tenant);
        let all = known.filter(|object| {
            (kind.is_in_metallb_namespace()
                || object.metadata.namespace.as_ref() == Some(&namespace))
                && is_created_by_berth(object.labels())
                && object.labels().get(TENANT_LABEL).is_some_and(|label| label == tenant)
        });
        all.iter().map(|object| object.as_ref().clone()).collect()
    }

    /// Deletes the objects of a kind that Berth has created for a tenant, except those in `desired`.
    pub(super) async fn delete_undesired(
        &self,
        kind: ObjectKind,
        tenant: &str,
        desired: &[&DesiredObject],
    ) -> Result<(), Fault> {
        let is_undesired =
            |_: &str, name: &str| !desired.iter().any(|one| one.kind == kind && one.name() == name);
        self.delete_owned(kind, tenant, is_undesired).await
    }

    /// Deletes those objects of a kind that Berth has created for a tenant and for whose namespace and name
    /// `is_undesired` returns true.
    pub(super) async fn delete_owned(
        &self,
        kind: ObjectKind,
        tenant: &str,
        is_undesired: impl Fn(&str, &str) -> bool,
    ) -> Result<(), Fault> {
        for object in self.owned_objects(kind, tenant) {
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            if object.metadata.deletion_timestamp.is_some() || !is_undesired(&namespace, &name) {
                continue;
            }
            self.delete_object(kind, &object).await.map_err(|error| {
                let message = format!(
                    "{} {name} is no longer desired, but could not be deleted: {error}",
                    kind.name()
                );
                Fault::new(ConditionReason::DeleteFailed, message)
            })?;
        }
        Ok(())
    }

    /// Deletes an object. The UID is a precondition, so that a new object of the same name is not deleted.
    pub(super) async fn delete_object(
        &self,
        kind: ObjectKind,
        object: &DynamicObject,
    ) -> Result<(), Error> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let preconditions = Preconditions { uid: object.uid(), resource_version: None };
        let params =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let deleted = none_if_not_found(self.api(kind, &namespace).delete(&name, &params).await);
        with_request(format!("delete {} {name}", kind.name()), deleted).map(drop)
    }
}
