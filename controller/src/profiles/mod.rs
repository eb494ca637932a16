//! What hosts are asked to be: which HostProfile holds for which Node ([`choice`]), what it makes of the InfraNode
//! ([`spec`]) with the tenants that the host carries ([`carried`]) and the ends of its tunnels ([`tunnels`]), and what
//! there is to say of all of it ([`status`]).
//!
//! Pure: objects go in, and what should be comes out.

mod carried;
mod choice;
mod config;
mod fleet;
mod spec;
mod status;
mod tunnels;

pub use carried::carried;
pub use choice::{Choice, choose, fault};
pub use config::faults_of_config;
pub use fleet::{Fleet, Host, Outcome};
pub use spec::{Wanted, labels, wanted};
pub use status::{Said, condition, profile_status, said_of_host};
