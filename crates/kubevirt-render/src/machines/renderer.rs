//! Input of the modules that render one machine.

use berth_api::TenantCluster;

use super::deployment::MachineDeployment;
use super::field_parser::ProblemReporter;
use super::interface_config::InterfaceConfig;
use super::provider::ProviderConfig;
use super::render_context::RenderContext;

/// Properties of a machine that the caller of the renderer determines. The reconciler sets all of them. Commands that
/// create no machine leave most of them `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderOptions {
    pub machine_name: Option<String>,
    /// Namespace of the machine.
    pub namespace: Option<String>,
    /// Name of the Secret with the user data of the machine.
    pub user_data_secret: Option<String>,
    /// User data of the machine, set only for operating systems that read it from an annotation.
    pub user_data: Option<String>,
    /// Interfaces for which Berth allocated addresses.
    pub interfaces: Vec<InterfaceConfig>,
}

/// Input for rendering one machine.
pub(super) struct MachineRenderer<'a> {
    pub(super) deployment: &'a MachineDeployment,
    pub(super) provider: &'a ProviderConfig,
    pub(super) tenant: Option<&'a TenantCluster>,
    pub(super) context: &'a RenderContext,
    pub(super) options: &'a RenderOptions,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) reporter: &'a ProblemReporter<'a>,
}
