//! Replays the fuzzing corpus of the parsers of frames, including its seeds, in an ordinary test run.

#![expect(clippy::disallowed_methods, reason = "tests read the repository's files")]

use std::path::Path;

use berth_dhcp_responder::parsers::PARSERS;

#[test]
fn every_parser_returns_on_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, parse) in PARSERS {
        let files: Vec<_> = std::fs::read_dir(corpus.join(name))
            .unwrap_or_else(|error| panic!("fuzz/corpus/{name}: {error}"))
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!files.is_empty(), "fuzz/corpus/{name} has no seed");
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            // Each input is parsed completely, and cut off at each position like a partially written file.
            (0..bytes.len().min(256)).for_each(|end| parse(&bytes[..end]));
            parse(&bytes);
        }
        parse(&[0; 64]);
        parse(&[0xff; 64]);
    }
}

#[test]
fn every_parser_has_its_fuzz_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for (name, _) in PARSERS {
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
