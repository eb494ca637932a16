//! The words Berth uses on hosts and in the cluster.

/// Prefix of the alias on every link Berth made; links without it are never touched.
pub const LINK_ALIAS_PREFIX: &str = "berth:";
