//! Programs on the host that answer requests: systemd and the kubelet.
//!
//! Their clients need an asynchronous runtime, so they are not in this crate: the caller passes them in.

use berth_api::CpuSet;

use crate::kubelet::podresources::{Listed, PodResourcesError};
use crate::root::Root;
use crate::setting::Unit;

/// Programs on a running host that answer requests.
pub trait HostServices {
    /// Requests the CPUs that systemd allows a unit without a control group (`AllowedCPUs`), the empty set for all; `None` if systemd
    /// does not answer.
    fn allowed_cpus(&self, unit: Unit) -> Option<CpuSet>;

    /// Requests pods and devices as the kubelet's PodResources API lists them; `None` if the host has no such socket.
    ///
    /// # Errors
    /// If the kubelet does not answer in time, or not with such a list.
    fn pod_resources(&self, root: &Root) -> Result<Option<Listed>, PodResourcesError>;
}

/// No services: those of a captured tree.
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
