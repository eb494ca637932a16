//! Command `why`.

use std::process::ExitCode;

use berth_api::Problem;
use berth_runtime::cli::columns::{TERMINAL_WIDTH, shorten};
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::to_single_line;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_PROBLEMS, Failure, print, print_error};
use berth_runtime::object_events::ObjectEvent;
use berth_views::machines::{self, MachineRow, MachineState};
use berth_views::{ObjectName, Snapshot};
use serde::Serialize;

use super::arguments::{ListArguments, Output};
use super::machine_events::{push_events, read_machine_events};
use super::output::{push_paragraph, to_json, to_yaml};
use super::program::PROGRAM;
use super::read::{Session, read_objects, snapshot_of};
use super::state::StateSources;
use super::target::{TargetError, find_machine};
use crate::fleet::{Fleet, FleetItem};
use crate::plan::{Explanation, Placement, explain_placement, render_placement};

/// Explain where a machine is and why, or why it does not run
///
/// For a machine with a host: its zones and CPUs, the points of its host and of others, and why the remaining hosts refuse it.
/// For a machine without a host: the rule by which each host refuses it, and what to do. For a machine that leaves its host:
/// what it waits for. In each case the latest Events of the machine and of its launcher pods. NAME is a VirtualMachine, a
/// VirtualMachineInstance or a launcher pod; NAMESPACE/NAME also works.
///
/// The hosts are compared by the engine of the controller, on the current state of the cluster. This needs the permission to
/// list Nodes, InfraNodes and Pods of the whole cluster; without it, only the status of the machine is shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth why web-1 -n cluster-bank     a machine\n  \
    kubectl berth why cluster-bank/web-1        the same\n  \
    kubectl berth why virt-launcher-web-1-abcde the machine of a launcher pod\n\n\
    Exit code 1 if the machine has no host, or cannot leave its drained host.")]
pub(in crate::cli) struct Arguments {
    /// Machine, VM or launcher pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "[NAMESPACE/]NAME")]
    name: String,
    #[command(flatten)]
    list: ListArguments,
}

#[derive(Debug, Serialize)]
struct Why {
    machine: MachineRow,
    /// Result of the engine; absent if the objects of the cluster may not be read, or if the machine is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Placement>,
    /// Latest Events about the machine and its launcher pods, the latest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<ObjectEvent>,
}

/// State of the machine.
struct State {
    snapshot: Snapshot,
    name: ObjectName,
    /// State of the cluster, if the objects are from files.
    fleet: Option<Fleet>,
    events: Vec<ObjectEvent>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let list = &arguments.list;
    if list.watch {
        let error = anyhow::anyhow!("`why` has no --watch: use `kubectl berth machines --watch`");
        return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
    }
    let State { snapshot, name, fleet, events } = read(arguments)?;
    let machine = machines::find(&snapshot, &name)
        .ok_or_else(|| TargetError::NotFound { name: arguments.name.clone() })?;
    let cluster = &list.scope.cluster;
    let sources = StateSources { cluster, from: &[], added: &[], is_drain: false };
    let fleet = fleet.map_or_else(|| sources.read(), Ok);
    let (placement, problems) = match fleet {
        Ok(fleet) => {
            let name = name.to_string();
            let Explanation { placement, mut problems } = explain_placement(&fleet, &name);
            problems.retain(|problem| problem.object.ends_with(&format!(" {name}")));
            (placement, problems)
        }
        Err(failure) => {
            let text = format!("{PROGRAM}: the hosts are not compared: {:#}", failure.error);
            print_error(&to_single_line(&text));
            (None, Vec::new())
        }
    };
    let why = Why { machine, placement, events };
    let text = match list.output {
        Output::Table | Output::Wide => format(&why, &problems, Style::for_stdout()),
        Output::Json => to_json(&why)?,
        Output::Yaml => to_yaml(&why)?,
    };
    print(&text)?;
    Ok(ExitCode::from(if why.needs_action() { EXIT_PROBLEMS } else { 0 }))
}

/// Reads the machines, and finds the machine of the arguments. Files are read once, because standard input has no second
/// time: they are also returned as the state of the cluster.
fn read(arguments: &Arguments) -> Result<State, Failure> {
    let list = &arguments.list;
    let find = |snapshot: &Snapshot| {
        find_machine(snapshot, &arguments.name, list.scope.namespace.as_deref())
    };
    if !list.from.is_empty() {
        let (objects, problems) = read_objects(&list.from)?;
        let snapshot = snapshot_of(&objects, &machines::KINDS);
        let items = objects.into_iter().map(FleetItem::from_input).collect();
        let name = find(&snapshot)?;
        let fleet = Some(Fleet::from_items(items, problems));
        return Ok(State { snapshot, name, fleet, events: Vec::new() });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let session = Session::open_for_machine(&list.scope, &arguments.name).await?;
        let snapshot = session.read(&machines::KINDS).await?;
        let name = find(&snapshot)?;
        let events = read_machine_events(&session.client, &snapshot, &name).await;
        let events = events.unwrap_or_else(|error| {
            print_error(&to_single_line(&format!("{PROGRAM}: not shown: events: {error}")));
            Vec::new()
        });
        Ok(State { snapshot, name, fleet: None, events })
    })
}

impl Why {
    fn needs_action(&self) -> bool {
        let is_blocked = self.machine.evacuation.as_ref().is_some_and(|one| one.is_blocked);
        let has_failed =
            matches!(self.machine.state, MachineState::Failed | MachineState::Unschedulable);
        is_blocked
            || has_failed
            || matches!(self.placement, Some(Placement::Unplaced(_) | Placement::Pending(_)))
    }
}

fn format(why: &Why, problems: &[Problem], style: Style) -> String {
    let mut out = String::new();
    let machine = &why.machine;
    let state = to_single_line(&format!("{}: {}", machine.name, machine.state));
    out += &style.format_title(&shorten(&state, TERMINAL_WIDTH));
    out.push('\n');
    if !machine.status.is_empty() {
        push_paragraph(&mut out, "  ", &format!("KubeVirt: {}", machine.status));
    }
    if let Some(host) = &machine.host {
        push_paragraph(&mut out, "  ", &format!("host: {host}"));
    }
    if let Some(evacuation) = &machine.evacuation {
        let until = evacuation.until.as_ref().map(|until| format!(", until {until}"));
        let text = format!(
            "must leave {} since {}{}: {}: {}",
            evacuation.host,
            evacuation.since,
            until.unwrap_or_default(),
            evacuation.reason,
            evacuation.message
        );
        push_paragraph(&mut out, "  ! ", &text);
    } else if let Some(message) = &machine.message {
        push_paragraph(&mut out, "  ! ", message);
    }
    for problem in problems {
        push_paragraph(&mut out, "  ! ", &problem.to_string());
    }
    match &why.placement {
        Some(placement) => {
            out.push('\n');
            out += &render_placement(placement, style);
        }
        None if machine.state == MachineState::Stopped => {
            push_paragraph(
                &mut out,
                "  > ",
                "the machine is switched off: start it with spec.runStrategy",
            );
        }
        None => {}
    }
    push_events(&mut out, &why.events, style);
    out
}
