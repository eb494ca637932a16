//! What a cycle did, as Events tell it: each kind once, and what is still so is not told again.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::infra_node::ChangeResult;

use crate::apply::Outcome;
use crate::cluster::{Tale, Told};
use crate::manifest::Fault;
use crate::plan::Change;

/// What was told and is still so: of what kind, of which change or fault, and the sentence.
#[derive(Debug, Default)]
pub(super) struct Tales(BTreeSet<(Tale, String, String)>);

impl Tales {
    /// What is new in these outcomes and faults. `left` is what is still to be done.
    pub(super) fn of(
        &mut self,
        outcomes: &[Outcome],
        faults: &[Fault],
        left: &[Change],
    ) -> Vec<Told> {
        let mut new: BTreeMap<Tale, Vec<String>> = BTreeMap::new();
        let mut lasting = BTreeSet::new();
        for outcome in outcomes {
            let tale = match outcome.result {
                ChangeResult::Done if outcome.drift => Tale::DriftRepaired,
                ChangeResult::Done => Tale::Changed,
                ChangeResult::Partial => Tale::Partial,
                ChangeResult::Failed => Tale::Failed,
                ChangeResult::Blocked => Tale::Blocked,
            };
            let message = outcome
                .message
                .as_deref()
                .map(|message| format!(": {message}"))
                .unwrap_or_default();
            let sentence = format!("{}{message}", outcome.what);
            if outcome.result == ChangeResult::Done {
                new.entry(tale).or_default().push(sentence);
            } else {
                lasting.insert((tale, outcome.what.clone(), sentence));
            }
        }
        lasting.extend(
            faults.iter().map(|fault| (Tale::FaultInSpec, String::new(), fault.to_string())),
        );
        for (tale, _, sentence) in lasting.difference(&self.0) {
            new.entry(*tale).or_default().push(sentence.clone());
        }
        // What failed is tried ever more rarely; only what is blocked or wrong is seen in every cycle.
        let left: BTreeSet<String> = left.iter().map(Change::sentence).collect();
        self.0.retain(|(tale, what, _)| {
            matches!(tale, Tale::Failed | Tale::Partial) && left.contains(what)
        });
        self.0.extend(lasting);
        new.into_iter().map(|(tale, sentences)| Told { tale, sentences }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(what: &str, result: ChangeResult, drift: bool) -> Outcome {
        Outcome { what: what.to_owned(), result, message: None, drift }
    }

    #[test]
    fn what_lasts_is_told_once_and_what_is_done_each_time() {
        let mut tales = Tales::default();
        let blocked = outcome("a", ChangeResult::Blocked, false);
        let repaired = outcome("b", ChangeResult::Done, true);
        let kinds = |told: Vec<Told>| told.iter().map(|told| told.tale).collect::<Vec<_>>();
        assert_eq!(
            kinds(tales.of(&[blocked.clone(), repaired.clone()], &[], &[])),
            [Tale::DriftRepaired, Tale::Blocked]
        );
        assert_eq!(kinds(tales.of(&[blocked.clone(), repaired], &[], &[])), [Tale::DriftRepaired]);
        assert_eq!(kinds(tales.of(&[], &[], &[])), []);
        assert_eq!(kinds(tales.of(&[blocked], &[], &[])), [Tale::Blocked]);
    }
}
