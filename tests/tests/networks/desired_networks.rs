//! Specs and definitions that the controller renders for these hosts and the tenants of `examples/tenants`. The
//! controller's own functions compute them from the reports of the agents on these hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{InfraNode, InfraNodeSpec, TenantCluster, VlanId};
use berth_controller::fleet::{Fleet, parse_items};
use berth_controller::profiles;
use berth_controller::tenants::hosts::TenantHostState as Reported;
use berth_controller::tenants::network::resolve_host_network;
use berth_controller::tenants::network_id::NetworkId;
use berth_controller::tenants::objects::attachment::{TenantCount, network_attachment_definition};
use berth_tests::host::Host;
use berth_tests::repository;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

/// Replacements that adapt the networks of the examples to these hosts.
pub(crate) struct ExampleOverrides {
    /// Network of the HostProfile.
    pub(crate) network: &'static str,
    /// Network of the tenant bank.
    pub(crate) bank_network: &'static str,
}

/// Network of the HostProfile in the examples.
const NETWORK: &str =
    "{name: tenant-trunk, scenario: VlanAwareBridge, uplink: {name: eth1}, bridge: br-tenant}";
/// Network of the tenant bank in the examples.
pub(crate) const BANK_NETWORK: &str = "{name: tenant-trunk, vlan: 120, cidr: 10.20.0.0/24}";

/// Hosts with their specs, and the tenants that they must carry.
pub(crate) struct DesiredNetworks {
    hosts: [InfraNode; 2],
    tenants: BTreeMap<String, TenantCluster>,
    profiles: Vec<Arc<berth_api::HostProfile>>,
}

impl DesiredNetworks {
    /// Reads the reports of these hosts and computes their specs.
    pub(crate) fn from_hosts(hosts: &mut [Host; 2], overrides: &ExampleOverrides) -> Self {
        let mut number = 0;
        let reports = hosts.each_mut().map(|host| {
            number += 1;
            let report = host.run_checked("berth-agent report -o json").unwrap();
            let mut report: InfraNode = serde_json::from_str(&report).unwrap();
            // Both hosts use the same image, and therefore have the same name.
            report.metadata.name = Some(format!("rack1-{number}"));
            report
        });
        Self::from_reports(reports, overrides)
    }

    fn from_reports(reports: [InfraNode; 2], overrides: &ExampleOverrides) -> Self {
        let mut text: String =
            ["config.yaml", "bank.yaml", "shop.yaml"].map(read_example).join("---\n");
        for (original, replacement) in
            [(NETWORK, overrides.network), (BANK_NETWORK, overrides.bank_network)]
        {
            assert_eq!(
                text.matches(original).count(),
                1,
                "`{original}` does not occur exactly once"
            );
            text = text.replace(original, replacement);
        }
        let mut problems = Vec::new();
        let mut all = parse_items("examples/tenants", &text, &mut problems);
        for report in &reports {
            let text = serde_json::to_string(report).unwrap();
            all.extend(parse_items("report", &text, &mut problems));
        }
        let fleet = Fleet::from_items(all, problems);
        assert_eq!(fleet.tenants.len(), 2, "{:?}", fleet.problems);
        let mut desired = Self {
            hosts: reports,
            tenants: fleet.render_context.tenants.clone(),
            profiles: fleet.profiles.values().cloned().map(Arc::new).collect(),
        };
        for planned in &fleet.tenants {
            assert!(
                planned.hosts == 2 && planned.vlan.is_some(),
                "{planned:?}: {:?}",
                fleet.problems
            );
            let tenant = desired.tenants.get_mut(&planned.name).unwrap();
            tenant.status.get_or_insert_default().vlan = planned.vlan;
        }
        for host in 0..2 {
            desired.hosts[host].spec = desired.spec(host, &[]);
        }
        desired
    }

    /// Returns the spec that the controller writes for a host without the tenants `removed_tenants`.
    fn spec(&self, host: usize, removed_tenants: &[&str]) -> InfraNodeSpec {
        let node = |infra: &InfraNode| {
            let mut node = Node::default();
            node.metadata.name.clone_from(&infra.metadata.name);
            node
        };
        let nodes = self.hosts.each_ref().map(node);
        let known = nodes.iter().zip(&self.hosts);
        let known =
            known.map(|(node, infra)| profiles::HostObjects { node, infra_node: Some(infra) });
        let resolved = profiles::ResolvedProfiles::new(&self.profiles, known);
        let remaining_tenants =
            self.tenants.iter().filter(|(name, _)| !removed_tenants.contains(&name.as_str()));
        let remaining_tenants: Vec<_> =
            remaining_tenants.map(|(_, tenant)| Arc::new(tenant.clone())).collect();
        let infra = &self.hosts[host];
        let desired = profiles::desired_infra_node(
            &resolved,
            &BTreeMap::new(),
            infra,
            &remaining_tenants,
            &BTreeSet::new(),
        )
        .unwrap();
        serde_json::from_value(desired.spec).unwrap()
    }

    /// Returns the InfraNode of a host without the tenants `removed_tenants`, as a file for the agent.
    pub(crate) fn manifest(&self, host: usize, removed_tenants: &[&str]) -> String {
        let mut infra = self.hosts[host].clone();
        infra.metadata.name = Some("rack1-a".to_owned());
        infra.spec = self.spec(host, removed_tenants);
        infra.status = None;
        format!("{}\n", serde_json::to_string_pretty(&infra).unwrap())
    }

    /// Returns the VLAN of a tenant.
    pub(crate) fn vlan(&self, tenant: &str) -> VlanId {
        self.tenants[tenant].status.as_ref().unwrap().vlan.unwrap()
    }

    /// Returns `spec.config` of a tenant's NetworkAttachmentDefinition.
    pub(crate) fn configuration(&self, tenant: &str) -> String {
        let object = &self.tenants[tenant];
        let labels = BTreeMap::new();
        let hosts =
            self.hosts.each_ref().map(|infra| Arc::new(Reported::new(infra, Some(&labels))));
        let network = resolve_host_network(object, &hosts).unwrap().unwrap();
        let requested = object.spec.network.as_ref().unwrap();
        let id = NetworkId::Vlan(self.vlan(tenant));
        let wanted = network_attachment_definition(
            tenant,
            requested,
            &network,
            id,
            TenantCount(self.tenants.len()),
        )
        .unwrap();
        wanted.body["spec"]["config"].as_str().unwrap().to_owned()
    }

    /// Returns a field of the tenant's configuration.
    pub(crate) fn configuration_field(&self, tenant: &str, field: &str) -> Value {
        let all: Value = serde_json::from_str(&self.configuration(tenant)).unwrap();
        all[field].clone()
    }
}

#[expect(clippy::disallowed_methods, reason = "the repository's own files")]
fn read_example(example: &str) -> String {
    std::fs::read_to_string(repository().join("examples/tenants").join(example)).unwrap()
}
