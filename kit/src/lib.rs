//! What Berth's daemons share, so that both reach the cluster, give way to others, answer and log alike.

pub mod certificate;
pub mod client;
pub mod credential;
pub mod events;
pub mod exchange;
pub mod log;
pub mod pace;
pub mod refusal;
mod retry_after;
pub mod serve;
