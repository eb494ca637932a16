//! Tests of the use of PCI functions, on a tree with one drive and one network card in an IOMMU group.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

const DRIVE: &str = "0000:81:00.0";
const CARD: &str = "0000:41:00.0";
const BLOCK: &str = "sys/devices/pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1";

struct Tree(tempfile::TempDir);

fn parse_address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

impl Tree {
    /// Returns the files of a host with an unused drive, and with a card whose link is up.
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for (address, class, driver) in [(DRIVE, "0x010802", "nvme"), (CARD, "0x020000", "ice")] {
            let folder = format!("sys/devices/pci0000:80/{address}");
            tree.write(&format!("{folder}/class"), class)
                .write(&format!("{folder}/vendor"), "0x144d")
                .write(&format!("{folder}/device"), "0xa80a")
                .write(&format!("{folder}/driver_override"), "(null)")
                .write(&format!("{folder}/enable"), "1")
                .link(&format!("{folder}/driver"), &format!("../../../bus/pci/drivers/{driver}"))
                .link(&format!("{folder}/iommu_group"), "../../../kernel/iommu_groups/40")
                .link(
                    &format!("{DEVICE_FOLDER}/{address}"),
                    &format!("../../../devices/pci0000:80/{address}"),
                )
                .write(&format!("sys/kernel/iommu_groups/40/devices/{address}"), "");
        }
        tree.write(&format!("{BLOCK}/dev"), "259:0")
            .write("run/udev/data/b259:0", "S:disk/by-path/x")
            .link("sys/class/block/nvme0n1", &format!("../../../{BLOCK}"))
            .write("proc/1/mountinfo", "22 1 253:0 / / rw - ext4 /dev/mapper/root rw\n")
            .write("proc/2/comm", "kthreadd")
            .write(&format!("sys/devices/pci0000:80/{CARD}/net/ens1/mtu"), "1500")
            .write("sys/class/net/ens1/flags", "0x1003");
        tree
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Self {
        let path: &Path = &self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::remove_file(path).unwrap_or_default();
        symlink(target, path).unwrap();
        self
    }

    fn observe(&self, address: &str) -> VfioFacts {
        let selector = VfioSpec { pci_address: address.parse().ok(), ..VfioSpec::default() };
        observe(&Root::open(self.0.path()).unwrap(), &[selector], &BTreeSet::new())
    }

    fn use_reason(&self, address: &str) -> Option<String> {
        let facts = self.observe(address);
        facts.functions[&parse_address(address)].use_reason()
    }
}

#[test]
fn drive_without_content_is_unused() {
    let tree = Tree::new();
    let facts = tree.observe(DRIVE);
    assert_eq!(facts.list, FunctionList::Complete);
    let drive = &facts.functions[&parse_address(DRIVE)];
    assert_eq!(drive.use_reason(), None);
    assert_eq!(drive.driver_setting().to_string(), "nvme");
    assert_eq!(drive.id.unwrap().to_string(), "144d:a80a");
    assert_eq!(drive.group_members, Ok(vec![CARD.to_owned(), DRIVE.to_owned()]));
    let card = &facts.functions[&parse_address(CARD)];
    assert!(card.blocks_group() && card.users.is_empty(), "the use of other members is not read");
}

#[test]
fn functions_are_selected_by_id() {
    let tree = Tree::new();
    let select = |id: &str| {
        let selector = VfioSpec { id: id.parse().ok(), ..VfioSpec::default() };
        let root = Root::open(tree.0.path()).unwrap();
        observe(&root, &[selector], &BTreeSet::new()).functions.len()
    };
    assert_eq!((select("144d:a80a"), select("144d:a80b")), (2, 0));
    let nothing = observe(&Root::open(tree.0.path()).unwrap(), &[], &BTreeSet::new());
    assert_eq!(nothing, VfioFacts::default());
}

#[test]
fn each_use_of_a_drive_is_found() {
    let partition = format!("{BLOCK}/nvme0n1p1");
    for (path, text, expected) in [
        (format!("{partition}/dev"), "259:1", "partitions: 1"),
        (format!("{BLOCK}/holders/dm-0"), "", "holder of nvme0n1: dm-0"),
        (
            "proc/1/mountinfo".to_owned(),
            "22 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n",
            "nvme0n1 mounted on /data",
        ),
        (
            "proc/swaps".to_owned(),
            "Filename Type\n/dev/nvme0n1 partition 1 0 -2\n",
            "nvme0n1 is swap space",
        ),
        ("run/udev/data/b259:0".to_owned(), "E:ID_FS_TYPE=xfs", "nvme0n1 has signature xfs"),
        (
            "run/udev/data/b259:0".to_owned(),
            "E:ID_FS_AMBIVALENT=filesystem:ext4: raid:isw",
            "has signature filesystem:ext4: raid:isw",
        ),
        (
            "sys/devices/pci0000:80/0000:81:00.0/sriov_numvfs".to_owned(),
            "2",
            "virtual functions: 2",
        ),
        (
            "sys/devices/pci0000:80/0000:81:00.0/pci10000:00/uevent".to_owned(),
            "",
            "PCI bus pci10000:00 is below it",
        ),
        (
            "sys/class/block/loop0/loop/backing_file".to_owned(),
            "/dev/nvme0n1",
            "loop device of nvme0n1: loop0",
        ),
    ] {
        let tree = Tree::new();
        if path.contains("nvme0n1p1") {
            tree.link("sys/class/block/nvme0n1p1", &format!("../../../{partition}"))
                .write(&format!("{partition}/partition"), "1");
        }
        tree.write(&path, text);
        let reason = tree.use_reason(DRIVE).unwrap_or_default();
        assert!(reason.starts_with("it is in use: ") && reason.contains(expected), "{reason}");
    }
    let tree = Tree::new();
    tree.write("proc/88/comm", "qemu-system-x86").link("proc/88/fd/3", "/dev/nvme0n1");
    let reason = tree.use_reason(DRIVE).unwrap();
    assert!(reason.contains("process 88 (qemu-system-x86) has nvme0n1 open"), "{reason}");
}

#[test]
fn mount_of_a_container_is_found() {
    let tree = Tree::new();
    tree.link("proc/88/ns/mnt", "mnt:[4026532000]")
        .link("proc/88/root", "/")
        .write("proc/88/mountinfo", "22 1 259:0 / /data rw - ext4 /dev/data rw\n");
    let reason = tree.use_reason(DRIVE).unwrap();
    assert!(reason.contains("nvme0n1 mounted on /data"), "{reason}");
    std::fs::remove_file(tree.0.path().join("proc/88/mountinfo")).unwrap();
    let reason = tree.use_reason(DRIVE).unwrap();
    assert!(reason.contains("the open files of process 88 cannot be read"), "{reason}");
}

#[test]
fn link_below_another_controller_is_in_use() {
    let tree = Tree::new();
    let link = "sys/devices/pci0000:80/0000:81:00.0/usb1/1-1/net/usb0";
    tree.write(&format!("{link}/flags"), "0x1003")
        .link("sys/class/net/usb0", &format!("../../{}", link.trim_start_matches("sys/")));
    assert!(tree.use_reason(DRIVE).unwrap().contains("link usb0 is up"));
}

#[test]
fn unknown_use_counts_as_use() {
    for (removed, expected) in [
        ("sys/devices/pci0000:80/0000:81:00.0/class", "its class cannot be read"),
        ("run/udev/data/b259:0", "udev has not examined nvme0n1"),
        ("proc/1/mountinfo", "the mount table cannot be read"),
        ("sys/class/block/nvme0n1", "the driver nvme has created no block device"),
        ("proc/2/comm", "the host's processes are not visible"),
    ] {
        let tree = Tree::new();
        std::fs::remove_file(tree.0.path().join(removed)).unwrap();
        let reason = tree.use_reason(DRIVE).unwrap_or_default();
        assert!(reason.starts_with("it is unknown whether it is in use: "), "{reason}");
        assert!(reason.ends_with(expected), "{reason}");
    }
    let folder = format!("sys/devices/pci0000:80/{DRIVE}");
    for (file, text, expected) in [
        (format!("{folder}/sriov_numvfs"), "many", "`many` is not a valid value"),
        (format!("{folder}/class"), "0x050210", "the driver nvme does not show its users"),
        (format!("{folder}/class"), "0x0c0400", "the driver nvme does not show its users"),
        (format!("{BLOCK}/size"), "0", "nvme0n1 has the size 0"),
    ] {
        let tree = Tree::new();
        tree.write(&file, text);
        let reason = tree.use_reason(DRIVE).unwrap_or_default();
        assert!(reason.starts_with("it is unknown whether it is in use: "), "{reason}");
        assert!(reason.contains(expected), "{reason}");
    }
    let tree = Tree::new();
    std::fs::remove_file(tree.0.path().join(format!("{folder}/driver"))).unwrap();
    let reason = tree.use_reason(DRIVE).unwrap();
    assert!(reason.contains("without a driver, its content cannot be read"), "{reason}");
}

#[test]
fn link_that_is_up_is_in_use() {
    let tree = Tree::new();
    assert!(tree.use_reason(CARD).unwrap().contains("link ens1 is up"));
    tree.write("sys/class/net/ens1/flags", "0x1002");
    assert_eq!(tree.use_reason(CARD), None);
    tree.link("sys/class/net/ens1/master", "../../devices/virtual/net/bond0");
    assert!(tree.use_reason(CARD).unwrap().contains("link ens1 is a port of bond0"));
    let pod = Tree::new();
    std::fs::remove_dir_all(pod.0.path().join(format!("sys/devices/pci0000:80/{CARD}/net")))
        .unwrap();
    assert!(pod.use_reason(CARD).unwrap().contains("another network namespace"));
}

#[test]
fn group_of_an_open_function_is_in_use() {
    let tree = Tree::new();
    let folder = format!("sys/devices/pci0000:80/{DRIVE}");
    tree.link(&format!("{folder}/driver"), "../../../bus/pci/drivers/vfio-pci");
    let user = |tree: &Tree| {
        let facts = observe_function(&Root::open(tree.0.path()).unwrap(), parse_address(DRIVE));
        facts.group_user(&facts.functions[&parse_address(DRIVE)])
    };
    assert!(user(&tree).unwrap().contains("has 0000:81:00.0 open"));
    tree.write(&format!("{folder}/enable"), "0");
    assert_eq!(user(&tree), None, "the driver ice has enabled the other function");
    tree.write("proc/88/comm", "qemu").link("proc/88/fd/3", "/dev/vfio/40");
    assert_eq!(user(&tree).as_deref(), Some("process 88 (qemu) has /dev/vfio/40 open"));
    tree.link("proc/88/fd/3", "/dev/null");
    tree.write(&format!("{folder}/enable"), "many");
    assert!(user(&tree).unwrap().contains("cannot be read"));
}

#[test]
fn any_text_in_driver_override_is_read() {
    let tree = Tree::new();
    let file = format!("sys/devices/pci0000:80/{DRIVE}/driver_override");
    for (text, expected) in [
        ("(null)\n", None),
        ("\n", None),
        ("vfio-pci\n", Some("vfio-pci")),
        ("\u{1b}[2Jx\n", Some("\u{fffd}[2Jx")),
    ] {
        tree.write(&file, text);
        let facts = tree.observe(DRIVE);
        let only = facts.functions[&parse_address(DRIVE)].driver_override.clone().unwrap();
        assert_eq!(only.as_deref(), expected);
    }
}
