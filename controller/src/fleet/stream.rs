//! Splits strings into objects: YAML documents, JSON values, and items of lists. An invalid object does not prevent the
//! other objects from being read.

use serde_json::Value;

use super::yaml;
use crate::parallel;
use berth_api::Problem;

/// An object and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputObject {
    /// File and document that contain the object, such as `fleet/hosts.yaml, document 3`.
    pub location: String,
    pub object: Value,
}

/// Calls `convert` for each object in `text`, and for each item of a list. Documents are parsed on all cores, and
/// `convert` runs on the same cores.
pub fn for_each_object<T: Send>(
    source: &str,
    text: &str,
    problems: &mut Vec<Problem>,
    convert: impl Fn(InputObject) -> T + Sync,
) -> Vec<T> {
    if text.trim_start().starts_with(['{', '[']) && !has_document_start(text) {
        let mut objects = Vec::new();
        for (at, value) in serde_json::Deserializer::from_str(text).into_iter().enumerate() {
            let location = format!("{source}, object {}", at + 1);
            match value {
                Ok(value) => expand_lists(&location, value, &mut objects, problems),
                // After invalid JSON, the start of the next object is unknown.
                Err(error) => {
                    let problem =
                        Problem::new(location, "", "", format!("is not valid JSON: {error}"));
                    problems
                        .push(problem.into_fatal("ignored, together with the rest of the input"));
                    break;
                }
            }
        }
        return convert_objects(objects, convert);
    }
    let documents: Vec<(usize, &str)> = split_documents(text).into_iter().enumerate().collect();
    let read = parallel::map(documents, |(at, document)| {
        let location = || format!("{source}, document {}", at + 1);
        let (mut objects, mut problems) = (Vec::new(), Vec::new());
        if !document.lines().all(is_blank_or_comment) {
            match yaml::parse(document) {
                Ok(value) => expand_lists(&location(), value, &mut objects, &mut problems),
                Err(error) => {
                    let problem =
                        Problem::new(location(), "", "", format!("is not valid YAML: {error}"));
                    problems.push(problem.into_fatal("left out"));
                }
            }
        }
        // This closure runs on one core. The items of a long list, such as a list of all VMs, are converted after the
        // closure, on all cores.
        let (few, many) = if objects.len() < PARALLEL_THRESHOLD {
            (objects, Vec::new())
        } else {
            (Vec::new(), objects)
        };
        (few.into_iter().map(&convert).collect::<Vec<T>>(), many, problems)
    });
    let mut all = Vec::with_capacity(read.len());
    for (converted, unconverted, document_problems) in read {
        all.extend(converted);
        all.extend(convert_objects(unconverted, &convert));
        problems.extend(document_problems);
    }
    all
}

/// Minimum length of a list whose items are converted on all cores.
const PARALLEL_THRESHOLD: usize = 256;

fn convert_objects<T: Send>(
    objects: Vec<InputObject>,
    convert: impl Fn(InputObject) -> T + Sync,
) -> Vec<T> {
    parallel::map(objects, convert)
}

fn is_blank_or_comment(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

fn has_document_start(text: &str) -> bool {
    text.lines().any(is_document_start)
}

/// Returns true if a line starts with the marker that begins a YAML document (YAML 1.2, 9.1.2). Lines inside a
/// document cannot begin in this way, not even in a block scalar.
fn is_document_start(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']))
}

/// Splits a string into YAML documents. The rest of a marker's line, such as a comment, belongs to the document.
fn split_documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let (mut begin, mut offset) = (0, 0);
    for line in text.split_inclusive('\n') {
        // Most lines start with another character and need no further comparison.
        if line.starts_with(['-', '.']) && is_marker_line(line) {
            documents.extend(text.get(begin..offset));
            begin = offset + MARKER_LENGTH;
        }
        offset += line.len();
    }
    documents.extend(text.get(begin..));
    documents
}

/// Returns true if a line, with its line end, starts or ends a document.
fn is_marker_line(line: &str) -> bool {
    let line = line.trim_end_matches(['\n', '\r']);
    is_document_start(line) || line.trim_end() == "..."
}

/// Length of the markers `---` and `...` in bytes.
const MARKER_LENGTH: usize = 3;

/// Replaces lists by their items, also in nested lists. `kubectl get` sets the kind of each item, but the API server
/// sets only the kind of the list, from which the kind of the items is derived.
fn expand_lists(
    location: &str,
    mut value: Value,
    objects: &mut Vec<InputObject>,
    problems: &mut Vec<Problem>,
) {
    if let Value::Array(items) = value {
        for (at, item) in items.into_iter().enumerate() {
            expand_lists(&format!("{location}[{at}]"), item, objects, problems);
        }
        return;
    }
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    // A kind whose name ends in List is not a list if the object has no `items`.
    let Some(kind) = kind.strip_suffix("List").filter(|_| value.get("items").is_some()) else {
        if value.is_object() && !kind.is_empty() {
            objects.push(InputObject { location: location.to_owned(), object: value });
        } else if !value.is_null() {
            let message = "must be an object with apiVersion, kind and metadata";
            problems.push(
                Problem::new(location, "kind", kind_or_value(&value), message)
                    .into_fatal("left out"),
            );
        }
        return;
    };
    let version = value.get("apiVersion").cloned();
    let items = match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        // Go encodes an empty list as null.
        None | Some(Value::Null) => return,
        Some(other) => {
            let message = "must be a list of objects";
            problems.push(Problem::new(location, "items", other, message).into_fatal("left out"));
            return;
        }
    };
    for (at, mut item) in items.into_iter().enumerate() {
        if let (Some(fields), false) = (item.as_object_mut(), kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| kind.into());
            if let Some(version) = &version {
                fields.entry("apiVersion").or_insert_with(|| version.clone());
            }
        }
        expand_lists(&format!("{location}, item {}", at + 1), item, objects, problems);
    }
}

fn kind_or_value(value: &Value) -> String {
    value.get("kind").map_or_else(|| value.to_string(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object_names(text: &str) -> (Vec<String>, usize) {
        let mut problems = Vec::new();
        let found = for_each_object("f", text, &mut problems, |found| found);
        let name = |found: &InputObject| {
            format!("{}/{}", found.object["kind"].as_str().unwrap_or("?"), found.object["n"])
        };
        (found.iter().map(name).collect(), problems.len())
    }

    #[test]
    fn a_broken_document_does_not_affect_others() {
        let text = "# a\n--- # first\nkind: A\nn: 1\n---\nkind: [\n---\r\nkind: B\nn: 2\n...\n---\n# none\n---\n7\n";
        assert_eq!(object_names(text), (vec!["A/1".to_owned(), "B/2".to_owned()], 2));
    }

    #[test]
    fn lists_are_expanded() {
        let list = r#"{"kind":"List","items":[{"kind":"A","n":1},{"kind":"BList","apiVersion":"v1","items":[{"n":2},3]}]}"#;
        assert_eq!(object_names(list), (vec!["A/1".to_owned(), "B/2".to_owned()], 1));
        assert_eq!(object_names(r#"{"kind":"A","n":1}{"kind":"A","n":2} {"#).0.len(), 2);
        assert_eq!(object_names(r#"[{"kind":"A","n":1}]"#).0.len(), 1);
    }

    #[test]
    fn a_document_may_contain_dashes() {
        let text = "kind: A\nn: |\n  ---\n  x\n---\nkind: A\nn: 2\n";
        assert_eq!(object_names(text).0.len(), 2);
    }

    proptest! {
        #[test]
        fn any_text_causes_no_panic(text in "[-a:{}\\[\\]\\n \"]{0,80}") {
            for_each_object("f", &text, &mut Vec::new(), drop);
        }
    }
}
