//! User data of machines: public keys are merged into it, whatever of its two kinds it is.
//!
//! A cloud-config is changed as text, not read and written again: cloud-init reads YAML 1.1, where `0644` is octal, and
//! nothing that somebody wrote may change its meaning on the way.

use serde_json::{Value, json};

/// Why public keys cannot be merged. Without the text, which comes from a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserDataError {
    /// There is nothing in it.
    #[error("is empty")]
    Empty,
    /// Neither of the two kinds.
    #[error(
        "is neither a #cloud-config nor Ignition (JSON), and public keys can be merged into these only; leave sshPublicKeys \
         empty and put them in yourself"
    )]
    Unknown,
    /// It says that it is one of the two, and is not.
    #[error("is not valid {kind}: {why}")]
    Broken {
        /// `cloud-config` or `Ignition`.
        kind: &'static str,
        /// What is wrong, and where.
        why: String,
    },
}

/// The user data with these keys for the system's first user; each once.
///
/// # Errors
/// If it is of neither kind, or broken. Without keys anything that is not empty is taken as it is.
pub fn with_keys(user_data: &str, keys: &[String]) -> Result<String, UserDataError> {
    if user_data.trim().is_empty() {
        return Err(UserDataError::Empty);
    }
    let keys: Vec<&str> = keys.iter().map(|key| key.trim()).filter(|key| !key.is_empty()).collect();
    if keys.is_empty() {
        return Ok(user_data.to_owned());
    }
    if user_data.trim_start().starts_with('{') {
        return ignition(user_data, &keys);
    }
    let first = user_data.lines().next().unwrap_or_default().trim_end();
    if first == "#cloud-config" {
        return cloud_config(user_data, &keys);
    }
    Err(UserDataError::Unknown)
}

/// Ignition 3: `passwd.users[name=core].sshAuthorizedKeys`.
fn ignition(text: &str, keys: &[&str]) -> Result<String, UserDataError> {
    let broken = |why: String| UserDataError::Broken { kind: "Ignition", why };
    let mut config: Value = serde_json::from_str(text).map_err(|error| {
        // Its words quote what stands there.
        broken(format!("it is not JSON (line {}, column {})", error.line(), error.column()))
    })?;
    if config.pointer("/ignition/version").is_none() {
        return Err(broken("it has no ignition.version".to_owned()));
    }
    let odd = |what: &str| broken(format!("{what} is of another type than it should be"));
    let root = config.as_object_mut().ok_or_else(|| odd("the whole"))?;
    let passwd = root.entry("passwd").or_insert_with(|| json!({}));
    let passwd = passwd.as_object_mut().ok_or_else(|| odd("passwd"))?;
    let users = passwd.entry("users").or_insert_with(|| json!([]));
    let users = users.as_array_mut().ok_or_else(|| odd("passwd.users"))?;
    let at = users.iter().position(|user| user["name"] == "core");
    let at = at.unwrap_or_else(|| {
        users.push(json!({"name": "core"}));
        users.len() - 1
    });
    let user = users[at].as_object_mut().ok_or_else(|| odd("passwd.users"))?;
    let there = user.entry("sshAuthorizedKeys").or_insert_with(|| json!([]));
    let there = there.as_array_mut().ok_or_else(|| odd("sshAuthorizedKeys"))?;
    for key in keys {
        if !there.iter().any(|known| known == key) {
            there.push((*key).into());
        }
    }
    serde_json::to_string(&config).map_err(|_| odd("the whole"))
}

const FIELD: &str = "ssh_authorized_keys";

/// Its top-level list `ssh_authorized_keys` is written anew, all else stays as it is.
fn cloud_config(text: &str, keys: &[&str]) -> Result<String, UserDataError> {
    let broken = |why: String| UserDataError::Broken { kind: "cloud-config", why };
    let read: Value = serde_saphyr::from_str(text).map_err(|error| {
        // Its words quote what stands there.
        let place = error.location().map(|place| format!(" (line {})", place.line()));
        broken(format!("it is not YAML{}", place.unwrap_or_default()))
    })?;
    let there = match read.get(FIELD) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(there)) => there.clone(),
        Some(_) => return Err(broken(format!("{FIELD} is no list"))),
    };
    if !(read.is_object() || read.is_null()) {
        return Err(broken("it has no fields".to_owned()));
    }
    let known = there.iter().filter_map(Value::as_str);
    let mut all: Vec<&str> = known.collect();
    for key in keys {
        if !all.contains(key) {
            all.push(key);
        }
    }
    let mut merged = String::with_capacity(text.len() + 512);
    let mut is_in_field = false;
    for line in text.split_inclusive('\n') {
        let begins = |line: &str| {
            let rest = line.strip_prefix(FIELD).map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with(':'))
        };
        // A list may stand in the column of its own name.
        let goes_on = line.starts_with([' ', '\t', '-']) || line.trim().is_empty();
        is_in_field = begins(line) || (is_in_field && goes_on);
        if !is_in_field {
            merged.push_str(line);
        }
    }
    if !merged.ends_with('\n') {
        merged.push('\n');
    }
    merged.push_str(FIELD);
    merged.push_str(":\n");
    for key in all {
        // JSON's quotes are YAML's too.
        merged.push_str(&format!("- {}\n", Value::from(key)));
    }
    let again: Value = serde_saphyr::from_str(&merged).map_err(|_| {
        broken(format!(
            "{FIELD} is written in a way that cannot be added to; write it as a plain list"
        ))
    })?;
    let mut expected = if read.is_null() { json!({}) } else { read };
    expected[FIELD] = again[FIELD].clone();
    if again != expected {
        return Err(broken(format!(
            "{FIELD} cannot be added to; write it as a plain list at the end"
        )));
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn merged(text: &str, keys: &[&str]) -> Result<String, UserDataError> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        with_keys(text, &keys)
    }

    #[test]
    fn keys_are_added_and_nothing_else_is_touched() {
        let text = "#cloud-config\nwrite_files:\n- {path: /x, permissions: 0644}  # octal\n";
        assert_eq!(
            merged(text, &["ssh-rsa A b@c"]).unwrap(),
            format!("{text}ssh_authorized_keys:\n- \"ssh-rsa A b@c\"\n")
        );
        let there = "#cloud-config\nssh_authorized_keys:\n- one\n\n- two\nhostname: x";
        assert_eq!(
            merged(there, &["two", "three"]).unwrap(),
            "#cloud-config\nhostname: x\nssh_authorized_keys:\n- \"one\"\n- \"two\"\n- \"three\"\n"
        );
        let flow = "#cloud-config\nssh_authorized_keys: [one,\n  two]\n";
        assert!(merged(flow, &["three"]).unwrap().ends_with("- \"one\"\n- \"two\"\n- \"three\"\n"));
        assert_eq!(merged("#cloud-config\n", &["k"]).unwrap().lines().count(), 3);
    }

    #[test]
    fn ignition_has_them_with_its_user() {
        let text = r#"{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["a"]}]}}"#;
        let config: Value = serde_json::from_str(&merged(text, &["a", "b"]).unwrap()).unwrap();
        assert_eq!(
            config["passwd"]["users"],
            json!([{"name": "core", "sshAuthorizedKeys": ["a", "b"]}])
        );
        let plain = merged(r#"{"ignition": {"version": "3.4.0"}}"#, &["b"]).unwrap();
        let config: Value = serde_json::from_str(&plain).unwrap();
        assert_eq!(config["passwd"]["users"][0]["name"], "core");
    }

    #[test]
    fn what_cannot_have_them_is_said() {
        assert_eq!(merged(" \n", &[]), Err(UserDataError::Empty));
        assert_eq!(merged("#!/bin/sh\n", &[]).unwrap(), "#!/bin/sh\n");
        for (text, words) in [
            ("#!/bin/sh\n", "is neither a #cloud-config nor Ignition"),
            ("{\"a\": 1}", "has no ignition.version"),
            ("{", "not valid Ignition"),
            ("{\"ignition\": {\"version\": \"3\"}, \"passwd\": 5}", "passwd is of another type"),
            ("#cloud-config\na: [", "not valid cloud-config"),
            ("#cloud-config\n- a\n", "has no fields"),
            ("#cloud-config\nssh_authorized_keys: text\n", "is no list"),
        ] {
            let told = merged(text, &["k"]).unwrap_err().to_string();
            assert!(told.contains(words), "{text}: {told}");
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
            let error = merged(text, &["k"]).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("c4n4ry"), "{text}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_merged_or_refused(text in "(#cloud-config\n)?(ssh_authorized_keys:|[-a-z:\\[\\] \n#\"'{}|>]){0,30}", key in "[ -~]{1,30}") {
            if let Ok(all) = merged(&text, &[&key])
                && !key.trim().is_empty()
            {
                let read: Value = serde_saphyr::from_str(&all).unwrap();
                let keys = read[FIELD].as_array().unwrap();
                prop_assert!(keys.iter().any(|one| one == key.trim()));
            }
        }
    }
}
