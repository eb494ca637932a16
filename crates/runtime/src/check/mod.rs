//! Checks of a host (`berth-agent check`) and of a cluster (`berth-controller check`): their definition, their outcome,
//! and the table of findings.

mod definition;
mod findings;
mod names;
mod outcome;
mod output;
pub mod table;

pub use definition::{Check, select};
pub use findings::{Finding, Findings, Summary};
pub use names::name_parser;
pub use outcome::{Evidence, Outcome, Status};
pub use output::OutputFormat;
