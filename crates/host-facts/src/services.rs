//! Services on the host that answer requests: systemd and the kubelet.
//!
//! Clients of these services need an asynchronous runtime, so they are not in this crate; the caller passes an
//! implementation.

use berth_api::CpuSet;

use crate::kubelet::podresources::{PodResourcesError, PodResourcesList};
use crate::root::Root;
use crate::setting::SystemdUnit;

/// Services on a running host that answer requests.
pub trait HostServices {
    /// Requests the CPUs on which systemd lets a unit without a control group run (`AllowedCPUs`). An empty set means
    /// all CPUs. Returns `None` if systemd does not answer.
    fn request_allowed_cpus(&self, unit: SystemdUnit) -> Option<CpuSet>;

    /// Requests the pods and devices that the kubelet's PodResources API lists. Returns `None` if the host does not
    /// have the API's socket.
    ///
    /// # Errors
    /// Returns an error if the kubelet does not answer in time, or if its answer is invalid.
    fn request_pod_resources(
        &self,
        root: &Root,
    ) -> Result<Option<PodResourcesList>, PodResourcesError>;
}

/// Services of a captured tree: every request is without an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoServices;

impl HostServices for NoServices {
    fn request_allowed_cpus(&self, _: SystemdUnit) -> Option<CpuSet> {
        None
    }

    fn request_pod_resources(
        &self,
        _: &Root,
    ) -> Result<Option<PodResourcesList>, PodResourcesError> {
        Ok(None)
    }
}
