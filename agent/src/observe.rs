//! Reads the state of the host from its files, from systemd and from the kubelet.

mod pod_resources;

use std::cell::OnceCell;

use berth_api::CpuSet;
use berth_host_facts::host_settings::HostSettings;
use berth_host_facts::kubelet::podresources::{PodResourcesError, PodResourcesList};
use berth_host_facts::root::Root;
use berth_host_facts::services::HostServices;
use berth_host_facts::setting::SystemdUnit;
use berth_host_facts::{HostFacts, ObserveOptions};

use crate::systemd::{Systemd, SystemdError};

/// Clients of the services of a running host. The connection to systemd is opened when it is first
/// needed.
#[derive(Debug, Default)]
pub struct RunningServices {
    systemd: OnceCell<Result<Systemd, SystemdError>>,
}

impl HostServices for RunningServices {
    fn request_allowed_cpus(&self, unit: SystemdUnit) -> Option<CpuSet> {
        self.systemd.get_or_init(Systemd::connect).as_ref().ok()?.allowed_cpus(unit).ok()
    }

    fn request_pod_resources(
        &self,
        root: &Root,
    ) -> Result<Option<PodResourcesList>, PodResourcesError> {
        pod_resources::list_pod_resources(root)
    }
}

/// Reads the facts of the host once.
#[must_use]
pub fn observe(root: &Root, options: &ObserveOptions) -> HostFacts {
    berth_host_facts::observe(root, options, &RunningServices::default())
}

/// Reads the current values of settings, and the facts that limit their changes.
#[must_use]
pub fn settings(root: &Root, facts: &HostFacts) -> HostSettings {
    berth_host_facts::host_settings::observe(root, facts, &RunningServices::default())
}

/// Returns the CPUs that systemd allows for a unit; the empty set means all CPUs.
pub(crate) fn allowed_cpus(root: &Root, unit: SystemdUnit) -> Option<CpuSet> {
    berth_host_facts::units::read_allowed_cpus(root, unit, &RunningServices::default())
}
