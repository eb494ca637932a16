//! Services on the host that the observation calls: systemd and the kubelet.
//!
//! Clients of these services need an asynchronous runtime, so they are not in this crate; the caller passes an
//! implementation of [`HostServices`].

use berth_api::CpuSet;

use crate::kubelet::podresources::{PodResourcesError, PodResourcesList};
use crate::root::Root;
use crate::setting::SystemdUnit;

/// Calls of services on a running host.
pub trait HostServices {
    /// Requests from systemd the CPUs on which the processes of a unit run (`AllowedCPUs`), for a unit that has no
    /// control group. An empty set means all CPUs. Returns `None` if systemd does not answer.
    fn request_allowed_cpus(&self, unit: SystemdUnit) -> Option<CpuSet>;

    /// Requests the pods and devices from the kubelet's PodResources API. Returns `None` if the host does not have the
    /// API's socket.
    ///
    /// # Errors
    /// Returns an error if the kubelet does not answer in time, or if its answer is invalid.
    fn request_pod_resources(
        &self,
        root: &Root,
    ) -> Result<Option<PodResourcesList>, PodResourcesError>;
}

/// Services of a captured tree, which answer no call.
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
