//! Tests of reading files that block, symbolic links that form loops or lead out of the tree, and files that change.

use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

fn create_tree(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let root = Root::open(folder.path()).unwrap();
    (folder, root)
}

#[test]
fn text_is_read_without_nul_bytes_and_newlines() {
    let (_folder, root) = create_tree(&[("sys/a", b" 1-3\n\0"), ("sys/b", b"\xff2\n")]);
    assert_eq!(root.read("sys/a").unwrap(), "1-3");
    assert_eq!(root.read("/sys/a").unwrap(), "1-3");
    assert_eq!(root.read("sys/b").unwrap(), "\u{fffd}2");
}

#[test]
fn error_contains_file_and_reason() {
    let (_folder, root) = create_tree(&[("sys/number", b"many")]);
    let message = |result: Result<u32, ReadError>| result.unwrap_err().to_string();
    assert_eq!(message(root.read_value("sys/none")), "/sys/none: no such file or directory");
    assert_eq!(message(root.read_value("sys/number")), "/sys/number: `many` is not a valid value");
    assert_eq!(message(root.read_value("sys")), "/sys: not a regular file");
}

#[test]
fn symbolic_links_stay_inside_the_tree() {
    let (folder, root) = create_tree(&[("etc/real", b"inside")]);
    symlink("/etc/real", folder.path().join("etc/absolute")).unwrap();
    symlink("../../../../../../etc/real", folder.path().join("etc/upwards")).unwrap();
    symlink("/etc/hostname", folder.path().join("etc/outside")).unwrap();
    assert_eq!(root.read("etc/absolute").unwrap(), "inside");
    assert_eq!(root.read("etc/upwards").unwrap(), "inside");
    assert!(root.read("etc/outside").unwrap_err().is_not_found());
    assert_eq!(root.read_link("etc/absolute").as_deref(), Some("/etc/real"));
    assert_eq!(root.read_link_name("etc/absolute").as_deref(), Some("real"));
    assert_eq!(root.read_link("etc/real"), None);
}

#[test]
fn symbolic_links_stay_inside_the_tree_without_openat2() {
    let (folder, root) = create_tree(&[("etc/real", b"inside")]);
    symlink("real", folder.path().join("etc/relative")).unwrap();
    symlink("/etc/hostname", folder.path().join("etc/outside")).unwrap();
    let open = |path| root.open_without_openat2(path, OFlag::O_RDONLY).map(drop);
    assert_eq!(open("etc/relative"), Ok(()));
    assert_eq!(open("etc/outside"), Err(Errno::ENOENT));
    assert_eq!(open("etc/none"), Err(Errno::ENOENT));
}

#[test]
fn read_never_blocks_on_loops_and_pipes() {
    let (folder, root) = create_tree(&[]);
    symlink("loop", folder.path().join("loop")).unwrap();
    mkfifo(&folder.path().join("pipe"), Mode::from_bits_truncate(0o600)).unwrap();
    assert_eq!(root.read("loop").unwrap_err().problem, ReadProblem::Io(Errno::ELOOP));
    assert_eq!(root.read("pipe").unwrap_err().problem, ReadProblem::NotRegularFile);
}

#[test]
fn too_large_file_is_refused() {
    let (_folder, root) = create_tree(&[("sys/huge", &vec![b'1'; MAX_SMALL_FILE_BYTES + 1])]);
    assert_eq!(
        root.read("sys/huge").unwrap_err().problem,
        ReadProblem::TooLarge(MAX_SMALL_FILE_BYTES)
    );
    assert_eq!(root.read_large("sys/huge").unwrap().len(), MAX_SMALL_FILE_BYTES + 1);
}

#[test]
fn numbered_names_are_sorted_by_number() {
    let (_folder, root) = create_tree(&[
        ("cpu/cpu10/x", b""),
        ("cpu/cpu2/x", b""),
        ("cpu/cpufreq/x", b""),
        ("cpu/cpu/x", b""),
    ]);
    let names: Vec<_> =
        root.list_numbered("cpu", "cpu").unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(names, [2, 10]);
    assert_eq!(root.list_numbered("none", "cpu"), Ok(Vec::new()));
}

#[test]
fn unreadable_folder_is_not_read_as_empty() {
    let (folder, root) = create_tree(&[]);
    symlink("loop", folder.path().join("loop")).unwrap();
    let error = root.list_numbered("loop", "cpu").unwrap_err();
    assert_eq!(error.problem, ReadProblem::Io(Errno::ELOOP));
}

#[test]
fn error_in_the_middle_of_a_folder_is_returned() {
    let entry = |name: &str| Ok(Some(name.to_owned()));
    let complete = [entry("b"), entry(".."), Ok(None), entry("a")];
    assert_eq!(collect_names(complete.into_iter()).unwrap(), ["a", "b"]);
    let interrupted = [entry("b"), Err(Errno::EIO), entry("a")];
    assert_eq!(collect_names(interrupted.into_iter()), Err(Errno::EIO));
}

#[test]
fn missing_root_is_reported_in_one_line() {
    let message = |path: &str| Root::open(Path::new(path)).unwrap_err().to_string();
    assert_eq!(
        message("/no/such"),
        "--root /no/such: no such folder; specify the folder that contains proc/ and sys/"
    );
    assert!(message("/etc/passwd").contains("not a folder"));
    assert!(Root::open_live().unwrap().is_live());
}

/// A rename anywhere on the machine can make openat2 fail with EAGAIN for a path with `..`. Reading a file must
/// nevertheless succeed.
#[test]
fn concurrent_renames_do_not_lose_a_file() {
    let (folder, root) = create_tree(&[("sys/devices/a/file", b"here"), ("other/x", b"")]);
    std::fs::create_dir_all(folder.path().join("sys/class")).unwrap();
    symlink("../devices/a", folder.path().join("sys/class/a")).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (folder.path().join("other/x"), folder.path().join("other/y"));
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::rename(&a, &b).unwrap();
                std::fs::rename(&b, &a).unwrap();
            }
        });
        let failures = (0..20_000).filter(|_| root.read("sys/class/a/file").is_err()).count();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(failures, 0);
    });
}

#[test]
fn device_number_is_that_of_a_device_node_of_the_running_host() {
    let live = Root::open_live().unwrap();
    assert_eq!(live.device_number("/dev/null").as_deref(), Some("c1:3"));
    assert_eq!(live.device_number("proc/self"), None);
    assert_eq!(live.device_number("no/such/file"), None);
    let (_folder, root) = create_tree(&[("dev/null", b"")]);
    assert_eq!(root.device_number("dev/null"), None);
}
