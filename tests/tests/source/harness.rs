//! Tests that all reconcilers use the harness of berth-runtime, which implements backoff, jitter and the tracing span
//! of each reconcile, and that all watches use its `watch_events`, which implements backoff and logs errors once.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenTree};
use syn::visit::{self, Visit};
use syn::{ItemUse, Path};

use crate::syntax::visit_imports;
use crate::tree::{RustSource as _, rust_files, visit_tokens};

/// The only folder that uses kube-runtime's scheduler.
const HARNESS_FOLDER: &str = "crates/runtime/src/reconcile/";
/// The only folder that calls kube-runtime's watcher. `crates/runtime/src/untrusted/watch.rs` is a second
/// implementation, with limits for hostile servers, which does not use this watcher (docs/decisions.md).
const WATCH_FOLDER: &str = "crates/runtime/src/watch/";

#[derive(Default)]
struct SchedulerPaths(BTreeSet<String>);

impl SchedulerPaths {
    fn record_path(&mut self, names: &[String]) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let rest = match names.as_slice() {
            ["kube", "runtime", rest @ ..] | ["kube_runtime" | "runtime", rest @ ..] => rest,
            _ => return,
        };
        if matches!(rest.first(), Some(&("controller" | "Controller" | "applier"))) {
            self.0.insert(names.join("::"));
        }
    }
}

impl<'ast> Visit<'ast> for SchedulerPaths {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        visit_imports(&item.tree, &mut |_, path| self.record_path(path));
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let names: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.record_path(&names);
        visit::visit_path(self, path);
    }
}

#[test]
fn only_the_harness_uses_the_scheduler() {
    let (mut found, mut used) = (Vec::new(), false);
    for file in rust_files() {
        let parsed = syn::parse_file(&file.text);
        let mut schedulers = SchedulerPaths::default();
        schedulers.visit_file(&parsed.unwrap_or_else(|error| panic!("{}: {error}", file.path)));
        if file.path.starts_with(HARNESS_FOLDER) {
            used |= !schedulers.0.is_empty();
        } else {
            found.extend(schedulers.0.iter().map(|path| format!("{}: {path}", file.path)));
        }
    }
    assert!(used, "{HARNESS_FOLDER} does not use kube-runtime's scheduler");
    assert!(found.is_empty(), "use berth_runtime::reconcile instead:\n{}", found.join("\n"));
}

#[test]
fn only_one_folder_calls_the_watcher() {
    let (mut found, mut is_used) = (BTreeSet::new(), false);
    for file in rust_files() {
        let mut calls = 0;
        visit_tokens(file.tokens(), &mut |tokens, at| {
            calls += usize::from(is_watcher_call(tokens, at));
        });
        if file.path.starts_with(WATCH_FOLDER) {
            is_used |= calls > 0;
        } else if calls > 0 {
            found.insert(file.path);
        }
    }
    assert!(is_used, "{WATCH_FOLDER} does not call kube-runtime's watcher");
    assert!(found.is_empty(), "use berth_runtime::watch instead of the watcher: {found:?}");
}

/// Returns true for the call of a function `watcher` or `metadata_watcher`, with or without type arguments.
fn is_watcher_call(tokens: &[TokenTree], at: usize) -> bool {
    let Some(TokenTree::Ident(name)) = tokens.get(at) else { return false };
    if name != "watcher" && name != "metadata_watcher" {
        return false;
    }
    let is_punct = |at: usize, expected: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == expected);
    match tokens.get(at + 1) {
        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Parenthesis,
        Some(_) => is_punct(at + 1, ':') && is_punct(at + 2, ':') && is_punct(at + 3, '<'),
        None => false,
    }
}

#[test]
fn watcher_calls_are_found() {
    for (code, expected) in [
        ("watcher(api, config)", 1),
        ("kube::runtime::watcher::watcher::<Pod>(api, config)", 1),
        ("join!(watcher(pods, config), metadata_watcher(nodes, config))", 2),
        ("use kube::runtime::watcher::{Config, watcher};", 0),
        ("self.watcher.run(api); watcher::Config::default()", 0),
    ] {
        let mut calls = 0;
        visit_tokens(code.parse().unwrap(), &mut |tokens, at| {
            calls += usize::from(is_watcher_call(tokens, at));
        });
        assert_eq!(calls, expected, "{code}");
    }
}
