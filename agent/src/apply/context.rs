//! Context of an apply: the host that is changed, and the limits of the changes.

use std::cell::{OnceCell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use super::apply_blocked::ApplyBlocked;
use super::links::kernel::Kernel;
use crate::plan::LeasedNetworks;
use crate::systemd::{Systemd, SystemdError};
use berth_host_facts::root::Root;

/// Context of an apply: the host that is changed, the limits of the changes, and functions that the apply calls.
pub struct ApplyContext<'a> {
    pub(super) root: &'a Root,
    /// ID of the running boot. Original values in the rollback ledger are valid only for the boot in which they were
    /// saved.
    pub(super) boot_id: &'a str,
    /// Called after each step, also within a long change, so that a watchdog sees progress.
    pub(super) progress: &'a dyn Fn(),
    /// Time limit for the removal of links in one cycle; `None` for no limit. Later cycles remove the remaining links.
    pub(super) removal_time_limit: Option<Duration>,
    /// True for a dry run.
    pub(super) dry_run: bool,
    /// Resolves the addresses of the API server; returns no address if the host is in no cluster.
    pub(super) api_servers: &'a dyn Fn() -> Vec<SocketAddr>,
    pub(super) systemd: OnceCell<std::result::Result<Systemd, SystemdError>>,
    /// Model of a kernel, which tests use; `None` for the running kernel.
    pub(super) kernel: Option<&'a RefCell<dyn Kernel + 'static>>,
    /// Reason why no change may be applied; `None` if changes may be applied.
    pub(super) blocked_reason: Option<ApplyBlocked>,
    /// Addresses of the VMs on this host, for the plans; `None` while they are unknown.
    pub(super) leases: Option<&'a LeasedNetworks>,
}

impl std::fmt::Debug for ApplyContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApplyContext")
            .field("root", &self.root)
            .field("boot_id", &self.boot_id)
            .finish_non_exhaustive()
    }
}

impl<'a> ApplyContext<'a> {
    /// Returns a context for changes below this root. `boot_id` identifies the running boot.
    #[must_use]
    pub fn new(root: &'a Root, boot_id: &'a str, progress: &'a dyn Fn()) -> Self {
        Self {
            root,
            boot_id,
            progress,
            removal_time_limit: None,
            dry_run: false,
            api_servers: &Vec::new,
            systemd: OnceCell::new(),
            kernel: None,
            blocked_reason: None,
            leases: None,
        }
    }

    /// Replaces the running kernel by another implementation, such as the model of a test.
    #[must_use]
    pub const fn with_kernel(mut self, kernel: &'a RefCell<dyn Kernel + 'static>) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Blocks all changes if there is a reason.
    #[must_use]
    pub fn with_blocked_reason(mut self, reason: Option<ApplyBlocked>) -> Self {
        self.blocked_reason = reason;
        self
    }

    /// Sets the addresses of the VMs on this host.
    #[must_use]
    pub const fn with_leases(mut self, leases: Option<&'a LeasedNetworks>) -> Self {
        self.leases = leases;
        self
    }

    #[must_use]
    pub const fn with_removal_time_limit(mut self, limit: Duration) -> Self {
        self.removal_time_limit = Some(limit);
        self
    }

    /// Enables the dry run: all changes count as blocked.
    #[must_use]
    pub const fn with_dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Sets the function that resolves the addresses of the API server. A trial that makes the API server unreachable
    /// is rolled back.
    #[must_use]
    pub const fn with_api_servers(mut self, servers: &'a dyn Fn() -> Vec<SocketAddr>) -> Self {
        self.api_servers = servers;
        self
    }

    pub(super) fn systemd(&self) -> std::result::Result<&Systemd, SystemdError> {
        // For a captured tree of another host, the systemd of this machine must not be changed.
        let connect = || {
            if self.root.is_live() {
                Systemd::connect()
            } else {
                Err(SystemdError::captured_tree())
            }
        };
        self.systemd.get_or_init(connect).as_ref().map_err(Clone::clone)
    }

    /// Reports progress to the watchdog.
    pub(super) fn report_progress(&self) {
        (self.progress)();
    }
}
