//! Tests that code makes no decisions from human-readable strings: it compares reasons as enums, and never compares
//! messages. Reasons that Kubernetes defines as strings are constants.

use syn::parse::ParseStream;
use syn::visit::{self, Visit};
use syn::{
    BinOp, Expr, ExprBinary, ExprMatch, ExprMethodCall, File, Item, Lit, Macro, Member, Pat, Token,
};

use crate::test_code::is_test;
use crate::tree::{RustSource as _, rust_files};

/// Fields that contain human-readable strings.
const TEXT_FIELDS: [&str; 3] = ["message", "reason", "what"];
/// Methods that compare a string with their argument.
const COMPARISON_METHODS: [&str; 8] =
    ["contains", "ends_with", "eq", "find", "ne", "starts_with", "strip_prefix", "strip_suffix"];

#[derive(Default)]
struct ComparisonFinder(Vec<String>);

/// Returns the field of [`TEXT_FIELDS`] that an expression reads, also through methods such as `as_str`.
fn text_field(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Field(access) => match &access.member {
            Member::Named(name) if TEXT_FIELDS.iter().any(|field| name == field) => {
                Some(name.to_string())
            }
            _ => None,
        },
        Expr::MethodCall(call) => text_field(&call.receiver),
        Expr::Paren(inner) => text_field(&inner.expr),
        Expr::Reference(inner) => text_field(&inner.expr),
        Expr::Unary(inner) => text_field(&inner.expr),
        _ => None,
    }
}

/// Returns true if an expression is a string literal, or a call with a string literal, such as `Some("...")`.
fn is_string(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(literal) => matches!(literal.lit, Lit::Str(_)),
        Expr::Call(call) => call.args.iter().any(is_string),
        Expr::Paren(inner) => is_string(&inner.expr),
        Expr::Reference(inner) => is_string(&inner.expr),
        _ => false,
    }
}

fn has_string(pattern: &Pat) -> bool {
    match pattern {
        Pat::Lit(literal) => matches!(literal.lit, Lit::Str(_)),
        Pat::Or(or) => or.cases.iter().any(has_string),
        Pat::Paren(inner) => has_string(&inner.pat),
        Pat::Reference(inner) => has_string(&inner.pat),
        Pat::TupleStruct(inner) => inner.elems.iter().any(has_string),
        _ => false,
    }
}

impl ComparisonFinder {
    fn record(&mut self, how: &str, expr: &Expr) {
        if let Some(field) = text_field(expr) {
            self.0.push(format!(".{field} {how}"));
        }
    }
}

impl<'ast> Visit<'ast> for ComparisonFinder {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        if matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_)) {
            if is_string(&binary.right) {
                self.record("is compared with a string", &binary.left);
            }
            if is_string(&binary.left) {
                self.record("is compared with a string", &binary.right);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        if COMPARISON_METHODS.contains(&name.as_str()) && call.args.iter().any(is_string) {
            self.record(&format!("is searched by `{name}`"), &call.receiver);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_match(&mut self, matched: &'ast ExprMatch) {
        if matched.arms.iter().any(|arm| has_string(&arm.pat)) {
            self.record("is matched with strings", &matched.expr);
        }
        visit::visit_expr_match(self, matched);
    }

    fn visit_macro(&mut self, macro_call: &'ast Macro) {
        if !macro_call.path.is_ident("matches") {
            return;
        }
        let parsed = macro_call.parse_body_with(|input: ParseStream<'_>| {
            let expr: Expr = input.parse()?;
            input.parse::<Token![,]>()?;
            let pattern = Pat::parse_multi_with_leading_vert(input)?;
            let has_guard = input.parse::<Option<Token![if]>>()?.is_some();
            let guard: Option<Expr> = if has_guard { Some(input.parse()?) } else { None };
            input.parse::<Option<Token![,]>>()?;
            Ok((expr, pattern, guard))
        });
        let (expr, pattern, guard) = parsed.unwrap_or_else(|error| panic!("`matches!`: {error}"));
        if has_string(&pattern) {
            self.record("is matched with strings", &expr);
        }
        self.visit_expr(&expr);
        if let Some(guard) = &guard {
            self.visit_expr(guard);
        }
    }
}

fn find_comparisons(file: &File) -> Vec<String> {
    let mut found = ComparisonFinder::default();
    found.visit_file(file);
    found.0
}

#[test]
fn code_does_not_compare_messages() {
    let mut found = Vec::new();
    for file in rust_files().into_iter().filter(|file| !file.is_test()) {
        let parsed = syn::parse_file(&file.text);
        let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", file.path));
        found.extend(
            find_comparisons(&parsed).into_iter().map(|one| format!("{}: {one}", file.path)),
        );
    }
    assert!(found.is_empty(), "compare enums or typed fields instead:\n{}", found.join("\n"));
}

#[test]
fn comparisons_with_texts_are_found() {
    for (code, count) in [
        ("status.changes.iter().filter(|change| change.what.starts_with(\"remove \"))", 1),
        ("one.reason == \"AgentUnresponsive\" || \"Ready\" != one.message.as_str()", 2),
        ("one.reason.as_deref() == Some(\"Expired\")", 1),
        ("matches!(one.reason.as_str(), \"Expired\" | \"Released\")", 1),
        ("match one.reason.as_str() { \"Expired\" => 1, _ => 2 }", 1),
        ("matches!(one, Err(e) if e.code == 409 && e.status.reason == \"Conflict\")", 1),
        ("match one { Err(e) if e.status.reason == \"Conflict\" => 1, _ => 2 }", 1),
        ("matches!(find(one.reason == \"Expired\"), Some(1),)", 1),
        ("matches!(one, Err(e) if e.reason == CONFLICT)", 0),
        ("one.reason == other.reason && one.type_ == \"Ready\"", 0),
        ("one.reason.parse() == Ok(ConditionReason::AgentUnresponsive)", 0),
    ] {
        let file = syn::parse_str(&format!("fn f() {{ let _ = {code}; }}")).unwrap();
        assert_eq!(find_comparisons(&file).len(), count, "{code}");
        let file = syn::parse_str(&format!("#[cfg(test)] mod tests {{ fn f() {{ {code}; }} }}"));
        assert_eq!(find_comparisons(&file.unwrap()).len(), 0, "{code}");
    }
}
