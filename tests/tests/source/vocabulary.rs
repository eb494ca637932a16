//! Tests that no comment, string or document contains a word that `docs/glossary.md` refuses.

use proc_macro2::TokenTree;

use crate::tree::{File, RustSource as _, files, rust_files, walk};

/// Words and phrases, in lower case, each matched as whole words.
const REFUSED: [&str; 52] = [
    "anew",
    "nobody",
    "somebody",
    "whoever",
    "everybody",
    "everyone",
    "befall",
    "befalls",
    "befell",
    "tale",
    "tales",
    "wish",
    "wishes",
    "desk",
    "patience",
    "unwell",
    "way back",
    "found value",
    "put back",
    "puts back",
    "put right",
    "puts right",
    "handed out",
    "hands out",
    "hand out",
    "given back",
    "gives back",
    "who leads",
    "one leads",
    "the lead",
    "stand-in",
    "stand-ins",
    "slow reckoning",
    "try out",
    "make so",
    "makes it so",
    "as asked",
    "tell",
    "tells",
    "told",
    "asked for",
    "is asked",
    "asked to be",
    "as it should be",
    "bears",
    "lures",
    "lean on",
    "looked over",
    "carried out",
    "of one s own",
    "who asks",
    "takes away",
];

/// Returns the refused words that a string contains.
fn refused(text: &str) -> Vec<&'static str> {
    // `Nobody` is a value of the API (`KsmOwner`).
    let text = if text.trim_matches(['"', '`']) == "Nobody" { "" } else { text };
    let text = text.replace("owner: Nobody", "").replace("- Nobody", "");
    let plain: String = text
        .to_lowercase()
        .chars()
        .map(|c| if c.is_alphanumeric() || c == '-' || c == '_' { c } else { ' ' })
        .collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    let padded = format!(" {} ", words.join(" "));
    REFUSED.iter().copied().filter(|word| padded.contains(&format!(" {word} "))).collect()
}

/// Returns the comments and strings of a Rust file, one per line.
fn prose(file: &File) -> Vec<String> {
    let comments = file
        .text
        .lines()
        .filter_map(|line| line.split_once("// "))
        .map(|(_, rest)| rest.to_owned());
    let mut all: Vec<String> = comments.collect();
    walk(file.tokens(), &mut |tokens, at| {
        if let Some(TokenTree::Literal(literal)) = tokens.get(at) {
            all.push(literal.to_string());
        }
    });
    all
}

#[test]
fn refused_words_are_nowhere() {
    let mut found = Vec::new();
    for file in rust_files() {
        // This file contains the list itself.
        if file.path.ends_with("source/vocabulary.rs") {
            continue;
        }
        for text in prose(&file) {
            found.extend(
                refused(&text).iter().map(|word| format!("{}: {word}: {text:.90}", file.path)),
            );
        }
    }
    let mut documents = files("docs", ".md");
    documents.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
            .iter()
            .flat_map(|name| files(".", name)),
    );
    documents.extend(["deploy", "examples", "systemd"].iter().flat_map(|folder| files(folder, "")));
    for file in documents {
        // The glossary lists the words, and files with measured results are not edited afterwards.
        let exempt =
            ["docs/glossary.md", "docs/benchmarks.md"].iter().any(|name| file.path.ends_with(name))
                || file.path.contains("docs/results/");
        if exempt || file.path.contains("/target/") {
            continue;
        }
        for line in file.text.lines() {
            found.extend(
                refused(line).iter().map(|word| format!("{}: {word}: {line:.90}", file.path)),
            );
        }
    }
    found.sort();
    found.dedup();
    let count = found.len();
    assert!(
        found.is_empty(),
        "{count} places use words that docs/glossary.md replaces:\n{}",
        found.join("\n")
    );
}
