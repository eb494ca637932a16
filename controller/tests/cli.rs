//! Runs `berth-controller` as users run it. The README and the manual show its output for the example fleet.
//!
//! After a change of the output, run `make samples` (this test with `BERTH_UPDATE=1`) and review the difference.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "tests run the program, read files, and fail by panicking"
)]

#[path = "cli/control_planes.rs"]
mod control_planes;
#[path = "cli/documents.rs"]
mod documents;
#[path = "cli/drain.rs"]
mod drain;
#[path = "cli/fleet.rs"]
mod fleet;
#[path = "cli/images.rs"]
mod images;
#[path = "../../tests/src/manual.rs"]
mod manual;
#[path = "cli/omitted.rs"]
mod omitted;
#[path = "cli/program.rs"]
mod program;
#[path = "../../tests/src/samples.rs"]
mod samples;
#[path = "../../tests/src/skip.rs"]
mod skip;
#[path = "cli/storage.rs"]
mod storage;
#[path = "cli/usage.rs"]
mod usage;
