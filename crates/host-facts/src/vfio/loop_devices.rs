//! Loop devices that use a whole drive. The kernel lists them neither as holders of the drive nor as its mounts. The
//! kubelet creates one for each raw block volume of a pod, and keeps it while the pod exists.

use crate::mounts::Mounts;
use crate::nvme::BLOCK_FOLDER;
use crate::root::{ReadError, Root};

use super::mount_namespaces::is_on_remote_filesystem;

/// A loop device with a backing file.
#[derive(Debug)]
pub(super) struct LoopDevice {
    name: String,
    backing_file: String,
    /// Device number of the backing file (`b259:0`); `None` if the file is no device node, or cannot be examined.
    backing_number: Option<String>,
    /// Size in sectors of 512 bytes.
    sectors: Option<u64>,
}

/// Reads the loop devices that have a backing file. `devices` are the names of all block devices.
pub(super) fn read_loop_devices(
    root: &Root,
    devices: &[String],
    mounts: &Mounts,
) -> Result<Vec<LoopDevice>, ReadError> {
    let mut found = Vec::new();
    for name in devices.iter().filter(|name| name.starts_with("loop")) {
        let backing_file = match root.read(&format!("{BLOCK_FOLDER}/{name}/loop/backing_file")) {
            // A partition of a loop device, or a loop device without a backing file.
            Err(error) if error.is_not_found() => continue,
            read => read?,
        };
        let is_examined = !is_on_remote_filesystem(mounts, &backing_file);
        let backing_number = if is_examined { root.device_number(&backing_file) } else { None };
        let sectors = root.read_value(&format!("{BLOCK_FOLDER}/{name}/size")).ok();
        found.push(LoopDevice { name: name.clone(), backing_file, backing_number, sectors });
    }
    Ok(found)
}

impl LoopDevice {
    /// Describes the use of a drive by this loop device; returns `None` if the loop device does not use the drive. A
    /// container cannot examine all files of the host. If the backing file was not examined, a loop device with the size
    /// of the drive counts as its user.
    pub(super) fn use_of_drive(
        &self,
        name: &str,
        number: &str,
        sectors: Option<u64>,
    ) -> Option<String> {
        let is_user = match &self.backing_number {
            Some(backing) => backing == number,
            None => {
                self.backing_file.ends_with(&format!("/dev/{name}"))
                    || (sectors.is_some() && sectors == self.sectors)
            }
        };
        is_user.then(|| format!("loop device of {name}: {}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_device_of_a_drive_is_found() {
        let device = |backing_file: &str, backing_number: Option<&str>| LoopDevice {
            name: "loop0".to_owned(),
            backing_file: backing_file.to_owned(),
            backing_number: backing_number.map(str::to_owned),
            sectors: Some(800),
        };
        let is_user = |device: LoopDevice, sectors: u64| {
            device.use_of_drive("nvme0n1", "b259:0", Some(sectors)).is_some()
        };
        assert!(is_user(device("/volumeDevices/pvc/dev/uid", Some("b259:0")), 1600));
        assert!(!is_user(device("/volumeDevices/pvc/dev/uid", Some("b259:4")), 800));
        assert!(is_user(device("/dev/nvme0n1", None), 1600));
        assert!(!is_user(device("/dev/nvme0n11", None), 1600));
        assert!(is_user(device("/volumeDevices/pvc/dev/uid", None), 800));
        assert!(!is_user(device("/snaps/a.snap", None), 1600));
    }
}
