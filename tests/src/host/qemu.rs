//! Virtual machine of a host: its disks, and a QEMU process from power on to power off.
//!
//! Each boot uses a new QEMU process with the same disks. Therefore only the disks keep data of earlier boots, and
//! a QEMU process that ends means that the host is down, whatever the reason.

#![expect(clippy::disallowed_methods, reason = "tests run programs and read files")]

use std::fs::File;
use std::io::Seek;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{HostOptions, Kernel, Machine, control_socket};
use crate::running::Running;

/// Time limit for operations of QEMU that do not depend on the guest.
const QEMU_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of the disk that transfers a file into a host.
const TRANSFER_DISK_SIZE: u64 = 192 << 20;

/// Virtual machine that is switched off when dropped.
#[derive(Debug)]
pub(super) struct Qemu {
    arguments: Vec<String>,
    /// Folder of the socket of the serial port, the console log, and the error output of QEMU.
    folder: tempfile::TempDir,
    disks: Disks,
    running: Option<Running>,
    /// Number of bytes in the console log that are output of earlier boots.
    earlier_console_length: usize,
}

/// Disk files. The files have no name, so the kernel deletes them when this program ends, even after a crash.
#[derive(Debug)]
struct Disks {
    system: File,
    transfer: File,
    nvme: [File; 2],
    scratch: Option<File>,
}

impl Qemu {
    /// Creates a machine with new disks, switched off.
    pub(super) fn new(options: &HostOptions<'_>) -> Result<Self> {
        let image = build_image()?;
        let folder = tempfile::tempdir()?;
        let disks = Disks {
            system: create_disk(0)?,
            transfer: create_disk(TRANSFER_DISK_SIZE)?,
            nvme: [create_disk(1 << 30)?, create_disk(1 << 30)?],
            scratch: options
                .scratch_gib
                .map(|size| create_disk(u64::from(size) << 30))
                .transpose()?,
        };
        let copied = Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .args([image.join("disk.img"), proc_path(&disks.system)])
            .status()?;
        ensure!(copied.success(), "not enough space for a copy of {} in /var/tmp", image.display());
        let mut arguments = processor_arguments(options);
        arguments.extend(device_arguments(&disks, folder.path(), options.has_loopback_access));
        arguments.extend(archive_arguments(options.archives));
        if let Some(trunk) = &options.trunk {
            arguments.extend(split_words(&format!(
                "-netdev dgram,id=trunk,local.type=unix,local.path={},remote.type=unix,remote.path={} \
                 -device virtio-net-pci,netdev=trunk,romfile=,mac=52:54:00:be:27:{:02x}",
                trunk.local_socket.display(),
                trunk.peer_socket.display(),
                options.number
            )));
            arguments.extend(split_words(&format!(
                "-netdev dgram,id=control,local.type=unix,local.path={},remote.type=unix,remote.path={} \
                 -device virtio-net-pci,netdev=control,romfile=,mac=52:54:00:be:28:{:02x}",
                control_socket(trunk.local_socket).display(),
                control_socket(trunk.peer_socket).display(),
                options.number
            )));
        }
        arguments.extend(kernel_arguments(options, &image)?);
        Ok(Self { arguments, folder, disks, running: None, earlier_console_length: 0 })
    }

    /// Switches the machine on, and returns the socket that is connected to the guest's shell.
    pub(super) fn power_on(&mut self) -> Result<UnixStream> {
        self.earlier_console_length = self.read_file("console").len();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.file_path("errors"))?);
        let mut running = Running::spawn(command)?;
        let begin = Instant::now();
        loop {
            match UnixStream::connect(self.file_path("port")) {
                Ok(port) => {
                    self.running = Some(running);
                    return Ok(port);
                }
                Err(_)
                    if running.process.try_wait()?.is_none() && begin.elapsed() < QEMU_TIMEOUT =>
                {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(_) => {
                    running.stop();
                    let errors = String::from_utf8_lossy(&self.read_file("errors")).into_owned();
                    return Err(anyhow::anyhow!(errors))
                        .context("QEMU (package qemu-system-x86) does not start");
                }
            }
        }
    }

    /// Switches the machine off, if it is on.
    pub(super) fn power_off(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.stop();
        }
    }

    /// Waits until the guest shuts down or restarts; both end QEMU.
    pub(super) fn wait_for_exit(&mut self, timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        while let Some(running) = &mut self.running {
            if running.process.try_wait()?.is_some() {
                self.running = None;
            }
            ensure!(
                begin.elapsed() < timeout,
                "the host is still running after {} s",
                timeout.as_secs()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        let console = self.read_file("console");
        let console = console.get(self.earlier_console_length..).unwrap_or_default();
        let panicked = String::from_utf8_lossy(console).contains("Kernel panic");
        ensure!(!panicked, "the kernel of the host panicked");
        Ok(())
    }

    /// Writes a file to the beginning of the guest's disk `berth-inbox`.
    pub(super) fn write_transfer_disk(&mut self, mut file: &File) -> Result<u64> {
        let length = file.metadata()?.len();
        ensure!(
            length <= TRANSFER_DISK_SIZE,
            "the file is larger than the limit of {TRANSFER_DISK_SIZE} bytes"
        );
        self.disks.transfer.rewind()?;
        let copied = std::io::copy(&mut file, &mut self.disks.transfer)?;
        ensure!(copied == length, "the file changed while it was copied");
        Ok(length)
    }

    /// Returns the path of the log of the guest's console.
    pub(super) fn console_log(&self) -> PathBuf {
        self.file_path("console")
    }

    /// Returns the end of the console, and the error output of QEMU itself.
    pub(super) fn console_tail(&self) -> String {
        let log = self.read_file("console");
        let tail = log.get(log.len().saturating_sub(4000)..).unwrap_or_default();
        let (end, errors) = (String::from_utf8_lossy(tail), self.read_file("errors"));
        format!("--- end of the console log ---\n{end}\n{}", String::from_utf8_lossy(&errors))
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read_file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file_path(name)).unwrap_or_default()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// Creates a disk file outside /tmp, because /tmp may be in memory.
fn create_disk(size: u64) -> Result<File> {
    let file = tempfile::tempfile_in("/var/tmp").context("/var/tmp")?;
    file.set_len(size)?;
    Ok(file)
}

/// Returns the path under which other programs open a file without a name.
fn proc_path(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

fn processor_arguments(options: &HostOptions<'_>) -> Vec<String> {
    // The guest has no more CPUs than needed: with eight emulated CPUs on two real CPUs, CPUs may miss their
    // timers, and the guest's kernel locks up when all CPUs are interrupted at once, as KVM does.
    // The guest has no cmpxchg16b: QEMU before version 8 computes wrong flags after this instruction, and an
    // interrupt at that moment causes a double fault. Kernels do not need the instruction. Without AVX, programs use
    // instructions that QEMU emulates faster: the tests of the kubelet need 310 core seconds instead of 425.
    let (cpu, smp, zones, memory_mib) = match options.machine {
        Machine::AmdV => ("", "4,sockets=2,cores=2,threads=1", ["0-1", "2-3"], 2048),
        Machine::IntelNoSmt => {
            (",vendor=GenuineIntel", "4,sockets=2,cores=2,threads=1", ["0-1", "2-3"], 2048)
        }
        Machine::IntelTwoCores => {
            (",vendor=GenuineIntel", "2,sockets=2,cores=1,threads=1", ["0", "1"], 2048)
        }
        Machine::IntelSmt => {
            (",vendor=GenuineIntel", "8,sockets=2,cores=2,threads=2", ["0-3", "4-7"], 3072)
        }
    };
    let zone_mib = options.memory_mib.unwrap_or(memory_mib) / 2;
    let mut arguments = split_words("-machine q35,kernel-irqchip=split -accel tcg,thread=multi");
    arguments.extend(split_words(&format!(
        "-cpu max,-cx16,-avx,-avx2,-fma,-f16c{cpu} -smp {smp} -m {}",
        zone_mib * 2
    )));
    for (zone, cpus) in zones.iter().enumerate() {
        arguments.extend(split_words(&format!(
            "-object memory-backend-ram,id=m{zone},size={zone_mib}M \
             -numa node,nodeid={zone},cpus={cpus},memdev=m{zone}"
        )));
    }
    arguments
}

fn device_arguments(disks: &Disks, folder: &Path, has_loopback_access: bool) -> Vec<String> {
    let [nvme0, nvme1] = &disks.nvme;
    let mut arguments = split_words("-display none -device intel-iommu -device virtio-serial-pci");
    let scratch = disks.scratch.iter();
    let scratch = scratch.map(|file| ("scratch", file, "virtio-blk-pci,serial=berth-scratch"));
    let always = [
        ("system", &disks.system, "virtio-blk-pci,serial=berth-system"),
        ("inbox", &disks.transfer, "virtio-blk-pci,serial=berth-inbox"),
        ("nvme0", nvme0, "nvme,serial=nv0"),
        ("nvme1", nvme1, "nvme,serial=nv1"),
    ];
    for (name, file, device) in always.into_iter().chain(scratch) {
        // This cache mode loses data only if the machine that runs the tests loses power.
        arguments.extend(split_words(&format!(
            "-drive file={},if=none,id={name},format=raw,cache=unsafe -device {device},drive={name}",
            proc_path(file).display()
        )));
    }
    // With an empty `romfile`, the cards have no boot program (iPXE), which the firmware would decompress and start.
    for (card, restrict) in [("n0", if has_loopback_access { "off" } else { "on" }), ("n1", "on")] {
        arguments.extend(split_words(&format!(
            "-netdev user,id={card},restrict={restrict} -device virtio-net-pci,netdev={card},romfile="
        )));
    }
    let folder = folder.display();
    for (option, value) in [
        ("-chardev", format!("socket,path={folder}/port,server=on,wait=off,id=port")),
        ("-device", "virtserialport,chardev=port,name=berth".to_owned()),
        ("-chardev", format!("file,path={folder}/console,append=on,id=console")),
        ("-serial", "chardev:console".to_owned()),
    ] {
        arguments.extend([option.to_owned(), value]);
    }
    arguments
}

/// Returns the arguments for the read-only disks with archives. Several hosts may use the same files.
fn archive_arguments(archives: &[&Path]) -> Vec<String> {
    let drives = archives.iter().enumerate().flat_map(|(index, file)| {
        let drive = format!(
            "file={},if=none,id=archive{index},format=raw,readonly=on,file.locking=off",
            file.display()
        );
        let device = format!("virtio-blk-pci,serial=berth-archive{index},drive=archive{index}");
        ["-drive".to_owned(), drive, "-device".to_owned(), device]
    });
    drives.collect()
}

/// Returns the arguments for the kernel. A kernel restarts after a panic, and a restart ends QEMU.
fn kernel_arguments(options: &HostOptions<'_>, image: &Path) -> Result<Vec<String>> {
    let name = match options.kernel {
        Kernel::Stable => "stable",
        Kernel::Backports => "backports",
    };
    let [vmlinuz, initrd] = ["vmlinuz", "initrd"].map(|what| image.join(format!("{what}-{name}")));
    ensure!(
        vmlinuz.exists(),
        "{} is missing: tests/host/image.sh could not download this kernel when it built the image; \
         remove the folder to build the image again",
        vmlinuz.display()
    );
    // Hosts of the same image need different machine ids, because addresses of bridges and veths are derived from the
    // id. Mitigations are off: an emulated CPU does not need mitigations, and they flush the emulated TLB at every
    // system call. Programs and libraries have the same addresses in each process: QEMU 7.2 translates code again at
    // each new address, which was more than half of the time of a short program. The clock remains the HPET, which is
    // slow to read: with `tsc=reliable` the guest's time ran up to 25 times too fast, because QEMU advances the
    // emulated TSC whenever a thread reads a smaller TSC of the real CPU than another thread did before.
    let append = format!(
        "console=ttyS0 root=LABEL=berth-host rw quiet panic=-1 intel_iommu=on no_timer_check mitigations=off \
         norandmaps systemd.machine_id=b347000000000000000000000000{:04x}",
        options.number
    );
    let [vmlinuz, initrd] = [vmlinuz, initrd].map(|path| path.display().to_string());
    let arguments = ["-no-reboot", "-kernel", &vmlinuz, "-initrd", &initrd, "-append", &append];
    Ok(arguments.map(str::to_owned).to_vec())
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the image, which is built on first use.
fn build_image() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("host/image.sh");
    let output = Command::new(script).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "tests/host/image.sh failed");
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default()))
}
