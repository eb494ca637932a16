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
use crate::run::image_table::{ImageRecord, RecordedTemplate};
use crate::tenants::fault::Fault;

impl MachineContext {
    /// Records that a MachineDeployment needs no golden images.
    pub(super) fn record_no_images(&self, object: &DynamicObject) {
        let record = empty_record(object, self.images.input_version());
        self.images.record(object_key(object), record);
    }

    /// Records that the template of a MachineDeployment cannot be read.
    pub(super) fn record_unreadable_template(&self, object: &DynamicObject) {
        let record = empty_record(object, self.images.input_version());
        self.images.record_invalid(object_key(object), record);
    }
}

/// Returns the record of a MachineDeployment that needs no images.
fn empty_record(object: &DynamicObject, input_version: u64) -> ImageRecord {
    ImageRecord {
        uid: object.uid(),
        generation: object.metadata.generation,
        input_version,
        namespace: object.namespace().unwrap_or_default(),
        uses: Arc::from([]),
        template: RecordedTemplate::Valid,
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

    /// Returns true if the images of the machines are recorded, and their template is valid.
    pub(super) fn has_valid_image_record(&self) -> bool {
        let (uid, generation) = (self.object.uid(), self.object.metadata.generation);
        let key = object_key(self.object);
        self.context.images.has_valid_record(&key, uid.as_deref(), generation)
    }

    /// Records the golden images that the machines need. `input_version` is that of the `ImageTable` before the
    /// machines were rendered.
    pub(super) fn record_images(&self, input_version: u64, uses: &[GoldenImageUse]) {
        if self.has_golden_images() {
            let record = ImageRecord { uses: Arc::from(uses), ..self.empty_record(input_version) };
            self.context.images.record(object_key(self.object), record);
        }
    }

    /// Records that the template is invalid. `input_version` is as in [`Self::record_images`].
    pub(super) fn record_invalid_template(&self, input_version: u64) {
        if self.has_golden_images() {
            let record = self.empty_record(input_version);
            self.context.images.record_invalid(object_key(self.object), record);
        }
    }

    fn empty_record(&self, input_version: u64) -> ImageRecord {
        let namespace = self.namespace.clone();
        ImageRecord { namespace, ..empty_record(self.object, input_version) }
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
