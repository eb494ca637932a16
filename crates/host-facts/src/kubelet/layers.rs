//! Reads a kubelet's configuration, which is merged from several layers: files, drop-ins and flags.

use berth_api::infra_node::UnknownReason;
use serde_json::Value;

use super::config::{self, KubeletConfig};
use super::drop_in::ACTIVE_FILE_NAME;
use super::flags::{self, Flags};
use crate::notes::Notes;
use crate::root::{ReadError, Root};

/// Paths of the kubelet's configuration file in several distributions, which are tried in this order if the kubelet
/// does not run.
const DEFAULT_FILES: [&str; 5] = [
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet-config.yaml",
    "etc/kubernetes/kubelet.conf",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
];
/// Environment files that kubeadm's systemd unit reads, each with the variable whose value is passed to the kubelet as
/// flags. Lowest priority first.
const ENVIRONMENT_FILES: [(&str, &str); 3] = [
    ("var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS"),
    ("etc/default/kubelet", "KUBELET_EXTRA_ARGS"),
    ("etc/sysconfig/kubelet", "KUBELET_EXTRA_ARGS"),
];
/// Maximum depth of the folders below `--config-dir` that are searched for drop-ins. The kubelet has no such limit.
const MAX_DEPTH: usize = 8;

/// Reason why the configuration is unknown, as a code and a message.
type UnknownCause = (UnknownReason, String);

/// All layers of a kubelet's configuration.
pub(super) struct Layers {
    merged_files: Value,
    /// The merged files without Berth's drop-in; `None` if the drop-in is not one of the files.
    merged_files_without_drop_in: Option<Value>,
    /// Paths of the files and folders that were read, relative to the root.
    pub(super) read_paths: Vec<String>,
    /// The flags of the kubelet's command line or, if the kubelet does not run, those in the environment files of its
    /// unit.
    pub(super) flags: Flags,
    /// Names of the files and flags that were read, lowest priority first.
    pub(super) sources: Vec<String>,
    /// File from which the flags were read.
    flags_source: Option<String>,
}

/// Reads the command line of a running kubelet, without the program.
pub(super) fn read_arguments(root: &Root, pid: u32) -> Result<Vec<String>, UnknownCause> {
    let cmdline =
        root.read_bytes(&format!("proc/{pid}/cmdline")).map_err(unknown_cause_of_read_error)?;
    Ok(flags::parse_arguments(&cmdline))
}

/// Reads the configuration files to which a kubelet's command line refers. `source` is the file from which the command
/// line was read.
pub(super) fn read_from_arguments(
    root: &Root,
    arguments: &[String],
    source: String,
) -> Result<Layers, UnknownCause> {
    let mut layers = Layers::new(Flags::from_arguments(arguments), Some(source));
    if let Some(file) = layers.flags.last_value("config").map(relative_path) {
        layers.add_file(root, &file)?;
    }
    if let Some(folder) = layers.flags.last_value("config-dir").map(relative_path) {
        layers.add_drop_ins(root, &folder)?;
    }
    Ok(layers)
}

/// Reads the configuration of a kubelet that does not run, from [`DEFAULT_FILES`] and [`ENVIRONMENT_FILES`].
pub(super) fn read_from_default_files(
    root: &Root,
    processes_visible: bool,
) -> Result<Layers, UnknownCause> {
    let is_kubelet_config = |path: &&&str| config::is_kubelet_configuration(root, path);
    let Some(file) = DEFAULT_FILES.iter().find(is_kubelet_config) else {
        // Only a file that exists but cannot be read makes the configuration unknown. Missing files are skipped.
        let read_errors = DEFAULT_FILES.iter().filter_map(|path| root.read(path).err());
        let errors =
            read_errors.filter(|error| !error.is_not_found()).map(unknown_cause_of_read_error);
        return Err(errors.into_iter().next().unwrap_or_else(|| {
            let processes = if processes_visible {
                "no process is named kubelet"
            } else {
                "the host's processes are not visible"
            };
            (
                UnknownReason::NotFound,
                format!("{processes}, and no usual configuration file of a kubelet exists"),
            )
        }));
    };
    let mut flags = Flags::default();
    let mut source = None;
    for (path, variable) in ENVIRONMENT_FILES {
        if let Ok(text) = root.read(path) {
            flags.extend(flags::parse_environment(&text, variable));
            source = Some(format!("/{path}"));
        }
    }
    let mut layers = Layers::new(flags, source);
    layers.add_file(root, file)?;
    let default_folder = format!("{file}.d");
    let folder = layers.flags.last_value("config-dir").map_or(default_folder, relative_path);
    if root.exists(&folder) {
        layers.add_drop_ins(root, &folder)?;
    }
    Ok(layers)
}

impl Layers {
    fn new(flags: Flags, flags_source: Option<String>) -> Self {
        Self {
            merged_files: Value::Null,
            merged_files_without_drop_in: None,
            read_paths: Vec::new(),
            flags,
            sources: Vec::new(),
            flags_source,
        }
    }

    fn add_file(&mut self, root: &Root, file: &str) -> Result<(), UnknownCause> {
        let text = root.read(file).map_err(unknown_cause_of_read_error)?;
        let layer = config::parse_config(&text).map_err(|error| {
            (UnknownReason::Malformed, format!("/{file}: not a kubelet configuration: {error}"))
        })?;
        if file.ends_with(&format!("/{ACTIVE_FILE_NAME}")) {
            self.merged_files_without_drop_in = Some(self.merged_files.clone());
        } else if let Some(tree) = &mut self.merged_files_without_drop_in {
            config::merge_drop_in(tree, layer.clone());
        }
        config::merge_drop_in(&mut self.merged_files, layer);
        self.read_paths.push(file.to_owned());
        self.sources.push(format!("/{file}"));
        Ok(())
    }

    fn add_drop_ins(&mut self, root: &Root, folder: &str) -> Result<(), UnknownCause> {
        let folder = folder.trim_end_matches('/');
        // The folder is recorded too: if a drop-in is removed, only the change time of the folder shows this.
        self.read_paths.push(folder.to_owned());
        for file in list_drop_ins(root, folder, MAX_DEPTH)? {
            self.add_file(root, &file)?;
        }
        Ok(())
    }

    /// Returns the configuration without Berth's drop-in; `None` if the kubelet does not read Berth's drop-in.
    pub(super) fn config_without_drop_in(&self) -> Option<KubeletConfig> {
        // These notes are dropped, because [`Self::merged_config`] already reports problems of the files.
        let mut notes = Notes::default();
        let mut config =
            KubeletConfig::from_tree(self.merged_files_without_drop_in.as_ref()?, "", &mut notes);
        config.apply_flags(&self.flags, &mut notes);
        Some(config)
    }

    /// Returns the configuration that results from all layers.
    pub(super) fn merged_config(&mut self, notes: &mut Notes) -> KubeletConfig {
        let source = self.sources.last().cloned().unwrap_or_else(|| "kubelet".to_owned());
        let mut config = KubeletConfig::from_tree(&self.merged_files, &source, notes);
        if config.apply_flags(&self.flags, notes) {
            self.sources.extend(self.flags_source.take());
        }
        config
    }
}

/// Returns the paths of the `*.conf` files below a folder, in the order in which the kubelet merges these files.
fn list_drop_ins(root: &Root, folder: &str, depth: usize) -> Result<Vec<String>, UnknownCause> {
    let mut files = Vec::new();
    for name in root.list(folder).map_err(unknown_cause_of_read_error)? {
        let path = format!("{folder}/{name}");
        if root.list(&path).is_ok() {
            if depth > 0 {
                files.extend(list_drop_ins(root, &path, depth - 1)?);
            }
        } else if name.ends_with(".conf") {
            files.push(path);
        }
    }
    Ok(files)
}

fn relative_path(path: &str) -> String {
    path.trim_start_matches('/').to_owned()
}

fn unknown_cause_of_read_error(error: ReadError) -> UnknownCause {
    (error.reason(), error.to_string())
}
