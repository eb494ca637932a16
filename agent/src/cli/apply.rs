//! The commands `berth-agent apply` and `berth-agent revert`.

use std::process::ExitCode;

use berth_api::infra_node::{ChangeResult, InfraNodeSpec};

use super::manifest::{ManifestArguments, leased_networks, print_faults};
use super::options::observe_with_warnings;
use super::plan::{Output, SAMPLE};
use crate::apply::{self, ApplyContext, ConvergeResult, Outcome, converge, links};
use crate::host_write::{HostWrite as _, Lock};
use crate::manifest::Manifest;
use crate::observe;
use crate::plan::{self, table::count_with_noun};
use crate::state_folder::{
    CONFLICTS_FILE, LAST_MANIFEST_FILE, LEASES_FILE, LOCK_FILE, STATE_FOLDER, TRUNK_FILE,
    save_ledger,
};
use berth_host_facts::ledger::KUBELET_RECORD_FILE;
use berth_host_facts::root::Root;
use berth_host_facts::{HostFacts, ObserveOptions};
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{push_line, replace_control_characters, wrap_text};
use berth_runtime::cli::{
    EXIT_BAD_INPUT, EXIT_PROBLEMS, EXIT_UNREACHABLE, Failure, print, print_error,
};

/// Arguments of `apply`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Apply the desired state once",
    long_about = "Applies the desired state of an InfraNode manifest to the host, and prints the outcome of each change:\n\n\
        Done     applied and verified\nPartial  applied partially; the reached and the desired value are printed\n\
        Blocked  not applied, because a resource is in use\nFailed   the kernel refused the change; its \
        error is printed\n\n\
        Original values are saved in /var/lib/berth before the first change, so that `berth-agent revert` can \
        restore them. A second run is a no-op. Needs root. `berth-agent plan` shows the changes in advance.",
    after_help = format!("A manifest:\n{SAMPLE}\nExit code 0 if all changes are applied, 1 if a change is blocked or partial, \
        2 if the manifest has a fault (then no change is applied), 3 if a change failed.")
)]
pub(super) struct Arguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Arguments of `revert`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Restore all values that Berth has changed",
    long_about = "Restores the original value of each setting that Berth has changed, and removes the links and files \
        that Berth created.\n\n\
        Some settings do not survive a reboot. Their original values are valid only for the boot in which they were \
        saved; after a reboot they are not restored. Resources in use are not removed; these changes are reported as blocked, and another run can \
        restore them. Stop the daemon first (systemctl stop berth-agent).",
    after_help = "Exit code 0 if all values are restored, 1 if a change is blocked, 3 if a change failed."
)]
pub(super) struct RevertArguments {
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let manifest = arguments.manifest.read()?;
    let (root, _lock, mut facts) = open_host(&manifest.spec)?;
    clear_failed_trials(&root, &mut facts)?;
    let settings = observe::settings(&root, &facts);
    let leases = leased_networks(&manifest);
    let input = plan::Input {
        spec: &manifest.spec,
        unparsed: &manifest.unparsed,
        facts: &facts,
        settings: &settings,
        leases: leases.as_ref(),
    };
    let node = arguments.manifest.node_name.as_deref().or_else(|| facts.node_name());
    let faults = manifest.faults.iter().cloned().chain(manifest.node_mismatch(node));
    let faults: Vec<_> = faults.chain(plan::plan(input).faults).collect();
    if !faults.is_empty() {
        print_faults(&faults);
        print_error("berth-agent: no change was applied");
        return Ok(ExitCode::from(EXIT_BAD_INPUT));
    }
    converge_and_print(&root, &facts, &manifest, arguments.output, "the host has the desired state")
}

pub(super) fn revert(arguments: &RevertArguments) -> Result<ExitCode, Failure> {
    let spec = InfraNodeSpec::default();
    let (root, _lock, facts) = open_host(&spec)?;
    // With these files, an agent that starts before the API server answers would apply the saved desired state again.
    for file in [LAST_MANIFEST_FILE, LEASES_FILE, TRUNK_FILE, CONFLICTS_FILE] {
        if root.exists(file) {
            root.remove(file).map_err(|error| unreachable_failure(&error.to_string()))?;
        }
    }
    let empty_manifest = Manifest { spec, ..Manifest::default() };
    let code = converge_and_print(
        &root,
        &facts,
        &empty_manifest,
        arguments.output,
        "the host has its original state",
    )?;
    // The record of the kubelet's configuration is useless without an agent.
    root.remove(KUBELET_RECORD_FILE).map_err(|error| unreachable_failure(&error.to_string()))?;
    Ok(code)
}

/// Removes the records of failed trials of links from the rollback ledger, because a user who runs `apply` wants to
/// retry these changes.
fn clear_failed_trials(root: &Root, facts: &mut HostFacts) -> Result<(), Failure> {
    let mut cleared = false;
    for record in facts.ledger.networks.values_mut() {
        cleared |= record.failed_trial.take().is_some();
    }
    if let (true, Some(boot_id)) = (cleared, facts.boot_id.as_deref()) {
        save_ledger(&facts.ledger, root, boot_id)
            .map_err(|error| unreachable_failure(&error.to_string()))?;
    }
    Ok(())
}

/// Opens the host for changes: requires root, acquires the lock, rolls back an unfinished trial, and reads the facts of
/// the host that a plan for `spec` needs.
fn open_host(spec: &InfraNodeSpec) -> Result<(Root, Lock, HostFacts), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err(unreachable_failure(
            "only root can change the host; `berth-agent plan` needs no root",
        ));
    }
    let root = Root::open_live().map_err(|error| unreachable_failure(&error.to_string()))?;
    let lock = acquire_lock(&root)?;
    let boot_id = berth_host_facts::kernel_files::boot_id(&root).unwrap_or_default();
    let recovered = links::trial::roll_back_unfinished_trial(&root, &boot_id);
    if let Some(recovered) = recovered.map_err(|error| unreachable_failure(&error.to_string()))? {
        print_error(&format!("berth-agent: {recovered}"));
    }
    let facts = observe_with_warnings(&root, &ObserveOptions::for_spec(spec));
    Ok((root, lock, facts))
}

/// Acquires the lock of the state folder, so that only one agent changes the host.
pub(super) fn acquire_lock(root: &Root) -> Result<Lock, Failure> {
    let created = root.create_folder(STATE_FOLDER);
    created.map_err(|error| {
        unreachable_failure(&format!(
            "{error}; Berth saves original values in this folder, and applies no change without it"
        ))
    })?;
    root.lock(LOCK_FILE).map_err(|error| unreachable_failure(&error.to_string()))
}

fn converge_and_print(
    root: &Root,
    facts: &HostFacts,
    manifest: &Manifest,
    output: Output,
    success: &str,
) -> Result<ExitCode, Failure> {
    let Some(boot_id) = facts.boot_id.as_deref() else {
        return Err(unreachable_failure(&crate::apply::ApplyBlocked::UnknownBootId.to_string()));
    };
    let style = Style::for_stdout();
    let leases = leased_networks(manifest);
    let context = ApplyContext::new(root, boot_id, &|| {}).with_leases(leases.as_ref());
    let mut print_outcome = |outcome: &Outcome| {
        if matches!(output, Output::Table) {
            print(&render_outcome(outcome, style)).map(drop).unwrap_or_default();
        }
    };
    let converged = converge(
        &context,
        &manifest.spec,
        &manifest.unparsed,
        &std::collections::BTreeSet::new(),
        &|| apply::observe_for_plan(root, &ObserveOptions::for_spec(&manifest.spec)),
        &mut print_outcome,
    );
    if let Some(reason) = &converged.blocked_reason {
        return Err(unreachable_failure(&reason.to_string()));
    }
    print(&match output {
        Output::Table => render_summary(&converged, success),
        Output::Json => serde_json::to_string_pretty(&converged.outcomes)? + "\n",
    })?;
    let any_with_result =
        |results: &[ChangeResult]| converged.outcomes.iter().any(|o| results.contains(&o.result));
    Ok(ExitCode::from(if any_with_result(&[ChangeResult::Failed]) {
        EXIT_UNREACHABLE
    } else if any_with_result(&[ChangeResult::Partial, ChangeResult::Blocked]) {
        EXIT_PROBLEMS
    } else {
        0
    }))
}

fn render_outcome(outcome: &Outcome, style: Style) -> String {
    let word = match outcome.result {
        ChangeResult::Done => style.format_success("Done   "),
        ChangeResult::Partial => style.format_warning("Partial"),
        ChangeResult::Blocked => style.format_warning("Blocked"),
        ChangeResult::Failed => style.format_failure("Failed "),
    };
    let mut out = String::new();
    let mut label = format!("{word}  ");
    for part in wrap_text(&replace_control_characters(&outcome.what), 71) {
        push_line(&mut out, &label, &part);
        label = " ".repeat(13);
    }
    for part in outcome
        .message
        .iter()
        .flat_map(|message| wrap_text(&replace_control_characters(message), 67))
    {
        push_line(&mut out, &" ".repeat(13), &part);
    }
    out
}

fn render_summary(converged: &ConvergeResult, success: &str) -> String {
    let count = |result| converged.outcomes.iter().filter(|o| o.result == result).count();
    let done = count(ChangeResult::Done);
    let mut parts = Vec::new();
    if done > 0 {
        parts.push(format!("{done} done"));
    }
    for (result, word) in [
        (ChangeResult::Partial, "partial"),
        (ChangeResult::Blocked, "blocked"),
        (ChangeResult::Failed, "failed"),
    ] {
        if count(result) > 0 {
            parts.push(format!("{} {word}", count(result)));
        }
    }
    let mut out = String::new();
    if converged.outcomes.len() == done && converged.plan.is_empty() {
        parts.push(success.to_owned());
    }
    for note in &converged.plan.notes {
        push_line(&mut out, "note: ", &replace_control_characters(note));
    }
    if let Some(advice) = &converged.plan.kubelet {
        let fields = count_with_noun(advice.differences.len(), "field");
        push_line(
            &mut out,
            "note: ",
            &format!(
                "the kubelet's configuration differs from the desired one in {fields}; `berth-agent plan` shows the steps"
            ),
        );
    }
    push_line(&mut out, &parts.join(", "), "");
    out
}

fn unreachable_failure(message: &str) -> Failure {
    Failure { exit_code: EXIT_UNREACHABLE, error: anyhow::anyhow!("{message}") }
}
