//! Exposure of a tenant's services and machines outside the infra cluster.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{AddressRange, LinkName, NodePortRange};

/// Port of SSH servers.
const SSH_PORT: u16 = 22;

/// Exposure of a tenant's services and machines outside the infra cluster.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Exposure {
    /// Addresses for Services of type LoadBalancer in the tenant's namespace. MetalLB assigns them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancers: Option<LoadBalancers>,
    /// The KubeVirt cloud controller manager, which creates a Service in the tenant's namespace for each Service of type
    /// LoadBalancer in the tenant's cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_controller_manager: Option<CloudControllerManager>,
    /// Access to single machines, by one Service for each machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_access: Option<MachineAccess>,
}

/// Addresses for Services of type LoadBalancer.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancers {
    /// Addresses that only Services in the tenant's namespace get. The pools of two tenants must not overlap.
    #[schemars(length(min = 1, max = 64))]
    pub addresses: Vec<AddressRange>,
    /// Method with which MetalLB announces the addresses. Default L2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<Advertisement>,
    /// Names of the network interfaces of Nodes on which MetalLB announces the addresses. Default: all interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub interfaces: Vec<LinkName>,
    /// True if MetalLB assigns an address to every Service of type LoadBalancer; false if only to Services with the
    /// annotation `metallb.io/address-pool`. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_assign: Option<bool>,
}

/// Method with which MetalLB announces the addresses of load balancers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advertisement {
    /// One Node for each address answers ARP requests and neighbor solicitations (MetalLB's L2Advertisement).
    #[default]
    L2,
    /// Berth creates no advertisement, because an administrator created one, for example a BGPAdvertisement.
    None,
}

/// The KubeVirt cloud controller manager of a tenant.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CloudControllerManager {
    /// Image, such as `registry.example/kubevirt-cloud-controller-manager:v0.6.0`.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^\S+$"))]
    pub image: String,
    /// Number of pods. Only one of them, the leader, is active. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 5))]
    pub replicas: Option<u32>,
    /// True if the cloud controller manager also sets the provider ID and the addresses of the tenant's Nodes, and
    /// removes Nodes without a machine. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<bool>,
}

/// Access to single machines.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineAccess {
    /// True if the Services forward TCP port 22 (SSH) to the machines. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh: Option<bool>,
    /// Additional TCP ports of the machines that the Services forward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(range(min = 1)))]
    pub ports: Vec<u16>,
    /// Type of the Services. Default NodePort: a port on all Nodes of the infra cluster is allocated for each port of a
    /// machine.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<AccessType>,
    /// Node ports for the Services, such as `30100-30199`. A machine keeps its node ports while its Service exists.
    /// Default: Kubernetes allocates ports from the node port range of the infra cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port_range: Option<NodePortRange>,
}

/// Type of the Services of machines.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessType {
    /// A port on all Nodes of the infra cluster.
    #[default]
    NodePort,
    /// A load balancer's address for each machine, from `loadBalancers` if this field is set.
    LoadBalancer,
}

impl AccessType {
    /// Returns the value of `spec.type` of a Service.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

impl MachineAccess {
    /// Returns all ports of a machine that its Service forwards.
    #[must_use]
    pub fn all_ports(&self) -> BTreeSet<u16> {
        let ssh = self.ssh.unwrap_or(true).then_some(SSH_PORT);
        // API servers without validation of schemas accept port 0.
        self.ports.iter().copied().filter(|port| *port != 0).chain(ssh).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_include_ssh_unless_it_is_off() {
        let ports = |value| {
            let access: MachineAccess = serde_json::from_value(value).unwrap();
            access.all_ports().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(ports(json!({})), [22]);
        assert_eq!(ports(json!({"ports": [6443, 22, 0]})), [22, 6443]);
        assert_eq!(ports(json!({"ssh": false, "ports": [6443]})), [6443]);
        assert!(ports(json!({"ssh": false})).is_empty());
    }

    #[test]
    fn hostile_values_are_refused() {
        for value in [
            json!({"loadBalancers": {"addresses": ["10.0.0.9-10.0.0.1"]}}),
            json!({"loadBalancers": {"addresses": ["10.0.0.1"], "interfaces": ["eth0; reboot"]}}),
            json!({"loadBalancers": {"addresses": ["10.0.0.1"], "advertise": "BGP"}}),
            json!({"machineAccess": {"ports": [65_536]}}),
            json!({"machineAccess": {"ports": [-1]}}),
            json!({"machineAccess": {"type": "ExternalName"}}),
            json!({"machineAccess": {"nodePortRange": "30199-30100"}}),
            json!({"machineAccess": {"nodePortRange": 30_100}}),
            json!({"cloudControllerManager": {}}),
        ] {
            assert!(serde_json::from_value::<Exposure>(value.clone()).is_err(), "{value}");
        }
    }
}
