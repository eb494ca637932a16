//! Means to change a host.

use std::cell::{OnceCell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use super::cannot_start::CannotStart;
use super::links::kernel::Kernel;
use crate::systemd::{Systemd, SystemdError};
use berth_host_facts::root::Root;

/// What is needed to change a host.
pub struct Hands<'a> {
    pub(super) root: &'a Root,
    /// The boot that found values belong to.
    pub(super) boot_id: &'a str,
    /// Called whenever something was done, also within a long change: whoever waits knows it goes on.
    pub(super) alive: &'a dyn Fn(),
    /// How long links may be removed before something else is looked at; what is left is done later.
    pub(super) budget: Option<Duration>,
    /// Whether nothing is to be changed, only told.
    pub(super) tied: bool,
    /// Looks up the API server's addresses, where there is a cluster.
    pub(super) servers: &'a dyn Fn() -> Vec<SocketAddr>,
    pub(super) systemd: OnceCell<std::result::Result<Systemd, SystemdError>>,
    /// In place of the running kernel's links.
    pub(super) kernel: Option<&'a RefCell<dyn Kernel + 'static>>,
    /// Why nothing may be changed.
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
    /// For this host in this boot.
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

    /// On the links of another kernel, such as a model of one.
    #[must_use]
    pub const fn on(mut self, kernel: &'a RefCell<dyn Kernel + 'static>) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Halted, if there is a reason: nothing is changed.
    #[must_use]
    pub fn halted(mut self, why: Option<CannotStart>) -> Self {
        self.halted = why;
        self
    }

    /// With a limit for removals at a time.
    #[must_use]
    pub const fn within(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Tied: all that would be changed counts as blocked.
    #[must_use]
    pub const fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    /// In a cluster: what may cut the host off must leave it the API server.
    #[must_use]
    pub const fn in_cluster(mut self, servers: &'a dyn Fn() -> Vec<SocketAddr>) -> Self {
        self.servers = servers;
        self
    }

    pub(super) fn systemd(&self) -> std::result::Result<&Systemd, SystemdError> {
        // A tree has no systemd, and this machine's is not meant.
        let connect =
            || if self.root.is_live() { Systemd::connect() } else { Err(SystemdError::captured()) };
        self.systemd.get_or_init(connect).as_ref().map_err(Clone::clone)
    }

    pub(super) fn alive(&self) {
        (self.alive)();
    }
}
