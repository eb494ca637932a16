//! Finds the host's kubelet and reads its configuration and checkpoints.

use berth_api::infra_node::UnknownReason;

use super::facts::KubeletFacts;
use super::process::{self, Found};
use super::started::{self, Record, Start, StartedWith};
use super::{drop_in, layers};
use crate::ledger::KUBELET;
use crate::notes::Notes;
use crate::processes::{EMBEDDED, Processes};
use crate::root::Root;

/// Flags of the kubelet and the configuration fields that they set, for the fields on which Berth gives advice.
const FLAGS: [(&str, &str); 6] = [
    ("cpu-manager-policy", "cpuManagerPolicy"),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions"),
    ("reserved-cpus", "reservedSystemCPUs"),
    ("topology-manager-policy", "topologyManagerPolicy"),
    ("memory-manager-policy", "memoryManagerPolicy"),
    ("reserved-memory", "reservedMemory"),
];

/// Finds the kubelet by its process, or else by the usual configuration files, and reads its configuration and
/// checkpoints.
pub fn observe(
    root: &Root,
    processes: &Processes,
    boot_id: Option<&str>,
    notes: &mut Notes,
) -> KubeletFacts {
    let record = Record::read(root).unwrap_or_else(|error| {
        notes.warn(format!("/{}", error.path), error.problem.to_string());
        None
    });
    let process = process::find(root, processes);
    let embedded = EMBEDDED.into_iter().find(|name| processes.named(name).is_some());
    let mut facts = KubeletFacts {
        runs: processes.kubelet_runs(),
        folder: "/var/lib/kubelet".to_owned(),
        unit: "kubelet.service".to_owned(),
        ..KubeletFacts::default()
    };
    let found = match (process, embedded) {
        (Found::None, Some(name)) => Err((
            UnknownReason::NotFound,
            format!("{name} embeds the kubelet, whose flags are not visible in /proc"),
        )),
        (Found::One(pid), _) => {
            facts.pid = Some(pid);
            facts.unit = process::systemd_unit(root, pid).unwrap_or(facts.unit);
            let after_boot = started::start_time(root, pid);
            facts.start = boot_id
                .zip(after_boot)
                .map(|(boot_id, after_boot)| Start { boot_id: boot_id.to_owned(), after_boot });
            layers::arguments(root, pid).and_then(|arguments| {
                facts.arguments.clone_from(&arguments);
                layers::from_arguments(root, &arguments, format!("/proc/{pid}/cmdline"))
            })
        }
        (Found::Several(pids), _) => Err((
            UnknownReason::Malformed,
            format!(
                "processes {} are all named kubelet; it is not known which is the host's",
                pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
            ),
        )),
        (Found::None, None) => {
            let last = record.as_ref().map(|record| record.arguments.clone());
            facts.arguments = last.unwrap_or_default();
            let by_record = record
                .is_some()
                .then(|| layers::from_arguments(root, &facts.arguments, format!("/{KUBELET}")));
            match by_record {
                Some(Ok(layers)) => Ok(layers),
                _ => layers::from_usual_files(root, processes.known),
            }
        }
    };
    let mut read = Vec::new();
    match found {
        Ok(mut layers) => {
            facts.without_drop_in = layers.without_drop_in();
            read.append(&mut layers.read);
            if let Some(folder) = layers.flags.last_value("root-dir") {
                folder.trim_end_matches('/').clone_into(&mut facts.folder);
            }
            facts.set_by_flags = FLAGS
                .into_iter()
                .filter(|(flag, _)| layers.flags.last_value(flag).is_some())
                .map(|(_, field)| field)
                .collect();
            if let Some(folder) = layers.flags.last_value("config-dir") {
                let folder = folder.trim_end_matches('/');
                let file = |name: &str| {
                    root.read(&format!("{folder}/{name}")).ok().map(|text| text + "\n")
                };
                facts.drop_in = file(drop_in::ACTIVE);
                facts.staged_drop_in = file(drop_in::STAGED);
                facts.config_dir = Some(folder.to_owned());
            }
            facts.node_name = layers.flags.last_value("hostname-override").map(str::to_owned);
            let config = layers.configuration(notes);
            for (field, why) in &config.invalid {
                notes.unknown(
                    format!("capabilities.kubelet.{field}"),
                    UnknownReason::Malformed,
                    why,
                );
            }
            facts.config = Some(config);
            facts.sources = layers.sources;
        }
        Err((reason, why)) => {
            if reason == UnknownReason::Malformed {
                notes.warn("kubelet", why.clone());
            }
            facts.config_fault = Some((reason, why));
        }
    }
    facts.started_with = started_with(root, &facts, record, &read);
    match (&facts.config_fault, &facts.started_with) {
        (_, StartedWith::Known(_)) | (None, StartedWith::NotRunning) => {}
        (Some((reason, why)), _) => notes.unknown("capabilities.kubelet", *reason, why),
        (None, StartedWith::Unknown(why)) => {
            let why =
                format!("the configuration that the kubelet was started with is not known: {why}");
            notes.unknown("capabilities.kubelet", UnknownReason::DependsOnUnknown, why);
        }
    }
    facts.cpu_state = state(root, &mut facts, "cpu_manager_state", notes);
    facts.memory_state = state(root, &mut facts, "memory_manager_state", notes);
    facts
}

/// Returns the configuration with which the running kubelet was started: the recorded configuration, if the record is
/// about this start. Otherwise returns the configuration in the files, if none of the files has changed since the
/// start.
fn started_with(
    root: &Root,
    facts: &KubeletFacts,
    record: Option<Record>,
    read: &[String],
) -> StartedWith {
    if !facts.runs {
        return StartedWith::NotRunning;
    }
    let Some(start) = &facts.start else {
        return StartedWith::Unknown("the time of its start is not known".to_owned());
    };
    let same = |record: &Record| record.start == *start && record.arguments == facts.arguments;
    if let Some(record) = record.filter(same) {
        return StartedWith::Known(Box::new(record.configuration));
    }
    let Some(config) = &facts.config else {
        let why = facts.config_fault.as_ref().map(|(_, why)| why.clone());
        return StartedWith::Unknown(why.unwrap_or_default());
    };
    match started::changed_after_start(root, read, start.after_boot) {
        Some(why) => StartedWith::Unknown(why),
        None => StartedWith::Known(Box::new(config.clone())),
    }
}

fn state<T: serde::de::DeserializeOwned>(
    root: &Root,
    facts: &mut KubeletFacts,
    name: &'static str,
    notes: &mut Notes,
) -> Option<T> {
    let path = format!("{}/{name}", facts.folder.trim_start_matches('/'));
    let read = root.read_large(&path).map_err(|error| (error.reason(), error.to_string()));
    let parsed = read.and_then(|text| {
        serde_json::from_str(&text).map_err(|error| {
            let why = format!("/{path}: not a kubelet checkpoint: {error}");
            (UnknownReason::Malformed, why)
        })
    });
    match parsed {
        Ok(state) => Some(state),
        Err((UnknownReason::NotFound, _)) => None,
        Err((reason, why)) => {
            if reason == UnknownReason::Malformed {
                notes.warn(format!("/{path}"), why.trim_start_matches(&format!("/{path}: ")));
            }
            notes.unknown("allocations", reason, why.clone());
            facts.state_faults.insert(name, (reason, why));
            None
        }
    }
}
