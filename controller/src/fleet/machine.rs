//! A machine of the fleet.

use berth_kubevirt_render::launcher::Machine;

use super::drain_facts::DrainFacts;
use super::machine_claims::MachineClaim;

/// A VirtualMachine or VirtualMachineInstance, and its host if it is running.
#[derive(Clone, Debug)]
pub struct FleetMachine {
    pub machine: Machine,
    /// Kind of the machine: VirtualMachine or VirtualMachineInstance.
    pub kind: &'static str,
    /// Host of the machine, from `status.nodeName` of the VirtualMachineInstance.
    pub host: Option<String>,
    /// True if the machine should run.
    pub should_run: bool,
    /// Message of the condition LiveMigratable if Berth moves the VM from a drained host, but cannot migrate it.
    pub migration_obstacle: Option<String>,
    /// True if the eviction strategy of the machine's instance is `External`: Berth moves the VM during a drain.
    pub is_external: bool,
    /// True if the machine belongs to a MachineDeployment that Berth reconciles. If the input lacks the
    /// VirtualMachine, the label of the instance decides.
    pub has_deployment: bool,
    /// Facts for the drain of its host.
    pub drain: DrainFacts,
    /// Value of the annotation `berth.dev/class`.
    pub class: Option<String>,
    /// PersistentVolumeClaims of the machine's volumes.
    pub claims: Vec<MachineClaim>,
}

impl FleetMachine {
    /// Returns the namespace and the name of the machine.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.machine.namespace, self.machine.name)
    }
}
