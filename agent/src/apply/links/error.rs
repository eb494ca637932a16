//! Errors of steps on links.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use berth_api::{LinkName, VlanId};
use nix::errno::Errno;

use crate::apply::outcome::error_with_hint;
use crate::host_write::WriteError;
use crate::netlink::KernelRefusal;
use crate::plan::network::{DesiredKind, LinkOp};
use berth_host_facts::links::Gateway;

/// Error of a step on a link.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StepError {
    /// The link does not exist.
    #[error("link {0} does not exist")]
    LinkNotFound(LinkName),
    /// The kernel refused the step.
    #[error("{link}: {refused}{hint}")]
    Refused {
        link: LinkName,
        #[source]
        refused: KernelRefusal,
        /// Meaning of the error for this step, and the remedy.
        hint: &'static str,
    },
    /// The kernel refused some VLANs of a port.
    #[error("VLAN {id}: {first} (the kernel also refused {other_count} other VLANs)")]
    VlansRefused {
        /// The first VLAN that the kernel refused.
        id: VlanId,
        /// The error for this VLAN.
        #[source]
        first: Box<Self>,
        /// Number of other VLANs that the kernel refused.
        other_count: usize,
    },
    /// The kernel did not answer.
    #[error("netlink: {0}")]
    Netlink(#[source] Arc<io::Error>),
    /// The kernel did not list the attached links.
    #[error("{link}: the links attached to this link are unknown: {source}")]
    AttachedLinksUnknown {
        /// The link that the step works on.
        link: LinkName,
        /// The error of the list request.
        source: Arc<io::Error>,
    },
    /// The agent could not write a sysctl of the link.
    #[error("{}", error_with_hint(.0))]
    Sysctl(#[source] WriteError),
}

impl StepError {
    /// Returns the error of a step that the kernel refused, with its meaning for the step.
    #[must_use]
    pub fn from_refusal(op: &LinkOp, refused: KernelRefusal) -> Self {
        let hint = step_hint(op, refused.errno);
        Self::Refused { link: op.link().clone(), refused, hint }
    }

    pub(super) fn netlink_error(error: io::Error) -> Self {
        Self::Netlink(Arc::new(error))
    }
}

const fn step_hint(op: &LinkOp, errno: Errno) -> &'static str {
    match (errno, op) {
        (Errno::EPERM, _) => "; requires CAP_NET_ADMIN in the host's network namespace",
        (Errno::EOPNOTSUPP, LinkOp::Create(desired)) => match desired.kind {
            DesiredKind::Bridge { vlan_aware: true, .. } => {
                "; this kernel has no VLAN filtering for bridges (CONFIG_BRIDGE_VLAN_FILTERING): use scenario \
                 BridgePerTenant"
            }
            DesiredKind::Bridge { .. } => "; this kernel has no bridges (modprobe bridge)",
            DesiredKind::Vlan { .. } => "; this kernel has no VLAN links (modprobe 8021q)",
            DesiredKind::Vxlan { .. } => "; this kernel has no VXLAN (modprobe vxlan)",
        },
        (Errno::ENOSPC, LinkOp::AddVlans { .. } | LinkOp::Create(_)) => {
            "; the VLAN filter of the network card is full: assign fewer tenants to this host, or use another card"
        }
        (Errno::EBUSY, LinkOp::Join { .. }) => {
            "; another device (macvlan, ipvlan or a bond) already receives the frames of this link"
        }
        (Errno::EADDRINUSE, _) => "; another program uses the UDP port",
        (Errno::EXFULL, _) => "; a bridge has 1023 ports at most",
        (Errno::EEXIST, _) => "; another program created the link at the same time, retry",
        (Errno::ENETDOWN, _) => "; the lower link is down",
        (Errno::ENOMEM | Errno::ENOBUFS, _) => "; the kernel has no free memory, retry later",
        _ => "",
    }
}

/// Error of a change of the nftables table.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The agent could not open a netlink socket for nf_tables.
    #[error(
        "nftables table bridge berth: {error}; {hint}",
        error = .0,
        hint = filter_hint(.0.raw_os_error().map(Errno::from_raw))
    )]
    OpenSocket(#[source] io::Error),
    /// The kernel refused the transaction.
    #[error(
        "nftables table bridge berth: {refused}; {hint}",
        refused = .0,
        hint = filter_hint(Some(.0.errno))
    )]
    Refused(#[source] KernelRefusal),
    /// The kernel did not answer.
    #[error("nf_tables: {0}")]
    NoAnswer(#[source] io::Error),
    /// The table differs from the desired table after the transaction.
    #[error(
        "the change was applied, but nftables table bridge berth differs; another program changes it"
    )]
    TableDiffers,
}

const fn filter_hint(errno: Option<Errno>) -> &'static str {
    match errno {
        Some(Errno::EPERM) => "requires CAP_NET_ADMIN in the host's network namespace",
        Some(
            Errno::EOPNOTSUPP
            | Errno::EPROTONOSUPPORT
            | Errno::EAFNOSUPPORT
            | Errno::ENOENT
            | Errno::ESOCKTNOSUPPORT,
        ) => {
            "this kernel has no nf_tables for bridges (CONFIG_NF_TABLES_BRIDGE; modprobe nf_tables). Without it, a \
             switch may disable the port that all tenants share because of a guest's BPDU, so no new network is \
             created"
        }
        _ => "no new network is created",
    }
}

/// Error of a trial: the change was not applied, or its rollback began.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The host was not changed; another trial may succeed.
    #[error(transparent)]
    TrialNotStarted(#[from] TrialNotStarted),
    /// The change was applied, and a rollback was tried.
    #[error(transparent)]
    RollbackResult(#[from] RollbackResult),
}

/// Reason why a trial did not begin.
#[derive(Debug, thiserror::Error)]
pub enum TrialNotStarted {
    /// The agent could not open a netlink socket.
    #[error("{0}")]
    Open(#[source] io::Error),
    /// The kernel did not answer.
    #[error("netlink: {0}")]
    Netlink(#[source] io::Error),
    /// No step of the change adds a port to a bridge.
    #[error("the change adds no port to a bridge, and is not applied")]
    NoPortAdded,
    /// No default gateway answers before the change.
    #[error(
        "no gateway answers now ({}), so a loss of connectivity could not be detected; the change is not applied",
        format_gateways(.0)
    )]
    NoGateway(Vec<Gateway>),
    /// The time since boot is unknown.
    #[error("/proc/uptime cannot be read; the change is not applied")]
    UnknownUptime,
    /// The agent could not save the trial's note, from which a guard or the next start of the agent rolls back the
    /// change.
    #[error("{0}; without this file the change could not be rolled back, so it is not applied")]
    NoteNotWritten(#[source] WriteError),
    /// The kernel refused a step.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Result of the rollback of a trial.
#[derive(Debug, thiserror::Error)]
pub enum RollbackResult {
    /// The port was removed from its bridge.
    #[error(
        "{cause}; the trial of {port} was rolled back, {} ({guard})",
        if *.gateways_answer { "and the gateway answers again" } else { "and the gateway still does not answer" }
    )]
    RolledBack {
        /// The reason for the rollback.
        #[source]
        cause: Box<TrialFailure>,
        /// Port that the trial added to its bridge.
        port: LinkName,
        /// True if the gateways answer after the rollback.
        gateways_answer: bool,
        /// The guard, which would have rolled back the change if the agent had ended during the trial.
        guard: TrialGuard,
    },
    /// The port could not be removed from its bridge, or it is unknown whether it was removed.
    #[error("{cause}; the rollback failed: {source}")]
    RollbackFailed {
        /// The reason for the rollback.
        cause: Box<TrialFailure>,
        /// The reason why the rollback failed.
        source: io::Error,
    },
    /// The trial's note could not be removed after a successful trial. As long as the note exists, a guard or the next
    /// start of the agent would roll back the change later, so the agent rolls it back at once.
    #[error("{source}; the trial of {port} {}", format_rollback(.rollback))]
    NoteNotRemoved {
        /// The reason why the note could not be removed.
        source: WriteError,
        port: LinkName,
        rollback: io::Result<()>,
    },
}

/// Reason why a trial failed after it began.
#[derive(Debug, thiserror::Error)]
pub enum TrialFailure {
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The kernel did not answer.
    #[error("netlink: {0}")]
    Netlink(#[source] io::Error),
    /// Gateways that answered before the change no longer answer.
    #[error("{} has not answered for {seconds} s", format_gateways(.gateways))]
    Gateways {
        /// The gateways that do not answer.
        gateways: Vec<Gateway>,
        /// Time without an answer, in seconds.
        seconds: u64,
    },
    /// The API server no longer accepts connections.
    #[error("the API server ({}) is no longer reachable", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    ApiServer(Vec<SocketAddr>),
}

fn format_rollback(rollback: &io::Result<()>) -> String {
    match rollback {
        Ok(()) => "was rolled back".to_owned(),
        Err(error) => format!("could not be rolled back: {error}"),
    }
}

fn format_gateways(gateways: &[Gateway]) -> String {
    let names: Vec<String> = gateways.iter().map(|gateway| gateway.address.to_string()).collect();
    if names.is_empty() {
        "no default gateway".to_owned()
    } else {
        format!("gateway {}", names.join(", "))
    }
}

/// Process that rolls back the change if the agent ends before the end of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrialGuard {
    /// A transient service, which survives the end of the agent's control group.
    TransientUnit(String),
    /// A child process, which survives the end of the agent's process, but not the end of its
    /// control group.
    ChildProcess,
    NextAgentStart,
}

impl fmt::Display for TrialGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TransientUnit(unit) => write!(f, "guarded by {unit}"),
            Self::ChildProcess => f.write_str(
                "guarded by a child process, and if the agent's control group ends too, by the agent's next start",
            ),
            Self::NextAgentStart => f.write_str("guarded only by the agent's next start"),
        }
    }
}
