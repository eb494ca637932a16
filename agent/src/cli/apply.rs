//! `berth-agent apply` and `berth-agent revert`.

use std::process::ExitCode;

use berth_api::infra_node::{ChangeResult, InfraNodeSpec};

use super::look;
use super::manifest::{ManifestArguments, tell};
use super::plan::{Output, SAMPLE};
use crate::apply::{self, Converged, Hands, Outcome, converge, links};
use crate::ledger::{self, ASKED_LAST, KUBELET};
use crate::manifest::Manifest;
use crate::observe::{HostFacts, Wanted, shape};
use crate::plan::{self, table::counted};
use crate::root::{Lock, Root};
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{line, printable, wrap};
use berth_runtime::cli::{BAD_INPUT, Failure, PROBLEMS, UNREACHABLE, complain, print};

/// Arguments of `apply`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Make the host as asked, once",
    long_about = "Makes the host as an InfraNode manifest asks, and says what became of each change:\n\n\
        Done     made, and read back\nPartial  some of it; both numbers are said\n\
        Blocked  not tried, as something in use stands in the way\nFailed   tried, and the kernel refused; its \
        error is said\n\n\
        What was found before the first change is saved in /var/lib/berth first, so that `berth-agent revert` can \
        put it back. Run twice, the second run changes nothing. Needs root. `berth-agent plan` shows the changes \
        before.",
    after_help = format!("A manifest:\n{SAMPLE}\nExit code 0 if all is done, 1 if something is blocked or partial, \
        2 if the manifest has a fault (then nothing is changed), 3 if something failed.")
)]
pub(super) struct Arguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Form of the outcomes
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Arguments of `revert`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Put back every value found before Berth first changed it",
    long_about = "Puts back every value found before Berth first changed it, and removes what Berth made.\n\n\
        Values that a reboot resets belong to the boot they were found in: what was set since another boot is \
        not undone. Nothing in use is taken away; what is blocked for that reason is said, and can be put back \
        later by running it again. Stop the daemon first (systemctl stop berth-agent).",
    after_help = "Exit code 0 if all is as found, 1 if something is blocked, 3 if something failed."
)]
pub(super) struct RevertArguments {
    /// Form of the outcomes
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let manifest = arguments.manifest.read()?;
    let (root, _lock, mut facts) = begin()?;
    try_again(&root, &mut facts)?;
    let shape = shape::observe(&root, &facts);
    let input = plan::Input {
        spec: &manifest.spec,
        unclear: &manifest.unclear,
        facts: &facts,
        shape: &shape,
    };
    let node = arguments.manifest.node_name.as_deref().or_else(|| facts.node_name());
    let faults = manifest.faults.iter().cloned().chain(manifest.meant_for_another(node));
    let faults: Vec<_> = faults.chain(plan::plan(input).faults).collect();
    if !faults.is_empty() {
        tell(&faults);
        complain("berth-agent: nothing was changed");
        return Ok(ExitCode::from(BAD_INPUT));
    }
    finish(&root, &facts, &manifest, arguments.output, "the host is as asked")
}

pub(super) fn revert(arguments: &RevertArguments) -> Result<ExitCode, Failure> {
    let (root, _lock, facts) = begin()?;
    // Else an agent that starts before the cluster answers would do it all again.
    if root.exists(ASKED_LAST) {
        root.remove(ASKED_LAST).map_err(|error| unreachable(&error.to_string()))?;
    }
    let nothing = Manifest { spec: InfraNodeSpec::default(), ..Manifest::default() };
    let code = finish(&root, &facts, &nothing, arguments.output, "the host is as found")?;
    // Without an agent it would only grow old.
    root.remove(KUBELET).map_err(|error| unreachable(&error.to_string()))?;
    Ok(code)
}

/// Whoever says `apply` wants what was tried and taken back to be tried again.
fn try_again(root: &Root, facts: &mut HostFacts) -> Result<(), Failure> {
    let mut tried = false;
    for made in facts.ledger.networks.values_mut() {
        tried |= made.trial.take().is_some();
    }
    if let (true, Some(boot_id)) = (tried, facts.boot_id.as_deref()) {
        facts.ledger.save(root, boot_id).map_err(|error| unreachable(&error.to_string()))?;
    }
    Ok(())
}

/// Opens the host for changes: as root, and alone.
fn begin() -> Result<(Root, Lock, HostFacts), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err(unreachable("only root can change the host; `berth-agent plan` needs no root"));
    }
    let root = Root::live().map_err(|error| unreachable(&error.to_string()))?;
    let lock = lock(&root)?;
    let boot_id = crate::observe::boot_id(&root).unwrap_or_default();
    let recovered = links::trial::recover(&root, &boot_id);
    if let Some(said) = recovered.map_err(|error| unreachable(&error.to_string()))? {
        complain(&format!("berth-agent: {said}"));
    }
    let facts = look(&root, &Wanted::to_plan());
    Ok((root, lock, facts))
}

/// Takes the lock of the state folder, which at most one agent of a host has.
pub(super) fn lock(root: &Root) -> Result<Lock, Failure> {
    let made = root.make_folder(ledger::FOLDER);
    made.map_err(|error| {
        unreachable(&format!(
            "{error}; Berth keeps there what it found, and changes nothing without it"
        ))
    })?;
    root.lock(ledger::LOCK).map_err(|error| unreachable(&error.to_string()))
}

fn finish(
    root: &Root,
    facts: &HostFacts,
    manifest: &Manifest,
    output: Output,
    fine: &str,
) -> Result<ExitCode, Failure> {
    let Some(boot_id) = facts.boot_id.as_deref() else {
        return Err(unreachable(&crate::apply::CannotStart::BootId.to_string()));
    };
    let style = Style::for_stdout();
    let hands = Hands::new(root, boot_id, &|| {});
    let mut told = |outcome: &Outcome| {
        if matches!(output, Output::Table) {
            print(&render(outcome, style)).map(drop).unwrap_or_default();
        }
    };
    let converged = converge(
        &hands,
        &manifest.spec,
        &manifest.unclear,
        &std::collections::BTreeSet::new(),
        &|| apply::look(root, &Wanted::to_plan()),
        &mut told,
    );
    if let Some(why) = &converged.stopped {
        return Err(unreachable(&why.to_string()));
    }
    print(&match output {
        Output::Table => sum(&converged, fine),
        Output::Json => serde_json::to_string_pretty(&converged.outcomes)? + "\n",
    })?;
    let any =
        |wanted: &[ChangeResult]| converged.outcomes.iter().any(|o| wanted.contains(&o.result));
    Ok(ExitCode::from(if any(&[ChangeResult::Failed]) {
        UNREACHABLE
    } else if any(&[ChangeResult::Partial, ChangeResult::Blocked]) {
        PROBLEMS
    } else {
        0
    }))
}

fn render(outcome: &Outcome, style: Style) -> String {
    let word = match outcome.result {
        ChangeResult::Done => style.good("Done   "),
        ChangeResult::Partial => style.warning("Partial"),
        ChangeResult::Blocked => style.warning("Blocked"),
        ChangeResult::Failed => style.bad("Failed "),
    };
    let mut out = String::new();
    let mut label = format!("{word}  ");
    for part in wrap(&printable(&outcome.what), 71) {
        line(&mut out, &label, &part);
        label = " ".repeat(13);
    }
    for part in outcome.message.iter().flat_map(|message| wrap(&printable(message), 67)) {
        line(&mut out, &" ".repeat(13), &part);
    }
    out
}

fn sum(converged: &Converged, fine: &str) -> String {
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
        parts.push(fine.to_owned());
    }
    for note in &converged.plan.notes {
        line(&mut out, "note: ", &printable(note));
    }
    if let Some(advice) = &converged.plan.kubelet {
        let fields = counted(advice.differences.len(), "field");
        line(
            &mut out,
            "note: ",
            &format!(
                "{fields} of the kubelet's configuration should differ; `berth-agent plan` shows them and the way there"
            ),
        );
    }
    line(&mut out, &parts.join(", "), "");
    out
}

fn unreachable(message: &str) -> Failure {
    Failure { code: UNREACHABLE, error: anyhow::anyhow!("{message}") }
}
