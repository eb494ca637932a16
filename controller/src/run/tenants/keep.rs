//! One look at a tenant that is to be: what it lacks is made, and its status says how far it is.

use std::time::Duration;

use berth_api::names::{CONTROLLER_TENANTS, FINALIZER, TENANT};
use berth_api::{ConditionReason, TenantCluster, TenantClusterStatus};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::context::{Context, address};
use super::error::{Error, at, found};
use super::objects::is_ours;
use crate::run::calls::{made_by, patched_by};
use crate::tenants::deletion::{Namespace, readable};
use crate::tenants::fault::Fault;
use crate::tenants::hosts::readiness;
use crate::tenants::ids::NetworkId;
use crate::tenants::network;
use crate::tenants::objects::access::{access, of_controller};
use crate::tenants::objects::attachment::{Tenants, attachment};
use crate::tenants::objects::policies::{Input, Policies, policies};
use crate::tenants::objects::{Kind, Wanted, flavours, namespace};
use crate::tenants::status::{self, Part, Parts, Told, all_or};

/// What is not as it should be for a reason that may pass is looked at again after so long.
const RETRY: Duration = Duration::from_secs(15);

/// Reasons of faults that are answers of the server.
const REFUSED: [ConditionReason; 2] = [ConditionReason::ApplyFailed, ConditionReason::DeleteFailed];

/// Keeps a tenant; says when to look again, if that is to be soon.
pub(super) async fn keep(
    context: &Context,
    tenant: TenantCluster,
) -> Result<Option<Duration>, Error> {
    let mut tenant = context.hold(tenant).await?;
    let name = tenant.name_any();
    let hosts = context.stores.hosts();
    let space = context.namespace(&tenant).await?;
    // Whoever made the namespace may have made what is in it.
    let is_own = space == Namespace::Ours;
    if space != Namespace::Going {
        // Before anything is read there; `objects` says what is wrong with it.
        drop(context.settle(of_controller(&name), is_own).await);
    }
    let mut parts = Parts {
        network: Ok(Told {
            reason: ConditionReason::PodNetworkOnly,
            message: "has the pod network only".to_owned(),
        }),
        policies: Ok(Told::ready(String::new())),
        objects: Ok(Told::ready(String::new())),
        hosts: readiness(&tenant, None, &hosts),
        id: None,
        attachment: None,
    };
    // The VLAN is held whatever becomes of the namespace.
    let network = network::resolve(&tenant, &hosts);
    let got = match &network {
        Ok(None) => None,
        Ok(Some(network)) => Some(context.claim(&tenant, network).await?),
        Err(fault) => Some(Err(fault.clone())),
    };
    let before = tenant.status.as_ref().and_then(NetworkId::of_status);
    let got = match got {
        None => None,
        Some(Ok(got)) => {
            if before != Some(got.id) {
                tenant = context.record(tenant, got.id).await?;
            }
            parts.id = Some(got.id);
            Some(got)
        }
        Some(Err(fault)) => {
            // Hosts that are not there at this moment take nothing away.
            let told = tenant.status.as_ref();
            let holds = matches!(
                fault.reason,
                ConditionReason::NoHosts
                    | ConditionReason::HostNetworksDiffer
                    | ConditionReason::InvalidHostNetwork
            );
            let fixed = fault.reason == ConditionReason::NetworkIdImmutable;
            parts.id = before.filter(|_| holds || fixed);
            parts.attachment = told
                .filter(|_| parts.id.is_some())
                .and_then(|status| status.network_attachment_definition.clone());
            parts.network = Err(fault);
            None
        }
    };
    parts.hosts = readiness(&tenant, parts.id, &hosts);
    if space == Namespace::Going {
        let message = format!("namespace {} is being deleted", TenantCluster::namespace_of(&name));
        for part in [&mut parts.network, &mut parts.policies, &mut parts.objects] {
            if part.is_ok() {
                *part = Err(Fault::new(ConditionReason::NamespaceTerminating, message.clone()));
            }
        }
    } else {
        if let (Some(got), Ok(Some(network)), Some(asked)) = (got, &network, &tenant.spec.network) {
            let count = Tenants(context.tenants_of(&network.name));
            match attachment(&name, asked, network, got.id, count) {
                Ok(wanted) => {
                    let definition =
                        format!("{}/{}", TenantCluster::namespace_of(&name), wanted.name());
                    parts.network = context.attach(&name, wanted, &got, is_own).await;
                    parts.attachment = Some(definition);
                }
                Err(fault) => parts.network = Err(fault),
            }
        } else if tenant.spec.network.is_none() {
            let kind = Kind::NetworkAttachmentDefinition;
            if let Err(fault) = context.prune(kind, &name, &[]).await {
                parts.network = Err(fault);
            }
        }
        parts.policies = context.policies(&tenant, is_own).await?;
        parts.objects = context.objects(&tenant, is_own).await;
    }
    let faults = [&parts.network, &parts.policies, &parts.objects];
    let faults: Vec<Fault> = faults.into_iter().filter_map(|part| part.clone().err()).collect();
    let should = status::status(&tenant, &parts, Timestamp::now());
    context.say(&tenant, &should).await?;
    // The server refused, or is in trouble: that is for the backoff.
    if let Some(fault) = faults.iter().find(|fault| REFUSED.contains(&fault.reason)) {
        return Err(Error::Unsettled(fault.to_string()));
    }
    Ok((!faults.is_empty()).then_some(RETRY))
}

impl Context {
    /// Untyped: what the server answers must not have to be understood where a tenant is deleted.
    pub(super) fn tenants(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<TenantCluster>(&()))
    }

    /// Sees to it that the tenant does not go before what was made for it: before anything is made.
    async fn hold(&self, tenant: TenantCluster) -> Result<TenantCluster, Error> {
        if tenant.finalizers().iter().any(|one| one == FINALIZER) {
            return Ok(tenant);
        }
        let mut all = tenant.finalizers().to_vec();
        all.push(FINALIZER.to_owned());
        self.finalizers(&tenant, &all).await
    }

    /// Writes the list of finalizers, if nobody wrote the object in between.
    pub(super) async fn finalizers(
        &self,
        tenant: &TenantCluster,
        all: &[String],
    ) -> Result<TenantCluster, Error> {
        let name = tenant.name_any();
        let patch = json!({"metadata": {
            "uid": tenant.uid(), "resourceVersion": tenant.resource_version(), "finalizers": all,
        }});
        let params = patched_by();
        let result = self.tenants().patch(&name, &params, &Patch::Merge(patch)).await;
        let what = format!("patch TenantCluster {name}");
        // One that is gone by now had nothing made for it.
        let patched = at(what, found(result))?;
        let patched = patched.and_then(|patched| serde_json::to_value(patched).ok());
        let patched = patched.as_ref().and_then(readable);
        patched.ok_or_else(|| Error::Changed(format!("TenantCluster {name}")))
    }

    /// Says what a tenant has, which hosts then carry. If two controllers came to different claims, the first says it.
    async fn record(&self, tenant: TenantCluster, id: NetworkId) -> Result<TenantCluster, Error> {
        let mut status = tenant.status.clone().unwrap_or_default();
        status.machines = None;
        status.conditions.retain(|one| status::OURS.contains(&one.type_.as_str()));
        (status.vlan, status.vni) = id.split();
        let name = tenant.name_any();
        let params = PatchParams::apply(CONTROLLER_TENANTS).force();
        let body = Patch::Apply(status::apply(&tenant, &status, true));
        let api: Api<TenantCluster> = Api::all(self.client.clone());
        at(
            format!("patch status of TenantCluster {name}"),
            api.patch_status(&name, &params, &body).await,
        )
    }

    /// Writes the status, if it says anything new, and tells people of what went wrong.
    pub(super) async fn say(
        &self,
        tenant: &TenantCluster,
        should: &TenantClusterStatus,
    ) -> Result<(), Error> {
        if !status::is_new(should, tenant) {
            return Ok(());
        }
        let name = tenant.name_any();
        let params = PatchParams::apply(CONTROLLER_TENANTS).force();
        // A status made from an old object must not undo what a newer one says of the VLAN.
        let body = Patch::Apply(status::apply(tenant, should, true));
        let result = self.tenants().patch_status(&name, &params, &body).await;
        at(format!("patch status of TenantCluster {name}"), result)?;
        for one in should.conditions.iter().filter(|one| one.status == "False") {
            // Of these there is news all the time while a tenant comes up.
            if ["Ready", "HostsReady"].contains(&one.type_.as_str()) {
                continue;
            }
            let there = tenant.status.iter().flat_map(|status| &status.conditions);
            let mut same = there.filter(|other| other.type_ == one.type_);
            if same.all(|other| other.reason != one.reason || other.message != one.message) {
                self.tell(tenant, &one.reason, &one.message).await;
            }
        }
        Ok(())
    }

    /// The tenant's namespace: made if it is not there, labelled if it is.
    async fn namespace(&self, tenant: &TenantCluster) -> Result<Namespace, Error> {
        let mut space = self.find_namespace(tenant).await?;
        if space == Namespace::Absent {
            let wanted = namespace(tenant, true);
            let what = format!("create Namespace {}", wanted.name());
            let resource = Kind::Namespace.resource();
            let api = Api::<kube::api::DynamicObject>::all_with(self.client.clone(), &resource);
            let params = made_by();
            let object = serde_json::from_value(wanted.body).map_err(kube::Error::SerdeError);
            let object = at(what.clone(), object)?;
            // Not by an apply: that would take one for ours which somebody makes at the same moment.
            at(what, api.create(&params, &object).await)?;
            space = Namespace::Ours;
        }
        if space != Namespace::Going {
            let wanted = namespace(tenant, space == Namespace::Ours);
            if let Err(fault) = self.settle(wanted, true).await {
                tracing::warn!("TenantCluster {}: {fault}", tenant.name_any());
            }
        }
        Ok(space)
    }

    /// What there is of a tenant's namespace.
    pub(super) async fn find_namespace(&self, tenant: &TenantCluster) -> Result<Namespace, Error> {
        let name = TenantCluster::namespace_of(&tenant.name_any());
        let known = self.known(Kind::Namespace, "", &name);
        let known = match known {
            Some(known) => Some(known.metadata),
            None => {
                let resource = Kind::Namespace.resource();
                let api = Api::<kube::api::DynamicObject>::all_with(self.client.clone(), &resource);
                let there = found(api.get_metadata(&name).await);
                at(format!("get Namespace {name}"), there)?.map(|there| there.metadata)
            }
        };
        Ok(match known {
            None => Namespace::Absent,
            Some(meta) if !is_ours(&meta.labels.clone().unwrap_or_default()) => Namespace::NotOurs,
            Some(meta) if meta.deletion_timestamp.is_some() => Namespace::Going,
            Some(_) => Namespace::Ours,
        })
    }

    async fn attach(
        &self,
        tenant: &str,
        wanted: Wanted,
        got: &super::claims::Got,
        is_own: bool,
    ) -> Part {
        self.settle(wanted.clone(), is_own).await?;
        self.prune(Kind::NetworkAttachmentDefinition, tenant, &[&wanted]).await?;
        let note = got.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
        Ok(Told::ready(format!("has {}{note}", got.id)))
    }

    async fn policies(&self, tenant: &TenantCluster, is_own: bool) -> Result<Part, Error> {
        let name = tenant.name_any();
        let config = self.config();
        let (server, no_kubeconfig) = match self.api_server(tenant).await? {
            Ok(server) => (server, None),
            Err(fault) => (None, Some(fault)),
        };
        let (api_server, note) = address(server.as_ref());
        let rendered = policies(Input {
            tenant: &name,
            asked: tenant.spec.network_policies.as_ref(),
            config: &config,
            cluster: &self.stores.cluster.facts(),
            api_server,
        });
        let Policies { isolation, custom, mut faults, lacks_facts } = rendered;
        let wanted: Vec<Wanted> = isolation.iter().chain(&custom).cloned().collect();
        let namespace = TenantCluster::namespace_of(&name);
        // What is in force was rendered from more facts: it stays until they are known again.
        let stays = |one: &Wanted| {
            lacks_facts
                && isolation.contains(one)
                && self.known(Kind::NetworkPolicy, &namespace, one.name()).is_some()
        };
        for one in wanted.iter().filter(|one| !stays(one)) {
            faults.extend(self.settle(one.clone(), is_own).await.err());
        }
        let all: Vec<&Wanted> = wanted.iter().collect();
        faults.extend(self.prune(Kind::NetworkPolicy, &name, &all).await.err());
        // The first is the reason, and machines wait for all but this.
        faults.extend(no_kubeconfig);
        let note = note.map_or_else(String::new, |note| format!("; {note}"));
        Ok(all_or(&faults, Told::ready(format!("{} NetworkPolicies{note}", wanted.len()))))
    }

    async fn objects(&self, tenant: &TenantCluster, is_own: bool) -> Part {
        let name = tenant.name_any();
        let (mut faults, wanted) = (Vec::new(), [access(&name), flavours(&name)].concat());
        for one in &wanted {
            if let Err(fault) = self.settle(one.clone(), is_own).await
                && !faults.contains(&fault)
            {
                faults.push(fault);
            }
        }
        if faults.is_empty() {
            faults.extend(self.csi_token(&name).await.err());
        }
        let all: Vec<&Wanted> = wanted.iter().collect();
        for kind in [Kind::Instancetype, Kind::Preference] {
            faults.extend(self.prune(kind, &name, &all).await.err());
        }
        let label = format!("{TENANT}={name}");
        all_or(&faults, Told::ready(format!("{} objects with label {label}", wanted.len())))
    }
}
