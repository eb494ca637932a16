//! Tests that `String` is not used as an error type, except in `FromStr`.

use syn::visit::{self, Visit};
use syn::{GenericArgument, ItemImpl, PathArguments, PathSegment, Type};

use crate::tree::rust_files;

#[derive(Default)]
struct StringErrors(usize);

impl<'ast> Visit<'ast> for StringErrors {
    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let is_from_str = item.trait_.as_ref().is_some_and(|(_, path, _)| {
            path.segments.last().is_some_and(|last| last.ident == "FromStr")
        });
        if !is_from_str {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        if segment.ident == "Result"
            && let PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(GenericArgument::Type(Type::Path(error))) = arguments.args.iter().nth(1)
            && error.path.is_ident("String")
        {
            self.0 += 1;
        }
        visit::visit_path_segment(self, segment);
    }
}

#[test]
fn error_types_are_not_strings() {
    let mut found = Vec::new();
    for file in rust_files() {
        let mut count = StringErrors::default();
        let parsed = syn::parse_file(&file.text);
        count.visit_file(&parsed.unwrap_or_else(|error| panic!("{}: {error}", file.path)));
        if count.0 > 0 {
            found.push(format!("{}: {}", file.path, count.0));
        }
    }
    assert!(
        found.is_empty(),
        "Result<_, String> outside FromStr; define an error enum:\n{}",
        found.join("\n")
    );
}
