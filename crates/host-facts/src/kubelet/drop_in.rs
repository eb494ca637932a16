//! File names of Berth's drop-in in the kubelet's drop-in folder (`--config-dir`).

/// Name of the active drop-in. The kubelet reads the files `*.conf` in the order of their names.
pub const ACTIVE_FILE_NAME: &str = "99-berth.conf";
/// Name of the staged drop-in, which the kubelet does not read because of its extension.
pub const STAGED_FILE_NAME: &str = "99-berth.conf.staged";
