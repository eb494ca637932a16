//! Prints the progress of long benchmarks to standard error. Only the result is printed to standard output.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;
use std::time::Instant;

/// Time of the first progress message.
static BEGIN: OnceLock<Instant> = OnceLock::new();

/// Prints the step that begins now, with the seconds since the first message.
pub(crate) fn print_step(step: impl Display) {
    let seconds = BEGIN.get_or_init(Instant::now).elapsed().as_secs();
    // Ignores a write error, so that an unavailable standard error does not end a measurement.
    drop(writeln!(std::io::stderr().lock(), "{seconds:>5} s: {step}"));
}
