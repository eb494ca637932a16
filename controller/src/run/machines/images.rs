//! Delays the creation of machines until the golden images of their disks are imported.

use std::sync::Arc;

use berth_api::{ConditionReason, Images};
use berth_kubevirt_render::images::GoldenImageUse;
use berth_kubevirt_render::machines::RenderContext;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::context::MachineContext;
use super::index::object_key;
use super::validated::ValidatedDeployment;
use crate::run::image_table::ImageRecord;
use crate::tenants::fault::Fault;

impl MachineContext {
    /// Records that a MachineDeployment needs no golden images.
    pub(super) fn record_no_images(&self, object: &DynamicObject) {
        let (version, namespace) = (self.images.input_version(), object.namespace());
        self.record(object, version, namespace.unwrap_or_default(), &[]);
    }

    fn record(
        &self,
        object: &DynamicObject,
        input_version: u64,
        namespace: String,
        uses: &[GoldenImageUse],
    ) {
        let record = ImageRecord {
            uid: object.uid(),
            generation: object.metadata.generation,
            input_version,
            namespace,
            uses: Arc::from(uses),
        };
        self.images.record(object_key(object), record);
    }
}

impl ValidatedDeployment<'_> {
    fn has_golden_images(&self) -> bool {
        let images = self.render_context.config.images.as_ref();
        images.is_some_and(Images::has_golden_images)
    }

    /// Returns true if the machines must be rendered to know which golden images they need.
    pub(super) fn lacks_image_record(&self) -> bool {
        let (uid, generation) = (self.object.uid(), self.object.metadata.generation);
        self.has_golden_images()
            && !self.context.images.has_record(&object_key(self.object), uid.as_deref(), generation)
    }

    /// Records the golden images that the machines need. `input_version` is that of the `ImageTable` before the
    /// machines were rendered.
    pub(super) fn record_images(&self, input_version: u64, uses: &[GoldenImageUse]) {
        if self.has_golden_images() {
            self.context.record(self.object, input_version, self.namespace.clone(), uses);
        }
    }

    /// Adds the sizes of the golden images that the machines may use.
    pub(super) fn add_data_volumes(&self, render_context: &mut RenderContext) {
        let images = render_context.config.images.as_ref();
        let shared = images.and_then(|images| images.namespace.clone());
        let namespaces: Vec<&str> =
            shared.iter().map(String::as_str).chain([self.namespace.as_str()]).collect();
        render_context.data_volumes.extend(self.context.images.data_volumes(&namespaces));
    }

    /// Returns the fault that a golden image of the machines is not imported yet.
    pub(super) fn image_fault(&self) -> Option<Fault> {
        if !self.has_golden_images() {
            return None;
        }
        let image = self.context.images.unready_image(&object_key(self.object))?;
        let message = format!("machines wait for golden image {image}");
        Some(Fault::new(ConditionReason::WaitingForImage, message))
    }
}
