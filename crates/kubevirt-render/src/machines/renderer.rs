//! Input of the renderers of one machine.

use berth_api::TenantCluster;

use super::context::RenderContext;
use super::deployment::MachineDeployment;
use super::fields::Reader;
use super::provider::Provider;

/// Names and user data that are chosen in a cluster on creation of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderOptions {
    /// Name of the machine.
    pub machine: Option<String>,
    /// Namespace of the machine.
    pub namespace: Option<String>,
    /// Secret with the user data of the machine.
    pub user_data_secret: Option<String>,
    /// User data, for operating systems that read it from an annotation.
    pub user_data: Option<String>,
}

/// Input for rendering one machine.
pub(super) struct MachineRenderer<'a> {
    pub(super) deployment: &'a MachineDeployment,
    pub(super) provider: &'a Provider,
    pub(super) tenant: Option<&'a TenantCluster>,
    pub(super) context: &'a RenderContext,
    pub(super) options: &'a RenderOptions,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) reader: &'a Reader<'a>,
}
