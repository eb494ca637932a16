//! Emulated bare-metal hosts: two sockets, two NUMA zones, AMD-V, an IOMMU, two NVMe drives, systemd.
//!
//! QEMU without KVM boots the image of `tests/host/image.sh`; commands go in and results come out over a
//! virtio-serial port. Writes to the disk are thrown away with the host.

#![expect(clippy::disallowed_methods, reason = "tests run programs and look at files")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// How long a host may take to boot; 30 s on two idle cores, far more on busy ones.
const BOOT: Duration = Duration::from_secs(300);
/// How long one command may take.
const COMMAND: Duration = Duration::from_secs(120);

/// A host that runs until it is dropped.
#[derive(Debug)]
pub struct Host {
    qemu: Child,
    port: BufReader<UnixStream>,
    folder: tempfile::TempDir,
}

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Exit code.
    pub code: i32,
    /// Standard output and standard error.
    pub output: String,
}

impl Host {
    /// Boots a host that has `agent` as `/usr/local/bin/berth-agent`. `number` tells it from other hosts.
    ///
    /// # Errors
    /// If the image cannot be built, QEMU does not start, or the host does not come up; the message has
    /// the end of its console.
    pub fn boot(agent: &Path, number: u8) -> Result<Self> {
        let image = image()?;
        let folder = tempfile::tempdir()?;
        let in_folder = |name: &str| folder.path().join(name).display().to_string();
        for drive in ["nvme0", "nvme1"] {
            std::fs::File::create(in_folder(drive))?.set_len(1 << 30)?;
        }
        let socket = in_folder("port");
        let image = image.display();
        let agent = agent.display();
        let drives = [
            format!("file={image}/disk.img,format=raw,if=virtio,snapshot=on"),
            format!("file={agent},format=raw,if=none,id=agent,readonly=on"),
            format!("file={},format=raw,if=none,id=nvme0", in_folder("nvme0")),
            format!("file={},format=raw,if=none,id=nvme1", in_folder("nvme1")),
        ];
        // Four CPUs on purpose: with eight on two real ones, emulated CPUs miss their timers, and the guest's
        // kernel locks up when KVM interrupts them all at once.
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-machine", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi"])
            .args(["-cpu", "max", "-smp", "4,sockets=2,cores=2,threads=1", "-m", "2048"])
            .args([
                "-object",
                "memory-backend-ram,id=m0,size=1G",
                "-numa",
                "node,nodeid=0,cpus=0-1,memdev=m0",
            ])
            .args([
                "-object",
                "memory-backend-ram,id=m1,size=1G",
                "-numa",
                "node,nodeid=1,cpus=2-3,memdev=m1",
            ])
            .args(["-device", "intel-iommu"])
            .args(drives.iter().flat_map(|drive| ["-drive", drive]))
            .args(["-device", "virtio-blk-pci,drive=agent,serial=berth-agent"])
            .args([
                "-device",
                "nvme,drive=nvme0,serial=nv0",
                "-device",
                "nvme,drive=nvme1,serial=nv1",
            ])
            .args(["-netdev", "user,id=n0,restrict=on", "-device", "virtio-net-pci,netdev=n0"])
            .args(["-netdev", "user,id=n1,restrict=on", "-device", "virtio-net-pci,netdev=n1"])
            .args(["-chardev", &format!("socket,path={socket},server=on,wait=off,id=port")])
            .args([
                "-device",
                "virtio-serial-pci",
                "-device",
                "virtserialport,chardev=port,name=berth",
            ])
            .args([
                "-display",
                "none",
                "-no-reboot",
                "-serial",
                &format!("file:{}", in_folder("console")),
            ])
            .args(["-kernel", &format!("{image}/vmlinuz"), "-initrd", &format!("{image}/initrd")])
            .args(["-append", &kernel_arguments(number)])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let qemu = qemu.spawn().context("qemu-system-x86_64 (package qemu-system-x86)")?;
        let mut host = Self { qemu, port: BufReader::new(connect(Path::new(&socket))?), folder };
        match host.line(BOOT) {
            Ok(line) if line == "ready" => Ok(host),
            Ok(line) => bail!("the host said `{line}` in place of ready\n{}", host.console()),
            Err(error) => bail!("the host did not come up: {error:#}\n{}", host.console()),
        }
    }

    /// Runs a shell command as root.
    ///
    /// # Errors
    /// If the host does not answer in two minutes; the message has the end of its console.
    pub fn run(&mut self, command: &str) -> Result<Said> {
        // Slow work says how far it is; cargo shows it only if a test fails or is asked to.
        let first = command.lines().next().unwrap_or_default();
        writeln!(std::io::stderr(), "host: {first}").unwrap_or_default();
        let line = BASE64.encode(command) + "\n";
        self.port.get_mut().write_all(line.as_bytes())?;
        let answer = self.line(COMMAND);
        let answer = answer.with_context(|| format!("`{command}`\n{}", self.console()))?;
        // A command that says nothing leaves the second word empty.
        let (code, output) = answer.split_once(' ').unwrap_or((&answer, ""));
        let output = String::from_utf8_lossy(&BASE64.decode(output)?).into_owned();
        Ok(Said { code: code.parse()?, output })
    }

    /// Runs a command that must succeed, and gives what it said.
    ///
    /// # Errors
    /// As [`Self::run`], and if the command fails.
    pub fn must(&mut self, command: &str) -> Result<String> {
        let said = self.run(command)?;
        ensure!(said.code == 0, "`{command}` failed with {}: {}", said.code, said.output);
        Ok(said.output)
    }

    fn line(&mut self, patience: Duration) -> Result<String> {
        self.port.get_ref().set_read_timeout(Some(patience))?;
        let mut line = String::new();
        let read = self.port.read_line(&mut line)?;
        ensure!(read > 0, "the host is gone");
        Ok(line.trim().to_owned())
    }

    fn console(&self) -> String {
        let log = std::fs::read(self.folder.path().join("console")).unwrap_or_default();
        let end = log.get(log.len().saturating_sub(4000)..).unwrap_or_default();
        format!("--- end of its console ---\n{}", String::from_utf8_lossy(end))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.qemu.kill().unwrap_or_default();
        self.qemu.wait().map(drop).unwrap_or_default();
    }
}

/// Hosts of one image need ids of their own: addresses of bridges and veths are derived from them.
fn kernel_arguments(number: u8) -> String {
    format!(
        "console=ttyS0 root=LABEL=berth-host rw quiet panic=-1 intel_iommu=on \
         systemd.machine_id=b347000000000000000000000000{number:04x}"
    )
}

/// The image, built on first use.
fn image() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("host/image.sh");
    let output = Command::new(script).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "tests/host/image.sh failed");
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default()))
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if begin.elapsed() > Duration::from_secs(20) => {
                return Err(error).context("QEMU made no port; is it installed and new enough?");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
