//! TenantRequest: a tenant cluster that a user requests within a TenantQuota.

#![expect(clippy::duplicated_attributes, reason = "printcolumn(..) repeats its keys by design")]
#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tenant_resources::{
    RequestedMachines, RequestedNetwork, RequestedStorage, TenantResources,
};
use crate::{Condition, QuotaAmounts, Time};

/// Request of a user for a tenant cluster. The controller creates the TenantCluster if a TenantQuota permits the
/// request. The user's credential for the tenant's namespace is in a Secret in the namespace of the request.
#[derive(
    CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq,
)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantRequest",
    plural = "tenantrequests",
    shortname = "treq",
    category = "berth",
    namespaced,
    status = "TenantRequestStatus",
    derive = "PartialEq",
    doc = "A tenant cluster that a user requests. The controller creates the TenantCluster within a TenantQuota that selects the namespace.",
    printcolumn(
        name = "Tenant",
        type_ = "string",
        json_path = ".status.tenant",
        description = "TenantCluster of the request"
    ),
    printcolumn(
        name = "Quota",
        type_ = "string",
        json_path = ".status.quota",
        description = "TenantQuota that permits the request"
    ),
    printcolumn(
        name = "Machines",
        type_ = "integer",
        json_path = ".status.granted.machines",
        description = "Maximum number of machines"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "True if the tenant and the kubeconfig exist, and the latest spec is granted"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the condition Ready"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.tenantName) == has(oldSelf.tenantName) && (!has(self.tenantName) || self.tenantName == oldSelf.tenantName)")
        .message("tenantName cannot be changed: create another TenantRequest"),
    validation = Rule::new("has(self.quota) == has(oldSelf.quota) && (!has(self.quota) || self.quota == oldSelf.quota)")
        .message("quota cannot be changed: create another TenantRequest"),
    validation = Rule::new("has(self.network) == has(oldSelf.network) && (!has(self.network) || self.network.name == oldSelf.network.name)")
        .message("the host network cannot be changed: create another TenantRequest")
)]
pub struct TenantRequestSpec {
    /// Name of the TenantCluster. Default: the name of the TenantRequest. The name must not be in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 55), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub tenant_name: Option<String>,
    /// Name of the TenantQuota. Default: the TenantQuota that selects the namespace, if there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub quota: Option<String>,
    /// Machines of the tenant.
    pub machines: RequestedMachines,
    /// Volumes of the tenant. Default: the tenant gets no volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<RequestedStorage>,
    /// Layer 2 network of the tenant, which gets a VLAN or a VNI of the pools. Default: the machines have only the pod
    /// network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<RequestedNetwork>,
    /// Name of the Secret with the kubeconfig of the tenant's API server, in the namespace of the tenant
    /// (`kubeconfigSecretRef` of the TenantCluster).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub kubeconfig_secret_name: Option<String>,
}

/// Observed state of a request. Users who create requests must not have the permission to write it, because it contains
/// the approval.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantRequestStatus {
    /// Generation of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Decision of an approver. The controller never writes this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<TenantApproval>,
    /// TenantQuota that permits the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub quota: Option<String>,
    /// TenantCluster of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub tenant: Option<String>,
    /// Generation of the spec that is granted. It is smaller than `metadata.generation` while a later spec is refused or
    /// not approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted_generation: Option<i64>,
    /// Amounts that the TenantQuota counts for the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<QuotaAmounts>,
    /// Secret with the kubeconfig for the tenant's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<IssuedKubeconfig>,
    /// Conditions of the request: Ready, Granted, UpToDate, KubeconfigReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Decision of an approver about one generation of one request.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantApproval {
    /// The decision.
    pub decision: ApprovalDecision,
    /// `metadata.generation` of the request that the approver has read. The decision does not apply to a later spec.
    pub generation: i64,
    /// `metadata.uid` of the request that the approver has read. The decision does not apply to a later request with the same
    /// name, whose generation begins with 1 again.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// Reason of the decision, for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Decision of an approver.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalDecision {
    /// The request is granted if it is within the quota.
    Approved,
    /// The request is refused.
    Denied,
}

/// Location of a kubeconfig, and the time at which its token expires.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct IssuedKubeconfig {
    /// Name of the Secret, in the namespace of the request.
    #[schemars(length(max = 253))]
    pub secret: String,
    /// Key in the Secret.
    #[schemars(length(max = 253))]
    pub key: String,
    /// Time at which the token was issued.
    pub issued_at: Time,
    /// Time at which the token expires. The controller replaces the token at half of its life.
    pub expires_at: Time,
    /// Hash of the API server's address and certificate authority in the kubeconfig.
    #[schemars(length(max = 64))]
    pub server_hash: String,
}

impl TenantRequestSpec {
    /// Returns the resources that a TenantQuota limits.
    #[must_use]
    pub fn resources(&self) -> TenantResources {
        TenantResources {
            machines: self.machines.clone(),
            storage: self.storage.clone(),
            network: self.network.clone(),
            kubeconfig_secret_name: self.kubeconfig_secret_name.clone(),
        }
    }
}

impl TenantRequest {
    /// Returns the name of the TenantCluster of the request.
    #[must_use]
    pub fn tenant_name(&self) -> &str {
        let name = self.spec.tenant_name.as_deref().or(self.metadata.name.as_deref());
        name.unwrap_or_default()
    }

    /// Returns the decision about the current spec; `None` if there is none, or only one about an earlier spec or an earlier
    /// request of the same name.
    #[must_use]
    pub fn current_approval(&self) -> Option<&TenantApproval> {
        let approval = self.status.as_ref()?.approval.as_ref();
        approval.filter(|approval| {
            Some(approval.generation) == self.metadata.generation
                && Some(&approval.uid) == self.metadata.uid.as_ref()
        })
    }
}
