//! Plans the objects of tenants: VLAN or VNI, network definition and instance types. The machines of the tenants are
//! then planned with these objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::infra_node::TenantNetworkSpec;
use berth_api::{InfraNode, InfraNodeSpec, TenantCluster, TenantNetwork, feature_labels};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::collection::Fleet;
use super::object::fatal_problem;
use super::planned::PlannedTenant;
use crate::profiles;
use crate::tenants::claims::{ClaimState, IdChoice, IdRequest, choose_id};
use crate::tenants::fault::Fault;
use crate::tenants::hosts::TenantHostState;
use crate::tenants::network::resolve_host_network;
use crate::tenants::network_id::NetworkId;
use crate::tenants::objects::attachment::{
    TenantCount, additional_attachment, network_attachment_definition,
};
use crate::tenants::objects::{DesiredObject, instancetype_objects};
use berth_api::Problem;

impl Fleet {
    /// Adds the planned objects of tenants to the objects that the machines depend on.
    pub(super) fn add_tenant_objects(&mut self) {
        if self.render_context.tenants.is_empty() {
            return;
        }
        let hosts_with_profile_spec = self.hosts_with_profile_spec();
        let host = |(infra, labels): &(InfraNode, BTreeMap<String, String>)| {
            Arc::new(TenantHostState::new(infra, Some(labels)))
        };
        let hosts: Vec<Arc<TenantHostState>> = hosts_with_profile_spec.iter().map(host).collect();
        for (infra, _) in hosts_with_profile_spec {
            self.infra_nodes.insert(infra.name_any(), infra);
        }
        let mut claims = std::mem::take(&mut self.claims);
        let tenants: Vec<TenantCluster> = self.render_context.tenants.values().cloned().collect();
        let mut definitions: BTreeMap<String, DesiredObject> = BTreeMap::new();
        for mut tenant in tenants {
            let name = tenant.name_any();
            for instancetype in instancetype_objects(&name) {
                self.add_desired_object(&instancetype);
            }
            let host_count = hosts.iter().filter(|host| host.carries(&tenant)).count();
            let mut planned = PlannedTenant {
                namespace: TenantCluster::namespace_of(&name),
                network: tenant.spec.network.as_ref().map(|network| network.name.clone()),
                name: name.clone(),
                vlan: None,
                vni: None,
                hosts: host_count,
            };
            match self.plan_network(&tenant, &hosts, &claims) {
                Ok(None) => {}
                Ok(Some((id, definition))) => {
                    (planned.vlan, planned.vni) = id.to_fields();
                    let network = planned.network.clone().unwrap_or_default();
                    let desired = tenant.spec.network.as_ref();
                    let dhcp_guard =
                        desired.is_some_and(TenantNetwork::is_served_by_agents).then_some(true);
                    let source_guard =
                        desired.is_some_and(TenantNetwork::has_source_guard).then_some(true);
                    for host in hosts.iter().filter(|host| host.carries(&tenant)) {
                        let Some(infra) = self.infra_nodes.get_mut(&host.name) else { continue };
                        let (vlan, vni) = id.to_fields();
                        let entry = TenantNetworkSpec {
                            name: planned.namespace.clone(),
                            network: network.clone(),
                            vlan,
                            vni,
                            dhcp_guard,
                            source_guard,
                            // The plan assumes that the agents configure the network.
                            ready_hosts_only: None,
                        };
                        if infra.spec.tenant_networks.iter().all(|one| one.name != entry.name) {
                            infra.spec.tenant_networks.push(entry);
                        }
                    }
                    claims.push(Arc::new(id.to_claim(&network, &name, &uid_or_name(&tenant))));
                    let status = tenant.status.get_or_insert_default();
                    status.network_attachment_definition =
                        Some(format!("{}/{}", planned.namespace, definition.name()));
                    self.add_desired_object(&definition);
                    definitions.insert(name.clone(), definition);
                }
                Err(fault) => {
                    let message = format!("{}; the tenant would have no network", fault.message);
                    self.problems.push(Problem::new(
                        format!("TenantCluster {name}"),
                        "",
                        "",
                        message,
                    ));
                    // The network of the tenant cannot be planned. Its machines are planned without the network,
                    // because the plan is still useful for their resources.
                    tenant.spec.network = None;
                }
            }
            self.render_context.tenants.insert(name, tenant);
            self.tenants.push(planned);
        }
        self.claims = claims;
        self.add_additional_definitions(&definitions);
    }

    /// Adds the definitions with which machines are attached to the networks of other tenants. `definitions` has the
    /// definition of each tenant's own network.
    fn add_additional_definitions(&mut self, definitions: &BTreeMap<String, DesiredObject>) {
        let mut additional = Vec::new();
        for (name, tenant) in &self.render_context.tenants {
            let others = tenant.additional_tenants();
            additional.extend(others.filter_map(|other| {
                let definition = definitions.get(other)?.clone();
                Some(additional_attachment(name, other, definition))
            }));
        }
        for definition in &additional {
            self.add_desired_object(definition);
        }
    }

    fn plan_network(
        &self,
        tenant: &TenantCluster,
        hosts: &[Arc<TenantHostState>],
        claims: &[Arc<berth_api::VlanClaim>],
    ) -> Result<Option<(NetworkId, DesiredObject)>, Fault> {
        let (Some(requested), Some(network)) =
            (&tenant.spec.network, resolve_host_network(tenant, hosts)?)
        else {
            return Ok(None);
        };
        let (name, uid) = (tenant.name_any(), uid_or_name(tenant));
        let request = IdRequest {
            tenant: &name,
            uid: &uid,
            network: &requested.name,
            uses_vnis: network.uses_vnis(),
            requested_id: NetworkId::from_spec(requested),
            recorded_id: tenant.status.as_ref().and_then(NetworkId::from_status),
        };
        let claim_state = ClaimState {
            config: &self.render_context.config,
            claims,
            refused_names: &BTreeSet::new(),
            foreign_ids: &BTreeMap::new(),
        };
        let (IdChoice::KeepClaim(id) | IdChoice::TakeOver(id, _) | IdChoice::Create(id)) =
            choose_id(request, claim_state)?;
        let count = TenantCount(self.render_context.tenants.len());
        Ok(Some((id, network_attachment_definition(&name, requested, &network, id, count)?)))
    }

    /// Returns each InfraNode with the spec that its HostProfile requires, and the labels of its Node.
    fn hosts_with_profile_spec(&self) -> Vec<(InfraNode, BTreeMap<String, String>)> {
        let profiles: Vec<_> = self.profiles.values().cloned().map(Arc::new).collect();
        let nodes: BTreeMap<&String, Node> = self
            .infra_nodes
            .iter()
            .map(|(name, infra)| (name, self.node_or_default(name, infra)))
            .collect();
        let known = nodes.iter().map(|(name, node)| profiles::HostObjects {
            node,
            infra_node: self.infra_nodes.get(*name),
        });
        let resolved = profiles::ResolvedProfiles::new(&profiles, known);
        let with_profile_networks = |(name, infra): (&String, &InfraNode)| {
            let labels = nodes.get(name).and_then(|node| node.metadata.labels.clone());
            let labels = labels.unwrap_or_default();
            let unknown = BTreeSet::new();
            let wanted = profiles::desired_infra_node(&resolved, &labels, infra, &[], &unknown);
            let networks = wanted.and_then(|wanted| {
                serde_json::from_value::<InfraNodeSpec>(wanted.spec).ok().map(|spec| spec.networks)
            });
            let mut infra = infra.clone();
            infra.spec.networks = networks.unwrap_or(infra.spec.networks);
            (infra, labels)
        };
        self.infra_nodes.iter().map(with_profile_networks).collect()
    }

    /// Returns the Node of a host. If the input contains no Node, returns a Node with the labels that the agent
    /// would set.
    fn node_or_default(&self, name: &str, infra: &InfraNode) -> Node {
        if let Some(node) = self.nodes.get(name) {
            return node.clone();
        }
        let all = infra.status.as_ref().map(feature_labels).unwrap_or_default().into_iter();
        let labels = all.filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node.metadata.labels = Some(labels);
        node
    }

    fn add_desired_object(&mut self, object: &DesiredObject) {
        self.render_context.add(&object.body);
        if let Err(invalid) = self.cluster_objects.add(&object.body) {
            self.problems.push(fatal_problem(invalid));
        }
    }
}

/// Returns the UID of a tenant, or its name if the tenant does not exist in a cluster yet.
fn uid_or_name(tenant: &TenantCluster) -> String {
    tenant.metadata.uid.clone().unwrap_or_else(|| tenant.name_any())
}
