//! Exit codes, output, tables, colour, completion and manual pages of all command lines.

pub mod columns;
pub mod pages;
pub mod style;
pub mod text;

use std::io::Write;
use std::process::ExitCode;

/// Exit code if a check or plan found problems.
pub const EXIT_PROBLEMS: u8 = 1;
/// Exit code if the command line or the input is invalid.
pub const EXIT_BAD_INPUT: u8 = 2;
/// Exit code if a host, a cluster or an output could not be reached or changed.
pub const EXIT_UNREACHABLE: u8 = 3;

/// Error of a command, with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the program.
    pub exit_code: u8,
    /// Error that is shown to the user.
    pub error: anyhow::Error,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { exit_code: EXIT_BAD_INPUT, error: error.into() }
    }
}

/// Prints the error of a program, if it failed, and returns the program's exit code.
#[must_use]
pub fn report_result(program: &str, result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        print_error(&format!("{program}: {:#}", failure.error));
        ExitCode::from(failure.exit_code)
    })
}

/// Prints a string to standard output. It is not an error if the reader closes the pipe (`| head`).
///
/// # Errors
/// Returns [`EXIT_UNREACHABLE`] if standard output cannot be written, for example because the disk is full.
pub fn print(text: &str) -> Result<ExitCode, Failure> {
    print_to_reader(text).map(|_| ExitCode::SUCCESS)
}

/// Reader of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The text was written.
    Present,
    /// The reader has closed the pipe: no later text can be written.
    Closed,
}

/// Prints a string to standard output, as [`print()`] does, and returns the state of the reader.
///
/// # Errors
/// Returns [`EXIT_UNREACHABLE`] if standard output cannot be written.
pub fn print_to_reader(text: &str) -> Result<Reader, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::Present),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Reader::Closed),
        Err(error) => {
            let error = anyhow::Error::from(error).context("failed to write to standard output");
            Err(Failure { exit_code: EXIT_UNREACHABLE, error })
        }
    }
}

/// Prints one line to standard error. If standard error cannot be written, the line is lost.
pub fn print_error(line: &str) {
    writeln!(std::io::stderr(), "{}", text::replace_control_characters(line)).unwrap_or_default();
}
