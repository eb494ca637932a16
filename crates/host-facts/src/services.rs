//! Programs on the host that answer requests: systemd and the kubelet.
//!
//! Their clients need an asynchronous runtime, so they are not in this crate: the caller passes an implementation.

use berth_api::CpuSet;

use crate::kubelet::podresources::{Listed, PodResourcesError};
use crate::root::Root;
use crate::setting::Unit;

/// Programs on a running host that answer requests.
pub trait HostServices {
    /// Requests the CPUs that systemd allows a unit without a control group (`AllowedCPUs`), where the empty set
    /// means all CPUs; returns `None` if systemd does not answer.
    fn allowed_cpus(&self, unit: Unit) -> Option<CpuSet>;

    /// Requests the pods and devices that the kubelet's PodResources API lists; returns `None` if the host has no
    /// such socket.
    ///
    /// # Errors
    /// If the kubelet does not answer in time, or if its answer is not such a list.
    fn pod_resources(&self, root: &Root) -> Result<Option<Listed>, PodResourcesError>;
}

/// Services of a captured tree, which never answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoServices;

impl HostServices for NoServices {
    fn allowed_cpus(&self, _: Unit) -> Option<CpuSet> {
        None
    }

    fn pod_resources(&self, _: &Root) -> Result<Option<Listed>, PodResourcesError> {
        Ok(None)
    }
}
