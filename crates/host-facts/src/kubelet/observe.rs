//! Finds the host's kubelet and reads its configuration and checkpoints.

use std::time::Duration;

use berth_api::infra_node::UnknownReason;

use super::facts::KubeletFacts;
use super::process::{self, KubeletProcess};
use super::start_record::{self, RunningConfig, StartId, StartRecord};
use super::{drop_in, layers};
use crate::ledger::KUBELET_RECORD_FILE;
use crate::notes::Notes;
use crate::processes::{KUBELET_EMBEDDERS, Processes};
use crate::root::Root;
use crate::uptime::read_uptime;

/// Flags of the kubelet, each with the configuration field that it sets. Only fields about which Berth gives advice are
/// listed.
const FLAGS_AND_FIELDS: [(&str, &str); 6] = [
    ("cpu-manager-policy", "cpuManagerPolicy"),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions"),
    ("reserved-cpus", "reservedSystemCPUs"),
    ("topology-manager-policy", "topologyManagerPolicy"),
    ("memory-manager-policy", "memoryManagerPolicy"),
    ("reserved-memory", "reservedMemory"),
];

/// Time after its start within which a kubelet has admitted the pods of its first list. The kubelet first waits for the
/// API server, which takes only seconds.
const FIRST_ADMISSION_TIME: Duration = Duration::from_secs(60);

/// Finds the kubelet by its process or, if no kubelet runs, by the usual configuration files, and reads its
/// configuration and checkpoints.
pub fn observe(
    root: &Root,
    processes: &Processes,
    boot_id: Option<&str>,
    notes: &mut Notes,
) -> KubeletFacts {
    let record = StartRecord::read(root).unwrap_or_else(|error| {
        notes.warn(format!("/{}", error.path), error.problem.to_string());
        None
    });
    let process = process::find_kubelet(root, processes);
    let embedded =
        KUBELET_EMBEDDERS.into_iter().find(|name| processes.find_by_name(name).is_some());
    let mut facts = KubeletFacts {
        is_running: processes.is_kubelet_running(),
        root_dir: "/var/lib/kubelet".to_owned(),
        systemd_unit: "kubelet.service".to_owned(),
        ..KubeletFacts::default()
    };
    let layers = match (process, embedded) {
        (KubeletProcess::None, Some(name)) => Err((
            UnknownReason::NotFound,
            format!("the kubelet runs inside {name}, so its flags are not visible in /proc"),
        )),
        (KubeletProcess::Single(pid), _) => {
            facts.pid = Some(pid);
            facts.systemd_unit =
                process::read_systemd_unit(root, pid).unwrap_or(facts.systemd_unit);
            let after_boot = start_record::process_start_time(root, pid);
            facts.has_admitted_first_pods =
                after_boot.zip(read_uptime(root)).is_some_and(|(start, now)| {
                    now >= start_record::ticks_to_duration(start) + FIRST_ADMISSION_TIME
                });
            facts.start_id = boot_id
                .zip(after_boot)
                .map(|(boot_id, after_boot)| StartId { boot_id: boot_id.to_owned(), after_boot });
            layers::read_arguments(root, pid).and_then(|arguments| {
                facts.arguments.clone_from(&arguments);
                layers::read_from_arguments(root, &arguments, format!("/proc/{pid}/cmdline"))
            })
        }
        (KubeletProcess::Multiple(pids), _) => Err((
            UnknownReason::Malformed,
            format!(
                "processes {} are all named kubelet; it is unknown which is the host's kubelet",
                pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
            ),
        )),
        (KubeletProcess::None, None) => {
            let last_arguments = record.as_ref().map(|record| record.arguments.clone());
            facts.arguments = last_arguments.unwrap_or_default();
            let recorded_layers = record.is_some().then(|| {
                layers::read_from_arguments(
                    root,
                    &facts.arguments,
                    format!("/{KUBELET_RECORD_FILE}"),
                )
            });
            match recorded_layers {
                Some(Ok(layers)) => Ok(layers),
                _ => layers::read_from_default_files(root, processes.are_visible),
            }
        }
    };
    let mut read_paths = Vec::new();
    match layers {
        Ok(mut layers) => {
            facts.config_without_drop_in = layers.config_without_drop_in();
            read_paths.append(&mut layers.read_paths);
            if let Some(folder) = layers.flags.last_value("root-dir") {
                folder.trim_end_matches('/').clone_into(&mut facts.root_dir);
            }
            facts.fields_set_by_flags = FLAGS_AND_FIELDS
                .into_iter()
                .filter(|(flag, _)| layers.flags.last_value(flag).is_some())
                .map(|(_, field)| field)
                .collect();
            if let Some(folder) = layers.flags.last_value("config-dir") {
                let folder = folder.trim_end_matches('/');
                let file = |name: &str| {
                    root.read(&format!("{folder}/{name}")).ok().map(|text| text + "\n")
                };
                facts.active_drop_in = file(drop_in::ACTIVE_FILE_NAME);
                facts.staged_drop_in = file(drop_in::STAGED_FILE_NAME);
                facts.config_dir = Some(folder.to_owned());
            }
            facts.node_name = layers.flags.last_value("hostname-override").map(str::to_owned);
            let config = layers.merged_config(notes);
            for (field, message) in &config.invalid_fields {
                notes.add_unknown(
                    format!("capabilities.kubelet.{field}"),
                    UnknownReason::Malformed,
                    message,
                );
            }
            facts.config = Some(config);
            facts.sources = layers.sources;
        }
        Err((reason, message)) => {
            if reason == UnknownReason::Malformed {
                notes.warn("kubelet", message.clone());
            }
            facts.config_error = Some((reason, message));
        }
    }
    facts.running_config = determine_running_config(root, &facts, record, &read_paths);
    match (&facts.config_error, &facts.running_config) {
        (_, RunningConfig::Known(_)) | (None, RunningConfig::NotRunning) => {}
        (Some((reason, message)), _) => notes.add_unknown("capabilities.kubelet", *reason, message),
        (None, RunningConfig::Unknown(cause)) => {
            let message =
                format!("the configuration that the kubelet was started with is unknown: {cause}");
            notes.add_unknown("capabilities.kubelet", UnknownReason::DependsOnUnknown, message);
        }
    }
    facts.cpu_state = read_checkpoint(root, &mut facts, "cpu_manager_state", notes);
    facts.memory_state = read_checkpoint(root, &mut facts, "memory_manager_state", notes);
    facts
}

/// Returns the configuration with which the running kubelet was started: the recorded configuration if the record is
/// about this start of the kubelet, or else the configuration in the files if none of the files has changed since the
/// start.
fn determine_running_config(
    root: &Root,
    facts: &KubeletFacts,
    record: Option<StartRecord>,
    read_paths: &[String],
) -> RunningConfig {
    if !facts.is_running {
        return RunningConfig::NotRunning;
    }
    let Some(start) = &facts.start_id else {
        return RunningConfig::Unknown("the start time of the kubelet is unknown".to_owned());
    };
    let is_same_start =
        |record: &StartRecord| record.start == *start && record.arguments == facts.arguments;
    if let Some(record) = record.filter(is_same_start) {
        return RunningConfig::Known(Box::new(record.configuration));
    }
    let Some(config) = &facts.config else {
        let message = facts.config_error.as_ref().map(|(_, message)| message.clone());
        return RunningConfig::Unknown(message.unwrap_or_default());
    };
    match start_record::find_change_after_start(root, read_paths, start.after_boot) {
        Some(reason) => RunningConfig::Unknown(reason),
        None => RunningConfig::Known(Box::new(config.clone())),
    }
}

fn read_checkpoint<T: serde::de::DeserializeOwned>(
    root: &Root,
    facts: &mut KubeletFacts,
    name: &'static str,
    notes: &mut Notes,
) -> Option<T> {
    let path = format!("{}/{name}", facts.root_dir.trim_start_matches('/'));
    let read = root.read_large(&path).map_err(|error| (error.reason(), error.to_string()));
    let parsed = read.and_then(|text| {
        serde_json::from_str(&text).map_err(|error| {
            let message = format!("/{path}: not a kubelet checkpoint: {error}");
            (UnknownReason::Malformed, message)
        })
    });
    match parsed {
        Ok(state) => Some(state),
        Err((UnknownReason::NotFound, _)) => None,
        Err((reason, message)) => {
            if reason == UnknownReason::Malformed {
                notes.warn(format!("/{path}"), message.trim_start_matches(&format!("/{path}: ")));
            }
            notes.add_unknown("allocations", reason, message.clone());
            facts.checkpoint_errors.insert(name, (reason, message));
            None
        }
    }
}
