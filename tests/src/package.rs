//! Debian package that `make test` and `make deb` build.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Returns the newest package in `target/debian`.
///
/// # Errors
/// Fails if there is no package, or if it is older than the agent's program.
#[expect(clippy::disallowed_methods, reason = "tests read the repository's files")]
pub fn newest_package() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debian");
    let missing = || format!("no package in {}: run `make test` to build it", folder.display());
    let found = std::fs::read_dir(&folder).with_context(missing)?;
    let packages = found.filter_map(|entry| Some(entry.ok()?.path()));
    let is_package = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("berth-agent_") && name.ends_with(".deb")
    };
    let packages = packages.filter(is_package);
    let modified = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let newest = packages.max_by_key(modified).with_context(missing)?;
    let program = crate::program("berth-agent");
    // A test with an outdated package would test an earlier agent.
    ensure!(
        modified(&program) <= modified(&newest),
        "{} is older than {}: run `make test` to build it again",
        newest.display(),
        program.display()
    );
    Ok(newest)
}
