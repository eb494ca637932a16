//! Prepares the drives of a PCI function for a change of its driver: udev examines them again, and the agent opens them
//! exclusively.
//!
//! udev examines a drive after a program has written to it through the device node in `/dev` of the host. It does not
//! notice what a VM has written through the device node in its container, so its database may show no signature.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use berth_api::PciAddress;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat, major, minor};

use super::context::ApplyContext;
use super::outcome::ApplyResult;
use crate::host_write::HostWrite as _;
use berth_host_facts::nvme::BLOCK_FOLDER;
use berth_host_facts::root::Root;
use berth_host_facts::vfio::read_drives;

/// Time limit for udev to examine a drive.
const EXAMINATION_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between reads of udev's database.
const EXAMINATION_INTERVAL: Duration = Duration::from_millis(20);

/// Drives that this process has opened exclusively (`O_EXCL`). Until this value is dropped, the kernel refuses to mount
/// them, and other exclusive users such as LVM, RAID, ZFS and swap space.
#[derive(Debug)]
pub(super) struct ExclusiveDrives(
    #[expect(dead_code, reason = "the files stay open until they are dropped")] Vec<OwnedFd>,
);

/// Lets udev examine the drives of a function again, and opens them exclusively. Returns an error if a drive is in use.
pub(super) fn open_drives_exclusively(
    context: &ApplyContext,
    address: PciAddress,
) -> Result<ExclusiveDrives, ApplyResult> {
    let root = context.root;
    let mut files = Vec::new();
    // A captured tree describes another host, whose drives this host does not have.
    if root.is_live() {
        for name in read_drives(root, address).map_err(blocked)? {
            let number = root.read(&format!("{BLOCK_FOLDER}/{name}/dev")).map_err(blocked)?;
            examine_again(context, &name, &number)?;
            files.extend(open_exclusively(root, &name, &number)?);
        }
    }
    Ok(ExclusiveDrives(files))
}

fn blocked(reason: impl ToString) -> ApplyResult {
    ApplyResult::Blocked(reason.to_string())
}

/// Sends an event of the drive to udev, and waits until udev has replaced the drive's entry in its database.
fn examine_again(context: &ApplyContext, name: &str, number: &str) -> Result<(), ApplyResult> {
    let entry = format!("run/udev/data/b{number}");
    let before = context.root.change_time(&entry);
    context.root.write(&format!("{BLOCK_FOLDER}/{name}/uevent"), "change")?;
    let begin = Instant::now();
    loop {
        context.report_progress();
        let now = context.root.change_time(&entry);
        if now.is_some() && now != before {
            return Ok(());
        }
        if begin.elapsed() > EXAMINATION_TIMEOUT {
            return Err(blocked(format!(
                "it is unknown whether it is in use: udev has not examined {name} again within {} s; see systemctl \
                 status systemd-udevd",
                EXAMINATION_TIMEOUT.as_secs()
            )));
        }
        std::thread::sleep(EXAMINATION_INTERVAL);
    }
}

/// Opens a drive exclusively. Returns `None` if the agent may not open it: a container has no device nodes of the host,
/// and then the other checks must be sufficient.
fn open_exclusively(root: &Root, name: &str, number: &str) -> Result<Option<OwnedFd>, ApplyResult> {
    let flags =
        OFlag::O_RDONLY | OFlag::O_EXCL | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = match openat(root.folder(), format!("dev/{name}").as_str(), flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::ENOENT | Errno::EACCES | Errno::EPERM) => return Ok(None),
        Err(Errno::EBUSY) => {
            let message = format!(
                "it is in use: a mount, a program or the kernel has opened {name} exclusively"
            );
            return Err(blocked(message));
        }
        Err(errno) => return Err(blocked(format!("/dev/{name}: {}", errno.desc()))),
    };
    let device = fstat(&file).map_err(|errno| blocked(errno.desc()))?.st_rdev;
    if format!("{}:{}", major(device), minor(device)) != number {
        return Err(blocked(format!("/dev/{name} is not the device node of {name}")));
    }
    Ok(Some(file))
}
