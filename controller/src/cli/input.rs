//! Reads objects from files, folders and standard input.

#![expect(
    clippy::disallowed_methods,
    reason = "reads paths that the user specifies, not the files of a host"
)]

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use berth_runtime::cli::{EXIT_BAD_INPUT, Failure};
use serde_json::Value;

use crate::fleet::{InputObject, stream};
use berth_api::Problem;

/// Maximum size of an input file or of standard input, in bytes. A fleet of 50,000 VMs is smaller.
const MAX_INPUT_BYTES: u64 = 1 << 30;

/// Calls `convert` for all objects of a file, of all files in a folder and its subfolders, or of standard input (path
/// `-`). Adds invalid content to `problems`.
///
/// # Errors
/// Returns an error if the path cannot be read.
pub(super) fn for_each_input_object<T: Send>(
    path: &Path,
    problems: &mut Vec<Problem>,
    convert: impl Fn(InputObject) -> T + Sync,
) -> Result<Vec<T>, Failure> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .lock()
            .take(MAX_INPUT_BYTES)
            .read_to_string(&mut text)
            .context("standard input")?;
        return Ok(stream::for_each_object("standard input", &text, problems, convert));
    }
    let mut files = Vec::new();
    if path.is_dir() {
        collect_files(path, &mut files)?;
        if files.is_empty() {
            let error =
                anyhow::anyhow!("{}: contains no .yaml, .yml or .json file", path.display());
            return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
        }
    } else {
        files.push(path.to_owned());
    }
    let mut all = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file).with_context(|| name.clone())?;
        all.extend(stream::for_each_object(&name, &text, problems, &convert));
    }
    Ok(all)
}

/// Collects the files in a folder and its subfolders, sorted by name. Hidden entries are skipped. A symbolic link to
/// a folder is not followed, because it may form a cycle.
fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let read = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut entries = Vec::new();
    for entry in read {
        entries.push(entry.with_context(|| folder.display().to_string())?);
    }
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if is_hidden {
            continue;
        }
        if is_folder {
            collect_files(&path, files)?;
        } else if ["yaml", "yml", "json"].contains(&ending) {
            files.push(path);
        }
    }
    Ok(())
}

/// Identity of an object: API group, kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ObjectKey([String; 4]);

impl ObjectKey {
    /// Returns the identity of an object. Fields that are missing count as empty.
    fn of(object: &Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
        let [kind, namespace, name] =
            ["/kind", "/metadata/namespace", "/metadata/name"].map(|path| text(path).to_owned());
        Self([group.to_owned(), kind, namespace, name])
    }
}

/// Objects of a cluster that are left out, because objects of the user replace them.
#[derive(Debug, Default)]
pub(super) struct ReplacedObjects(BTreeSet<ObjectKey>);

impl ReplacedObjects {
    /// Returns the objects that these objects replace.
    pub(super) fn by(objects: &[InputObject]) -> Self {
        Self(objects.iter().map(|found| ObjectKey::of(&found.object)).collect())
    }

    /// Returns true if the object is left out.
    pub(super) fn contains(&self, object: &Value) -> bool {
        // Usually nothing is replaced, and a cluster can have a hundred thousand objects.
        !self.0.is_empty() && self.0.contains(&ObjectKey::of(object))
    }

    /// Returns true if the TenantCluster with this name is left out.
    pub(super) fn has_tenant(&self, tenant: &str) -> bool {
        self.0.iter().any(|ObjectKey([group, kind, _, name])| {
            group == "berth.dev" && kind == "TenantCluster" && name == tenant
        })
    }
}
