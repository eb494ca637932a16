//! Tests that cannot run on this machine. `tests/run.sh` counts such tests as skipped, not as passed.

#![allow(unreachable_pub, reason = "tests of other crates include this file as a module")]

use std::io::Write as _;

/// Records that a test cannot run here. The caller must return afterwards.
///
/// # Panics
/// Panics if `BERTH_NO_SKIP` is set.
pub fn skip(test: &str, reason: &str) {
    assert!(
        std::env::var_os("BERTH_NO_SKIP").is_none(),
        "{test} cannot run: {reason}; BERTH_NO_SKIP is set"
    );
    record(&format!("{test}: {reason}"));
}

/// Writes a line to standard error and to the file that `BERTH_SKIPS` names.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn record(line: &str) {
    // The test harness discards the captured output of a test that passes, so the line goes to the stream itself.
    writeln!(std::io::stderr(), "skipped: {line}").unwrap_or_default();
    if let Some(file) = std::env::var_os("BERTH_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        assert!(written.is_ok(), "BERTH_SKIPS cannot be written: {written:?}");
    }
}
