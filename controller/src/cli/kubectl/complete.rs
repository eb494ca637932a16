//! Completions in the format in which kubectl expects them from `kubectl_complete-berth`: one candidate per line, a tabulator,
//! a description, and at the end a line with a directive.

use std::path::PathBuf;
use std::time::Duration;

use berth_runtime::cli::text::to_single_line;
use berth_views::{Kind, ObjectName, Snapshot};
use clap::Command;
use tokio::time::timeout;

use super::arguments::{ClusterArguments, ScopeArguments};
use super::read::Session;

/// Directive with which the shell does not complete file names (cobra's ShellCompDirectiveNoFileComp).
const NO_FILES: &str = ":4\n";
/// Directive with which the shell completes as it likes (cobra's ShellCompDirectiveDefault).
const DEFAULT: &str = ":0\n";
/// Time limit for the names of objects. A user waits for them.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Objects that an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Hosts,
    Machines,
    Tenants,
}

/// Returns the completions of the last of the words that follow `kubectl berth`.
pub(super) fn completions(command: &Command, words: &[String]) -> String {
    let (last, before) =
        words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let mut out = String::new();
    match candidates(command, before, last) {
        Candidates::Fixed(all) => {
            for (name, description) in all {
                push(&mut out, &name, &description);
            }
        }
        Candidates::Objects(names) => {
            let all = object_names(names, &scope(before), last).unwrap_or_default();
            all.iter()
                .filter(|name| name.starts_with(last))
                .for_each(|name| push(&mut out, name, ""));
        }
        Candidates::Files => return DEFAULT.to_owned(),
    }
    out + NO_FILES
}

fn push(out: &mut String, name: &str, description: &str) {
    out.push_str(&to_single_line(name));
    if !description.is_empty() {
        out.push('\t');
        out.push_str(&to_single_line(description));
    }
    out.push('\n');
}

#[derive(Debug, PartialEq, Eq)]
enum Candidates {
    /// Candidates with descriptions.
    Fixed(Vec<(String, String)>),
    Objects(Names),
    Files,
}

/// Returns the candidates for `last`, which follows the words `before`.
fn candidates(command: &Command, before: &[String], last: &str) -> Candidates {
    let name = before.iter().find(|word| !word.starts_with('-'));
    let subcommand = name.and_then(|name| command.find_subcommand(name));
    let Some(subcommand) = subcommand else {
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let matching = shown.filter(|one| one.get_name().starts_with(last));
        let describe = |one: &Command| one.get_about().map(ToString::to_string).unwrap_or_default();
        return Candidates::Fixed(
            matching.map(|one| (one.get_name().to_owned(), describe(one))).collect(),
        );
    };
    if last.starts_with('-') {
        let flags = subcommand.get_arguments().filter(|one| !one.is_hide_set());
        let flags = flags.filter_map(|one| {
            let name = format!("--{}", one.get_long()?);
            let help = one.get_help().map(ToString::to_string).unwrap_or_default();
            name.starts_with(last).then_some((name, help))
        });
        return Candidates::Fixed(flags.collect());
    }
    let previous = before.last().map(String::as_str).unwrap_or_default();
    if let Some(flag) = flag_with_value(subcommand, previous) {
        let possible = flag.get_possible_values();
        return match flag.get_id().as_str() {
            "tenant" => Candidates::Objects(Names::Tenants),
            "host" => Candidates::Objects(Names::Hosts),
            _ if possible.is_empty() => Candidates::Files,
            _ => Candidates::Fixed(
                possible
                    .iter()
                    .filter(|value| value.get_name().starts_with(last))
                    .map(|value| (value.get_name().to_owned(), String::new()))
                    .collect(),
            ),
        };
    }
    match subcommand.get_name() {
        "host" | "drain-check" => Candidates::Objects(Names::Hosts),
        "tenants" => Candidates::Objects(Names::Tenants),
        "why" | "ssh" | "console" | "vnc" => Candidates::Objects(Names::Machines),
        _ => Candidates::Fixed(Vec::new()),
    }
}

/// Returns the option that `word` names, if a value must follow.
fn flag_with_value<'c>(command: &'c Command, word: &str) -> Option<&'c clap::Arg> {
    let name = word.strip_prefix('-')?;
    let found = command.get_arguments().find(|one| match name.strip_prefix('-') {
        Some(long) => one.get_long() == Some(long),
        None => one.get_short().is_some_and(|short| name == short.to_string()),
    });
    found.filter(|flag| flag.get_action().takes_values())
}

/// Returns the cluster and the namespace that the words select.
fn scope(words: &[String]) -> ScopeArguments {
    let value = |names: [&str; 2]| {
        words.iter().enumerate().rev().find_map(|(at, word)| {
            names.iter().find_map(|name| {
                let rest = word.strip_prefix(name)?;
                match rest.strip_prefix('=') {
                    Some(value) => Some(value.to_owned()),
                    None if rest.is_empty() => words.get(at.saturating_add(1)).cloned(),
                    // A value can follow the letter of an option immediately.
                    None => (!name.starts_with("--")).then(|| rest.to_owned()),
                }
            })
        })
    };
    ScopeArguments {
        cluster: ClusterArguments {
            kubeconfig: value(["--kubeconfig"; 2]).map(PathBuf::from),
            context: value(["--context"; 2]),
            as_user: value(["--as"; 2]),
            as_uid: value(["--as-uid"; 2]),
            as_group: value(["--as-group"; 2]).into_iter().collect(),
        },
        namespace: value(["--namespace", "-n"]),
        all_namespaces: false,
    }
}

/// Returns the names of objects in the cluster; `None` if they cannot be read in time.
fn object_names(names: Names, scope: &ScopeArguments, last: &str) -> Option<Vec<String>> {
    let kinds: &[Kind] = match names {
        Names::Hosts => &[Kind::InfraNode, Kind::Node],
        Names::Machines => &[Kind::VirtualMachine],
        Names::Tenants => &[Kind::TenantCluster],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let snapshot: Snapshot = runtime.block_on(async {
        let read = async {
            let session = Session::open_for_machine(scope, last).await.ok()?;
            session.read(kinds).await.ok()
        };
        timeout(TIMEOUT, read).await.ok().flatten()
    })?;
    Some(match names {
        Names::Hosts => {
            berth_views::hosts::rows(&snapshot).into_iter().map(|row| row.name).collect()
        }
        Names::Machines => {
            let is_short = scope.namespace.is_some() && !last.contains('/');
            let name = |one: &ObjectName| if is_short { one.name.clone() } else { one.to_string() };
            snapshot.machines.keys().map(name).collect()
        }
        Names::Tenants => snapshot.tenants.into_keys().collect(),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    fn fixed(words: &[&str], last: &str) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        match candidates(&Cli::command(), &words, last) {
            Candidates::Fixed(all) => all.into_iter().map(|(name, _)| name).collect(),
            other => vec![format!("{other:?}")],
        }
    }

    #[test]
    fn the_cluster_and_the_namespace_are_those_of_the_words() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let found = scope(&words("why --kubeconfig=/a --context lab -n bank"));
        assert_eq!(found.cluster.kubeconfig, Some(PathBuf::from("/a")));
        assert_eq!(found.cluster.context.as_deref(), Some("lab"));
        assert_eq!(found.namespace.as_deref(), Some("bank"));
        assert_eq!(scope(&words("why -nbank")).namespace.as_deref(), Some("bank"));
        assert_eq!(scope(&words("why --namespace shop")).namespace.as_deref(), Some("shop"));
        assert_eq!(scope(&words("why --no-headers -n")).namespace, None);
        let found = scope(&words("why --as-group=users --as alice"));
        assert_eq!(found.cluster.as_user.as_deref(), Some("alice"));
        assert_eq!(found.cluster.as_group, ["users"]);
    }

    #[test]
    fn commands_options_and_objects_are_completed() {
        assert_eq!(fixed(&[], "ho"), ["hosts", "host"]);
        assert!(!fixed(&[], "").contains(&"__complete".to_owned()));
        assert_eq!(fixed(&["hosts"], "--out"), ["--output"]);
        assert_eq!(fixed(&["hosts", "-o"], ""), ["table", "wide", "json", "yaml"]);
        assert_eq!(fixed(&["hosts", "--kubeconfig"], ""), ["Files"]);
        assert_eq!(fixed(&["why"], ""), ["Objects(Machines)"]);
        assert_eq!(fixed(&["machines", "--host"], ""), ["Objects(Hosts)"]);
        let text = completions(&Cli::command(), &["networ".to_owned()]);
        assert!(text.starts_with("networks\tList the host networks"), "{text}");
        assert!(text.ends_with("\n:4\n"), "{text}");
    }
}
