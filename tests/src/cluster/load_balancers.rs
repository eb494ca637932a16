//! Infra cluster of tenants whose Services get addresses from MetalLB.

use anyhow::Result;

use super::{ControlPlane, ControlPlaneOptions};
use crate::repository;

/// Namespace of MetalLB.
pub const METALLB_NAMESPACE: &str = "metallb-system";

impl ControlPlane {
    /// Starts a control plane with its controllers, with the permissions of Berth's controller, and with all that
    /// [`Self::prepare_load_balancers`] creates.
    ///
    /// # Errors
    /// Fails like [`Self::start`] and [`Self::kubectl`].
    pub fn start_with_load_balancers() -> Result<Self> {
        let options =
            ControlPlaneOptions { has_controllers: true, ..ControlPlaneOptions::default() };
        let plane = Self::start(options)?;
        plane.install_machine_kinds()?;
        plane.deploy(&["base/rbac-controller.yaml"])?;
        plane.prepare_load_balancers()?;
        Ok(plane)
    }

    /// Creates what tenants with machines and load balancers need besides Berth: the kinds and the namespace of
    /// MetalLB, the storage class, and the InfraConfig of `examples/tenants`.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn prepare_load_balancers(&self) -> Result<()> {
        self.install_metallb_crds()?;
        self.create_example_storage_class()?;
        self.kubectl(&["create", "namespace", METALLB_NAMESPACE])?;
        self.apply_file(&repository().join("examples/tenants/config.yaml"))
    }
}
