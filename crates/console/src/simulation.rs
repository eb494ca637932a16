//! Simulations with the placement engine, on the state of the cluster that the user may list. The engine belongs to the
//! controller, which passes a [`Simulator`] to the console.

use berth_api::Problem;
use berth_runtime::call::CallError;
use kube::Client;

use crate::refusal::Refusal;
use crate::what_if::{Change, WhatIfReport};

/// Runs the placement engine. The methods block, and are called on a thread for blocking work of a tokio runtime.
pub trait Simulator: Send + Sync {
    /// Simulates the drain of a host, with the objects that the user of `client` may list. It changes no object.
    ///
    /// # Errors
    /// Returns the reason why the state of the cluster is not known.
    fn drain(&self, client: &Client, host: &str) -> Result<DrainReport, SimulationError>;

    /// Explains the host of a VM, or the reasons why no host accepts it. It changes no object.
    ///
    /// # Errors
    /// Returns the reason why the state of the cluster is not known, or why the engine left the VM out.
    fn explain(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<PlacementReport, SimulationError>;

    /// Simulates a change, with the objects that the user of `client` may list. It changes no object.
    ///
    /// # Errors
    /// Returns the reason why the state of the cluster is not known, or why the change is not valid.
    fn what_if(&self, client: &Client, change: &Change) -> Result<WhatIfReport, SimulationError>;
}

/// Reason why nothing was simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// RBAC refuses a list.
    #[error("you have no permission to list {objects} in the whole cluster")]
    Forbidden {
        /// Plural name of the kind.
        objects: String,
    },
    /// The API server does not accept the credential of the user any more.
    #[error("the API server no longer accepts the credential")]
    SignedOut,
    /// The engine does not know the object.
    #[error("the engine does not know this object: {0}")]
    Unknown(&'static str),
    /// The VM is switched off, or the engine left it out because of a problem.
    #[error("the engine left this VM out")]
    NotPlaced {
        /// First problems of objects, those of the VM before all others.
        problems: Vec<String>,
    },
    /// The text of the user is no valid object: the problems with object, field and value.
    #[error("the object is not valid")]
    Invalid(Vec<Problem>),
    /// The text of the user is an object of another kind, and may contain a credential.
    #[error("{0}")]
    OtherKind(Problem),
    /// The state of the cluster would need too much memory.
    #[error("the cluster has too many objects for the console: use `{command}`")]
    TooLarge {
        /// Command that has no such limit.
        command: String,
    },
    /// The API server did not answer.
    #[error("the API server did not answer")]
    Unavailable(#[source] CallError),
}

/// Result of a simulated drain. VMs have their namespaces and names, as in `cluster-a/web-1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// True if every VM can leave the host.
    pub is_possible: bool,
    /// VMs that fit on other hosts.
    pub moves: Vec<SimulatedMove>,
    /// VMs that fit on no other host.
    pub blocked: Vec<BlockedVm>,
    /// First reasons that the controller would report.
    pub decisions: Vec<DrainStep>,
    /// Pods with exclusive resources on the host that the API server does not know.
    pub unknown_pods: Vec<String>,
    /// Problems of objects, which may make the result wrong.
    pub problems: Vec<String>,
}

/// Way in which a VM leaves its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// Live migration: the VM continues to run.
    Migrated,
    /// The machine is replaced: its programs end.
    Replaced,
    /// The VM fits on another host, but Berth does not move it.
    NotManaged,
}

/// A VM that fits on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedMove {
    /// Namespace and name of the VM.
    pub vm: String,
    /// The way in which it leaves the host.
    pub kind: MoveKind,
    /// The other host.
    pub host: String,
    /// Reason for a replacement; empty for migrations.
    pub reason: String,
}

/// A VM that fits on no other host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedVm {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Reason that the controller would report.
    pub reason: String,
    /// Reasons of the hosts.
    pub refusals: Vec<Refusal>,
    /// Suggested remedy.
    pub remedy: String,
}

/// First reason that the controller would report for a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainStep {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Name of the reason.
    pub reason: String,
    /// Message of the reason.
    pub message: String,
    /// True if the machine stays on the host until a person acts.
    pub is_blocked: bool,
}

/// Placement of a VM, and the problems that may make it wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementReport {
    /// Placement of the VM.
    pub placement: SimulatedPlacement,
    /// Problems of objects, which may make the result wrong.
    pub problems: Vec<String>,
}

/// Placement of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimulatedPlacement {
    /// The VM is on a host.
    Placed(Ranking),
    /// The VM has no host yet, and a host accepts it.
    Pending(Ranking),
    /// No host accepts the VM.
    Unplaced {
        /// Reasons of the hosts.
        refusals: Vec<Refusal>,
        /// Suggested remedy.
        remedy: String,
    },
}

/// Hosts that were compared for a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// Host of the VM, or the host on which it fits.
    pub host: String,
    /// Exclusive CPUs of the VM, as a CPU list; empty if it has none.
    pub cpus: String,
    /// Zones of the exclusive CPUs.
    pub zones: Vec<u32>,
    /// The best hosts that accept the VM, with their points: fewer are better.
    pub best: Vec<(String, i64)>,
    /// Number of hosts that accept the VM.
    pub accepting: usize,
    /// Reasons of the other hosts.
    pub refusals: Vec<Refusal>,
}
