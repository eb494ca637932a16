//! Access to the host, for changes.

use std::cell::{OnceCell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use super::cannot_start::CannotStart;
use super::links::kernel::Kernel;
use crate::systemd::{Systemd, SystemdError};
use berth_host_facts::root::Root;

/// Access to the host that is changed, with the limits of the changes.
pub struct Hands<'a> {
    pub(super) root: &'a Root,
    /// ID of the boot that the original values belong to.
    pub(super) boot_id: &'a str,
    /// Called after each step, also within a long change, so that a watchdog sees progress.
    pub(super) alive: &'a dyn Fn(),
    /// Time limit for the removal of links in one cycle. Later cycles remove the other links.
    pub(super) budget: Option<Duration>,
    /// True for a dry run.
    pub(super) tied: bool,
    /// Resolves the addresses of the API server, if the host is in a cluster.
    pub(super) servers: &'a dyn Fn() -> Vec<SocketAddr>,
    pub(super) systemd: OnceCell<std::result::Result<Systemd, SystemdError>>,
    /// A model of a kernel, which replaces the running kernel.
    pub(super) kernel: Option<&'a RefCell<dyn Kernel + 'static>>,
    /// Reason why no change may be applied.
    pub(super) halted: Option<CannotStart>,
}

impl std::fmt::Debug for Hands<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands")
            .field("root", &self.root)
            .field("boot_id", &self.boot_id)
            .finish_non_exhaustive()
    }
}

impl<'a> Hands<'a> {
    /// Returns access to this host in this boot.
    #[must_use]
    pub fn new(root: &'a Root, boot_id: &'a str, alive: &'a dyn Fn()) -> Self {
        Self {
            root,
            boot_id,
            alive,
            budget: None,
            tied: false,
            servers: &Vec::new,
            systemd: OnceCell::new(),
            kernel: None,
            halted: None,
        }
    }

    /// Uses the links of another kernel, such as a model of a kernel.
    #[must_use]
    pub const fn on(mut self, kernel: &'a RefCell<dyn Kernel + 'static>) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Blocks all changes if there is a reason.
    #[must_use]
    pub fn halted(mut self, why: Option<CannotStart>) -> Self {
        self.halted = why;
        self
    }

    /// Limits the time for removals.
    #[must_use]
    pub const fn within(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Enables the dry run: all changes count as blocked.
    #[must_use]
    pub const fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    /// Sets the API server, whose connection a change on trial must not interrupt.
    #[must_use]
    pub const fn in_cluster(mut self, servers: &'a dyn Fn() -> Vec<SocketAddr>) -> Self {
        self.servers = servers;
        self
    }

    pub(super) fn systemd(&self) -> std::result::Result<&Systemd, SystemdError> {
        // A captured tree has no systemd, and the systemd of this machine belongs to another host.
        let connect =
            || if self.root.is_live() { Systemd::connect() } else { Err(SystemdError::captured()) };
        self.systemd.get_or_init(connect).as_ref().map_err(Clone::clone)
    }

    pub(super) fn alive(&self) {
        (self.alive)();
    }
}
