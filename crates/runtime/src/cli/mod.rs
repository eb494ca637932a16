//! What Berth's command lines share, so that all of them end, print and explain themselves alike.

pub mod pages;
pub mod style;
pub mod text;

use std::io::Write;
use std::process::ExitCode;

/// Exit code for a check or plan that found problems.
pub const PROBLEMS: u8 = 1;
/// Exit code for bad usage or input.
pub const BAD_INPUT: u8 = 2;
/// Exit code for a host, a cluster or an output that could not be reached or changed.
pub const UNREACHABLE: u8 = 3;

/// Why a program ends without doing what it was asked to.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What is wrong, for people.
    pub error: anyhow::Error,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: BAD_INPUT, error: error.into() }
    }
}

/// The exit code of a program; a failure is told first.
#[must_use]
pub fn end(program: &str, result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        complain(&format!("{program}: {:#}", failure.error));
        ExitCode::from(failure.code)
    })
}

/// Prints to standard output. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// [`UNREACHABLE`] if standard output takes nothing (a full disk).
pub fn print(text: &str) -> Result<ExitCode, Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let error = anyhow::Error::from(error).context("standard output");
            Err(Failure { code: UNREACHABLE, error })
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints one line to standard error; there is nobody to tell if that fails.
pub fn complain(line: &str) {
    writeln!(std::io::stderr(), "{}", text::printable(line)).unwrap_or_default();
}
