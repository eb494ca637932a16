//! Runs the parsers with the corpus and the seeds of the fuzz targets.

#![expect(clippy::disallowed_methods, reason = "tests read files of the repository")]

#[path = "../../tests/src/corpus.rs"]
mod corpus;

use std::path::Path;

use berth_agent::parsers::PARSERS;

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz");

#[test]
fn every_parser_returns_on_its_corpus() {
    corpus::replay_corpus(Path::new(FUZZ), PARSERS);
}

#[test]
fn every_parser_has_its_fuzz_target() {
    corpus::check_fuzz_targets(Path::new(FUZZ), PARSERS);
}
