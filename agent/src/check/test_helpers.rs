//! Runs a single check on the facts of a unit test.

use super::{Input, Outcome, select};
use berth_host_facts::HostFacts;
use berth_host_facts::irqs::Irq;

pub(crate) fn run_check_on_facts(id: &str, facts: &HostFacts) -> Outcome {
    run_check_with_irqs(id, facts, vec![])
}

pub(crate) fn run_check_with_irqs(id: &str, facts: &HostFacts, irqs: Vec<Irq>) -> Outcome {
    run_check_with_input(id, &Input { irqs, ..Input::from_facts(facts) })
}

pub(crate) fn run_check_with_input(id: &str, input: &Input) -> Outcome {
    let checks = select(&[id.to_owned()]);
    assert_eq!(checks.len(), 1, "{id}");
    (checks[0].run)(input)
}
