//! Raises the limit of open files, because each served port has a socket.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of open files that is enough for all ports of a host (4,096 leases) and for the rest of the agent.
const SUFFICIENT_LIMIT: u64 = 8192;

/// Raises the soft limit of open files, and logs a warning if it stays too low for a thousand ports.
pub(super) fn raise_file_limit() {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    let raised = limits.and_then(|(soft, hard)| {
        let limit = SUFFICIENT_LIMIT.min(hard);
        if soft < limit {
            setrlimit(Resource::RLIMIT_NOFILE, limit, hard)?;
        }
        Ok(soft.max(limit))
    });
    match raised {
        Ok(limit) if limit >= SUFFICIENT_LIMIT => {}
        Ok(limit) => {
            tracing::warn!(
                limit,
                "the limit of open files is low, and each VM needs one open file; set LimitNOFILE=8192"
            );
        }
        Err(error) => {
            tracing::warn!(%error, "failed to raise the limit of open files; set LimitNOFILE=8192");
        }
    }
}
