//! Tests that no comment, string or document contains a word that `docs/glossary.md` refuses.

use proc_macro2::TokenTree;

use crate::tree::{RustSource as _, SourceFile, rust_files, source_files, visit_tokens};

/// Words and phrases, in lower case, each matched as whole words.
const REFUSED_WORDS: [&str; 148] = [
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
    "pause",
    "pauses",
    "pausing",
    "promise",
    "promises",
    "promised",
    "promising",
    "burst",
    "bursts",
    "fence",
    "fences",
    "fenced",
    "change nothing",
    "changes nothing",
    "changed nothing",
    "changing nothing",
    "look at",
    "looks at",
    "looked at",
    "looking at",
    "a look",
    "looks and",
    "looks over",
    "look over",
    "looks again",
    "silent",
    "silence",
    "unsure",
    "unclear",
    "gone",
    "go on",
    "goes on",
    "going on",
    "went on",
    "say",
    "says",
    "said",
    "saying",
    "feed",
    "feeds",
    "pace",
    "paced",
    "paces",
    "reckoning",
    "leaning",
    "leanings",
    "request shape",
    "shapes",
    "the book",
    "booked",
    "booking",
    "handing out",
    "give back",
    "giving back",
    "cpus of its own",
    "cpus of their own",
    "links of others",
    "tries out",
    "tried out",
    "trying out",
    "makes so",
    "anyone",
    "anybody",
    "no one",
    "whomever",
    "befallen",
    "befalling",
    "wished",
    "wishing",
    "telling",
    "are asked",
    "was asked",
    "were asked",
    "found values",
    "take back",
    "takes back",
    "taken back",
    "putting back",
    "putting right",
    "hand back",
    "hands back",
    "handed back",
    "put them back",
    "puts them back",
    "stand in",
    "stands in",
    "standing in",
    "someone",
    "call off",
    "calls off",
    "called off",
    "withdraw",
    "withdraws",
    "withdrawn",
    "withdrawing",
    "withdrew",
];

/// Phrases that are terms of other projects although they contain a refused word: IEEE 802.3, Kubernetes' CRI, HTTP.
const PERMITTED_PHRASES: [&str; 5] =
    ["pause frame", "pause frames", "pause image", "pause container", "410 gone"];

/// Returns the refused words that a string contains.
fn find_refused_words(text: &str) -> Vec<&'static str> {
    // `Nobody` is a value of the API (`KsmOwner`), `burst` a field of the configuration of kube-scheduler, and `gone` the
    // name of an object in tests.
    let is_name = matches!(text.trim_matches(['"', '`']), "Nobody" | "burst" | "gone");
    let text = if is_name { "" } else { text };
    let text = text.replace("owner: Nobody", "").replace("- Nobody", "").replace("burst: 1000", "");
    let plain: String = text
        .to_lowercase()
        .chars()
        .map(|c| if c.is_alphanumeric() || c == '-' || c == '_' { c } else { ' ' })
        .collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    let mut padded = format!(" {} ", words.join(" "));
    for phrase in PERMITTED_PHRASES {
        padded = padded.replace(&format!(" {phrase} "), " _ ");
    }
    REFUSED_WORDS.iter().copied().filter(|word| padded.contains(&format!(" {word} "))).collect()
}

/// Returns the comments and strings of a Rust file, one per line.
fn comments_and_strings(file: &SourceFile) -> Vec<String> {
    let comments = file
        .text
        .lines()
        .filter_map(|line| line.split_once("// "))
        .map(|(_, rest)| rest.to_owned());
    let mut all: Vec<String> = comments.collect();
    visit_tokens(file.tokens(), &mut |tokens, at| {
        if let Some(TokenTree::Literal(literal)) = tokens.get(at) {
            all.push(literal.to_string());
        }
    });
    all
}

#[test]
fn no_text_has_refused_words() {
    let mut found = Vec::new();
    for file in rust_files().into_iter().chain(source_files("fuzz", ".rs")) {
        // This file contains the list itself.
        if file.path.ends_with("source/vocabulary.rs") {
            continue;
        }
        for text in comments_and_strings(&file) {
            found.extend(
                find_refused_words(&text)
                    .iter()
                    .map(|word| format!("{}: {word}: {text:.90}", file.path)),
            );
        }
    }
    let mut documents = source_files("docs", ".md");
    let names = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "Makefile",
        ".sh",
        ".pl",
        ".toml",
    ];
    documents.extend(names.iter().flat_map(|name| source_files(".", name)));
    documents.extend(
        ["deploy", "examples", "systemd"].iter().flat_map(|folder| source_files(folder, "")),
    );
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
                find_refused_words(line)
                    .iter()
                    .map(|word| format!("{}: {word}: {line:.90}", file.path)),
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

#[test]
fn terms_of_other_projects_are_permitted() {
    for (text, expected) in [
        ("waits for a pause of 5 s", &["pause"][..]),
        ("the dry run changes nothing, and never pauses", &["pauses", "changes nothing"]),
        ("`spec.paused` of a MachineDeployment", &[]),
        ("drops LLDP and pause frames; the pause image", &[]),
        ("STONITH fencing, without a fence", &["fence"]),
        ("a burst of 5 Events", &["burst"]),
        ("\"burst\"", &[]),
        ("clientConnection: {qps: 1000, burst: 1000}", &[]),
        ("KSM has the owner: Nobody", &[]),
        ("the server answers 410 Gone; the host is gone", &["gone"]),
        ("\"gone\"", &[]),
    ] {
        assert_eq!(find_refused_words(text), expected, "{text}");
    }
}

/// First words of clauses.
const CLAUSE_WORDS: [&str; 9] =
    ["What", "Whether", "How", "Who", "Whose", "Which", "Why", "When", "Where"];

#[test]
fn doc_comments_do_not_begin_with_clauses() {
    let mut found = Vec::new();
    for file in rust_files() {
        let mut is_continued = false;
        for line in file.text.lines().map(str::trim_start) {
            let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
            let first_word = doc.and_then(|doc| doc.split(' ').next()).unwrap_or_default();
            if !is_continued && CLAUSE_WORDS.contains(&first_word) {
                found.push(format!("{}: {line}", file.path));
            }
            is_continued = line.starts_with("///") || line.starts_with("//!");
        }
    }
    assert!(
        found.is_empty(),
        "begin these comments with a noun, or with a verb in the third person:\n{}",
        found.join("\n")
    );
}
