//! Merges SSH public keys into the user data of machines, which are a cloud-config or an Ignition config.
//!
//! A cloud-config is changed as text, without parsing and serializing it: cloud-init reads YAML 1.1, where `0644` is
//! octal, and the meaning of the user's values must not change.

use serde_json::{Value, json};

/// Reason why public keys cannot be merged. The message does not quote the user data, because they come from a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserDataError {
    #[error("is empty")]
    Empty,
    /// The user data are neither a cloud-config nor an Ignition config.
    #[error(
        "must be a #cloud-config or an Ignition config (JSON) to merge public keys; leave sshPublicKeys empty and add \
         the keys to the user data"
    )]
    UnknownFormat,
    /// The user data begin like a cloud-config or an Ignition config, but cannot be parsed.
    #[error("is not valid {kind}: {problem}")]
    InvalidFormat {
        /// `cloud-config` or `Ignition`.
        kind: &'static str,
        /// Description of the problem, with its position.
        problem: String,
    },
}

/// Returns the user data with public keys for the operating system's default user. Duplicate keys are added once. If
/// `keys` is empty, user data in any format are returned unchanged.
///
/// # Errors
///
/// Returns an error if the user data are empty, or if keys must be added and the user data are neither a valid
/// cloud-config nor a valid Ignition config.
pub fn add_ssh_keys(user_data: &str, keys: &[String]) -> Result<String, UserDataError> {
    if user_data.trim().is_empty() {
        return Err(UserDataError::Empty);
    }
    let keys: Vec<&str> = keys.iter().map(|key| key.trim()).filter(|key| !key.is_empty()).collect();
    if keys.is_empty() {
        return Ok(user_data.to_owned());
    }
    if user_data.trim_start().starts_with('{') {
        return add_keys_to_ignition(user_data, &keys);
    }
    let first = user_data.lines().next().unwrap_or_default().trim_end();
    if first == "#cloud-config" {
        return add_keys_to_cloud_config(user_data, &keys);
    }
    Err(UserDataError::UnknownFormat)
}

/// Adds keys to `passwd.users[name=core].sshAuthorizedKeys` of an Ignition 3 config.
fn add_keys_to_ignition(text: &str, keys: &[&str]) -> Result<String, UserDataError> {
    let invalid_ignition =
        |problem: String| UserDataError::InvalidFormat { kind: "Ignition", problem };
    let mut config: Value = serde_json::from_str(text).map_err(|error| {
        // The parser's own message would quote the user data.
        invalid_ignition(format!(
            "the document is not JSON (line {}, column {})",
            error.line(),
            error.column()
        ))
    })?;
    if config.pointer("/ignition/version").is_none() {
        return Err(invalid_ignition("ignition.version is missing".to_owned()));
    }
    let wrong_type = |field: &str| invalid_ignition(format!("{field} has the wrong type"));
    let root = config.as_object_mut().ok_or_else(|| wrong_type("the document"))?;
    let passwd = root.entry("passwd").or_insert_with(|| json!({}));
    let passwd = passwd.as_object_mut().ok_or_else(|| wrong_type("passwd"))?;
    let users = passwd.entry("users").or_insert_with(|| json!([]));
    let users = users.as_array_mut().ok_or_else(|| wrong_type("passwd.users"))?;
    let index = users.iter().position(|user| user["name"] == "core");
    let index = index.unwrap_or_else(|| {
        users.push(json!({"name": "core"}));
        users.len() - 1
    });
    let user = users[index].as_object_mut().ok_or_else(|| wrong_type("passwd.users"))?;
    let authorized_keys = user.entry("sshAuthorizedKeys").or_insert_with(|| json!([]));
    let authorized_keys =
        authorized_keys.as_array_mut().ok_or_else(|| wrong_type("sshAuthorizedKeys"))?;
    for key in keys {
        if !authorized_keys.iter().any(|known| known == key) {
            authorized_keys.push((*key).into());
        }
    }
    serde_json::to_string(&config).map_err(|_| wrong_type("the document"))
}

const SSH_KEYS_FIELD: &str = "ssh_authorized_keys";

/// Adds keys to the top-level list `ssh_authorized_keys` of a cloud-config. All lines outside this list stay
/// unchanged.
fn add_keys_to_cloud_config(text: &str, keys: &[&str]) -> Result<String, UserDataError> {
    let invalid = |problem: String| UserDataError::InvalidFormat { kind: "cloud-config", problem };
    let read: Value = serde_saphyr::from_str(text).map_err(|error| {
        // The parser's own message would quote the user data.
        let location = error.location().map(|place| format!(" (line {})", place.line()));
        invalid(format!("the document is not YAML{}", location.unwrap_or_default()))
    })?;
    let existing_keys = match read.get(SSH_KEYS_FIELD) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(existing_keys)) => existing_keys.clone(),
        Some(_) => return Err(invalid(format!("{SSH_KEYS_FIELD} must be a list"))),
    };
    if !(read.is_object() || read.is_null()) {
        return Err(invalid("the document must be a mapping".to_owned()));
    }
    let known = existing_keys.iter().filter_map(Value::as_str);
    let mut merged_keys: Vec<&str> = known.collect();
    for key in keys {
        if !merged_keys.contains(key) {
            merged_keys.push(key);
        }
    }
    let mut merged = String::with_capacity(text.len() + 512);
    let mut is_in_field = false;
    for line in text.split_inclusive('\n') {
        let starts_field = |line: &str| {
            let rest = line.strip_prefix(SSH_KEYS_FIELD).map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with(':'))
        };
        // The items of a YAML list may have the same indentation as the list's key.
        let continues = line.starts_with([' ', '\t', '-']) || line.trim().is_empty();
        is_in_field = starts_field(line) || (is_in_field && continues);
        if !is_in_field {
            merged.push_str(line);
        }
    }
    if !merged.ends_with('\n') {
        merged.push('\n');
    }
    merged.push_str(SSH_KEYS_FIELD);
    merged.push_str(":\n");
    for key in merged_keys {
        // JSON strings are valid YAML strings.
        merged.push_str(&format!("- {}\n", Value::from(key)));
    }
    let reparsed: Value = serde_saphyr::from_str(&merged).map_err(|_| {
        invalid(format!(
            "public keys cannot be added to {SSH_KEYS_FIELD} in this notation; write {SSH_KEYS_FIELD} as a block list"
        ))
    })?;
    let mut expected = if read.is_null() { json!({}) } else { read };
    expected[SSH_KEYS_FIELD] = reparsed[SSH_KEYS_FIELD].clone();
    if reparsed != expected {
        return Err(invalid(format!(
            "public keys cannot be added to {SSH_KEYS_FIELD}; write {SSH_KEYS_FIELD} as a block list at the \
             end of the document"
        )));
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn add_test_keys(text: &str, keys: &[&str]) -> Result<String, UserDataError> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        add_ssh_keys(text, &keys)
    }

    #[test]
    fn keys_are_added_and_other_lines_stay_unchanged() {
        let text = "#cloud-config\nwrite_files:\n- {path: /x, permissions: 0644}  # octal\n";
        assert_eq!(
            add_test_keys(text, &["ssh-rsa A b@c"]).unwrap(),
            format!("{text}ssh_authorized_keys:\n- \"ssh-rsa A b@c\"\n")
        );
        let existing = "#cloud-config\nssh_authorized_keys:\n- one\n\n- two\nhostname: x";
        assert_eq!(
            add_test_keys(existing, &["two", "three"]).unwrap(),
            "#cloud-config\nhostname: x\nssh_authorized_keys:\n- \"one\"\n- \"two\"\n- \"three\"\n"
        );
        let flow = "#cloud-config\nssh_authorized_keys: [one,\n  two]\n";
        assert!(
            add_test_keys(flow, &["three"])
                .unwrap()
                .ends_with("- \"one\"\n- \"two\"\n- \"three\"\n")
        );
        assert_eq!(add_test_keys("#cloud-config\n", &["k"]).unwrap().lines().count(), 3);
    }

    #[test]
    fn ignition_keys_are_added_to_user_core() {
        let text = r#"{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["a"]}]}}"#;
        let config: Value =
            serde_json::from_str(&add_test_keys(text, &["a", "b"]).unwrap()).unwrap();
        assert_eq!(
            config["passwd"]["users"],
            json!([{"name": "core", "sshAuthorizedKeys": ["a", "b"]}])
        );
        let plain = add_test_keys(r#"{"ignition": {"version": "3.4.0"}}"#, &["b"]).unwrap();
        let config: Value = serde_json::from_str(&plain).unwrap();
        assert_eq!(config["passwd"]["users"][0]["name"], "core");
    }

    #[test]
    fn invalid_user_data_are_reported_without_quoting_them() {
        assert_eq!(add_test_keys(" \n", &[]), Err(UserDataError::Empty));
        assert_eq!(add_test_keys("#!/bin/sh\n", &[]).unwrap(), "#!/bin/sh\n");
        for (text, words) in [
            ("#!/bin/sh\n", "must be a #cloud-config or an Ignition config"),
            ("{\"a\": 1}", "ignition.version is missing"),
            ("{", "not valid Ignition"),
            ("{\"ignition\": {\"version\": \"3\"}, \"passwd\": 5}", "passwd has the wrong type"),
            ("#cloud-config\na: [", "not valid cloud-config"),
            ("#cloud-config\n- a\n", "must be a mapping"),
            ("#cloud-config\nssh_authorized_keys: text\n", "must be a list"),
        ] {
            let error = add_test_keys(text, &["k"]).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        for text in [
            "#!c4n4ry\n",
            "c4n4ry",
            "{\"c4n4ry",
            "{\"ignition\": {\"version\": \"3\"}, \"passwd\": \"c4n4ry\"}",
            "{\"ignition\": c4n4ry}",
            "#cloud-config\nc4n4ry: [",
            "#cloud-config\n- c4n4ry\n",
            "#cloud-config\na: *c4n4ry\n",
            "#cloud-config\nc4n4ry: 1\nc4n4ry: 2\n",
            "#cloud-config\nssh_authorized_keys: c4n4ry\n",
            "#cloud-config\n{ssh_authorized_keys: [c4n4ry]}\n",
        ] {
            let error = add_test_keys(text, &["k"]).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("c4n4ry"), "{text}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn any_user_data_are_merged_or_rejected(text in "(#cloud-config\n)?(ssh_authorized_keys:|[-a-z:\\[\\] \n#\"'{}|>]){0,30}", key in "[ -~]{1,30}") {
            if let Ok(all) = add_test_keys(&text, &[&key])
                && !key.trim().is_empty()
            {
                let read: Value = serde_saphyr::from_str(&all).unwrap();
                let keys = read[SSH_KEYS_FIELD].as_array().unwrap();
                prop_assert!(keys.iter().any(|one| one == key.trim()));
            }
        }
    }
}
