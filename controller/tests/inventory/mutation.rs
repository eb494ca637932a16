//! Mutations of a JSON document: an invalid value, a removed field, or a duplicate.

use proptest::prelude::*;
use serde_json::{Value, json};

/// Location and kind of a change.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    position: usize,
    kind: MutationKind,
}

#[derive(Clone, Debug)]
enum MutationKind {
    Replace(Value),
    Remove,
    Duplicate,
}

fn invalid_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(63),
        json!(64),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1.5),
        json!(true),
        json!(""),
        json!("-1"),
        json!("1"),
        json!("0-7"),
        json!("0-65535"),
        json!("7-0"),
        json!("0-4294967295"),
        json!("16Ei"),
        json!("9223372036854775807"),
        json!("1e30"),
        json!("-16Gi"),
        json!("1m"),
        json!("1Gi"),
        json!("2Mi"),
        json!("none"),
        json!("static"),
        json!("Static"),
        json!("restricted"),
        json!("Unknown"),
        json!("v1.20.0"),
        json!("v65535.65535.1"),
        json!([]),
        json!({}),
        json!([0]),
        json!(["0", "1-3"]),
    ]
}

pub(crate) fn any_mutation() -> impl Strategy<Value = Mutation> {
    let kind = prop_oneof![
        6 => prop::sample::select(invalid_values()).prop_map(MutationKind::Replace),
        2 => any::<u32>().prop_map(|number| MutationKind::Replace(json!(number))),
        2 => Just(MutationKind::Remove),
        1 => Just(MutationKind::Duplicate),
    ];
    (any::<prop::sample::Index>(), kind)
        .prop_map(|(place, kind)| Mutation { position: place.index(1 << 20), kind })
}

impl Mutation {
    pub(crate) fn apply(&self, document: &mut Value) {
        let mut paths = Vec::new();
        collect_pointers(document, &mut String::new(), &mut paths);
        let path = &paths[self.position % paths.len()];
        let (parent, last) = path.rsplit_once('/').expect("the path should begin with a slash");
        let last = last.replace("~1", "/").replace("~0", "~");
        let parent = document.pointer_mut(parent).expect("the path should be in the document");
        match (parent, &self.kind) {
            (Value::Object(map), MutationKind::Replace(value)) => {
                map.insert(last, value.clone());
            }
            (Value::Object(map), MutationKind::Remove) => drop(map.remove(&last)),
            (Value::Array(list), kind) => {
                let at: usize = last.parse().expect("the last part should be an index of the list");
                match kind {
                    MutationKind::Replace(value) => list[at] = value.clone(),
                    MutationKind::Remove => drop(list.remove(at)),
                    MutationKind::Duplicate => list.push(list[at].clone()),
                }
            }
            _ => {}
        }
    }
}

/// Collects the JSON pointers of all values except the root.
fn collect_pointers(value: &Value, path: &mut String, all: &mut Vec<String>) {
    let mut deeper = |name: &str, value: &Value| {
        let length = path.len();
        path.push('/');
        path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        all.push(path.clone());
        collect_pointers(value, path, all);
        path.truncate(length);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| deeper(name, value)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| deeper(&at.to_string(), value));
        }
        _ => {}
    }
}
