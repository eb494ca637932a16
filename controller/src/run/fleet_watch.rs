//! Resolves the profiles of all hosts again whenever their input changes, and triggers reconciles of the hosts and
//! profiles whose result has changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::{HostProfile, InfraNode, TenantCluster};
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout_at};

use super::context::Context;
use super::throttle::ReconcileThrottle;
use crate::profiles::{HostObjects, ResolvedProfiles};
use berth_runtime::watch::Change;

/// Time for which changes are collected before the profiles are resolved again.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Queues of the reconcilers of hosts and of profiles.
#[derive(Debug, Clone)]
pub(super) struct ReconcileQueues {
    pub(super) hosts: UnboundedSender<ObjectRef<InfraNode>>,
    pub(super) profiles: UnboundedSender<ObjectRef<HostProfile>>,
}

impl ReconcileQueues {
    /// Triggers a reconcile of a host. A send error is ignored: the queue has no receiver only if the program is
    /// ending.
    pub(super) fn enqueue_host(&self, name: &str) {
        self.hosts.unbounded_send(ObjectRef::new(name)).unwrap_or_default();
    }

    pub(super) fn enqueue_profile(&self, name: &str) {
        self.profiles.unbounded_send(ObjectRef::new(name)).unwrap_or_default();
    }
}

/// Receivers of changes of the objects from which profiles are resolved.
pub(super) struct ChangeReceivers {
    pub(super) nodes: UnboundedReceiver<Change<Node>>,
    pub(super) infra_nodes: UnboundedReceiver<Change<InfraNode>>,
    pub(super) profiles: UnboundedReceiver<Change<HostProfile>>,
    pub(super) tenants: UnboundedReceiver<Change<TenantCluster>>,
}

impl ChangeReceivers {
    pub(super) fn subscribe(context: &Context) -> Self {
        Self {
            nodes: context.nodes.subscribe(),
            infra_nodes: context.infra_nodes.subscribe(),
            profiles: context.profiles.subscribe(),
            tenants: context.tenants.subscribe(),
        }
    }
}

/// Watches the objects from which profiles are resolved, until the future is dropped.
pub(super) async fn watch_fleet(
    context: Arc<Context>,
    queues: ReconcileQueues,
    mut changes: ChangeReceivers,
) {
    resolve_profiles(&context, &queues);
    // All objects are reconciled once after this process has become the leader.
    trigger_all(&context, &queues);
    let mut throttle = ReconcileThrottle::default();
    loop {
        let now = Instant::now();
        throttle.take_due(now).iter().for_each(|host| queues.enqueue_host(host));
        let due = throttle.due_at(now);
        let handled = handle_next_change(&context, &queues, &mut changes, &mut throttle);
        let is_changed = match due {
            Some(due) => timeout_at(due, handled).await.unwrap_or_default(),
            None => handled.await,
        };
        if is_changed {
            let end = Instant::now() + DEBOUNCE;
            while timeout_at(
                end,
                handle_next_change(&context, &queues, &mut changes, &mut throttle),
            )
            .await
            .is_ok()
            {}
            resolve_profiles(&context, &queues);
        }
    }
}

/// Waits for the next change, and triggers the objects that it affects. Returns true if the profiles must be resolved
/// again.
async fn handle_next_change(
    context: &Context,
    queues: &ReconcileQueues,
    changes: &mut ChangeReceivers,
    throttle: &mut ReconcileThrottle,
) -> bool {
    tokio::select! {
        Some(change) = changes.nodes.recv() => match change {
            Change::Relisted => true,
            Change::Object(before, after) => relevant_node_fields(before.as_deref()) != relevant_node_fields(after.as_deref()),
        },
        Some(change) = changes.infra_nodes.recv() => match change {
            Change::Relisted => { trigger_all(context, queues); true }
            Change::Object(before, after) => {
                // This controller's own writes are changes too; the throttle prevents them from causing another write
                // immediately.
                if let Some(after) = &after {
                    throttle.add(after.name_any());
                }
                relevant_infra_node_fields(before.as_deref()) != relevant_infra_node_fields(after.as_deref())
            }
        },
        Some(change) = changes.profiles.recv() => match change {
            Change::Relisted => { trigger_all(context, queues); true }
            Change::Object(before, after) => {
                if let Some(after) = &after {
                    queues.enqueue_profile(&after.name_any());
                }
                relevant_profile_fields(before.as_deref()) != relevant_profile_fields(after.as_deref())
            }
        },
        Some(change) = changes.tenants.recv() => {
            match change {
                Change::Relisted => trigger_all(context, queues),
                Change::Object(before, after) => handle_tenant_change(context, throttle, before.as_deref(), after.as_deref()),
            }
            false
        }
        // The branch is never reached: the senders live as long as the program.
        else => std::future::pending().await,
    }
}

fn trigger_all(context: &Context, queues: &ReconcileQueues) {
    context.infra_nodes.all().iter().for_each(|host| queues.enqueue_host(&host.name_any()));
    context.profiles.all().iter().for_each(|profile| queues.enqueue_profile(&profile.name_any()));
}

fn resolve_profiles(context: &Context, queues: &ReconcileQueues) {
    let nodes = context.nodes.all();
    let infra_nodes: Vec<_> =
        nodes.iter().map(|node| context.infra_nodes.get(&node.name_any())).collect();
    // Only the spec of a profile matters, so the status and other fields that change with it are removed for the
    // comparison.
    let without_status = |profile: Arc<HostProfile>| {
        let mut profile = (*profile).clone();
        profile.status = None;
        profile.metadata.managed_fields = None;
        profile.metadata.resource_version = None;
        Arc::new(profile)
    };
    let profiles: Vec<_> = context.profiles.all().into_iter().map(without_status).collect();
    let hosts = nodes.iter().zip(&infra_nodes);
    let hosts =
        hosts.map(|(node, infra_node)| HostObjects { node, infra_node: infra_node.as_deref() });
    let before = context.resolved_profiles.replace(ResolvedProfiles::new(&profiles, hosts));
    let after = context.resolved_profiles.get();
    for (node, infra_node) in nodes.iter().zip(&infra_nodes) {
        let name = node.name_any();
        let Some(infra_node) = infra_node else { continue };
        let networks = infra_node.spec.networks.iter().map(|network| network.name.as_str());
        let networks: BTreeSet<&str> =
            networks.chain(after.networks().iter().map(String::as_str)).collect();
        let endpoints_changed = |network: &&str| {
            before.tunnel_endpoints(network, &name) != after.tunnel_endpoints(network, &name)
        };
        if before.selection(&name) != after.selection(&name)
            || before.tunnels_differ(&after) && networks.iter().any(endpoints_changed)
        {
            queues.enqueue_host(&name);
        }
    }
    for profile in &profiles {
        let name = profile.name_any();
        if before.outcome(&name) != after.outcome(&name) {
            queues.enqueue_profile(&name);
        }
    }
    if before.networks() != after.networks() {
        context.host_networks_changed.notify_one();
    }
}

/// Returns the fields of a Node on which the resolved profiles depend, for comparison.
fn relevant_node_fields(node: Option<&Node>) -> impl PartialEq {
    let addresses = |node: &Node| node.status.as_ref().and_then(|status| status.addresses.clone());
    node.map(|node| (node.metadata.uid.clone(), node.metadata.labels.clone(), addresses(node)))
}

fn relevant_infra_node_fields(host: Option<&InfraNode>) -> impl PartialEq {
    let uplinks = |host: &InfraNode| {
        let uplinks = host.status.iter().flat_map(|status| &status.capabilities.uplinks);
        uplinks.map(|uplink| (uplink.name.clone(), uplink.addresses.clone())).collect::<Vec<_>>()
    };
    host.map(|host| (host.metadata.uid.clone(), host.spec.networks.clone(), uplinks(host)))
}

fn relevant_profile_fields(profile: Option<&HostProfile>) -> impl PartialEq {
    profile.map(|profile| (profile.spec.clone(), profile.metadata.deletion_timestamp.clone()))
}

/// Triggers the hosts that carry a tenant, or that carried it before the change.
fn handle_tenant_change(
    context: &Context,
    throttle: &mut ReconcileThrottle,
    before: Option<&TenantCluster>,
    after: Option<&TenantCluster>,
) {
    let facts = |tenant: Option<&TenantCluster>| {
        tenant.map(|tenant| {
            let status = tenant.status.clone().unwrap_or_default();
            let reasons = status
                .conditions
                .into_iter()
                .map(|one| (one.type_, one.reason))
                .collect::<Vec<_>>();
            let is_deleting = tenant.metadata.deletion_timestamp.is_some();
            let requested = (tenant.spec.network.clone(), tenant.spec.node_selector.clone());
            (requested, status.vlan, status.vni, is_deleting, is_deleting.then_some(reasons))
        })
    };
    if facts(before) == facts(after) {
        return;
    }
    let versions: Vec<&TenantCluster> = before.into_iter().chain(after).collect();
    for node in context.nodes.all() {
        let name = node.name_any();
        let infra_node = context.infra_nodes.get(&name);
        if versions.iter().any(|tenant| is_affected(&node, infra_node.as_deref(), tenant)) {
            throttle.add(name);
        }
    }
}

/// Returns true if a tenant selects a host, or the host has a network of the tenant. A tenant that was unknown until
/// now may have a network on a host that it no longer selects.
fn is_affected(node: &Node, infra_node: Option<&InfraNode>, tenant: &TenantCluster) -> bool {
    let network = TenantCluster::namespace_of(&tenant.name_any());
    let mut current = infra_node.into_iter().flat_map(|host| &host.spec.tenant_networks);
    tenant.selects(node.labels()) || current.any(|one| one.name == network)
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::TenantNetworkSpec;
    use berth_api::{InfraNodeSpec, TenantClusterSpec};

    use super::*;

    #[test]
    fn corrected_tenant_affects_a_host_that_it_no_longer_selects() {
        let mut tenant = TenantCluster::new("shop", TenantClusterSpec::default());
        tenant.spec.node_selector.insert("rack".to_owned(), "1".to_owned());
        let node = |rack: &str| {
            let mut node = Node::default();
            node.labels_mut().insert("rack".to_owned(), rack.to_owned());
            node
        };
        let infra_node = |network: &str| {
            let network = TenantNetworkSpec {
                name: network.to_owned(),
                network: "trunk".to_owned(),
                vlan: None,
                vni: Some(7),
                dhcp_guard: None,
                source_guard: None,
                ready_hosts_only: None,
            };
            let tenant_networks = vec![network];
            InfraNode::new("a", InfraNodeSpec { tenant_networks, ..InfraNodeSpec::default() })
        };
        let (own, other) = (infra_node("cluster-shop"), infra_node("cluster-other"));
        assert!(is_affected(&node("1"), None, &tenant));
        assert!(!is_affected(&node("2"), None, &tenant));
        assert!(is_affected(&node("2"), Some(&own), &tenant));
        assert!(!is_affected(&node("2"), Some(&other), &tenant));
    }
}
