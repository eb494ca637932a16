//! Tests that names in documents, alerts and the dashboard exist in the programs.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read the repository's files, and fail by panicking"
)]

#[path = "documents/node_ip.rs"]
mod node_ip;
#[path = "source/test_code.rs"]
mod test_code;

use std::collections::BTreeSet;
use std::process::Command;

use berth_api::{
    ConditionReason, EventReason, HostLeases, HostProfile, InfraConfig, InfraNode, InfraNodeStatus,
    TenantCluster, TenantQuota, TenantRequest, feature_labels,
};
use berth_tests::repository;
use serde_json::Value;
use strum::IntoEnumIterator as _;
use test_code::code_without_tests;

fn read_text(file: &str) -> String {
    std::fs::read_to_string(repository().join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the source code of the agent, the controller and their crates, without tests.
fn program_code() -> String {
    let mut all = String::new();
    let mut pending: Vec<_> = ["agent/src", "controller/src", "crates"]
        .iter()
        .map(|folder| repository().join(folder))
        .collect();
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                all += &code_without_tests(&text);
            }
        }
    }
    all
}

/// Returns the quoted names after each `register(`.
fn registered_metrics(code: &str) -> BTreeSet<&str> {
    let calls = code.split(".register(").skip(1);
    calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

/// Returns the words of a text that have the prefix of Berth's metrics.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("berth_") || word.starts_with("process_")).collect()
}

/// Returns true if Prometheus exports a registered metric under this name.
fn is_exported(name: &str, registered: &BTreeSet<&str>) -> bool {
    let plain = ["_total", "_info", "_bucket", "_sum", "_count"]
        .iter()
        .find_map(|end| name.strip_suffix(end));
    registered.contains(name) || plain.is_some_and(|plain| registered.contains(plain))
}

/// Checks that the DaemonSet mounts no folder that a host may lack: a pod does not start without such a folder, and
/// a machine may have no ACPI.
#[test]
fn daemonset_mounts_only_folders_that_every_host_has() {
    let set = read_text("deploy/base/daemonset.yaml");
    let paths = set.split("hostPath: {path: ").skip(1).filter_map(|rest| rest.split(',').next());
    let paths: Vec<&str> = paths.collect();
    assert!(paths.len() > 10, "{paths:?}");
    for may_lack in
        ["/sys/firmware", "/sys/class/dmi", "/proc/sys/net/ipv6", "/sys/fs/cgroup/hugetlb"]
    {
        assert!(paths.iter().all(|path| !path.starts_with(may_lack)), "{may_lack}: {paths:?}");
    }
}

#[test]
fn documented_metrics_are_exported() {
    let code = program_code();
    let registered = registered_metrics(&code);
    assert!(registered.len() > 15, "{registered:?}");
    let folder = "deploy/components/monitoring";
    let document = read_text("docs/metrics.md");
    for (file, least) in [
        ("docs/metrics.md".to_owned(), 15),
        (format!("{folder}/alerts.yaml"), 5),
        (format!("{folder}/controller-alerts.yaml"), 3),
        (format!("{folder}/dashboard.json"), 10),
    ] {
        let text = read_text(&file);
        let named = metric_names(&text);
        assert!(named.len() >= least, "{file} names {named:?}");
        for name in named {
            assert!(is_exported(name, &registered), "{file}: no program exports {name}");
        }
    }
    let described = metric_names(&document);
    for name in registered {
        let is_described =
            described.iter().any(|described| is_exported(described, &BTreeSet::from([name])));
        assert!(is_described, "docs/metrics.md does not describe {name}");
    }
}

#[test]
fn each_check_has_a_remedy() {
    let document = read_text("docs/troubleshooting.md");
    let (_, checks) = document.split_once("## Checks, by id").unwrap();
    let (checks, _) = checks.split_once("\n## ").unwrap();
    let list = read_text("docs/checks.md");
    let ids =
        list.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    let ids: BTreeSet<&str> = ids.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(ids.len() > 40, "{ids:?}");
    for id in &ids {
        assert!(
            checks.contains(&format!("`{id}`")),
            "docs/troubleshooting.md does not describe {id}"
        );
    }
    let rows = checks.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    for id in rows.flat_map(|(ids, _)| ids.split(", ").map(|id| id.trim_matches('`'))) {
        assert!(ids.contains(id), "docs/troubleshooting.md: the check {id} does not exist");
    }
}

#[test]
fn labels_are_described() {
    let document = read_text("docs/hosts.md");
    let described: BTreeSet<&str> = document
        .split('`')
        .filter(|word| word.starts_with("host.berth.dev/") && !word.ends_with('*'))
        .collect();
    let status = InfraNodeStatus::default();
    let labels: BTreeSet<&str> = feature_labels(&status).into_keys().collect();
    assert_eq!(described, labels);
}

#[test]
fn alerts_are_described() {
    let document = read_text("docs/metrics.md");
    let mut alerts = 0;
    for file in ["alerts.yaml", "controller-alerts.yaml"] {
        let rules = read_text(&format!("deploy/components/monitoring/{file}"));
        let rules: Value = serde_saphyr::from_str(&rules).unwrap();
        for group in rules["spec"]["groups"].as_array().unwrap() {
            for rule in group["rules"].as_array().unwrap() {
                let name = rule["alert"].as_str().unwrap();
                assert!(
                    document.contains(&format!("| `{name}` |")),
                    "docs/metrics.md does not describe {name}"
                );
                assert!(rule["annotations"]["summary"].is_string(), "{name} has no summary");
                alerts += 1;
            }
        }
    }
    assert!(alerts > 10, "{alerts} alerts");
    let described = document.matches("| `Berth").count();
    assert_eq!(described, alerts, "docs/metrics.md describes alerts that do not exist");
}

#[test]
fn dashboard_is_valid() {
    let dashboard: Value =
        serde_json::from_str(&read_text("deploy/components/monitoring/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<i64> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have the same id");
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                let count = |sign| query.matches(sign).count();
                assert_eq!(count(open), count(close), "{}: {query}", panel["title"]);
            }
        }
    }
}

/// Returns the words between backticks in the columns with this name of all tables of a document.
fn column_words<'a>(document: &'a str, name: &str) -> BTreeSet<&'a str> {
    let (mut words, mut column) = (BTreeSet::new(), None);
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells.len() < 3 {
            column = None;
        } else if let Some(at) = cells.iter().position(|cell| *cell == name) {
            column = Some(at);
        } else if let Some(at) = column {
            words.extend(cells[at].split('`').skip(1).step_by(2));
        }
    }
    words
}

/// Checks that each table has only one row for a reason, an event, a check, a metric or an alert: after a merge of
/// branches, both the old and the new text of a row may be in the table. In tables with a column before the reason,
/// such as the condition, a reason may have one row for each value of this column.
#[test]
fn rows_of_a_table_are_unique() {
    for (file, least) in [("docs/troubleshooting.md", 200), ("docs/metrics.md", 80)] {
        let document = read_text(file);
        let (mut rows, mut column, mut count) = (BTreeSet::new(), None, 0);
        for line in document.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if cells.len() < 3 {
                column = None;
            } else if let Some(at) = column {
                let key = &cells[..=at];
                assert!(rows.insert(key.to_vec()), "{file}: two rows for {key:?}");
                count += 1;
            } else {
                rows.clear();
                let key = cells.iter().position(|cell| ["reason", "event"].contains(cell));
                column = Some(key.unwrap_or(1));
            }
        }
        assert!(count > least, "{file}: {count} rows");
    }
}

/// Checks that each reason has a row in a table of docs/troubleshooting.md, and that each row has an existing reason.
#[test]
fn documented_reasons_exist() {
    let document = read_text("docs/troubleshooting.md");
    let conditions: BTreeSet<&str> = ConditionReason::iter().map(ConditionReason::as_str).collect();
    let events: BTreeSet<&str> = EventReason::iter().map(EventReason::as_str).collect();
    assert_eq!(column_words(&document, "reason"), conditions);
    assert_eq!(column_words(&document, "event"), events);
}

/// Collects the paths of fields that the conversion to the Rust type drops, because the type has no such fields.
fn collect_lost_fields(written: &Value, typed: &Value, path: &str, all: &mut Vec<String>) {
    match (written, typed) {
        (Value::Object(written), Value::Object(typed)) => {
            for (key, value) in written {
                let path = format!("{path}.{key}");
                match typed.get(key) {
                    Some(typed) => collect_lost_fields(value, typed, &path, all),
                    None => all.push(path),
                }
            }
        }
        (Value::Array(written), Value::Array(typed)) => {
            for (at, (written, typed)) in written.iter().zip(typed).enumerate() {
                collect_lost_fields(written, typed, &format!("{path}[{at}]"), all);
            }
        }
        _ => {}
    }
}

/// Converts an object to its Rust type and back; `None` if Berth has no type for the object's kind.
fn round_trip(object: &Value) -> Option<serde_json::Result<Value>> {
    use serde_json::{from_value, to_value};
    let object = object.clone();
    Some(match object["kind"].as_str()? {
        "HostLeases" => from_value::<HostLeases>(object).and_then(to_value),
        "HostProfile" => from_value::<HostProfile>(object).and_then(to_value),
        "InfraConfig" => from_value::<InfraConfig>(object).and_then(to_value),
        "InfraNode" => from_value::<InfraNode>(object).and_then(to_value),
        "TenantCluster" => from_value::<TenantCluster>(object).and_then(to_value),
        "TenantQuota" => from_value::<TenantQuota>(object).and_then(to_value),
        "TenantRequest" => from_value::<TenantRequest>(object).and_then(to_value),
        _ => return None,
    })
}

/// Checks that objects in documents are valid: no field is misspelt, and no value is out of its range.
#[test]
fn objects_in_documents_are_valid() {
    let mut seen = 0;
    for file in [
        "profiles",
        "networks",
        "isolation",
        "assignment",
        "install",
        "machines",
        "tenant-access",
        "host-loss",
        "storage",
        "tenant-storage",
        "self-service",
    ] {
        let file = format!("docs/{file}.md");
        let text = read_text(&file);
        for block in text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            let objects: Vec<Value> = serde_saphyr::from_multiple(block)
                .unwrap_or_else(|error| panic!("{file}: {error}\n{block}"));
            for object in objects {
                // A document may show only a part of an object.
                let object = match object.get("networks") {
                    Some(networks) => {
                        serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile",
                        "metadata": {"name": "of-a-document"}, "spec": {"networks": networks}})
                    }
                    None => object,
                };
                let Some(typed) = round_trip(&object) else { continue };
                let typed = typed.unwrap_or_else(|error| panic!("{file}: {error}\n{block}"));
                let mut all = Vec::new();
                collect_lost_fields(&object["spec"], &typed["spec"], "spec", &mut all);
                assert!(all.is_empty(), "{file}: unknown fields: {all:?}\n{block}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 8, "{seen} objects");
}

/// Checks that the table of tested versions is what `tests/compatibility.sh` writes from the results, and that each test
/// and each make target that the document names exists.
#[test]
fn tested_versions_are_those_of_the_results() {
    let document = read_text("docs/compatibility.md");
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("compatibility.md");
    std::fs::write(&copy, &document).unwrap();
    let script = repository().join("tests/compatibility.sh");
    let status = Command::new("sh").arg(script).arg("docs/results").arg(&copy).status().unwrap();
    assert!(status.success(), "{status}");
    let written = std::fs::read_to_string(&copy).unwrap();
    assert!(written == document, "the table of docs/compatibility.md: run tests/compatibility.sh");
    let makefile = read_text("Makefile");
    let (mut files, mut targets) = (0, 0);
    for code in document.split('`').skip(1).step_by(2) {
        if code.ends_with(".rs") {
            files += 1;
            assert!(repository().join(code).is_file(), "docs/compatibility.md: {code}");
        } else if let Some(target) = code.strip_prefix("make ") {
            targets += 1;
            let rule = format!("\n{target}:");
            assert!(makefile.contains(&rule), "docs/compatibility.md: make {target}");
        }
    }
    assert!(files > 20 && targets > 10, "{files} files, {targets} make targets");
}
