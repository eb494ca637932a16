//! Objects of the cluster, watched once for all users, and the part of them that a user may see.

pub(crate) mod changed;
mod namespaces;
pub(crate) mod resource;
pub(crate) mod store;
pub(crate) mod visible;
pub(crate) mod watch;
mod watch_health;
