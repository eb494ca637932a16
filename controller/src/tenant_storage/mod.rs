//! StorageClasses in tenants' clusters: determines which StorageClasses a tenant should have for those of the infra
//! cluster that tenants may use, and plans the necessary writes. The modules do no I/O. A tenant controls its API
//! server, so all objects in its cluster are input that may be hostile.
//!
//! ```text
//! InfraConfig, infra StorageClasses ──► infra_class ──► desired ──┐
//! tenant's StorageClasses ──► class ──► class_store ──────────────┴─► plan ──► changes, report
//! ```
//!
//! No StorageClass is ever deleted: a PersistentVolumeClaim refers to its StorageClass by name, even after its volume
//! was created.

pub mod class;
pub mod class_store;
pub mod desired;
pub mod infra_class;
pub mod plan;
pub mod report;
pub mod topology;
