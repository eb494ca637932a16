//! Names of checks on the command line.

use std::collections::BTreeSet;

use clap::builder::PossibleValuesParser;

use super::definition::Check;

/// Returns a command line parser that accepts the IDs and groups of checks. Shells can complete these names.
#[must_use]
pub fn name_parser<F>(checks: &[Check<F>]) -> PossibleValuesParser {
    let ids = checks.iter().map(|check| check.id);
    let groups: BTreeSet<&'static str> =
        ids.clone().filter_map(|id| id.split('.').next()).collect();
    PossibleValuesParser::new(groups.into_iter().chain(ids))
}
