//! Names of Berth's drop-in for the kubelet, in the folder of `--config-dir`.

/// Name of the drop-in that is active: the kubelet reads `*.conf`, in the order of names.
pub const ACTIVE: &str = "99-berth.conf";
/// Name of the drop-in that waits, which the kubelet does not read.
pub const STAGED: &str = "99-berth.conf.staged";
