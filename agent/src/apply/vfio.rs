//! Binds PCI functions to the driver `vfio-pci`, and releases them to their original drivers.
//!
//! `driver_override` restricts one function to `vfio-pci`. The alternative, `new_id` of the driver, would bind every
//! unbound function with the same id. A process that writes to `unbind` waits while a VM has the function open.
//! Therefore the agent reads directly before, with the drives of the function opened exclusively, whether the function
//! is in use.

use berth_api::PciAddress;

use super::context::ApplyContext;
use super::drives::open_drives_exclusively;
use super::outcome::{ApplyResult, Result};
use crate::host_write::{HostWrite as _, WriteError};
use crate::plan::Step;
use berth_host_facts::setting::SettingValue;
use berth_host_facts::vfio::{
    DEVICE_FOLDER, DRIVER_FOLDER, NO_DRIVER, VFIO_DRIVER, VfioFacts, VfioFunction,
    observe_function, read_driver,
};

/// File of the bus: the kernel binds the function whose address is written to it, if a driver matches.
const PROBE_FILE: &str = "sys/bus/pci/drivers_probe";

/// Binds a function to the planned driver.
pub(super) fn set_driver(context: &ApplyContext, address: PciAddress, step: &Step) -> Result {
    let SettingValue::Keyword(driver) = &step.new_value else {
        return Err(ApplyResult::Failed(
            "the desired value is not the name of a driver".to_owned(),
        ));
    };
    // The drives stay opened exclusively until the function is unbound.
    let exclusive_drives =
        if driver == VFIO_DRIVER { Some(open_drives_exclusively(context, address)?) } else { None };
    let facts = observe_function(context.root, address);
    let Some(function) = facts.functions.get(&address) else {
        return Err(ApplyResult::Failed(format!("{address}: the PCI function was removed")));
    };
    context.report_progress();
    if let Ok(Some(name)) = &function.driver_override
        && name != VFIO_DRIVER
    {
        let reason = format!("another program has set driver_override to `{name}`");
        return Err(ApplyResult::Blocked(reason));
    }
    let change = DriverChange { context, address };
    let result = if driver == VFIO_DRIVER {
        change.bind(function)
    } else {
        change.release(&facts, function, driver)
    };
    drop(exclusive_drives);
    result
}

struct DriverChange<'a> {
    context: &'a ApplyContext<'a>,
    address: PciAddress,
}

impl DriverChange<'_> {
    /// Binds the function to `vfio-pci`. If the kernel refuses it, the former driver is bound again.
    fn bind(&self, function: &VfioFunction) -> Result {
        if function.has_vfio_driver() {
            let reason = "another program has bound it to a driver for VMs".to_owned();
            return Err(ApplyResult::Blocked(reason));
        }
        if let Some(reason) = function.use_reason() {
            return Err(ApplyResult::Blocked(reason));
        }
        self.write_override(VFIO_DRIVER)?;
        let moved = self
            .unbind(function.driver.as_deref())
            .and_then(|()| self.probe())
            .map_err(ApplyResult::from)
            .and_then(|()| self.confirm(VFIO_DRIVER));
        if moved.is_err() {
            // If this fails too, the next plan starts from the resulting state.
            let restored = self.write_override("\n").and_then(|()| match function.driver {
                Some(_) => self.probe_if_unbound(),
                None => Ok(()),
            });
            restored.unwrap_or_default();
        }
        moved
    }

    /// Releases the function to its original driver.
    fn release(&self, facts: &VfioFacts, function: &VfioFunction, driver: &str) -> Result {
        let is_vfio = function.driver.as_deref() == Some(VFIO_DRIVER);
        if let Some(user) = facts.group_user(function).filter(|_| is_vfio) {
            return Err(ApplyResult::Blocked(format!("its IOMMU group is in use: {user}")));
        }
        self.write_override("\n")?;
        if is_vfio {
            self.unbind(Some(VFIO_DRIVER))?;
        }
        if driver != NO_DRIVER {
            self.probe_if_unbound()?;
        }
        self.confirm(driver)
    }

    /// Sets the only driver that may bind the function; an empty line permits all drivers.
    fn write_override(&self, driver: &str) -> std::result::Result<(), WriteError> {
        let file = format!("{DEVICE_FOLDER}/{}/driver_override", self.address);
        self.context.root.write(&file, driver)
    }

    /// Unbinds the function from this driver. The kernel refuses it if the function has another driver.
    fn unbind(&self, driver: Option<&str>) -> std::result::Result<(), WriteError> {
        let Some(driver) = driver else { return Ok(()) };
        let file = format!("{DRIVER_FOLDER}/{driver}/unbind");
        self.context.root.write(&file, &self.address.to_string())?;
        self.context.report_progress();
        Ok(())
    }

    fn probe(&self) -> std::result::Result<(), WriteError> {
        self.context.root.write(PROBE_FILE, &self.address.to_string())?;
        self.context.report_progress();
        Ok(())
    }

    fn probe_if_unbound(&self) -> std::result::Result<(), WriteError> {
        match read_driver(self.context.root, self.address) {
            Some(_) => Ok(()),
            None => self.probe(),
        }
    }

    /// Returns a failure if the function has another driver: `drivers_probe` succeeds even if no driver accepts the
    /// function.
    fn confirm(&self, driver: &str) -> Result {
        let now = read_driver(self.context.root, self.address);
        let now = now.as_deref().unwrap_or(NO_DRIVER);
        if now == driver {
            return Ok(ApplyResult::Done(None));
        }
        let message = format!("the kernel has not bound {driver}: the driver is {now}; see dmesg");
        Err(ApplyResult::Failed(message))
    }
}
