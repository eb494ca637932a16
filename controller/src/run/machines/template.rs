//! Input that all machines of a MachineDeployment share.

use super::user_data::UserData;
use berth_api::Problem;
use berth_kubevirt_render::images::GoldenImageUse;
use berth_kubevirt_render::machines::RenderContext;

/// Input that all machines of a MachineDeployment share.
pub(super) struct MachineTemplate {
    pub(super) render_context: RenderContext,
    pub(super) data: UserData,
    /// Golden images of which the disks are clones.
    pub(super) golden_images: Vec<GoldenImageUse>,
    /// Interfaces in networks of other tenants, each with the name of the other tenant.
    pub(super) attached_tenants: Vec<(String, String)>,
    /// Fields of the template that machines do not honor.
    pub(super) notes: Vec<Problem>,
}
