//! The invariants of ARCHITECTURE.md that can be seen in the text of the repository.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests look at the repository's files, and fail by panicking"
)]

use berth_tests::repository;

/// Files below a folder with that ending, and their paths from the top of the repository.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![repository().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                let name = path.strip_prefix(repository()).unwrap().to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no {ending} below {folder:?}");
    found.sort();
    found
}

/// A file without its tests.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn host_files_go_through_root() {
    let exceptions = [
        "agent/src/root.rs",
        "agent/src/root/write.rs",
        "agent/src/observe/kvm/device.rs",
        "agent/src/observe/direct_io.rs",
    ];
    for (name, text) in files("agent/src", ".rs") {
        if exceptions.contains(&name.as_str()) || name.ends_with("tests.rs") {
            continue;
        }
        for forbidden in
            ["std::fs", "File::open", "fcntl::open", "Command::new", "procfs::process::Process"]
        {
            // The guard of a trial is this program itself.
            let own = name == "agent/src/apply/links/trial.rs" && forbidden == "Command::new";
            let ours = code(&text).replace("Command::new(std::env::current_exe()?)", "");
            let text = if own { ours.as_str() } else { code(&text) };
            assert!(!text.contains(forbidden), "{name} uses {forbidden}: go through Root");
        }
    }
}

#[test]
fn deciding_code_has_no_files_no_clock_no_environment() {
    let mut pure = files("api/src", ".rs");
    pure.extend(files("agent/src/check", ".rs"));
    pure.extend(files("agent/src/report", ".rs"));
    pure.extend(files("agent/src/plan", ".rs"));
    for folder in [
        "admission",
        "engine",
        "fleet",
        "inventory",
        "launcher",
        "machines",
        "plan",
        "profiles",
        "rules",
        "tenants",
    ] {
        pure.extend(files(&format!("controller/src/{folder}"), ".rs"));
    }
    pure.extend(files("agent/src/observe/kvm", "state.rs"));
    for (name, text) in pure {
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
            assert!(!code(&text).contains(forbidden), "{name} uses {forbidden}");
        }
        // `check/mod.rs` gathers the input for the pure functions beside it.
        if name != "agent/src/check/mod.rs" {
            assert!(!code(&text).contains("root::Root"), "{name} reads the host");
        }
    }
}

#[test]
fn only_apply_and_the_ledger_change_the_host() {
    for (name, text) in files("agent/src", ".rs") {
        let may = name.starts_with("agent/src/apply/")
            || ["agent/src/ledger.rs", "agent/src/root/write.rs", "agent/src/cli/apply.rs"]
                .contains(&name.as_str());
        for call in ["root.write(", "root.replace(", "root.remove(", "root.rename(", "make_folder("]
        {
            assert!(may || !code(&text).contains(call), "{name} changes the host: {call}");
        }
    }
}

#[test]
fn only_the_command_line_prints() {
    let mut all = files("agent/src", ".rs");
    all.extend(files("controller/src", ".rs"));
    for (name, text) in all {
        let may = name.starts_with("agent/src/cli/") || name.starts_with("controller/src/cli/");
        for forbidden in ["println!", "eprintln!", "io::stdout", "io::stderr"] {
            assert!(may || !code(&text).contains(forbidden), "{name} prints");
        }
    }
}

#[test]
fn a_file_is_one_idea() {
    for folder in ["agent/src", "api/src", "benches/src", "controller/src", "kit/src"] {
        for (name, text) in files(folder, ".rs") {
            // What a generator writes is not ours to cut.
            if text.starts_with("// This file is @generated") {
                continue;
            }
            let lines = code(&text).lines().count();
            assert!(lines <= 500, "{name} has {lines} lines: look for the second idea");
            assert!(text.starts_with("//!"), "{name} does not say what it is");
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        let text = std::fs::read_to_string(repository().join(document)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let local = !link.starts_with("http") && !link.starts_with('#');
            assert!(!local || repository().join(link).exists(), "{document} links to {link}");
        }
    }
}

#[test]
fn every_command_of_the_readme_is_a_target_or_a_program() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    for document in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(repository().join(document)).unwrap();
        for target in text.split("make ").skip(1) {
            let target: String = target.chars().take_while(char::is_ascii_lowercase).collect();
            let named = text.contains(&format!("`make {target}"))
                || text.contains(&format!("\nmake {target}"));
            assert!(
                !named || makefile.contains(&format!("\n{target}:")),
                "{document}: make {target}"
            );
        }
    }
}
