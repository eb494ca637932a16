//! Tests that all reconcilers use the harness of berth-runtime, which implements backoff, jitter and the tracing span
//! of each reconcile.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{ItemUse, Path};

use crate::syntax::visit_imports;
use crate::tree::rust_files;

/// The only folder that uses kube-runtime's scheduler.
const HARNESS_FOLDER: &str = "crates/runtime/src/reconcile/";

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
