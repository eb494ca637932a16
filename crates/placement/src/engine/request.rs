//! A pod that needs a host, with its compiled rules.

use std::sync::Arc;

use berth_api::PageSize;
use berth_api::names::{CONTROL_PLANE_ROLE, ROLE_LABEL};

use super::free_resources::ZoneRequest;
use super::request_classes::RequestClassKey;
use super::vm_requirements::VmRequirements;
use crate::rules::{PodFields, Rules};
use berth_kubelet_admission::pod::Pod;

/// A pod that needs a host, with its compiled rules and its request class.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) uid: Arc<str>,
    pub(super) rules: Arc<Rules>,
    pub(super) vm_requirements: VmRequirements,
    pub(super) class_key: Arc<RequestClassKey>,
    pub(super) class_index: usize,
}

impl Request {
    /// Returns an equal request for a pod with another UID.
    #[must_use]
    pub fn with_uid(&self, uid: &str) -> Self {
        Self { uid: uid.into(), ..self.clone() }
    }

    /// Returns the pod's uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the pod's containers with their requests. The returned pod has no uid, because pods with equal
    /// requests share it.
    #[must_use]
    pub fn pod(&self) -> &Pod {
        self.rules.containers()
    }

    /// Returns the number of exclusive CPUs that the pod requests.
    #[must_use]
    pub fn pinned_cpus(&self) -> u32 {
        ZoneRequest::from_pod(self.pod()).cpus
    }

    /// Returns the size of the huge pages that the pod requests; `None` if it requests no huge pages.
    #[must_use]
    pub fn page_size(&self) -> Option<PageSize> {
        let pod = self.pod();
        let mut containers = pod.init_containers.iter().chain(&pod.containers);
        containers.find_map(|container| container.requests.hugepages.keys().next().copied())
    }

    /// Returns true if the pod has volumes with PersistentVolumeClaims, and no host yet.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        self.rules.has_claims()
    }

    /// Returns true if a kubelet cannot distinguish the pods of both requests.
    pub fn is_equal_for_kubelet(&self, other: &Self) -> bool {
        std::ptr::eq(self.pod(), other.pod()) && self.vm_requirements == other.vm_requirements
    }

    /// Returns true if the pod's VM runs the control plane of a tenant's cluster.
    #[must_use]
    pub fn is_control_plane(&self) -> bool {
        self.class_key.is_control_plane()
    }

    /// Returns true if the pod counts in [`SpreadIndex`](super::spread_index::SpreadIndex). As in topology spread
    /// constraints, a terminating pod does not count, so that its replacement may be placed on the same host.
    pub(super) fn counts_for_spread(&self) -> bool {
        self.is_control_plane() && !self.rules.is_terminating()
    }

    /// Returns the requirements of the pod's VM that the requests of the pod's containers do not show.
    #[must_use]
    pub fn vm_requirements(&self) -> &VmRequirements {
        &self.vm_requirements
    }
}

/// Returns true if the pod is that of a VM with the control plane role.
pub(super) fn has_control_plane_role(pod: &PodFields<'_>) -> bool {
    let role = pod.labels.and_then(|labels| labels.get(ROLE_LABEL));
    role.is_some_and(|role| role == CONTROL_PLANE_ROLE)
}
