//! Expands the PersistentVolumeClaim of a disk. Kubernetes expands the volume, and KubeVirt the disk of the running guest.

use berth_api::Quantity;
use berth_kubevirt_render::machines::hotplug::DiskExpansion;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::errors::{
    RequestError, has_changed, none_if_not_found, redact_message, refusal_message, with_request,
};
use super::validated::ValidatedDeployment;
use crate::run::api_requests::patch_params;

/// Reason why a disk is not expanded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpansionFault {
    #[error("disk {disk} is expanded after its claim is created")]
    NoClaim { disk: String },
    #[error("disk {disk} is not expanded yet: another client has changed its claim")]
    Changed { disk: String },
    #[error(
        "disk {disk} cannot be expanded: StorageClass `{class}` does not have allowVolumeExpansion: true; set it if the driver \
         supports expansion, or add a disk of another class"
    )]
    NotExpandable { disk: String, class: String },
    #[error(
        "disk {disk} cannot be expanded: the API server refuses the change of its claim: {reason}"
    )]
    Refused { disk: String, reason: String },
}

impl ExpansionFault {
    /// Returns true if the fault ends without a change of the MachineDeployment.
    pub(super) const fn is_temporary(&self) -> bool {
        matches!(self, Self::NoClaim { .. } | Self::Changed { .. })
    }

    /// Returns the message without the values of fields, which may come from Secrets.
    pub(super) fn redacted(&self) -> String {
        match self {
            Self::NoClaim { .. } | Self::Changed { .. } => self.to_string(),
            Self::NotExpandable { disk, .. } => format!(
                "disk {disk} cannot be expanded: its StorageClass does not have allowVolumeExpansion: true"
            ),
            Self::Refused { disk, .. } => format!(
                "disk {disk} cannot be expanded: the API server refuses the change of its claim; the message is omitted \
                 because the object has values from Secrets"
            ),
        }
    }
}

impl ValidatedDeployment<'_> {
    /// Raises the request of a claim to the size of a disk. A claim that requests as much or more is not changed.
    /// `has_secrets` is true if the size may come from a Secret.
    pub(super) async fn expand_claim(
        &self,
        expansion: &DiskExpansion,
        has_secrets: bool,
    ) -> Result<Result<(), ExpansionFault>, RequestError> {
        let DiskExpansion { disk, claim, size, .. } = expansion;
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.context.client.clone(), &self.namespace);
        let request = || format!("get PersistentVolumeClaim {}/{claim}", self.namespace);
        let found = with_request(request, none_if_not_found(api.get(claim).await))?;
        let Some(found) = found else {
            return Ok(Err(ExpansionFault::NoClaim { disk: disk.clone() }));
        };
        if requested_size(&found).is_some_and(|current| current >= *size) {
            return Ok(Ok(()));
        }
        let version = found.metadata.resource_version.clone();
        let class = found.spec.and_then(|spec| spec.storage_class_name).unwrap_or_default();
        if !self.is_expandable(&class).await? {
            return Ok(Err(ExpansionFault::NotExpandable { disk: disk.clone(), class }));
        }
        // Kubernetes also accepts a smaller request if the volume has not been expanded yet (RecoverVolumeExpansionFailure), so
        // the patch is refused if the claim has changed.
        let storage = json!({"requests": {"storage": size.to_string()}});
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": version}, "spec": {"resources": storage},
        }));
        let patched = api.patch(claim, &patch_params(), &patch).await;
        if has_changed(&patched) {
            return Ok(Err(ExpansionFault::Changed { disk: disk.clone() }));
        }
        if let Some(reason) = refusal_message(&patched) {
            return Ok(Err(ExpansionFault::Refused { disk: disk.clone(), reason }));
        }
        // The message may quote the size, which may come from a Secret.
        let patched = if has_secrets { patched.map_err(redact_message) } else { patched };
        let request = || format!("expand PersistentVolumeClaim {}/{claim}", self.namespace);
        if with_request(request, none_if_not_found(patched))?.is_none() {
            return Ok(Err(ExpansionFault::NoClaim { disk: disk.clone() }));
        }
        // The size may come from a Secret.
        tracing::info!(namespace = %self.namespace, name = %claim, "expanded PersistentVolumeClaim");
        Ok(Ok(()))
    }

    /// Returns true if volumes of a StorageClass can be expanded.
    async fn is_expandable(&self, class: &str) -> Result<bool, RequestError> {
        if class.is_empty() {
            return Ok(false);
        }
        let api: Api<StorageClass> = Api::all(self.context.client.clone());
        let request = || format!("get StorageClass {class}");
        let found = with_request(request, none_if_not_found(api.get(class).await))?;
        Ok(found.and_then(|class| class.allow_volume_expansion) == Some(true))
    }
}

fn requested_size(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_of_a_claim_is_read() {
        let claim = |size: &str| -> PersistentVolumeClaim {
            let resources = json!({"requests": {"storage": size}});
            serde_json::from_value(json!({"spec": {"resources": resources}})).unwrap()
        };
        assert_eq!(requested_size(&claim("2Gi")), "2Gi".parse().ok());
        assert_eq!(requested_size(&claim("x")), None);
        assert_eq!(requested_size(&PersistentVolumeClaim::default()), None);
    }

    #[test]
    fn redacted_messages_have_no_values() {
        let (disk, value) = ("data".to_owned(), "c4n4ry".to_owned());
        let class = ExpansionFault::NotExpandable { disk: disk.clone(), class: value.clone() };
        let refused = ExpansionFault::Refused { disk, reason: value };
        for fault in [class, refused] {
            assert!(fault.to_string().contains("c4n4ry"), "{fault}");
            assert!(!fault.redacted().contains("c4n4ry"), "{fault}");
        }
    }
}
