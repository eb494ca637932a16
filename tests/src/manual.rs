//! Checks of the manual page that a program prints.

#![allow(unreachable_pub, reason = "tests of other crates include this file as a module")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::skip::skip;

/// Checks that the page has the sections NAME and SYNOPSIS and one section for each command of the reference, and that
/// groff formats it without a warning.
///
/// # Panics
/// Panics if a section is missing, or if groff prints a warning.
pub fn check(program: &str, page: &str, reference: &str) {
    let heading = format!("## {program} ");
    let commands: Vec<_> =
        reference.lines().filter_map(|line| line.strip_prefix(&heading)).collect();
    assert!(!commands.is_empty(), "the reference of {program} has no command");
    let of_commands = commands.iter().map(|name| format!("\"COMMAND {}\"", name.to_uppercase()));
    for section in ["NAME", "SYNOPSIS"].into_iter().map(str::to_owned).chain(of_commands) {
        let line = format!(".SH {section}");
        assert!(page.lines().any(|one| one == line), "the page of {program} has no {line}");
    }
    let mut groff = Command::new("groff");
    groff.args(["-man", "-ww", "-Tutf8", "-z"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut groff) = groff.spawn() else {
        return skip(&format!("the manual page of {program}"), "groff is not installed");
    };
    let written = groff.stdin.take().map(|mut stdin| stdin.write_all(page.as_bytes()));
    assert!(matches!(written, Some(Ok(()))), "groff does not read the page: {written:?}");
    let output = groff.wait_with_output();
    let is_clean =
        output.as_ref().is_ok_and(|output| output.status.success() && output.stderr.is_empty());
    assert!(is_clean, "the manual page of {program}: {output:?}");
}
