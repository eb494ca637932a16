//! Adds files to `storage.files` of an Ignition config.

use base64::Engine as _;
use serde_json::{Value, json};

use super::cloud_config::MergeError;
use super::guest_file::GuestFile;

/// Adds files to a config. If the config already contains a file with the same path, that file is kept. Returns the
/// changed config, and the paths of the files that were not added.
pub(super) fn add_files(
    text: &str,
    files: Vec<GuestFile>,
) -> Result<(String, Vec<String>), MergeError> {
    let invalid = || MergeError::InvalidFormat("Ignition config");
    let must_be = |field, problem| MergeError::Field { field, problem };
    let mut config: Value = serde_json::from_str(text).map_err(|_| invalid())?;
    let version =
        config.pointer("/ignition/version").and_then(Value::as_str).ok_or_else(invalid)?;
    // In an Ignition config of version 2, each file must name its filesystem, and Ignition overwrites existing files by
    // default.
    let is_version_2 = version.starts_with("2.");
    let root = config.as_object_mut().ok_or_else(invalid)?;
    let storage = root.entry("storage").or_insert_with(|| json!({}));
    let storage = storage.as_object_mut().ok_or_else(|| must_be("storage", "must be an object"))?;
    let existing = storage.entry("files").or_insert_with(|| json!([]));
    let existing =
        existing.as_array_mut().ok_or_else(|| must_be("storage.files", "must be a list"))?;
    let mut skipped = Vec::new();
    for GuestFile { path, mode, content } in files {
        if existing.iter().any(|file| file["path"] == path) {
            skipped.push(path);
            continue;
        }
        let encoded = base64::engine::general_purpose::STANDARD.encode(content);
        let mut file = json!({
            "path": path, "mode": mode,
            "contents": {"source": format!("data:;base64,{encoded}")},
        });
        if is_version_2 {
            file["filesystem"] = "root".into();
        } else {
            file["overwrite"] = true.into();
        }
        existing.push(file);
    }
    Ok((config.to_string(), skipped))
}
