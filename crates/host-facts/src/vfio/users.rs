//! What uses a PCI function through a driver of the host: drives with content, links, virtual functions, and processes
//! that have its device nodes open.

use std::collections::BTreeSet;

use berth_api::PciAddress;

use super::function::VfioFunction;
use super::names::DEVICE_FOLDER;
use super::open_files::OpenFiles;
use crate::mounts::Mounts;
use crate::notes::Notes;
use crate::nvme::{self, BLOCK_FOLDER};
use crate::pci::parse_hexadecimal;
use crate::root::{ReadError, Root};

/// Drivers whose device nodes are not below the function in sysfs, so that it is unknown which processes use them.
const DRIVERS_WITH_HIDDEN_USERS: [&str; 1] = ["nvidia"];
/// Depth of the folders below a function in which device nodes are searched, as in `sound/card0/pcmC0D0p`.
const DEVICE_NODE_DEPTH: u32 = 4;

/// Reads what uses PCI functions.
#[derive(Debug)]
pub(super) struct UseReader<'a> {
    root: &'a Root,
    open_files: &'a OpenFiles,
    mounts: Mounts,
    /// Names of all block devices.
    block_devices: Result<Vec<String>, ReadError>,
}

/// What uses one function, and the first reason why this is unknown.
#[derive(Debug, Default)]
struct Use {
    users: Vec<String>,
    unknown: Option<String>,
}

impl Use {
    fn set_unknown(&mut self, reason: impl Into<String>) {
        self.unknown.get_or_insert_with(|| reason.into());
    }
}

impl<'a> UseReader<'a> {
    pub(super) fn new(root: &'a Root, open_files: &'a OpenFiles) -> Self {
        Self {
            root,
            open_files,
            mounts: Mounts::observe(root, &mut Notes::default()),
            block_devices: root.list(BLOCK_FOLDER),
        }
    }

    /// Sets the users of a function that is not bound to `vfio-pci`.
    pub(super) fn read_use(&self, function: &mut VfioFunction) {
        let mut found = Use::default();
        if function.class.is_none() {
            found.set_unknown("its class cannot be read");
        }
        if let Some(driver) = &function.driver {
            self.add_disks(function, driver, &mut found);
            self.add_links(function, driver, &mut found);
            self.add_attributes(function.address, &mut found);
            self.add_open_files(function.address, &mut found);
            if DRIVERS_WITH_HIDDEN_USERS.contains(&driver.as_str()) {
                let reason = format!("the driver {driver} does not show its users; unload it");
                found.set_unknown(reason);
            }
        } else if function.is_storage() && matches!(function.driver_override, Ok(None)) {
            // With a `driver_override`, the function may be without a driver because a change was interrupted.
            let bind = format!("echo {} > /sys/bus/pci/drivers_probe", function.address);
            found.set_unknown(format!(
                "without a driver, its content cannot be read; bind its driver first: {bind}"
            ));
        }
        function.users = found.users;
        function.unknown_use = found.unknown;
    }

    fn add_disks(&self, function: &VfioFunction, driver: &str, found: &mut Use) {
        let devices = match &self.block_devices {
            Ok(devices) => devices.as_slice(),
            Err(error) => {
                found.set_unknown(error.to_string());
                &[]
            }
        };
        let mut has_disk = false;
        for name in devices.iter().filter(|name| self.is_disk_of(name, function.address)) {
            has_disk = true;
            let (users, are_holders_known) =
                nvme::drive_users(self.root, name, devices, &self.mounts);
            found.users.extend(users);
            if !are_holders_known {
                found.set_unknown(format!("the holders of {name} cannot be listed"));
            } else if self.mounts.table.is_none() {
                found.set_unknown("the mount table cannot be read");
            } else if !nvme::is_signature_known(self.root, name) {
                found.set_unknown(format!("udev has not examined {name}"));
            }
        }
        // The driver creates the block devices some time after it is bound.
        if function.is_storage() && !has_disk {
            found.set_unknown(format!("the driver {driver} has created no block device"));
        }
    }

    /// Returns true if a block device is a disk of the function, and neither a partition nor a path of a multipath drive.
    fn is_disk_of(&self, name: &str, address: PciAddress) -> bool {
        let file = |attribute: &str| format!("{BLOCK_FOLDER}/{name}/{attribute}");
        let path = self.root.read_link(&format!("{BLOCK_FOLDER}/{name}")).unwrap_or_default();
        let folder = address.to_string();
        let is_below_function = path.split('/').any(|part| part == folder)
            && !self.root.exists(&file("partition"))
            && !self.root.read(&file("hidden")).is_ok_and(|hidden| hidden == "1");
        is_below_function
            || (nvme::is_namespace(name)
                && nvme::controller_addresses(self.root, name).contains(&address))
    }

    fn add_links(&self, function: &VfioFunction, driver: &str, found: &mut Use) {
        if !function.is_network() {
            return;
        }
        let folder = format!("{DEVICE_FOLDER}/{}", function.address);
        // The link of a virtio device is one level deeper.
        let virtio_devices = self.root.list_numbered(&folder, "virtio").unwrap_or_default();
        let mut folders = vec![format!("{folder}/net")];
        folders.extend(virtio_devices.iter().map(|(_, name)| format!("{folder}/{name}/net")));
        let links: Vec<String> =
            folders.iter().filter_map(|folder| self.root.list(folder).ok()).flatten().collect();
        if links.is_empty() {
            let reason = format!(
                "the driver {driver} shows no link, which may be in another network namespace"
            );
            found.set_unknown(reason);
        }
        for link in links {
            let file = |attribute: &str| format!("sys/class/net/{link}/{attribute}");
            // Bit 0 is `IFF_UP`.
            let flags = self.root.read(&file("flags")).ok();
            match flags.and_then(|flags| parse_hexadecimal(&flags)) {
                Some(flags) if flags & 1 == 1 => {
                    found.users.push(format!("link {link} is up (ip link set {link} down)"));
                }
                Some(_) => {}
                None => found.set_unknown(format!("the flags of link {link} cannot be read")),
            }
            if let Some(master) = self.root.read_link_name(&file("master")) {
                found.users.push(format!("link {link} is a port of {master}"));
            }
        }
    }

    fn add_attributes(&self, address: PciAddress, found: &mut Use) {
        let file = |name: &str| format!("{DEVICE_FOLDER}/{address}/{name}");
        if let Ok(count) = self.root.read_value::<u32>(&file("sriov_numvfs"))
            && count > 0
        {
            found.users.push(format!("virtual functions: {count}"));
        }
        if self.root.read(&file("boot_vga")).is_ok_and(|value| value == "1") {
            found.users.push("the console is on this display controller".to_owned());
        }
    }

    fn add_open_files(&self, address: PciAddress, found: &mut Use) {
        let mut nodes = Vec::new();
        self.collect_device_nodes(
            &format!("{DEVICE_FOLDER}/{address}"),
            DEVICE_NODE_DEPTH,
            &mut nodes,
        );
        if let Ok(devices) = &self.block_devices {
            let disks = devices.iter().filter(|name| self.is_disk_of(name, address));
            nodes.extend(disks.filter_map(|name| {
                let number = self.root.read(&format!("{BLOCK_FOLDER}/{name}/dev")).ok()?;
                Some((format!("b{number}"), name.clone()))
            }));
        }
        let user = |(number, name): &(String, String)| {
            let process = self.open_files.user_of(number, name)?;
            Some(format!("{process} has {name} open"))
        };
        let users: BTreeSet<String> = nodes.iter().filter_map(user).collect();
        found.users.extend(users);
        if let Some(reason) = &self.open_files.incomplete {
            found.set_unknown(reason.as_str());
        }
    }

    /// Adds the device nodes of a folder in sysfs, each with its device number (`c238:0`) and its name.
    fn collect_device_nodes(&self, folder: &str, depth: u32, nodes: &mut Vec<(String, String)>) {
        for name in self.root.list(folder).unwrap_or_default() {
            let path = format!("{folder}/{name}");
            // A symbolic link leads to another device, such as the physical function.
            if self.root.read_link(&path).is_some() {
                continue;
            }
            if let Ok(number) = self.root.read(&format!("{path}/dev")) {
                let subsystem = self.root.read_link_name(&format!("{path}/subsystem"));
                let kind = if subsystem.as_deref() == Some("block") { 'b' } else { 'c' };
                nodes.push((format!("{kind}{number}"), name));
            }
            if depth > 1 {
                self.collect_device_nodes(&path, depth - 1, nodes);
            }
        }
    }
}
