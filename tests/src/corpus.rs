//! Tests of parsers of untrusted input: each parser has a fuzz target, and accepts the corpus of this target without a
//! panic. Several packages include this file as a module.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

/// Name of a parser, which is also the name of its fuzz target, and the parser.
type Parser = (&'static str, fn(&[u8]));

/// Runs each parser on its corpus below the folder `fuzz`. The corpus contains the seeds.
pub(crate) fn replay_corpus(fuzz: &Path, parsers: &[Parser]) {
    for (name, parse) in parsers {
        let files: Vec<_> = std::fs::read_dir(fuzz.join("corpus").join(name))
            .unwrap_or_else(|error| panic!("fuzz/corpus/{name}: {error}"))
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!files.is_empty(), "fuzz/corpus/{name} has no seed");
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            // Parses the complete input and truncated inputs, as a file that is being written may be truncated.
            (0..bytes.len().min(256)).for_each(|end| parse(&bytes[..end]));
            parse(&bytes);
        }
        parse(&[0; 64]);
        parse(&[0xff; 64]);
    }
}

/// Verifies that each parser has its fuzz target.
pub(crate) fn check_fuzz_targets(fuzz: &Path, parsers: &[Parser]) {
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for (name, _) in parsers {
        assert!(
            fuzz.join(format!("fuzz_targets/{name}.rs")).is_file(),
            "fuzz/fuzz_targets/{name}.rs does not exist"
        );
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} is not in fuzz/Cargo.toml"
        );
    }
}
