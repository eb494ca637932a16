//! Stops and starts the kubelet of the test host, and changes its files.

use super::Tree;
use super::host::kubelet_stat;

pub(crate) fn stop_kubelet(tree: &Tree) {
    std::fs::rename(tree.path().join("proc/1412"), tree.path().join("ended")).unwrap();
}

/// Starts the kubelet again, `started` hundredths of a second after the boot.
pub(crate) fn start_kubelet(tree: &Tree, started: u64) {
    std::fs::rename(tree.path().join("ended"), tree.path().join("proc/1412")).unwrap();
    tree.write_file("proc/1412/stat", kubelet_stat(started));
}

/// Sets the modification time of a file, in seconds since 1970.
pub(crate) fn set_modification_time(tree: &Tree, path: &str, seconds: u64) {
    let file = std::fs::File::options().write(true).open(tree.path().join(path)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    file.set_modified(time).unwrap();
}
