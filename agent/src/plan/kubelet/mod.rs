//! The kubelet: its desired configuration, the steps to that configuration, and the conditions for
//! each step.
//!
//! A kubelet refuses to start if its checkpoints were written under another policy or for other huge pages, and a
//! running kubelet writes its checkpoints again. So no change of this module takes effect until the node is drained and
//! its kubelet is stopped, and then only together with the removal of the checkpoints. Berth never stops or starts the
//! kubelet.

pub(super) mod action;
pub(super) mod advice;
mod checkpoint;
mod desired;
mod drain;
mod drop_in;
mod next_start;
mod paths;

use std::collections::BTreeSet;

use berth_api::CpuSet;
use berth_api::infra_node::KubeletMode;

use super::change::Change;
use super::input::Input;
use super::target::Targets;
use crate::manifest::{Fault, SpecPart};
pub use action::KubeletAction;
pub use advice::KubeletAdvice;
use advice::advice_steps;
pub use berth_host_facts::kubelet::config_diff::FieldDifference;
use berth_host_facts::kubelet::config_diff::find_differences;
pub(super) use checkpoint::{PoolClaim, memory_manager_claim, remove_checkpoint};
use desired::{desired_config, render_config};
pub(crate) use drain::restart_procedure;
pub use drop_in::DROP_IN_HEADER;
use drop_in::{plan_drop_in, plan_drop_in_removal};
pub(crate) use next_start::restart_reason;
pub use next_start::{NextStartFailure, next_start_failure};

pub(super) fn plan(
    input: Input,
    reserved: Option<&CpuSet>,
    frozen: &BTreeSet<SpecPart>,
    targets: &mut Targets,
) -> (Vec<Change>, Option<KubeletAdvice>) {
    if frozen.contains(&SpecPart::Cpu) {
        return (Vec::new(), None);
    }
    let mode = input.spec.cpu.as_ref().and_then(|cpu| cpu.kubelet);
    let kubelet = &input.facts.kubelet;
    let (Some(mode @ (KubeletMode::Advise | KubeletMode::Stage)), Some(reserved)) =
        (mode, reserved)
    else {
        if let (Some(mode @ (KubeletMode::Advise | KubeletMode::Stage)), None) = (mode, reserved) {
            let message = "requires spec.cpu.reserved, the CPUs that the kubelet reserves";
            targets.faults.push(Fault::new("spec.cpu.kubelet", format!("{mode:?}"), message));
        }
        return (plan_drop_in_removal(input), None);
    };
    let Some(config) = &kubelet.config else {
        let reason = kubelet.config_error.as_ref().map_or("not found", |(_, why)| why.as_str());
        targets.notes.push(format!(
            "no advice for the kubelet, because its configuration is unknown: {reason}"
        ));
        return (Vec::new(), None);
    };
    let desired = desired_config(input, config, reserved);
    let differences = find_differences(config, &desired);
    let configuration = render_config(&desired);
    let changes = match mode {
        KubeletMode::Stage => plan_drop_in(input, &differences, &configuration),
        _ => plan_drop_in_removal(input),
    };
    let advice = (!differences.is_empty()).then(|| KubeletAdvice {
        steps: advice_steps(input, mode, &desired),
        differences,
        configuration,
    });
    (changes, advice)
}
