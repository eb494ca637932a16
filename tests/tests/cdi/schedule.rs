//! An image that CDI imports on a schedule.

use berth_tests::cdi::Origin;

use crate::clones::{count_origins, disks};
use crate::testbed::{IMAGES, SCHEDULED, Testbed};

/// Storage class of the disks.
const CLASS: &str = "clone";
/// Beginning of the address from which CDI imports the image.
const DIGESTED: &str = "docker://registry.example/rhel@sha256:";

/// Creates machines whose image has a schedule: a DataImportCron imports it, and the disks are clones of this import. The
/// strategy is not announced. Returns a row of the table.
pub(crate) fn scheduled_image_is_cloned(bed: &Testbed, count: u32) -> String {
    let imports_before = bed.simulation.imports().len();
    let machines = bed.create_machines("scheduled", SCHEDULED, CLASS, count);
    let imports = bed.simulation.imports().len().saturating_sub(imports_before);
    assert_eq!(imports, 1, "imports of the image");
    let crons = bed.list(&["dataimportcrons", "-n", IMAGES]);
    assert_eq!(crons.len(), 1, "{crons:#?}");
    let image = bed.wait_for_image(SCHEDULED, CLASS, count);
    assert!(image["strategy"].is_null(), "{image:#}");
    let disks = disks(bed, &machines);
    for disk in &disks {
        // CDI imports an image with a schedule by its digest.
        assert!(disk.volume.content.starts_with(DIGESTED), "{}", disk.volume.content);
        assert_eq!(disk.volume.origin, Origin::Clone);
        assert_eq!(disk.clone_type, "csi-clone");
    }
    let written = count_origins(&disks);
    format!("| `{CLASS}`, with a schedule | {count} | {imports} | not | csi-clone | {written} | |")
}
