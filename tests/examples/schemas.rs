//! Packs CustomResourceDefinitions of other projects into the files of `tests/data/crds/`, which contain only names,
//! types and limits, and no descriptions. Run `cargo run -p berth-tests --example schemas -- FILE...`, with one YAML
//! definition in each file.

#![expect(clippy::disallowed_methods, reason = "the files do not belong to a host")]

use std::io::Write as _;

use anyhow::{Context as _, Result};
use berth_tests::repository;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

fn main() -> Result<()> {
    for file in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&file).with_context(|| file.clone())?;
        let definition: Value = serde_saphyr::from_str(&text).with_context(|| file.clone())?;
        let name = definition["metadata"]["name"].as_str().context("the definition has no name")?;
        let packed = json!({
            "apiVersion": definition["apiVersion"], "kind": definition["kind"],
            "metadata": {"name": name}, "spec": strip_descriptions(&definition["spec"], false),
        });
        let out = repository().join(format!("tests/data/crds/{name}.json.gz"));
        // Writes no time stamp, so that the same definition results in the same bytes.
        let mut encoder = GzEncoder::new(std::fs::File::create(&out)?, Compression::best());
        encoder.write_all(packed.to_string().as_bytes())?;
        encoder.finish()?;
        writeln!(std::io::stdout(), "{}", out.display())?;
    }
    Ok(())
}

/// Removes descriptions. A property can be named like a schema keyword, so the children of `properties` are never
/// removed.
fn strip_descriptions(value: &Value, is_properties: bool) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| {
                is_properties || !["description", "example", "title"].contains(&key.as_str())
            });
            kept.map(|(key, value)| {
                (key.clone(), strip_descriptions(value, !is_properties && key == "properties"))
            })
            .collect()
        }
        Value::Array(items) => items.iter().map(|item| strip_descriptions(item, false)).collect(),
        other => other.clone(),
    }
}
