//! Compares predicted launcher pods and refusals with the launcher pods and refusals of KubeVirt's own code for the
//! same machines, in several releases.
//!
//! The answers were recorded with KubeVirt's own packages: see `tests/data/README.md`.
#![expect(clippy::disallowed_methods, reason = "the test reads recorded answers")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "kubevirt_vectors/compare.rs"]
mod compare;
#[path = "../../tests/src/data.rs"]
mod data;
#[path = "kubevirt_vectors/format.rs"]
mod format;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

use compare::{Difference, Outcome};
use flate2::read::GzDecoder;

/// Recorded KubeVirt releases, in the order of `counts` in [`KNOWN_DIFFERENCES`].
const RELEASES: [&str; 5] = ["v1.5.3", "v1.6.6", "v1.8.4", "v1.9.0", "main"];

/// A known kind of difference between predictions and records.
struct KnownDifference {
    class: &'static str,
    /// Reason why the prediction is not corrected.
    reason: &'static str,
    /// Number of machines with the difference, for each release of [`RELEASES`].
    counts: [usize; 5],
}

/// Known differences. A test fails if a number is not exact, so that a correction of the prediction lowers the number.
/// Do not add an entry for a difference that your change of the prediction causes.
const KNOWN_DIFFERENCES: [KnownDifference; 13] = [
    KnownDifference {
        class: "affinity of claims",
        reason: "since 1.9 a term names the UID of a claim with a persistent reservation",
        counts: [0, 0, 0, 59, 59],
    },
    KnownDifference {
        class: "Berth: device",
        reason: "1.5 requests a resource without a name for a GPU without deviceName",
        counts: [4, 0, 0, 0, 0],
    },
    KnownDifference {
        class: "Berth: number of CPUs",
        reason: "KubeVirt admits a VM with 10,000,000 CPUs; Berth's maximum is 1,048,576",
        counts: [4, 4, 4, 4, 4],
    },
    KnownDifference {
        class: "Berth: guest memory",
        reason: "KubeVirt admits guest memory that is not positive; such a VM never starts",
        counts: [3, 4, 4, 4, 4],
    },
    KnownDifference {
        class: "Berth: instance type",
        reason: "KubeVirt admits an instance type without vCPUs or memory; such a VM never starts",
        counts: [2, 2, 2, 2, 2],
    },
    KnownDifference {
        class: "Berth: negative overhead",
        reason: "KubeVirt admits a negative reservedOverhead.addedOverhead",
        counts: [0, 0, 1, 1, 1],
    },
    KnownDifference {
        class: "Berth: resource name",
        reason: "an API server refuses resources such as `foo`, which the records do not show",
        counts: [6, 6, 6, 6, 6],
    },
    KnownDifference {
        class: "KubeVirt: schema",
        reason: "the schema of the release has no such field or value",
        counts: [385, 226, 29, 29, 29],
    },
    KnownDifference {
        class: "KubeVirt: feature gate",
        reason: "Berth does not check whether a field needs a feature gate that is disabled",
        counts: [371, 403, 303, 144, 144],
    },
    KnownDifference {
        class: "KubeVirt: guest memory",
        reason: "Berth does not check memory hotplug; in 1.5 it also does not check guest memory above the limit",
        counts: [27, 10, 14, 16, 16],
    },
    KnownDifference {
        class: "KubeVirt: launch security",
        reason: "Berth does not check what launch security needs, such as UEFI",
        counts: [8, 8, 30, 38, 38],
    },
    KnownDifference {
        class: "KubeVirt: machine type",
        reason: "Berth does not check whether a release supports a machine type",
        counts: [13, 14, 15, 15, 15],
    },
    KnownDifference {
        class: "KubeVirt: other checks",
        reason: "Berth checks only fields on which the requests of a pod depend",
        counts: [184, 183, 165, 177, 177],
    },
];

/// Number of machines by release and outcome, and names of the machines with differences by class and release.
#[derive(Default)]
struct OutcomeCounts {
    outcomes: BTreeMap<(String, &'static str), usize>,
    differences: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

const OUTCOMES: [&str; 5] =
    ["equal", "different", "refused by both", "refused by KubeVirt", "refused by Berth"];

impl OutcomeCounts {
    fn add(&mut self, case: &format::Case) {
        let (outcome, differences) = match compare::compare(case) {
            Outcome::Equal => (OUTCOMES[0], Vec::new()),
            Outcome::Different(differences) => (OUTCOMES[1], differences),
            Outcome::RefusedByBoth(difference) => (OUTCOMES[2], difference.into_iter().collect()),
            Outcome::RefusedByKubeVirt(difference) => (OUTCOMES[3], vec![difference]),
            Outcome::RefusedByBerth(difference) => (OUTCOMES[4], vec![difference]),
        };
        *self.outcomes.entry((case.release.clone(), outcome)).or_default() += 1;
        for Difference { class, predicted, recorded } in differences {
            let by_release = self.differences.entry(class).or_default();
            let details = by_release.entry(case.release.clone()).or_default();
            details.push(format!(
                "{} {}\n    predicted: {predicted}\n    recorded:  {recorded}",
                case.release, case.id
            ));
        }
    }

    fn machines_with_difference(&self, class: &str, release: &str) -> &[String] {
        let by_release = self.differences.get(class);
        let found = by_release.and_then(|by_release| by_release.get(release));
        found.map(Vec::as_slice).unwrap_or_default()
    }

    fn print(&self) {
        let mut out = std::io::stderr().lock();
        let mut write_row = |name: &str, columns: [String; 5]| {
            let columns = columns.map(|column| format!("{column:>20}")).concat();
            writeln!(out, "{name:<8}{columns}").expect("stderr");
        };
        write_row("release", OUTCOMES.map(str::to_owned));
        for release in RELEASES {
            let count = |outcome| self.outcomes.get(&(release.to_owned(), outcome)).unwrap_or(&0);
            write_row(release, OUTCOMES.map(|outcome| count(outcome).to_string()));
        }
    }
}

#[test]
fn predictions_equal_recorded_answers() {
    let (stored_files, other_files) = input_files();
    // The numbers in `KNOWN_DIFFERENCES` apply only to the files in tests/data.
    let counted = count_outcomes(&stored_files);
    let mut faults = unlisted_differences(&counted);
    if !stored_files.is_empty() {
        faults.extend(changed_counts(&counted));
    }
    faults.extend(unlisted_differences(&count_outcomes(&other_files)));
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// Compares all machines in recorded files, and prints the outcomes.
fn count_outcomes(files: &[PathBuf]) -> OutcomeCounts {
    let mut counts = OutcomeCounts::default();
    for file in files {
        let unpacked = GzDecoder::new(std::fs::File::open(file).expect("the file should open"));
        for line in BufReader::new(unpacked).lines() {
            let line = line.expect("the file should unpack");
            let case: format::Case = serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            counts.add(&case);
        }
    }
    if !files.is_empty() {
        assert!(!counts.outcomes.is_empty(), "the files contain no machine");
        counts.print();
    }
    counts
}

/// Returns a message for each class of differences that is not in [`KNOWN_DIFFERENCES`].
fn unlisted_differences(counts: &OutcomeCounts) -> Vec<String> {
    let is_unlisted = |class: &str| KNOWN_DIFFERENCES.iter().all(|known| known.class != class);
    let unlisted = counts.differences.iter().filter(|(class, _)| is_unlisted(class));
    unlisted
        .flat_map(|(class, by_release)| by_release.iter().map(move |found| (class, found)))
        .map(|(class, (release, found))| {
            describe_machines(class, release, found, "no such difference is known")
        })
        .collect()
}

/// Returns a message for each number in [`KNOWN_DIFFERENCES`] that differs from the counted number.
fn changed_counts(counts: &OutcomeCounts) -> Vec<String> {
    let mut faults = Vec::new();
    for KnownDifference { class, reason, counts: known_counts } in &KNOWN_DIFFERENCES {
        for (release, count) in RELEASES.iter().zip(known_counts) {
            let found = counts.machines_with_difference(class, release);
            if found.len() > *count {
                let known = format!("{count} such differences are known: {reason}");
                faults.push(describe_machines(class, release, found, &known));
            } else if found.len() < *count {
                let number = found.len();
                faults.push(format!(
                    "{class}, {release}: lower {count} to {number} in `KNOWN_DIFFERENCES`"
                ));
            }
        }
    }
    faults
}

/// Returns a message with the number of machines that have a difference, and the names of at most five of them.
fn describe_machines(class: &str, release: &str, found: &[String], known: &str) -> String {
    let first: Vec<&str> = found.iter().take(5).map(String::as_str).collect();
    format!("{class}, {release}: {} machines, {known}\n  {}", found.len(), first.join("\n  "))
}

/// Returns the recorded files of `tests/data`, and additional recorded files. If `BERTH_KUBEVIRT_VECTORS` names a
/// folder, returns only the files of this folder, as additional files.
fn input_files() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let Some(path) = std::env::var_os("BERTH_KUBEVIRT_VECTORS").map(PathBuf::from) else {
        let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
        let all = data::files("kubevirt", ".jsonl.gz").into_iter();
        return all.partition(|path| path.starts_with(&own));
    };
    let entries = std::fs::read_dir(&path)
        .unwrap_or_else(|error| panic!("BERTH_KUBEVIRT_VECTORS: {}: {error}", path.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.to_string_lossy().ends_with(".jsonl.gz"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no *.jsonl.gz in {}", path.display());
    (Vec::new(), files)
}
