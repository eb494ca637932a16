//! Separates the code of a Rust file from its tests.

use std::ops::RangeInclusive;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item};

/// Returns true for the attributes of a test or of a module of tests.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

/// Lines of the items for tests, counted from 1.
#[derive(Default)]
struct TestLines(Vec<RangeInclusive<usize>>);

impl TestLines {
    fn record(&mut self, item: &impl Spanned) {
        let span = item.span();
        self.0.push(span.start().line..=span.end().line);
    }
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        // Other items are checked like code.
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for TestLines {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(item_attributes(item)) {
            self.record(item);
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(function) if is_test(&function.attrs) => self.record(item),
            _ => visit::visit_impl_item(self, item),
        }
    }
}

/// Returns the lines of a Rust file that belong to no item for tests. Code after such an item is included.
pub(crate) fn code_without_tests(text: &str) -> String {
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    let mut tests = TestLines::default();
    tests.visit_file(&file);
    let is_code = |line: &usize| !tests.0.iter().any(|lines| lines.contains(line));
    let lines = text.lines().zip(1..).filter(|(_, number)| is_code(number));
    lines.flat_map(|(line, _)| [line, "\n"]).collect()
}

#[test]
fn only_the_items_of_tests_are_left_out() {
    let code = "//! A file.\n\n#[cfg(test)]\nmod tests;\nmod other;\nimpl Host {\n    /// For tests.\n    \
        #[cfg(test)]\n    fn count(&self) -> &str {\n        \"}\n}\"\n    }\n\n    fn name() {}\n}\n\
        #[cfg(not(test))]\nfn last() {}\n";
    assert_eq!(
        code_without_tests(code),
        "//! A file.\n\nmod other;\nimpl Host {\n\n    fn name() {}\n}\n#[cfg(not(test))]\nfn last() {}\n"
    );
}
