//! Files of a test host.

use std::path::Path;

/// A temporary folder with the files of a host; it is removed when the value is dropped.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file, and creates its parent folders.
    pub(crate) fn write_file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    pub(crate) fn create_folder(&self, path: &str) -> &Self {
        std::fs::create_dir_all(self.path().join(path)).unwrap();
        self
    }

    /// Creates a symbolic link, and its parent folders.
    pub(crate) fn create_link(&self, path: &str, target: &str) -> &Self {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }
}
