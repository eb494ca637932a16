//! Golden images in the cluster: determines which images must exist, and plans the changes of the objects of CDI that
//! import them. The modules do no I/O.
//!
//! ```text
//! golden images of MachineDeployments, InfraConfig's catalog ──► desired ──┐
//! DataVolumes, DataSources, DataImportCrons, clones ──► observed ──────────┴─► plan ──► changes
//!                                                                          └─► state ─► report, machines
//! ```

pub(crate) mod desired;
pub(crate) mod key;
pub(crate) mod observed;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod state;
pub(crate) mod usage;
