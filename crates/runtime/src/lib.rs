//! Shared code of Berth's programs: command lines, checks, logging, the client of the API server (feature `cluster`),
//! streams to VMs (feature `vm-stream`), and HTTP servers (feature `http`).

#[cfg(feature = "cluster")]
pub mod backoff;
#[cfg(feature = "cluster")]
pub mod call;
pub mod certificate;
pub mod check;
pub mod cli;
#[cfg(feature = "cluster")]
pub mod client;
#[cfg(feature = "cluster")]
pub mod credential;
#[cfg(feature = "cluster")]
pub mod discovery;
#[cfg(feature = "cluster")]
pub mod events;
#[cfg(feature = "cluster")]
pub mod field_conflicts;
#[cfg(feature = "cluster")]
mod kubeconfig;
#[cfg(feature = "cluster")]
pub mod leader_election;
#[cfg(feature = "http")]
pub mod listen;
#[cfg(feature = "http")]
pub mod local_server;
pub mod log;
#[cfg(feature = "cluster")]
pub mod object_events;
pub mod object_name;
#[cfg(feature = "cluster")]
pub mod reconcile;
#[cfg(feature = "cluster")]
mod retry_after;
#[cfg(feature = "http")]
pub mod serve;
pub mod token_bucket;
#[cfg(feature = "cluster")]
pub mod untrusted;
#[cfg(feature = "vm-stream")]
pub mod vm_stream;
#[cfg(feature = "cluster")]
pub mod watch;
