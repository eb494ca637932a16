//! Web console of an infra cluster.
//!
//! One set of watches ([`objects`]) serves all users. Each user signs in with a credential of the API server
//! ([`identity`]), and sees the objects that the API server permits this user to list ([`rights`]). Pages are HTML from
//! compiled templates ([`pages`]); scripts only filter and refresh.

mod assets;
mod client_address;
mod error;
mod handlers;
mod headers;
mod host_check;
mod identity;
mod keyed_limit;
mod new_deployment;
mod objects;
mod pages;
mod query;
mod random;
mod refusal;
mod requests;
mod rights;
mod router;
mod run;
mod server;
mod session;
mod settings;
mod simulation;
mod state;
#[cfg(test)]
mod test_helpers;
mod time_limits;
mod tls;
mod vm_stream;
mod what_if;
mod write_limit;

pub use refusal::Refusal;
pub use run::run;
pub use settings::{Settings, SettingsError, Transport};
pub use simulation::{
    BlockedVm, DrainReport, DrainStep, MoveKind, PlacementReport, Ranking, SimulatedMove,
    SimulatedPlacement, SimulationError, Simulator,
};
pub use what_if::{
    Change, FreeAmount, HostAfterChange, HostChange, HostEffect, HostMap, Interruption,
    InterruptionKind, MAX_ADDED_HOSTS, MachineNumbers, NewPlacement, ProfileSource, Totals,
    VmWithoutHost, WhatIfReport,
};
