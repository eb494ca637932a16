//! Names of drivers, and folders of sysfs.

/// Name of the driver that gives VMs access to PCI functions.
pub const VFIO_DRIVER: &str = "vfio-pci";
/// Value of the driver setting of a function without a driver.
pub const NO_DRIVER: &str = "none";
/// Folder of the PCI functions in sysfs.
pub const DEVICE_FOLDER: &str = "sys/bus/pci/devices";
/// Folder of the drivers of PCI functions in sysfs.
pub const DRIVER_FOLDER: &str = "sys/bus/pci/drivers";
