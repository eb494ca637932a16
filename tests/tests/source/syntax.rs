//! Parts of Rust syntax that several checks read.

use syn::UseTree;

/// Calls `visit` for each import of a `use` tree, with the name in this module (`*` for all names) and the path.
pub(crate) fn visit_imports(tree: &UseTree, visit: &mut impl FnMut(String, &[String])) {
    visit_use_tree(tree, &[], visit);
}

fn visit_use_tree(tree: &UseTree, before: &[String], visit: &mut impl FnMut(String, &[String])) {
    let mut path = before.to_vec();
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            visit_use_tree(&step.tree, &path, visit);
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                visit_use_tree(tree, &path, visit);
            }
        }
        UseTree::Name(name) => {
            if name.ident != "self" {
                path.push(name.ident.to_string());
            }
            visit(path.last().cloned().unwrap_or_default(), &path);
        }
        UseTree::Rename(name) => {
            path.push(name.ident.to_string());
            visit(name.rename.to_string(), &path);
        }
        UseTree::Glob(_) => visit("*".to_owned(), &path),
    }
}
