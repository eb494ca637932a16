//! Emulated bare-metal hosts: two sockets, two NUMA zones, an IOMMU, two NVMe drives, systemd.
//!
//! QEMU without KVM boots the image of `tests/host/image.sh`; commands go in and results come out over a
//! virtio-serial port. What a host writes to its disks outlives reboots and power cuts, not the host.

mod qemu;
mod shell;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use qemu::Qemu;
use shell::Shell;

use crate::wait;

/// How long a host may take to boot; 30 s on two idle cores, far more on busy ones.
const BOOT: Duration = Duration::from_secs(300);
/// How long [`Host::run`] lets a command take.
const COMMAND: Duration = Duration::from_secs(120);

/// What kind of host to boot.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The program to have as `/usr/local/bin/berth-agent`; none for a host without.
    pub agent: Option<&'a Path>,
    /// Tells hosts that run at the same time from each other.
    pub number: u8,
    /// Its processors.
    pub machine: Machine,
    /// Its kernel.
    pub kernel: Kernel,
    /// Memory of both zones together, if not what the machine usually has.
    pub memory_mib: Option<u32>,
    /// A cable to another host, with every VLAN on it.
    pub trunk: Option<Trunk<'a>>,
    /// Whether it can reach this machine's loopback, at 10.0.2.2: for a control plane.
    pub cluster: bool,
}

/// A cable between two hosts. It is a network card of its own, whose address ends in the host's number:
/// `52:54:00:be:27:01`.
#[derive(Debug, Clone, Copy)]
pub struct Trunk<'a> {
    /// The socket of this end.
    pub ours: &'a Path,
    /// The socket of the other end.
    pub theirs: &'a Path,
}

/// The file name of a socket of the second cable. It runs beside every trunk and is not under test: the host's network
/// namespace `control` has its end, with the address 10.77.0.NUMBER.
pub(crate) fn control(trunk: &Path) -> std::path::PathBuf {
    let mut name = trunk.as_os_str().to_owned();
    name.push(".control");
    name.into()
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            agent: None,
            number: 1,
            machine: Machine::default(),
            kernel: Kernel::default(),
            memory_mib: None,
            trunk: None,
            cluster: false,
        }
    }
}

/// The processors of a host. No emulated CPU has both AMD-V and two threads to a core.
///
/// A probe of `/dev/kvm` makes a VM, which interrupts all CPUs at once, and emulated ones may not come out
/// of that: [`Self::AmdV`] is for tests of KVM alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Machine {
    /// AMD with AMD-V, so `/dev/kvm` can be had: two sockets of two cores with one thread, CPUs 0-1 and 2-3,
    /// 2 GiB.
    #[default]
    AmdV,
    /// Intel without VT-x, so no `/dev/kvm`, and otherwise as [`Self::AmdV`].
    Small,
    /// Intel without VT-x, so no `/dev/kvm`: two sockets of two cores with two threads, CPUs 0-3 and 4-7,
    /// 3 GiB.
    Smt,
}

/// The kernel of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kernel {
    /// Debian bookworm's, 6.1: KSM without advisor.
    #[default]
    Stable,
    /// The one from bookworm-backports, 6.12: KSM with advisor.
    Backports,
}

/// A host that runs until it is dropped.
#[derive(Debug)]
pub struct Host {
    number: u8,
    qemu: Qemu,
    shell: Option<Shell>,
    started: u32,
    begun: Instant,
}

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Exit code.
    pub code: i32,
    /// Standard output and standard error.
    pub output: String,
}

impl Said {
    fn unless_failed(self, command: &str) -> Result<String> {
        ensure!(self.code == 0, "`{command}` failed with {}: {}", self.code, self.output);
        Ok(self.output)
    }
}

impl Host {
    /// Boots a host.
    ///
    /// # Errors
    /// If the image cannot be built, QEMU does not start, or the host does not come up; the message has
    /// the end of its console.
    pub fn boot(options: &Options<'_>) -> Result<Self> {
        let mut host = Self {
            number: options.number,
            qemu: Qemu::new(options)?,
            shell: None,
            started: 0,
            begun: Instant::now(),
        };
        host.power_on()?;
        if let Some(agent) = options.agent {
            host.put(agent, "/usr/local/bin/berth-agent")?;
        }
        Ok(host)
    }

    /// Its number; the hardware address of its end of a trunk ends in it.
    #[must_use]
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// Runs a shell command as root.
    ///
    /// # Errors
    /// As [`Self::run_for`], with two minutes.
    pub fn run(&mut self, command: &str) -> Result<Said> {
        self.run_for(command, COMMAND)
    }

    /// Runs a shell command as root that may take that long, to the second.
    ///
    /// # Errors
    /// If the command takes longer, in which case it is ended, or if the host goes down meanwhile, after which
    /// [`Self::rebooted`] or [`Self::power_cut`] brings it back. The message has the end of its console.
    pub fn run_for(&mut self, command: &str, timeout: Duration) -> Result<Said> {
        self.note(command.lines().next().unwrap_or_default());
        self.command(command, timeout)
    }

    /// Runs a command that must succeed, and gives what it said.
    ///
    /// # Errors
    /// Fails like [`Self::run`], and if the command fails.
    pub fn must(&mut self, command: &str) -> Result<String> {
        let said = self.run(command)?;
        said.unless_failed(command)
    }

    /// Waits until a shell condition holds, as [`wait::until`].
    ///
    /// # Errors
    /// If it does not in that time; the message has the output of the last try and of `explain`. And as [`Self::run`].
    pub fn until(&mut self, condition: &str, limit: Duration, explain: &str) -> Result<()> {
        let mut failed = None;
        let held = wait::until(condition, limit, || match self.run(condition) {
            Ok(said) if said.code == 0 => Ok(()),
            Ok(said) => Err(said.output.into()),
            Err(error) => {
                failed = Some(error);
                Ok(())
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        held.or_else(|error| bail!("{error:#}\n{}", self.run(explain)?.output))
    }

    /// Starts a shell command as root and does not wait for it. Gives the file on the host that has what it
    /// says; it is gone after a reboot.
    ///
    /// # Errors
    /// Fails like [`Self::must`].
    pub fn start(&mut self, command: &str) -> Result<String> {
        self.started += 1;
        self.note(&format!("start {command}"));
        let output = format!("/run/started-{}", self.started);
        let script = BASE64.encode(command);
        self.quietly(&format!(
            "base64 -d <<<{script} >{output}.sh && {{ setsid bash {output}.sh </dev/null >{output} 2>&1 & }}"
        ))?;
        Ok(output)
    }

    /// Copies a file into the host, with its mode, and has it flushed to the disk there.
    ///
    /// # Errors
    /// If the file cannot be read or is larger than 192 MiB, and as [`Self::must`].
    pub fn put(&mut self, local: &Path, guest: &str) -> Result<()> {
        let name = local.display().to_string();
        self.note(&format!("put {name} as {guest}"));
        let file = File::open(local).with_context(|| name.clone())?;
        let mode = file.metadata()?.permissions().mode() & 0o7777;
        let length = self.qemu.put(&file).context(name)?;
        let disk = "/dev/disk/by-id/virtio-berth-inbox";
        // The guest may have cached what the disk had before.
        self.quietly(&format!(
            "udevadm settle --exit-if-exists={disk}; blockdev --flushbufs {disk} &&
             mkdir -p \"$(dirname '{guest}')\" && rm -f '{guest}' && head -c {length} {disk} >'{guest}' &&
             chmod {mode:o} '{guest}' && sync '{guest}'"
        ))?;
        Ok(())
    }

    /// Reboots the host in good order, and waits until it is back.
    ///
    /// # Errors
    /// If it does not come back; the message has the end of its console.
    pub fn reboot(&mut self) -> Result<()> {
        // The shell may be gone before it can answer; what counts is that the host goes down.
        self.start("systemctl reboot").map(drop).unwrap_or_default();
        self.rebooted()
    }

    /// Waits for a reboot that something on the host begins, and until the host is back.
    ///
    /// # Errors
    /// Fails like [`Self::reboot`].
    pub fn rebooted(&mut self) -> Result<()> {
        self.qemu.wait_off(BOOT).or_else(|error| self.failed(&error))?;
        self.power_on()
    }

    /// Takes the host's power away, whatever it is doing, gives it back, and waits until the host is back. What
    /// its kernel had not written to its disks by then is lost.
    ///
    /// # Errors
    /// Fails like [`Self::reboot`].
    pub fn power_cut(&mut self) -> Result<()> {
        self.power_off();
        self.power_on()
    }

    /// Takes the host's power away, whatever it is doing, until [`Self::power_on`].
    pub fn power_off(&mut self) {
        self.note("power cut");
        self.shell = None;
        self.qemu.power_off();
    }

    /// Whether the emulation let the host's kernel down: it fell over the breakpoints that it sets in its own
    /// code when it patches it (an emulated CPU may run into one that another has taken away already), or its
    /// CPUs did not run for so long that it gave them up. No hardware does either. A test that failed for that
    /// reason says nothing.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a file of this machine's")]
    pub fn fell_over_emulation(&self) -> bool {
        let log = std::fs::read(self.qemu.console_log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        ["Oops: int3", "soft lockup", "hard LOCKUP"].iter().any(|sign| log.contains(sign))
    }

    /// Gives a host that is off its power back, and waits until it is up.
    ///
    /// # Errors
    /// Fails like [`Self::reboot`].
    // An emulated kernel with eight CPUs now and then trips over code that it patches while another CPU
    // runs it, as no hardware does; it is given another try.
    pub fn power_on(&mut self) -> Result<()> {
        let begin = Instant::now();
        for last in [false, false, true] {
            let port = self.qemu.power_on()?;
            match Shell::ready(port, BOOT) {
                Ok(shell) => {
                    self.shell = Some(shell);
                    break;
                }
                Err(error) if last => return self.failed(&error),
                Err(error) => {
                    self.note(&format!("did not come up, once more: {error:#}"));
                    self.qemu.power_off();
                }
            }
        }
        self.note(&format!("ready after {} s", begin.elapsed().as_secs()));
        Ok(())
    }

    fn command(&mut self, command: &str, timeout: Duration) -> Result<Said> {
        let shell = self.shell.as_mut().context("the host is off")?;
        let said = shell.run(command, timeout);
        said.with_context(|| {
            format!("`{command}` on host {}\n{}", self.number, self.qemu.console())
        })
    }

    fn quietly(&mut self, command: &str) -> Result<String> {
        self.command(command, COMMAND)?.unless_failed(command)
    }

    fn failed<T>(&self, error: &anyhow::Error) -> Result<T> {
        let (kept, console) = (self.keep_console(), self.qemu.console());
        bail!("host {} is not up: {error:#}\n{console}\n{kept}", self.number)
    }

    /// Slow work says how far it is; cargo shows it only if a test fails or is asked to.
    fn note(&self, what: &str) {
        // With the seconds since it was started: what takes long shows.
        let since = self.begun.elapsed().as_secs();
        writeln!(std::io::stderr(), "host {} {since} s: {what}", self.number).unwrap_or_default();
    }

    /// Copies the console to where it outlives the host, and says where that is.
    fn keep_console(&self) -> String {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tests.parent().unwrap_or(tests).join("target/hosts");
        let log = folder.join(format!("{}-console.log", self.number));
        let copied = std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::copy(self.qemu.console_log(), &log));
        match copied {
            Ok(_) => format!("its console is kept as {}", log.display()),
            Err(error) => format!("its console cannot be kept as {}: {error}", log.display()),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.note(&self.keep_console());
        }
    }
}
