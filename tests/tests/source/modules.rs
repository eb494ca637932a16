//! Tests that modules do not import each other in cycles. Imports of parent modules count too.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, VisRestricted};

use crate::syntax::visit_imports;
use crate::test_code::is_test;
use crate::tree::{RustSource as _, SourceFile, source_files};

/// Paths that a module uses, and names that it imports (`use child::Name`).
#[derive(Default)]
struct Module {
    /// Absolute paths, before re-exports are resolved: `["crate", "plan", "Change"]`.
    paths: Vec<Vec<String>>,
    /// Imported names in this module, and the absolute path of each.
    aliases: BTreeMap<String, Vec<String>>,
}

struct ModuleReader<'m> {
    module: &'m mut Module,
    module_path_parts: &'m [String],
}

impl ModuleReader<'_> {
    /// Makes a path absolute; `None` if it leads to another crate.
    fn absolute_path(&self, path: &[String]) -> Option<Vec<String>> {
        let mut own: Vec<String> = self.module_path_parts.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => own = vec!["crate".to_owned()],
            "self" => {}
            "super" => {
                own.pop();
            }
            _ => return None,
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|step| step == "super") {
            own.pop();
            rest = &rest[1..];
        }
        own.extend(rest.iter().cloned());
        Some(own)
    }

    fn record_import(&mut self, alias: String, path: &[String]) {
        let absolute = self.absolute_path(path).or_else(|| {
            // `use child::Name` imports from a child module.
            let mut own = self.module_path_parts.to_vec();
            own.extend(path.iter().cloned());
            Some(own)
        });
        if let Some(absolute) = absolute {
            self.module.paths.push(absolute.clone());
            self.module.aliases.insert(alias, absolute);
        }
    }
}

impl<'ast> Visit<'ast> for ModuleReader<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            visit_imports(&item.tree, &mut |alias, path| self.record_import(alias, path));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {
        // `pub(in crate::parent)` is no import.
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 && (names[0] == "crate" || names[0] == "super") {
            if let Some(absolute) = self.absolute_path(&names) {
                self.module.paths.push(absolute);
            }
        } else if names.len() > 1 {
            let mut own = self.module_path_parts.to_vec();
            own.extend(names);
            self.module.paths.push(own);
        }
        visit::visit_path(self, path);
    }
}

/// Returns the path of the module in a file: `crate::plan::network`.
fn module_path(file: &SourceFile, source: &str) -> Vec<String> {
    let inside = file.path.strip_prefix(source).unwrap_or_default().trim_start_matches('/');
    let mut path = vec!["crate".to_owned()];
    path.extend(inside.trim_end_matches(".rs").split('/').map(str::to_owned));
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// Follows re-exports of parents, so that `super::Name` leads to the sibling that defines it.
fn resolve_reexports(
    modules: &BTreeMap<Vec<String>, Module>,
    path: &[String],
) -> Option<Vec<String>> {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let owner = (1..=path.len())
            .rev()
            .map(|length| &path[..length])
            .find(|part| modules.contains_key(*part))?;
        let (owner, name) = (owner.to_vec(), path.get(owner.len()).cloned());
        let Some(next) =
            name.and_then(|name| modules[&owner].aliases.get(&name)).filter(|next| **next != path)
        else {
            return Some(owner);
        };
        // The name comes from another crate, so the importing module counts as its owner.
        if !(2..=next.len()).any(|length| modules.contains_key(&next[..length])) {
            return Some(owner);
        }
        let rest = path.get(owner.len() + 1..).unwrap_or_default().to_vec();
        path = next.iter().cloned().chain(rest).collect();
    }
    None
}

/// Returns groups of modules that import each other, directly or through other modules.
fn find_cycles(edges: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Vec<Vec<String>> {
    let reach = |from: &Vec<String>| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = open.pop() {
            for other in edges.get(&next).into_iter().flatten() {
                if seen.insert(other.clone()) {
                    open.push(other.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        edges.keys().map(|from| (from, reach(from))).collect();
    let mut groups: BTreeSet<Vec<String>> = BTreeSet::new();
    for (from, seen) in &reached {
        let group: Vec<String> = seen
            .iter()
            .filter(|other| reached.get(other).is_some_and(|reachable| reachable.contains(*from)))
            .map(|module| module.join("::"))
            .collect();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    groups.into_iter().collect()
}

#[test]
fn modules_have_no_cycles() {
    let mut sources = vec!["agent/src".to_owned(), "controller/src".to_owned()];
    for entry in std::fs::read_dir(berth_tests::repository().join("crates")).unwrap() {
        sources.push(format!("crates/{}/src", entry.unwrap().file_name().to_string_lossy()));
    }
    sources.sort();
    let mut found = Vec::new();
    for source in &sources {
        let mut modules: BTreeMap<Vec<String>, Module> = BTreeMap::new();
        for file in source_files(source, ".rs").into_iter().filter(|file| !file.is_test()) {
            let path = module_path(&file, source);
            let parsed = syn::parse_file(&file.text)
                .unwrap_or_else(|error| panic!("{}: {error}", file.path));
            let mut module = Module::default();
            let mut reader = ModuleReader { module: &mut module, module_path_parts: &path };
            for item in parsed
                .items
                .iter()
                .filter(|item| !matches!(item, Item::Mod(module) if is_test(&module.attrs)))
            {
                reader.visit_item(item);
            }
            modules.insert(path, module);
        }
        let mut edges: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
        for (path, module) in &modules {
            let targets =
                module.paths.iter().filter_map(|target| resolve_reexports(&modules, target));
            edges.insert(path.clone(), targets.filter(|target| target != path).collect());
        }
        for group in find_cycles(&edges) {
            found.push(format!("{source}: these modules import each other: {}", group.join(", ")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
