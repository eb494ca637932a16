//! Tests that the placement engine admits and refuses pods as a real kubelet does. The test converts recorded answers
//! of the kubelet's own packages to the kubelet's formats (both checkpoints and PodResources answers). The agent's code
//! creates a report from these files, and the controller's code reads the report. For the next pod, the engine must
//! then decide as the kubelet did.
//!
//! The engine's own placements are not used: after every event the engine has only the content of the report.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "reports/agent.rs"]
mod agent;
#[path = "reports/case.rs"]
mod case;
#[path = "reports/replay.rs"]
mod replay;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

use berth_tests::data;
use flate2::read::GzDecoder;
use replay::Tally;

#[test]
fn engine_matches_recorded_kubelet_decisions() {
    let files = recorded_files();
    let mut tally = Tally::default();
    for file in &files {
        let unpacked = GzDecoder::new(std::fs::File::open(file).expect("the file can be opened"));
        for line in BufReader::new(unpacked).lines() {
            let line = line.expect("the file can be decompressed");
            let case = serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            replay::replay(&case, &mut tally);
        }
    }
    writeln!(std::io::stderr(), "{tally}").expect("standard error is writable");
    let shown: Vec<&str> = tally.mismatches.iter().take(20).map(String::as_str).collect();
    let count = tally.mismatches.len();
    assert!(tally.mismatches.is_empty(), "{}\n{count} mismatches", shown.join("\n\n"));
    assert!(tally.is_representative(), "the files have too few cases of a kind: {tally}");
}

/// Returns the recorded answers of kubelets with a Memory Manager.
fn recorded_files() -> Vec<PathBuf> {
    let mut files = data::files("kubelet", ".jsonl.gz");
    files.retain(|path| {
        path.file_name().unwrap_or_default().to_string_lossy().starts_with("kubelet-1.36")
    });
    files
}
