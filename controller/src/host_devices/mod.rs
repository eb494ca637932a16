//! PCI devices of hosts for VMs: the functions that agents report, and the entries of the KubeVirt object that permit VMs to
//! use them.
//!
//! The modules have no side effects. A device plugin of KubeVirt offers the functions of each entry as a resource of the Node;
//! the scheduler extender counts this resource like those of other device plugins.

mod permitted;
mod reported;

pub use permitted::{PciHostDevice, PermittedPlan, permitted_ids, permitted_list, plan_permitted};
pub use reported::{FunctionKind, ReportedFunction, reported_functions};
