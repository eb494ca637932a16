//! Adds files to the list `write_files` of a cloud-config.
//!
//! The text is changed without parsing and serializing it, for the same reason as in
//! [`user_data`](crate::machines::user_data): cloud-init reads YAML 1.1, and only in YAML 1.1 are permissions such as
//! `0644` octal numbers. The user's lines, including the items of the user's list, stay unchanged.

use serde_json::{Value, json};

use super::guest_file::GuestFile;

/// Reason why files cannot be added to user data. The message does not quote the user data, because they come from a
/// Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The user data are neither a cloud-config nor an Ignition config.
    #[error("the user data must be a #cloud-config or an Ignition config (JSON)")]
    UnknownFormat,
    /// The user data begin like a cloud-config or an Ignition config, but cannot be parsed.
    #[error("the user data are not a valid {0}")]
    InvalidFormat(&'static str),
    /// A field has a value that prevents the addition of files.
    #[error("{field} {problem}")]
    Field {
        /// Path of this field.
        field: &'static str,
        /// Description of the problem, with its remedy.
        problem: &'static str,
    },
}

const WRITE_FILES_FIELD: &str = "write_files";

/// Adds a file at the beginning of `write_files`, so that a file of the user with the same path overwrites it.
pub(super) fn add_file(text: &str, file: &GuestFile) -> Result<String, MergeError> {
    if text.lines().next().unwrap_or_default().trim_end() != "#cloud-config" {
        return Err(MergeError::UnknownFormat);
    }
    let field_error = |problem| MergeError::Field { field: WRITE_FILES_FIELD, problem };
    let invalid = || MergeError::InvalidFormat("cloud-config");
    let read: Value = serde_saphyr::from_str(text).map_err(|_| invalid())?;
    if !(read.is_object() || read.is_null()) {
        return Err(invalid());
    }
    let item = json!({
        "path": file.path, "permissions": format!("{:04o}", file.mode), "content": file.content,
    });
    let (merged, mut files) = match read.get(WRITE_FILES_FIELD) {
        None => (append_list(text, &item), Vec::new()),
        Some(Value::Null) => (insert_item(text, &item), Vec::new()),
        Some(Value::Array(files)) => (insert_item(text, &item), files.clone()),
        Some(_) => return Err(field_error("must be a list")),
    };
    files.insert(0, item);
    let mut expected = if read.is_null() { json!({}) } else { read };
    expected[WRITE_FILES_FIELD] = files.into();
    match serde_saphyr::from_str::<Value>(&merged) {
        Ok(reparsed) if reparsed == expected => Ok(merged),
        _ => Err(field_error("must be a block list: write each item on its own line, after `- `")),
    }
}

/// Appends a new `write_files` list with the item to the cloud-config, and returns the result.
fn append_list(text: &str, item: &Value) -> String {
    let separator = if text.ends_with('\n') { "" } else { "\n" };
    // A JSON object is a valid YAML mapping.
    format!("{text}{separator}{WRITE_FILES_FIELD}:\n- {item}\n")
}

/// Inserts the item before the first item of the existing list, or after the list's key if the list is empty, and
/// returns the resulting cloud-config.
fn insert_item(text: &str, item: &Value) -> String {
    let mut merged = String::with_capacity(text.len().saturating_add(512));
    // Position in `merged` of the line after the list's key; `None` until the key has been read.
    let mut after_key = None;
    let mut is_inserted = false;
    for line in text.split_inclusive('\n') {
        let rest = line.trim_start();
        if after_key.is_some() && !is_inserted && rest.starts_with('-') {
            let indentation = line.strip_suffix(rest).unwrap_or_default();
            merged.push_str(&format!("{indentation}- {item}\n"));
            is_inserted = true;
        }
        merged.push_str(line);
        let key_rest = line.strip_prefix(WRITE_FILES_FIELD).map(str::trim_start);
        if after_key.is_none() && key_rest.is_some_and(|rest| rest.starts_with(':')) {
            if !line.ends_with('\n') {
                merged.push('\n');
            }
            after_key = Some(merged.len());
        }
    }
    if let (Some(position), false) = (after_key, is_inserted) {
        merged.insert_str(position, &format!("- {item}\n"));
    }
    merged
}
