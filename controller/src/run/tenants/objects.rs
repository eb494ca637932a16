//! Objects of tenants: applied where they differ, and deleted where nobody wants them.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use berth_api::names::{CONTROLLER, MANAGED_BY, TENANT};
use berth_api::{ConditionReason, TenantCluster};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use serde_json::Value;

use super::context::Context;
use super::error::{Error, at, found};
use crate::run::calls::made_by;
use crate::run::packed::{pack, unpacked};
use crate::tenants::fault::Fault;
use crate::tenants::objects::access::{NAME as CSI, csi_secret};
use crate::tenants::objects::{Kind, Wanted, differs};
use berth_runtime::watch::OptionalInformer;

/// The server's own answer to a write, and when it came. The watch has it soon.
pub(super) type Recent = (Instant, DynamicObject);
/// After so long it must have it.
const SOON: Duration = Duration::from_secs(10);

/// Whether Berth made an object.
pub(super) fn is_ours(labels: &std::collections::BTreeMap<String, String>) -> bool {
    labels.get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1)
}

impl Context {
    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        let resource = kind.resource();
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }
    }

    /// The newest that is known of an object.
    pub(super) fn known(&self, kind: Kind, namespace: &str, name: &str) -> Option<DynamicObject> {
        let stored = self.stores.kind(kind).and_then(|all| all.get(namespace, name));
        let version = |object: &DynamicObject| -> Option<u64> {
            object.metadata.resource_version.as_ref()?.parse().ok()
        };
        let recent = self.stores.news.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let written = recent.get(&(kind, namespace.to_owned(), name.to_owned()));
        let newer = written.filter(|(at, object)| {
            let watched = stored.as_ref().and_then(|stored| version(stored));
            at.elapsed() < SOON && watched < version(object)
        });
        newer.map(|(_, object)| unpacked(object)).or_else(|| stored.as_deref().map(unpacked))
    }

    /// Makes an object as it should be, if it is not. `may_adopt` is false in a namespace that is not Berth's: there
    /// somebody else may have made objects of the same names.
    pub(super) async fn settle(&self, wanted: Wanted, may_adopt: bool) -> Result<(), Fault> {
        let wanted = wanted.marked();
        let (kind, name) = (wanted.kind, wanted.name().to_owned());
        let namespace =
            wanted.body["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let what = format!("{} {name}", kind.name());
        let refused = |error: kube::Error| {
            Fault::new(
                ConditionReason::ApplyFailed,
                format!("{what} could not be applied: {error}"),
            )
        };
        if self.stores.kind(kind).is_none_or(OptionalInformer::is_missing) {
            let crd = kind.crd().unwrap_or_default();
            let message = format!("CustomResourceDefinition {crd} is not installed");
            return Err(Fault::new(ConditionReason::CrdMissing, message));
        }
        let known = self.known(kind, &namespace, &name);
        let known = known.filter(|object| kind == Kind::Namespace || is_ours(object.labels()));
        let api = self.api(kind, &namespace);
        match &known {
            Some(there) => {
                let mut there = serde_json::to_value(there).unwrap_or(Value::Null);
                // In a list the server's own kinds do not say what they are.
                for field in ["apiVersion", "kind"] {
                    there[field] = wanted.body[field].clone();
                }
                if !differs(&wanted.body, &there) {
                    return Ok(());
                }
            }
            None if !may_adopt => {
                let there = found(api.get_metadata(&name).await).map_err(refused)?;
                if there.is_some_and(|there| !is_ours(there.labels())) {
                    let message = format!(
                        "{what} is there already and not Berth's; delete it, or hand it over by label {}={}",
                        MANAGED_BY.0, MANAGED_BY.1
                    );
                    return Err(Fault::new(ConditionReason::NotOwned, message));
                }
            }
            None => {}
        }
        let mut params = PatchParams::apply(CONTROLLER);
        // What is ours is made as it should be again; what is not ours yet is not taken from its owner.
        params.force = known.is_some();
        match api.patch(&name, &params, &Patch::Apply(&wanted.body)).await {
            Ok(mut object) => {
                object.metadata.managed_fields = None;
                pack(&mut object);
                let mut recent =
                    self.stores.news.recent.lock().unwrap_or_else(PoisonError::into_inner);
                recent.retain(|_, (at, _)| at.elapsed() < SOON);
                recent.insert((kind, namespace, name), (Instant::now(), object));
                Ok(())
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Sees to it that the account of the tenant's CSI driver has a token: the driver runs in the tenant's cluster and has
    /// no other way in. Servers before 1.24 make one by themselves.
    pub(super) async fn csi_token(&self, tenant: &str) -> Result<(), Fault> {
        let namespace = TenantCluster::namespace_of(tenant);
        // It is there soon, if it is not yet.
        let Some(account) = self.known(Kind::ServiceAccount, &namespace, CSI) else {
            return Ok(());
        };
        let uid = account.uid().unwrap_or_default();
        let has = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        let is_known = || self.tokens.lock().unwrap_or_else(PoisonError::into_inner).contains(&uid);
        if has(&account.data["secrets"]) || is_known() {
            return Ok(());
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let refused = |error: kube::Error| {
            let message = format!("Secret {CSI} could not be created: {error}");
            Fault::new(ConditionReason::ApplyFailed, message)
        };
        if found(api.get_metadata(CSI).await).map_err(refused)?.is_none() {
            let params = made_by();
            api.create(&params, &csi_secret(tenant)).await.map_err(refused)?;
        }
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
        Ok(())
    }

    /// Berth's objects of a kind for a tenant.
    pub(super) fn ours(&self, kind: Kind, tenant: &str) -> Vec<DynamicObject> {
        let Some(known) = self.stores.kind(kind) else { return Vec::new() };
        let namespace = TenantCluster::namespace_of(tenant);
        let all = known.filter(|object| {
            object.metadata.namespace.as_ref() == Some(&namespace)
                && is_ours(object.labels())
                && object.labels().get(TENANT).is_some_and(|label| label == tenant)
        });
        all.iter().map(|object| object.as_ref().clone()).collect()
    }

    /// Deletes Berth's objects of a kind that are not among these.
    pub(super) async fn prune(
        &self,
        kind: Kind,
        tenant: &str,
        wanted: &[&Wanted],
    ) -> Result<(), Fault> {
        for object in self.ours(kind, tenant) {
            let name = object.name_any();
            let is_wanted = wanted.iter().any(|one| one.kind == kind && one.name() == name);
            if is_wanted || object.metadata.deletion_timestamp.is_some() {
                continue;
            }
            self.delete(kind, &object).await.map_err(|error| {
                let message = format!("{} {name} is not wanted any more: {error}", kind.name());
                Fault::new(ConditionReason::DeleteFailed, message)
            })?;
        }
        Ok(())
    }

    /// Deletes this very object.
    pub(super) async fn delete(&self, kind: Kind, object: &DynamicObject) -> Result<(), Error> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let only = Preconditions { uid: object.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::background() };
        let deleted = found(self.api(kind, &namespace).delete(&name, &params).await);
        at(format!("delete {} {name}", kind.name()), deleted).map(drop)
    }
}
