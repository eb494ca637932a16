//! Tests that every log call has a fixed message and at least one field.

use proc_macro2::TokenTree;

use crate::tree::{RustSource as _, rust_files, visit_tokens};

const LOG_LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];

/// Returns the level if a macro call of `tracing` begins at this token.
fn log_level(tokens: &[TokenTree], index: usize) -> Option<String> {
    let TokenTree::Ident(name) = tokens.get(index)? else { return None };
    let name = name.to_string();
    let is_call = matches!(tokens.get(index + 1), Some(TokenTree::Punct(mark)) if mark.as_char() == '!')
        && matches!(tokens.get(index + 2), Some(TokenTree::Group(_)));
    let is_path =
        index >= 3 && matches!(&tokens[index - 3], TokenTree::Ident(krate) if *krate == "tracing");
    (LOG_LEVELS.contains(&name.as_str()) && is_call && is_path).then_some(name)
}

#[test]
fn log_calls_are_structured() {
    let (mut calls, mut found) = (0, Vec::new());
    for file in rust_files().into_iter().filter(|file| !file.is_test()) {
        visit_tokens(file.tokens(), &mut |tokens, at| {
            let Some(level) = log_level(tokens, at) else { return };
            let Some(TokenTree::Group(group)) = tokens.get(at + 2) else { return };
            calls += 1;
            let inside: Vec<TokenTree> = group.stream().into_iter().collect();
            // If the first argument is the message, the call has no field.
            if matches!(inside.first(), Some(TokenTree::Literal(_))) {
                found.push(format!("{}: {level}!({})", file.path, group.stream()));
            }
            for token in &inside {
                if let TokenTree::Literal(text) = token
                    && text.to_string().starts_with('"')
                    && text.to_string().contains('{')
                    && !inside
                        .iter()
                        .any(|other| matches!(other, TokenTree::Ident(name) if *name == "name"))
                {
                    found.push(format!("{}: a message with values: {text}", file.path));
                }
            }
        });
    }
    assert!(calls > 40, "only {calls} calls");
    found.sort();
    found.dedup();
    assert!(found.is_empty(), "log calls without fields:\n{}", found.join("\n"));
}
