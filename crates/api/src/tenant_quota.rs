//! TenantQuota: limits for the tenant clusters that users of some namespaces request.

#![expect(clippy::duplicated_attributes, reason = "printcolumn(..) repeats its keys by design")]
#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tenant_resources::TenantResources;
use crate::{Bytes, Condition, QuotaAmounts};

/// Limits for the sum of all TenantRequests of the selected namespaces.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantQuota",
    plural = "tenantquotas",
    shortname = "tquota",
    category = "berth",
    status = "TenantQuotaStatus",
    derive = "PartialEq",
    doc = "Limits for the tenant clusters that users of the selected namespaces request with TenantRequests.",
    printcolumn(name = "Approval", type_ = "string", json_path = ".spec.approval"),
    printcolumn(
        name = "Tenants",
        type_ = "integer",
        json_path = ".status.used.tenants",
        description = "Number of granted tenants"
    ),
    printcolumn(
        name = "Machines",
        type_ = "integer",
        json_path = ".status.used.machines",
        description = "Number of granted machines"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "False if the grants exceed the limits, because the limits were reduced"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuotaSpec {
    /// Namespaces whose TenantRequests the quota permits. Default: none.
    #[serde(default)]
    pub namespaces: QuotaNamespaces,
    /// Approval of requests. Default Manual.
    #[serde(default)]
    pub approval: ApprovalMode,
    /// Limits for the sum of all requests, and permitted values. A reduced limit applies to later requests only.
    pub limits: QuotaLimits,
    /// Seconds for which a token in the kubeconfig of a requester is valid. Default 86400. API servers may issue tokens
    /// with a shorter life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 600, max = 31_536_000))]
    pub token_expiration_seconds: Option<u32>,
}

/// Namespaces that a quota selects: those in `names`, and those that `selector` matches.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct QuotaNamespaces {
    /// Names of namespaces.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 256), inner(length(min = 1, max = 63)))]
    pub names: BTreeSet<String>,
    /// Selector of namespaces by their labels. An empty selector matches all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Approval of requests.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApprovalMode {
    /// A request within the limits is granted at once, unless an approver has denied it.
    Automatic,
    /// A request is granted when an approver has approved its current spec in `status.approval`.
    #[default]
    Manual,
}

/// Limits of a quota. Numbers and amounts limit the sum of all requests; an absent amount is not limited. Lists contain the
/// permitted values; an empty list permits none.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QuotaLimits {
    /// Number of tenants.
    #[schemars(range(max = 256))]
    pub tenants: u32,
    /// Number of machines.
    #[schemars(range(max = 1_000_000))]
    pub machines: u32,
    /// Number of CPUs of the guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100_000_000))]
    pub cpus: Option<u32>,
    /// Memory of the guests, including huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Memory of the guests in huge pages of any size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Bytes>,
    /// Size of volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Bytes>,
    /// Number of tenants with a layer 2 network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 256))]
    pub networks: Option<u32>,
    /// Permitted instance types.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 256), inner(length(min = 1, max = 253)))]
    pub flavors: BTreeSet<String>,
    /// Permitted storage classes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 64), inner(length(min = 1, max = 253)))]
    pub storage_classes: BTreeSet<String>,
    /// Permitted host networks.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 64), inner(length(min = 1, max = 63)))]
    pub host_networks: BTreeSet<String>,
    /// Permitted pools of the InfraConfig.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub pools: Vec<PermittedPool>,
}

/// Pool of the InfraConfig from which tenants may get prefixes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PermittedPool {
    /// Name of the pool in InfraConfig's `addressPools`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Minimum length of a prefix, which is the maximum size of a network: a pool with shorter prefixes is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 126))]
    pub min_prefix_length: Option<u8>,
}

/// Observed state of a quota.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuotaStatus {
    /// Generation of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Sum of all grants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<QuotaAmounts>,
    /// Granted requests. The controller creates a TenantCluster only after its grant is in this list, and writes the list
    /// only if nothing else has written the quota since it was read, so two grants can never exceed a limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 512),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"])
    )]
    pub grants: Vec<TenantGrant>,
    /// Conditions of the quota: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A granted request.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantGrant {
    /// UID of the TenantRequest.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// Namespace of the TenantRequest.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the TenantRequest.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Name of the TenantCluster.
    #[schemars(length(min = 1, max = 63))]
    pub tenant: String,
    /// Generation of the TenantRequest that is granted.
    pub generation: i64,
    /// Granted resources, from which the TenantCluster is created.
    pub resources: TenantResources,
    /// Amounts that the quota counts for the grant.
    pub amounts: QuotaAmounts,
    /// Amounts of `resources`, if some are smaller than those of an earlier grant. The quota counts the larger ones until the
    /// machines and volumes of the tenant fit `resources`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduced_amounts: Option<QuotaAmounts>,
}

impl TenantQuota {
    /// Default of `spec.tokenExpirationSeconds`.
    pub const DEFAULT_TOKEN_SECONDS: u32 = 86_400;

    /// Returns the grants in the status.
    #[must_use]
    pub fn grants(&self) -> &[TenantGrant] {
        self.status.as_ref().map(|status| status.grants.as_slice()).unwrap_or_default()
    }

    /// Returns the number of seconds for which a token in the kubeconfig of a requester is valid.
    #[must_use]
    pub fn token_seconds(&self) -> u32 {
        self.spec.token_expiration_seconds.unwrap_or(Self::DEFAULT_TOKEN_SECONDS)
    }
}
