//! Users of a PCI function that has a driver of the host: drives with content, links, virtual functions, and processes
//! that have its device nodes open.

use std::collections::BTreeSet;

use berth_api::PciAddress;

use super::drives::{is_below, is_drive_of};
use super::function::VfioFunction;
use super::loop_devices::{LoopDevice, read_loop_devices};
use super::names::DEVICE_FOLDER;
use super::open_files::OpenFiles;
use crate::mounts::Mounts;
use crate::notes::Notes;
use crate::nvme::{self, BLOCK_FOLDER};
use crate::pci::parse_hexadecimal;
use crate::root::{ReadError, Root};

/// Drivers whose device nodes are not below the function in sysfs, so that it is unknown which processes use them.
const DRIVERS_WITH_HIDDEN_USERS: [&str; 1] = ["nvidia"];
/// Folder of the network links in sysfs.
const LINK_FOLDER: &str = "sys/class/net";
/// Depth of the folders below a function in which device nodes are searched. The deepest known ones are those of SCSI
/// devices (`host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/scsi_tape/st0`).
const DEVICE_NODE_DEPTH: u32 = 10;

/// Reads what uses PCI functions.
#[derive(Debug)]
pub(super) struct UseReader<'a> {
    root: &'a Root,
    open_files: &'a OpenFiles,
    /// The mounts of the host, and those of drives in other mount namespaces.
    mounts: Mounts,
    /// Names of all block devices.
    block_devices: Result<Vec<String>, ReadError>,
    loop_devices: Result<Vec<LoopDevice>, ReadError>,
}

/// Users of one function, and the first reason why they are unknown.
#[derive(Debug, Default)]
struct Use {
    users: Vec<String>,
    unknown: Option<String>,
}

impl Use {
    fn set_unknown(&mut self, reason: impl Into<String>) {
        self.unknown.get_or_insert_with(|| reason.into());
    }

    /// Records that the use is unknown if a file exists but cannot be read. Returns the value.
    fn known_value<T>(&mut self, value: Result<T, ReadError>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(error) => {
                if !error.is_not_found() {
                    self.set_unknown(error.to_string());
                }
                None
            }
        }
    }
}

impl<'a> UseReader<'a> {
    pub(super) fn new(root: &'a Root, open_files: &'a OpenFiles) -> Self {
        let mut mounts = Mounts::observe(root, &mut Notes::default());
        let block_devices = root.list(BLOCK_FOLDER);
        let names = block_devices.as_deref().unwrap_or_default();
        let loop_devices = read_loop_devices(root, names, &mounts);
        if let Some(table) = &mut mounts.table {
            table.extend(open_files.drive_mounts.iter().cloned());
        }
        Self { root, open_files, mounts, block_devices, loop_devices }
    }

    /// Sets the users of a function that is not bound to `vfio-pci`.
    pub(super) fn read_use(&self, function: &mut VfioFunction) {
        let mut found = Use::default();
        if function.class.is_none() {
            found.set_unknown("its class cannot be read");
        }
        if let Some(driver) = &function.driver {
            self.add_drives(function, driver, &mut found);
            self.add_links(function, driver, &mut found);
            self.add_attributes(function.address, &mut found);
            self.add_open_files(function.address, &mut found);
            if has_hidden_users(function, driver) {
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

    fn add_drives(&self, function: &VfioFunction, driver: &str, found: &mut Use) {
        let devices = match &self.block_devices {
            Ok(devices) => devices.as_slice(),
            Err(error) => {
                found.set_unknown(error.to_string());
                &[]
            }
        };
        let mut has_drive = false;
        for name in devices.iter().filter(|name| is_drive_of(self.root, name, function.address)) {
            has_drive = true;
            self.add_drive(name, devices, found);
        }
        // The driver creates the block devices some time after it is bound.
        if function.is_storage() && !has_drive {
            found.set_unknown(format!("the driver {driver} has created no block device"));
        }
    }

    fn add_drive(&self, name: &str, devices: &[String], found: &mut Use) {
        let (users, are_users_known) = nvme::drive_users(self.root, name, devices, &self.mounts);
        found.users.extend(users);
        if !are_users_known {
            found.set_unknown(format!("the holders of {name} or the swap spaces cannot be read"));
        } else if self.mounts.table.is_none() {
            found.set_unknown("the mount table cannot be read");
        } else if !nvme::is_signature_known(self.root, name) {
            found.set_unknown(format!("udev has not examined {name}"));
        }
        let file = |attribute: &str| format!("{BLOCK_FOLDER}/{name}/{attribute}");
        let sectors = found.known_value(self.root.read_value::<u64>(&file("size")));
        if sectors == Some(0) {
            // For example a namespace in a format that the driver does not support.
            found.set_unknown(format!("{name} has the size 0, so its content cannot be read"));
        }
        let number = self.root.read(&file("dev")).unwrap_or_default();
        match &self.loop_devices {
            Ok(devices) => found.users.extend(
                devices
                    .iter()
                    .filter_map(|device| device.use_of_drive(name, &format!("b{number}"), sectors)),
            ),
            Err(error) => found.set_unknown(error.to_string()),
        }
    }

    fn add_links(&self, function: &VfioFunction, driver: &str, found: &mut Use) {
        let links = self.links_of(function.address, found);
        if links.is_empty() && function.is_network() {
            let reason = format!(
                "the driver {driver} shows no link, which may be in another network namespace"
            );
            found.set_unknown(reason);
        }
        for link in links {
            let file = |attribute: &str| format!("{LINK_FOLDER}/{link}/{attribute}");
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

    /// Returns the links of a function, also those of devices below it, such as virtio devices and USB network cards.
    fn links_of(&self, address: PciAddress, found: &mut Use) -> BTreeSet<String> {
        let own = self.root.list(&format!("{DEVICE_FOLDER}/{address}/net"));
        let mut links: BTreeSet<String> =
            found.known_value(own).unwrap_or_default().into_iter().collect();
        let all = found.known_value(self.root.list(LINK_FOLDER)).unwrap_or_default();
        let is_of_function =
            |link: &String| is_below(self.root, &format!("{LINK_FOLDER}/{link}"), address);
        links.extend(all.into_iter().filter(is_of_function));
        links
    }

    fn add_attributes(&self, address: PciAddress, found: &mut Use) {
        let folder = format!("{DEVICE_FOLDER}/{address}");
        let file = |name: &str| format!("{folder}/{name}");
        let virtual_functions =
            found.known_value(self.root.read_value::<u32>(&file("sriov_numvfs"))).unwrap_or(0);
        if virtual_functions > 0 {
            found.users.push(format!("virtual functions: {virtual_functions}"));
        }
        if self.root.read(&file("boot_vga")).is_ok_and(|value| value == "1") {
            found.users.push("the console is on this display controller".to_owned());
        }
        // Intel VMD is a storage controller that has a PCI bus: `pci10000:00`.
        match self.root.list(&folder) {
            Ok(names) => {
                let is_bus = |name: &&String| name.starts_with("pci") && name.contains(':');
                let buses = names.iter().filter(is_bus);
                found.users.extend(buses.map(|bus| format!("PCI bus {bus} is below it")));
            }
            Err(error) => found.set_unknown(error.to_string()),
        }
    }

    fn add_open_files(&self, address: PciAddress, found: &mut Use) {
        let mut nodes = Vec::new();
        let folder = format!("{DEVICE_FOLDER}/{address}");
        self.collect_device_nodes(&folder, DEVICE_NODE_DEPTH, &mut nodes, found);
        if let Ok(devices) = &self.block_devices {
            let drives = devices.iter().filter(|name| is_drive_of(self.root, name, address));
            nodes.extend(drives.filter_map(|name| {
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
    fn collect_device_nodes(
        &self,
        folder: &str,
        depth: u32,
        nodes: &mut Vec<(String, String)>,
        found: &mut Use,
    ) {
        // Most entries are files, which cannot be listed.
        for name in found.known_value(self.root.list(folder)).unwrap_or_default() {
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
                self.collect_device_nodes(&path, depth - 1, nodes, found);
            }
        }
    }
}

/// Returns true if sysfs shows neither the processes nor the kernel's own users of a function: memory that the kernel
/// uses (CXL), and Fibre Channel, whose NVMe drives are not below the function.
fn has_hidden_users(function: &VfioFunction, driver: &str) -> bool {
    let is_hidden_class =
        matches!(function.class, Some(class) if class >> 16 == 0x05 || class >> 8 == 0x0c_04);
    is_hidden_class || DRIVERS_WITH_HIDDEN_USERS.contains(&driver)
}
