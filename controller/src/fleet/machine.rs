//! A machine of the fleet.

use berth_kubevirt_render::launcher::Machine;

/// A machine, and its host if it is running.
#[derive(Clone, Debug)]
pub struct FleetMachine {
    /// The machine.
    pub machine: Machine,
    /// VirtualMachine or VirtualMachineInstance.
    pub kind: &'static str,
    /// `status.nodeName` of the instance.
    pub host: Option<String>,
    /// True if it is to run.
    pub is_on: bool,
    /// Value of the annotation `berth.dev/class`.
    pub class: Option<String>,
}
