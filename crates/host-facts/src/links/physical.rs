//! Reads the facts about a physical link that only sysfs has: device, driver and speed.

use super::link::{Link, LinkKind};
use crate::pci::{PciDevice, last_address_in_path};
use crate::root::Root;

const NET_FOLDER: &str = "sys/class/net";

/// If the link has a device, sets its kind to physical link or virtual function, and adds the facts about the device.
pub(super) fn add_device(root: &Root, pci: &[PciDevice], link: &mut Link) {
    let file = |attribute: &str| format!("{NET_FOLDER}/{}/{attribute}", link.name);
    // netlink reports no kind for a physical link. A virtual link never has a device.
    if link.kind == LinkKind::Other && root.read_link(&file("device")).is_some() {
        link.kind = LinkKind::Physical;
    }
    if !link.is_uplink() {
        return;
    }
    // Without a carrier, a link has no speed, and the file contains -1 or 4294967295.
    let speed = root.read_value::<u32>(&file("speed")).ok();
    link.speed_mbps = speed.filter(|speed| *speed > 0 && *speed < u32::MAX);
    if link.kind != LinkKind::Physical {
        return;
    }
    link.driver = root.read_link_name(&file("device/driver"));
    let class_path = root.read_link(&format!("{NET_FOLDER}/{}", link.name)).unwrap_or_default();
    let device_path = root.read_link(&file("device")).unwrap_or_default();
    link.pci_address =
        last_address_in_path(&class_path).or_else(|| last_address_in_path(&device_path));
    let function = pci.iter().find(|device| Some(device.address) == link.pci_address);
    let zone = root.read_value(&file("device/numa_node")).ok();
    link.zone = zone.or_else(|| function.and_then(|device| device.zone));
    link.sriov = function.and_then(|device| device.sriov);
    link.iommu_group = function.and_then(|device| device.iommu_group);
    if link.driver.is_none() {
        link.driver = function.and_then(|device| device.driver.clone());
    }
    let port = root.read(&file("phys_port_name")).unwrap_or_default();
    if function.is_some_and(|device| device.is_virtual) || is_representor(&port) {
        link.kind = LinkKind::VirtualFunction;
        let physical_functions = root.list(&file("device/physfn/net")).unwrap_or_default();
        link.physical_function = physical_functions.first().and_then(|name| name.parse().ok());
    }
}

/// Returns true if `port` is the port name of a representor. A representor is the port of the card's embedded switch to
/// which a virtual function or sub-function is connected. Its name is similar to `pf0vf3` or `c1pf0sf88`, while a port
/// of the card itself is named `p0` or `pf0` (`ndo_get_phys_port_name`, devlink).
fn is_representor(port: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let function = port.split_once("pf").map_or("", |(_, rest)| rest);
    ["vf", "sf"].iter().any(|kind| {
        function
            .split_once(kind)
            .is_some_and(|(physical, number)| is_number(physical) && is_number(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn representor_is_recognized_by_port_name() {
        for port in ["pf0vf3", "c1pf0vf12", "pf1sf88"] {
            assert!(is_representor(port), "{port}");
        }
        for port in ["", "p0", "pf0", "p0s1", "pfvf", "xvf1"] {
            assert!(!is_representor(port), "{port}");
        }
    }
}
