//! Resources of a tenant that a user requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// Resources of a tenant that a TenantQuota limits.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantResources {
    /// Machines of the tenant.
    pub machines: RequestedMachines,
    /// Volumes of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<RequestedStorage>,
    /// Layer 2 network of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<RequestedNetwork>,
    /// Name of the Secret with the kubeconfig of the tenant's API server, in the namespace of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub kubeconfig_secret_name: Option<String>,
}

/// Number and flavors of machines.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedMachines {
    /// Maximum number of machines that exist at the same time, including those that a rolling update creates
    /// (`maxSurge`).
    #[schemars(range(min = 1, max = 100_000))]
    pub count: u32,
    /// Instance types of the machines. The quota counts each machine with the most CPUs, the most memory and the most
    /// huge pages of these instance types, so that each machine may have any of them.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 253)))]
    pub flavors: Vec<String>,
}

/// Volumes of a tenant.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedStorage {
    /// Total size of all volumes in the tenant's namespace: disks of machines, and volumes of the tenant's cluster.
    pub size: Bytes,
    /// Storage classes of the volumes.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 253)))]
    pub classes: Vec<String>,
}

/// Layer 2 network of a tenant.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedNetwork {
    /// Name of the host network that carries the tenant's network, as in HostProfiles.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// IPv4 prefix of the network. Default: Berth allocates no IPv4 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<RequestedPrefix>,
    /// IPv6 prefix of the network. Default: Berth allocates no IPv6 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<RequestedPrefix>,
}

/// Prefix from a pool of the InfraConfig.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedPrefix {
    /// Name of a pool in InfraConfig's `addressPools`.
    #[schemars(length(min = 1, max = 63))]
    pub pool: String,
    /// Length of the prefix. The pool determines the length: a request for another length is refused. Default: any
    /// length.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 126))]
    pub prefix_length: Option<u8>,
}
