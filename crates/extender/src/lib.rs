//! The scheduler extender: kube-scheduler calls `filter` to choose a host for a pod, and `bind` to bind the pod to this
//! host.
//!
//! ```text
//! watches ─► Extender { reservations, availability, queue, … } ◄─ filter: reserves one host
//!              │                                                ◄─ bind: checks the reservation again
//!              ▼
//!            hosts on which a waiting pod now fits ─► patch of the Node
//! ```
//!
//! | type | content |
//! |---|---|
//! | `ReservationTable` | the placement engine, and a record for each pod that has a reservation or is on a host |
//! | `HostAvailability` | hosts that accept no pods, or no pods with exclusive CPUs or huge pages |
//! | `StaleCandidates` | allocations in reports that belong to no known pod |
//! | `PodQueue` | pods without a host |
//! | `VirtualMachines` | VirtualMachineInstances and PersistentVolumeClaims without a volume |
//!
//! The module `state_transitions` documents the transitions of reservations and of hosts, and the module
//! `stale_allocations` the rule for allocations of ended pods. The extender has no persistent state: after a restart
//! the state is rebuilt from bound pods, agents' reports, nominated nodes of pods, and selected nodes of
//! PersistentVolumeClaims. The crate does no I/O: callers pass the time and send the bindings.

mod admission_order;
mod availability;
mod bind_call;
mod call_answers;
mod error;
mod extender;
mod filter_call;
mod host_events;
mod instance_events;
mod lease_guard;
mod migration_targets;
mod observed_pod;
mod pending_reservations;
mod pending_vm;
mod pod_events;
mod pod_queue;
mod refusal_cache;
mod refused_pods;
mod reservation;
mod reservation_records;
mod reservation_table;
pub mod scheduler_api;
mod stale_allocations;
mod stale_candidates;
mod state_transitions;
mod statistics;
mod storage_events;
mod unassigned_pods;
mod unknown_instances;
mod virtual_machines;
mod vm_instance;

pub use call_answers::{BindAnswer, FilterAnswer};
pub use error::{BindError, FilterError, InvalidField, NotReadyReason, PodError, VmError};
pub use extender::Extender;
pub use lease_guard::{LeaseError, LeaseGuard, READ_VALIDITY, SEND_TIMEOUT};
pub use migration_targets::{MigrationQuery, MigrationTarget};
pub use observed_pod::{KubeletRefusal, ObservedPod};
pub use pending_vm::{PendingVm, selector_for_node};
pub use statistics::{FreeResourceTotals, StageCounts, VM_SIZES};
pub use vm_instance::VmInstance;
