//! Tests of the invariants of ARCHITECTURE.md that are visible in the text of the repository.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    reason = "tests read the repository's files, and fail by panicking"
)]

#[path = "source/test_code.rs"]
mod test_code;

use berth_tests::repository;
use berth_tests::sources::PURE_CRATES;
use test_code::code_without_tests;

/// Returns the files below a folder with this suffix, and their paths from the top of the repository.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let found = berth_tests::sources::source_files(folder, ending);
    assert!(!found.is_empty(), "no file with suffix {ending} below {folder:?}");
    found.into_iter().map(|file| (file.path, file.text)).collect()
}

#[test]
fn host_files_go_through_root() {
    let exceptions = [
        "agent/src/host_write.rs",
        "crates/host-facts/src/root.rs",
        "crates/host-facts/src/kvm/device.rs",
        "crates/host-facts/src/direct_io.rs",
    ];
    let mut all = files("agent/src", ".rs");
    all.extend(files("crates/host-facts/src", ".rs"));
    for (name, text) in all {
        if exceptions.contains(&name.as_str()) || name.ends_with("tests.rs") {
            continue;
        }
        let mut code = code_without_tests(&text);
        // The trial guard is a process of the agent's own program, which the agent may start.
        if name == "agent/src/apply/links/guard.rs" {
            code = code.replace("Command::new(program_path()?)", "");
        }
        for forbidden in
            ["std::fs", "File::open", "fcntl::open", "Command::new", "procfs::process::Process"]
        {
            assert!(!code.contains(forbidden), "{name} uses {forbidden}: go through Root");
        }
    }
}

#[test]
fn pure_code_reads_no_files_clock_or_environment() {
    let mut pure = files("crates/api/src", ".rs");
    pure.extend(files("agent/src/check", ".rs"));
    pure.extend(files("agent/src/report", ".rs"));
    pure.extend(files("agent/src/plan", ".rs"));
    pure.extend(files("agent/src/publish", ".rs"));
    pure.extend(files("controller/src", "selector_migration.rs"));
    pure.extend(files("controller/src", "observation.rs"));
    let folders = [
        "check",
        "evacuation",
        "fleet",
        "host_devices",
        "host_loss",
        "images",
        "plan",
        "profiles",
        "removal",
        "self_service",
        "tenant_nodes",
        "tenant_storage",
        "tenants",
    ];
    for folder in folders {
        pure.extend(files(&format!("controller/src/{folder}"), ".rs"));
    }
    for krate in PURE_CRATES {
        pure.extend(files(&format!("crates/{krate}/src"), ".rs"));
    }
    pure.extend(files("crates/host-facts/src/kvm", "state.rs"));
    for (name, text) in pure {
        let code = code_without_tests(&text);
        for forbidden in [
            "std::fs",
            "std::io",
            "std::env::",
            "TcpStream",
            "UdpSocket",
            "SystemTime",
            "Instant::now",
            "tokio",
            "kube::Client",
        ] {
            assert!(!code.contains(forbidden), "{name} uses {forbidden}");
        }
        // `check/input.rs` collects the input of the pure functions in the other modules.
        if name != "agent/src/check/input.rs" {
            assert!(!code.contains("root::Root"), "{name} reads the host");
        }
    }
}

#[test]
fn only_apply_and_the_ledger_change_the_host() {
    for (name, text) in files("agent/src", ".rs") {
        let is_allowed = name.starts_with("agent/src/apply/")
            || ["agent/src/state_folder.rs", "agent/src/host_write.rs", "agent/src/cli/apply.rs"]
                .contains(&name.as_str());
        let code = code_without_tests(&text);
        for call in
            ["root.write(", "root.replace(", "root.remove(", "root.rename(", "create_folder("]
        {
            assert!(is_allowed || !code.contains(call), "{name} changes the host: {call}");
        }
    }
}

/// Checks that `host-facts` has no code that writes, and no dependency on an API client or an asynchronous runtime.
#[test]
fn host_facts_cannot_change_the_host() {
    // The test of O_DIRECT in a folder without files opens an unnamed file.
    let exception = "crates/host-facts/src/direct_io.rs";
    let code_files = files("crates/host-facts/src", ".rs").into_iter();
    for (name, text) in code_files.filter(|(name, _)| !name.ends_with("tests.rs")) {
        let code = code_without_tests(&text);
        for forbidden in [
            "O_WRONLY",
            "O_RDWR",
            "O_CREAT",
            "O_TRUNC",
            "fs::write",
            "File::create",
            "OpenOptions",
            "unlinkat",
            "renameat",
            "mkdirat",
            "NLM_F_CREATE",
            "NLM_F_APPEND",
            "NLM_F_REPLACE",
        ] {
            assert!(name == exception || !code.contains(forbidden), "{name} uses {forbidden}");
        }
    }
    let manifest = repository().join("crates/host-facts/Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    for forbidden in
        ["kube", "k8s-openapi", "tokio", "tonic", "zbus", "rtnetlink", "berth-runtime", "futures"]
    {
        assert!(!manifest.contains(&format!("\n{forbidden}")), "host-facts depends on {forbidden}");
    }
}

#[test]
fn only_the_command_line_writes_to_stdout() {
    let mut all = files("agent/src", ".rs");
    all.extend(files("controller/src", ".rs"));
    for krate in PURE_CRATES {
        all.extend(files(&format!("crates/{krate}/src"), ".rs"));
    }
    for (name, text) in all {
        let is_allowed =
            name.starts_with("agent/src/cli/") || name.starts_with("controller/src/cli/");
        let code = code_without_tests(&text);
        for forbidden in ["println!", "eprintln!", "io::stdout", "io::stderr"] {
            assert!(is_allowed || !code.contains(forbidden), "{name} uses {forbidden}");
        }
    }
}

#[test]
fn files_are_short_and_documented() {
    for folder in ["agent/src", "benches/src", "controller/src", "crates"] {
        for (name, text) in files(folder, ".rs") {
            if name.contains("/tests/") || name.contains("/examples/") {
                continue;
            }
            // The size limit does not apply to generated files.
            if text.starts_with("// This file is @generated") {
                continue;
            }
            let lines = code_without_tests(&text).lines().count();
            assert!(lines <= 500, "{name} has {lines} lines: split the file into modules");
            assert!(text.starts_with("//!"), "{name} does not start with a module comment");
        }
    }
}

#[test]
fn links_between_documents_are_valid() {
    let mut all = files("docs", ".md");
    for name in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"]
    {
        all.push((name.to_owned(), std::fs::read_to_string(repository().join(name)).unwrap()));
    }
    for (document, text) in all {
        let folder = repository().join(&document).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { repository().join(&document) } else { folder.join(file) };
            assert!(target.exists(), "{document} links to {link}, which does not exist");
            let is_valid = heading.is_empty()
                || heading_anchors(&std::fs::read_to_string(&target).unwrap())
                    .contains(&heading.to_owned());
            assert!(is_valid, "{document} links to {link}: the heading does not exist");
        }
    }
}

/// Returns the anchors of the headings, as links use them.
fn heading_anchors(text: &str) -> Vec<String> {
    let titles = text.lines().filter_map(|line| line.strip_prefix('#'));
    let plain = |c: char| c.is_alphanumeric() || c == ' ' || c == '-' || c == '_';
    let anchor = |title: &str| {
        let title = title.trim_start_matches('#').trim().to_lowercase();
        title.chars().filter(|c| plain(*c)).collect::<String>().replace(' ', "-")
    };
    titles.map(anchor).collect()
}

/// Returns the references between backticks of the form `file.rs::function`.
fn referenced_functions(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|code| code.split_once("::"))
        .filter(|(file, _)| file.ends_with(".rs"))
        .collect()
}

/// Checks that each function that a document names as evidence is a test, or a function that a test calls.
#[test]
fn tests_named_in_documents_exist() {
    let mut code = files("tests/tests", ".rs");
    for folder in ["agent", "benches", "controller", "crates"] {
        code.extend(files(folder, ".rs"));
    }
    for document in ["docs/safety.md", "docs/requirements.md"] {
        let text = std::fs::read_to_string(repository().join(document)).unwrap();
        let named = referenced_functions(&text);
        assert!(named.len() > 30, "{document} names {} tests", named.len());
        for (file, function) in named {
            let found = code.iter().find(|(name, _)| name == file);
            let Some((_, text)) = found else {
                panic!("{document}: the file {file} does not exist")
            };
            let begin = format!("fn {function}(");
            let Some((before, _)) = text.split_once(&begin) else {
                panic!("{document}: {file} has no function {function}")
            };
            // Attributes and comments are between the function and the line before it.
            let own: Vec<&str> = before
                .split('\n')
                .rev()
                .skip(1)
                .map(str::trim)
                .take_while(|line| !line.ends_with('}') && !line.is_empty())
                .collect();
            let is_test = own
                .iter()
                .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
            let folder = file.trim_end_matches(".rs");
            let top = folder.rsplit_once('/').map_or(folder, |(top, _)| top);
            let call = format!("{function}(");
            let calls = code
                .iter()
                .filter(|(name, _)| name.starts_with(top) || name == &format!("{top}.rs"));
            let count: usize = calls.map(|(_, text)| text.matches(&call).count()).sum();
            assert!(
                is_test || count > 1,
                "{document}: {file}::{function} is not a test, and no test calls it"
            );
        }
    }
}

#[test]
fn make_targets_in_documents_exist() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    for document in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(repository().join(document)).unwrap();
        for target in text.split("make ").skip(1) {
            let target: String = target.chars().take_while(char::is_ascii_lowercase).collect();
            let named = text.contains(&format!("`make {target}"))
                || text.contains(&format!("\nmake {target}"));
            assert!(
                !named || makefile.contains(&format!("\n{target}:")),
                "{document}: the Makefile has no target {target}"
            );
        }
    }
}

#[test]
fn headings_of_doc_comments_have_their_own_lines() {
    for (name, text) in files("", ".rs") {
        let joined = text.lines().find(|line| line.trim_start().starts_with("/// # Errors "));
        assert_eq!(joined, None, "{name}: the heading and its text are on one line");
    }
}

/// Checks that code blocks in doc comments are marked as `text`. Documentation tests do not run (`doctest = false`),
/// because even without any tests each crate would be compiled a second time.
#[test]
fn code_blocks_in_doc_comments_are_texts() {
    for (name, text) in files("", ".rs") {
        let mut is_inside = false;
        for line in text.lines().map(str::trim_start) {
            let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
            let Some(language) = comment.and_then(|comment| comment.trim().strip_prefix("```"))
            else {
                continue;
            };
            assert!(is_inside || language == "text", "{name}: a code block is not `text`: {line}");
            is_inside = !is_inside;
        }
    }
}
