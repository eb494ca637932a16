//! Names of Berth's drop-in for the kubelet, in the folder of `--config-dir`.

/// Name of the active drop-in: the kubelet reads `*.conf`, in the order of names.
pub const ACTIVE: &str = "99-berth.conf";
/// Name of the staged drop-in, which the kubelet does not read.
pub const STAGED: &str = "99-berth.conf.staged";
