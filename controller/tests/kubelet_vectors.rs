//! Compares the predicted admission of random pods on random hosts with the answers of the kubelet's own Go packages.
//!
//! `tests/data/README.md` describes the recording.
#![expect(clippy::disallowed_methods, reason = "the test reads recorded answers")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/src/data.rs"]
mod data;
#[path = "kubelet_vectors/format.rs"]
mod format;
#[path = "kubelet_vectors/replay.rs"]
mod replay;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::json;

#[test]
fn predictions_equal_recorded_answers() {
    let mut tally = replay::ReplayCounts::default();
    for file in recorded_files() {
        let unpacked = GzDecoder::new(std::fs::File::open(&file).expect("the file can be opened"));
        for line in BufReader::new(unpacked).lines() {
            let line = line.expect("the file can be decompressed");
            let case: format::Case = serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            replay::replay(&case, &mut tally);
        }
        print_counts(&file, &tally);
    }
    let shown: Vec<&str> = tally.mismatches.iter().take(20).map(String::as_str).collect();
    assert!(
        tally.mismatches.is_empty(),
        "{}\n{} mismatches",
        shown.join("\n\n"),
        tally.mismatches.len()
    );
    assert!(tally.admissions() > 0, "the files contain no pod");
}

fn print_counts(file: &Path, tally: &replay::ReplayCounts) {
    let mut out = std::io::stderr().lock();
    let mut write_line =
        |text: String| writeln!(out, "{text}").expect("standard error can be written");
    write_line(format!(
        "{} and earlier files: {} cases, {} events",
        file.display(),
        tally.cases,
        tally.events
    ));
    let mut by_policy: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
    for ((policy, scope, outcome), count) in &tally.outcomes {
        let (all, refused) = by_policy.entry((policy, scope)).or_default();
        *all += count;
        if outcome != "admitted" {
            *refused += count;
        }
    }
    for ((policy, scope), (all, refused)) in by_policy {
        write_line(format!("  {policy} {scope}: {all} pods, {refused} refused"));
    }
    let mut by_outcome: BTreeMap<&str, usize> = BTreeMap::new();
    for ((_, _, outcome), count) in &tally.outcomes {
        *by_outcome.entry(outcome).or_default() += count;
    }
    for (outcome, count) in by_outcome {
        write_line(format!("  {outcome}: {count}"));
    }
    write_line(format!(
        "  restarts: {}, of which {} refused, {} nondeterministic",
        tally.restarts, tally.restarts_refused, tally.nondeterministic_restarts
    ));
    write_line(format!(
        "  nondeterministic admissions: {}, of which {} with another result",
        tally.nondeterministic_admissions, tally.nondeterministic_mismatches
    ));
    write_line(format!("  refusals that name another device: {}", tally.other_devices_named));
}

/// A kubelet iterates over the resources of a container in the order of a Go map, which is random.
#[test]
fn either_of_two_insufficient_resources_may_be_reported() {
    let message = |name: &str| {
        format!(
            "Allocate failed due to requested number of devices unavailable for {name}. Requested: 2, Available: 1, which is unexpected"
        )
    };
    let pools = ["x/a", "x/b", "x/c"].map(|name| {
        let count = if name == "x/c" { 2 } else { 1 };
        json!({"resourceName": name, "devicesPerNumaNode": [{"numaNodeId": 0, "count": count}]})
    });
    let amounts =
        json!({"cpuMillis": 100, "memoryBytes": 1024, "devices": {"x/a": 2, "x/b": 2, "x/c": 2}});
    let replayed = |named: &str| {
        let case = json!({
            "caseId": named, "kubernetesVersion": "v1.36.2",
            "host": {
                "numaNodes": [{"numaNodeId": 0, "socketId": 0, "memoryBytes": 1_u64 << 30,
                    "hugepages2MiBytes": 0, "hugepages1GiBytes": 0, "cores": [[0], [1]]}],
                "devicePools": pools,
                "nodeAllocatable": {"pods": 110, "cpuMillis": 2000, "memoryBytes": 1_u64 << 30,
                    "devices": {"x/a": 1, "x/b": 1, "x/c": 2}},
            },
            "kubeletConfiguration": {"cpuManagerPolicy": "none", "cpuManagerPolicyOptions": {},
                "reservedSystemCPUs": "", "memoryManagerPolicy": "None", "reservedMemory": [],
                "topologyManagerPolicy": "none", "topologyManagerScope": "container",
                "topologyManagerPolicyOptions": {}},
            "stateInitial": {},
            "events": [{"event": "admitPod", "stateAfter": {},
                "pod": {"uid": "pod-1", "containers": [{"name": "c", "requests": amounts, "limits": amounts}]},
                "outcome": {"admitted": false, "refusedBy": "topologyManager",
                    "reason": "UnexpectedAdmissionError", "message": message(named)}}],
        });
        let mut tally = replay::ReplayCounts::default();
        replay::replay(
            &serde_json::from_value(case).expect("the case should be valid"),
            &mut tally,
        );
        (tally.other_devices_named, tally.mismatches.len())
    };
    assert_eq!(replayed("x/a"), (0, 0));
    assert_eq!(replayed("x/b"), (1, 0));
    assert_eq!(replayed("x/c"), (0, 1), "the host has enough devices x/c");
}

/// Returns the files with recorded answers; `BERTH_KUBELET_VECTORS` names another file or folder.
fn recorded_files() -> Vec<PathBuf> {
    let Some(path) = std::env::var_os("BERTH_KUBELET_VECTORS").map(PathBuf::from) else {
        return data::files("kubelet", ".jsonl.gz");
    };
    assert!(path.exists(), "BERTH_KUBELET_VECTORS: {} does not exist", path.display());
    if path.is_file() {
        return vec![path];
    }
    let entries = std::fs::read_dir(&path).expect("the folder can be listed");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.to_string_lossy().ends_with(".jsonl.gz"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} contains no *.jsonl.gz file", path.display());
    files
}
