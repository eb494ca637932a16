//! Sets the affinity of interrupts. Only a write shows whether an interrupt can be moved: for interrupts that are bound
//! to a CPU or managed by their driver, the kernel returns EIO, or EPERM since 6.10 (`write_irq_affinity`). Since 6.10
//! the file of such an interrupt is also read-only, so that root without capabilities gets EACCES. The rollback ledger
//! records the refusal until the next boot.

use nix::errno::Errno;

use super::context::ApplyContext;
use super::outcome::{ApplyResult, error_with_hint};
use super::setting_outcome::record_setting_outcome;
use super::settings;
use crate::host_write::HostWrite as _;
use crate::plan::{ChangeReason, Step};
use berth_host_facts::irqs;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::setting::Setting;

pub(super) fn set_affinities(
    context: &ApplyContext,
    reason: ChangeReason,
    steps: &[Step],
    ledger: &mut Ledger,
) -> ApplyResult {
    let (mut moved, mut unmovable, mut removed) = (0, 0, 0);
    let mut failures: Vec<String> = Vec::new();
    for step in steps {
        let Setting::IrqAffinity(number) = step.setting else { continue };
        let file = format!("proc/irq/{number}/smp_affinity_list");
        let result = match context.root.write(&file, &step.new_value.to_string()) {
            Ok(())
                if settings::read_current_value(context.root, step.setting).as_ref()
                    == Some(&step.new_value) =>
            {
                moved += 1;
                ApplyResult::Done(None)
            }
            Ok(()) => {
                ApplyResult::Failed(format!("/{file}: the value differs from the written value"))
            }
            Err(error) if matches!(error.errno, Errno::EIO | Errno::EPERM | Errno::EACCES) => {
                ledger.unmovable_irqs.insert(number, irqs::read_driver_names(context.root, number));
                ledger.entries.remove(&step.setting);
                unmovable += 1;
                continue;
            }
            // The device was removed since the plan was made.
            Err(error) if error.errno == Errno::ENOENT => {
                ledger.entries.remove(&step.setting);
                removed += 1;
                continue;
            }
            Err(error) => ApplyResult::Failed(error_with_hint(&error)),
        };
        record_setting_outcome(reason, step, &result, ledger);
        if let ApplyResult::Failed(message) = result {
            failures.push(message);
        }
        context.report_progress();
    }
    let mut parts = vec![format!("{moved} moved")];
    if unmovable > 0 {
        parts.push(format!(
            "{unmovable} not moved, because they are bound to their CPUs or managed by their drivers"
        ));
    }
    if removed > 0 {
        parts.push(format!("{removed} removed"));
    }
    let message = parts.join(", ");
    match (failures.first(), moved) {
        (None, _) => ApplyResult::Done(Some(message)),
        (Some(first), 0) => ApplyResult::Failed(first.clone()),
        (Some(first), _) => {
            ApplyResult::Partial(format!("{message}, {} failed: {first}", failures.len()))
        }
    }
}
