//! StorageClasses in tenants' clusters for the storage classes of the infra cluster that tenants may use: which classes a
//! tenant should have, and what must be written. The modules have no side effects. A tenant controls its API server, so all
//! its objects are input that may be hostile.
//!
//! ```text
//! InfraConfig, infra StorageClasses ──► infra_class ──► desired ──┐
//! tenant's StorageClasses ──► class ──► class_store ──────────────┴─► plan ──► changes, report
//! ```
//!
//! No class is ever deleted: claims refer to their class by name, also after their volumes were created.

pub mod class;
pub mod class_store;
pub mod desired;
pub mod infra_class;
pub mod plan;
pub mod report;
pub mod topology;
