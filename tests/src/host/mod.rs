//! Emulated bare-metal hosts: two sockets, two NUMA zones, an IOMMU, two NVMe drives, systemd.
//!
//! QEMU without KVM boots the image of `tests/host/image.sh`. A virtio-serial port carries commands to the host and
//! results back. Data on a host's disks survives reboots and power cuts, but is deleted with the [`Host`].

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

/// Time limit for a boot, which takes 30 s on two idle cores and several times longer on busy cores.
const BOOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit for a command of [`Host::run`]. The installation of the package took 117 s while six other hosts ran.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// Size of the blocks of a copied file; direct reads require whole sectors.
const COPY_BLOCK_SIZE: u64 = 256 << 10;

#[derive(Debug, Clone, Copy)]
pub struct HostOptions<'a> {
    /// Program to install as `/usr/local/bin/berth-agent`; `None` for a host without the agent.
    pub agent: Option<&'a Path>,
    /// Number that distinguishes hosts that run at the same time.
    pub number: u8,
    /// Processors of the host.
    pub machine: Machine,
    pub kernel: Kernel,
    /// Memory of both zones together, if it differs from the default of the machine.
    pub memory_mib: Option<u32>,
    /// Cable to another host that carries every VLAN.
    pub trunk: Option<Trunk<'a>>,
    /// True if the host can reach this machine's loopback, at 10.0.2.2, which joining a control plane requires.
    pub has_loopback_access: bool,
    /// Files that are too large for [`Host::copy_file`], such as archives of images. Each archive is a read-only disk
    /// of the host ([`archive_disk`]), padded with zeros to whole sectors of 512 bytes.
    pub archives: &'a [&'a Path],
    /// Size in GiB of an additional empty disk, `/dev/disk/by-id/virtio-berth-scratch`; `None` for a host without this
    /// disk.
    pub scratch_gib: Option<u8>,
}

/// Returns the path on a host of the disk with this archive, counted from zero.
#[must_use]
pub fn archive_disk(index: usize) -> String {
    format!("/dev/disk/by-id/virtio-berth-archive{index}")
}

/// Cable between two hosts. Each host has a separate network card for the cable. The last byte of the card's MAC
/// address is the host's number: `52:54:00:be:27:01`.
#[derive(Debug, Clone, Copy)]
pub struct Trunk<'a> {
    /// Socket of the end at this host.
    pub local_socket: &'a Path,
    /// Socket of the end at the peer host.
    pub peer_socket: &'a Path,
}

/// Returns the socket path of the control cable that belongs to the socket path of a trunk. Every trunk has a control
/// cable, which is not under test. Tests move the cable's end on a host to the network namespace `control`, with the
/// address 10.77.0.NUMBER.
pub(crate) fn control_socket(trunk: &Path) -> std::path::PathBuf {
    let mut name = trunk.as_os_str().to_owned();
    name.push(".control");
    name.into()
}

impl Default for HostOptions<'_> {
    fn default() -> Self {
        Self {
            agent: None,
            number: 1,
            machine: Machine::default(),
            kernel: Kernel::default(),
            memory_mib: None,
            trunk: None,
            has_loopback_access: false,
            archives: &[],
            scratch_gib: None,
        }
    }
}

/// Processors of a host. No emulated CPU has both AMD-V and two threads per core.
///
/// A program that opens `/dev/kvm` and creates a VM interrupts all CPUs at once, and emulated CPUs may hang in this
/// interrupt: [`Self::AmdV`] is only for tests of KVM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Machine {
    /// AMD with AMD-V, so `/dev/kvm` is available: two sockets of two cores with one thread, CPUs 0-1 and 2-3, 2
    /// GiB.
    #[default]
    AmdV,
    /// Intel without VT-x, so without `/dev/kvm`, and otherwise like [`Self::AmdV`].
    IntelNoSmt,
    /// Intel without VT-x, so without `/dev/kvm`: two sockets of one core with one thread, CPUs 0 and 1, 2 GiB. For
    /// tests that do not depend on processors: with fewer CPUs, an emulated kernel needs less time for interrupts
    /// between CPUs.
    IntelTwoCores,
    /// Intel without VT-x, so without `/dev/kvm`: two sockets of two cores with two threads, CPUs 0-3 and 4-7, 3
    /// GiB.
    IntelSmt,
}

/// Kernel of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kernel {
    /// Kernel 6.1 of Debian bookworm: KSM without advisor.
    #[default]
    Stable,
    /// Kernel 6.12 of bookworm-backports: KSM with advisor.
    Backports,
}

/// Host that runs until it is dropped.
#[derive(Debug)]
pub struct Host {
    number: u8,
    qemu: Qemu,
    shell: Option<Shell>,
    started_commands: u32,
    created_at: Instant,
}

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit code.
    pub code: i32,
    /// Standard output and standard error.
    pub output: String,
}

impl CommandOutput {
    fn into_result(self, command: &str) -> Result<String> {
        ensure!(self.code == 0, "`{command}` failed with {}: {}", self.code, self.output);
        Ok(self.output)
    }
}

impl Host {
    /// Boots a host.
    ///
    /// # Errors
    /// Fails if the image cannot be built, QEMU does not start, or the host does not boot; the error message has
    /// the end of the host's console.
    pub fn boot(options: &HostOptions<'_>) -> Result<Self> {
        let mut host = Self {
            number: options.number,
            qemu: Qemu::new(options)?,
            shell: None,
            started_commands: 0,
            created_at: Instant::now(),
        };
        host.power_on()?;
        if let Some(agent) = options.agent {
            host.copy_file(agent, "/usr/local/bin/berth-agent")?;
        }
        Ok(host)
    }

    /// Returns the host's number, which is also the last byte of the MAC address of its trunk.
    #[must_use]
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// Runs a shell command as root.
    ///
    /// # Errors
    /// Fails like [`Self::run_for`], with a limit of ten minutes.
    pub fn run(&mut self, command: &str) -> Result<CommandOutput> {
        self.run_for(command, COMMAND_TIMEOUT)
    }

    /// Runs a shell command as root with a time limit in whole seconds.
    ///
    /// # Errors
    /// Fails if the command exceeds the limit; the command is then killed. Also fails if the host shuts down before the
    /// end; [`Self::wait_for_reboot`] or [`Self::power_cycle`] then restarts the host. The error message has the end of
    /// the host's console.
    pub fn run_for(&mut self, command: &str, timeout: Duration) -> Result<CommandOutput> {
        self.log_progress(command.lines().next().unwrap_or_default());
        self.run_with_timeout(command, timeout)
    }

    /// Runs a command that must succeed, and returns its output.
    ///
    /// # Errors
    /// Fails like [`Self::run`], and if the command fails.
    pub fn run_checked(&mut self, command: &str) -> Result<String> {
        let result = self.run(command)?;
        result.into_result(command)
    }

    /// Waits until a shell condition holds, like [`wait::wait_until`].
    ///
    /// # Errors
    /// Fails if the condition does not hold within the limit; the error message has the output of the last attempt and
    /// of the shell command `explain`. Also fails like [`Self::run`].
    pub fn wait_until(&mut self, condition: &str, limit: Duration, explain: &str) -> Result<()> {
        let mut run_error = None;
        let result = wait::wait_until(condition, limit, || match self.run(condition) {
            Ok(said) if said.code == 0 => Ok(()),
            Ok(said) => Err(said.output.into()),
            Err(error) => {
                run_error = Some(error);
                Ok(())
            }
        });
        if let Some(error) = run_error {
            return Err(error);
        }
        result.or_else(|error| bail!("{error:#}\n{}", self.run(explain)?.output))
    }

    /// Starts a shell command as root without waiting for its end. Returns the path of the host's file that has the
    /// output; the file does not survive a reboot.
    ///
    /// # Errors
    /// Fails like [`Self::run_checked`].
    pub fn start_command(&mut self, command: &str) -> Result<String> {
        self.started_commands += 1;
        self.log_progress(&format!("start {command}"));
        let output = format!("/run/started-{}", self.started_commands);
        let script = BASE64.encode(command);
        self.run_unlogged(&format!(
            "base64 -d <<<{script} >{output}.sh && {{ setsid bash {output}.sh </dev/null >{output} 2>&1 & }}"
        ))?;
        Ok(output)
    }

    /// Copies a file with its mode into the host, and flushes the file to the disk there.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is larger than 192 MiB, and like [`Self::run_checked`].
    pub fn copy_file(&mut self, local: &Path, guest: &str) -> Result<()> {
        let name = local.display().to_string();
        self.log_progress(&format!("copy {name} to {guest}"));
        let file = File::open(local).with_context(|| name.clone())?;
        let mode = file.metadata()?.permissions().mode() & 0o7777;
        let length = self.qemu.write_transfer_disk(&file).context(name)?;
        let disk = "/dev/disk/by-id/virtio-berth-inbox";
        // `dd` bypasses the guest's page cache, because the cache may contain the former content of the disk and slows
        // the copy down. Before kernel 6.6, a tmpfs does not support direct writes.
        let direct_write = if guest.starts_with("/run/") { "" } else { "oflag=direct" };
        let blocks = length.div_ceil(COPY_BLOCK_SIZE);
        self.run_unlogged(&format!(
            "guest='{guest}'; [ -e {disk} ] || udevadm settle --exit-if-exists={disk};
             mkdir -p \"${{guest%/*}}\" && rm -f '{guest}' &&
             dd if={disk} of='{guest}' bs={COPY_BLOCK_SIZE} count={blocks} iflag=direct {direct_write} status=none &&
             truncate -s {length} '{guest}' && chmod {mode:o} '{guest}' && sync '{guest}'"
        ))?;
        Ok(())
    }

    /// Reboots the host regularly with systemd, and waits until the host has booted.
    ///
    /// # Errors
    /// Fails if the host does not boot; the error message has the end of its console.
    pub fn reboot(&mut self) -> Result<()> {
        // The shell may end before it can answer, so only the reboot itself is checked.
        self.start_command("systemctl reboot").map(drop).unwrap_or_default();
        self.wait_for_reboot()
    }

    /// Waits for a reboot that a program on the host starts, and until the host has booted.
    ///
    /// # Errors
    /// Fails like [`Self::reboot`].
    pub fn wait_for_reboot(&mut self) -> Result<()> {
        self.qemu.wait_for_exit(BOOT_TIMEOUT).or_else(|error| self.boot_error(&error))?;
        self.power_on()
    }

    /// Cuts the host's power immediately, restores it, and waits until the host has booted. Data that the kernel
    /// had not written to its disks is lost.
    ///
    /// # Errors
    /// Fails like [`Self::reboot`].
    pub fn power_cycle(&mut self) -> Result<()> {
        self.power_off();
        self.power_on()
    }

    /// Cuts the host's power immediately, until [`Self::power_on`].
    pub fn power_off(&mut self) {
        self.log_progress("power cut");
        self.shell = None;
        self.qemu.power_off();
    }

    /// Returns true if the emulation made the host's kernel fail in a way that does not occur on hardware. Either
    /// the kernel hit the breakpoints that it sets in its own code while patching it (an emulated CPU may execute a
    /// breakpoint that another CPU has already removed), or the kernel reported CPUs as stuck because they did not
    /// run for too long. The result of a test that failed for this reason is meaningless.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "reads a file of this machine")]
    pub fn failed_by_emulation(&self) -> bool {
        let log = std::fs::read(self.qemu.console_log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        ["Oops: int3", "soft lockup", "hard LOCKUP"].iter().any(|sign| log.contains(sign))
    }

    /// Restores the power of a host that is off, and waits until the host has booted.
    ///
    /// # Errors
    /// Fails like [`Self::reboot`].
    // An emulated kernel with eight CPUs sometimes fails on code that it patches while another CPU executes this
    // code, which does not occur on hardware. The boot is then retried.
    pub fn power_on(&mut self) -> Result<()> {
        let begin = Instant::now();
        for last in [false, false, true] {
            let port = self.qemu.power_on()?;
            match Shell::wait_until_ready(port, BOOT_TIMEOUT) {
                Ok(shell) => {
                    self.shell = Some(shell);
                    break;
                }
                Err(error) if last => return self.boot_error(&error),
                Err(error) => {
                    self.log_progress(&format!("boot failed, retrying: {error:#}"));
                    self.qemu.power_off();
                }
            }
        }
        self.log_progress(&format!("ready after {} s", begin.elapsed().as_secs()));
        Ok(())
    }

    fn run_with_timeout(&mut self, command: &str, timeout: Duration) -> Result<CommandOutput> {
        let shell = self.shell.as_mut().context("the host is powered off")?;
        let result = shell.run(command, timeout);
        result.with_context(|| {
            format!("`{command}` on host {}\n{}", self.number, self.qemu.console_tail())
        })
    }

    fn run_unlogged(&mut self, command: &str) -> Result<String> {
        self.run_with_timeout(command, COMMAND_TIMEOUT)?.into_result(command)
    }

    fn boot_error<T>(&self, error: &anyhow::Error) -> Result<T> {
        let (saved_console, console) = (self.save_console(), self.qemu.console_tail());
        bail!("host {} did not boot: {error:#}\n{console}\n{saved_console}", self.number)
    }

    /// Prints the progress of slow work; cargo shows the output only if a test fails or with `--nocapture`.
    fn log_progress(&self, message: &str) {
        // The message has the seconds since the start of the host, so slow steps are visible.
        let since = self.created_at.elapsed().as_secs();
        writeln!(std::io::stderr(), "host {} {since} s: {message}", self.number)
            .unwrap_or_default();
    }

    /// Copies the console to a folder that is not deleted with the host, and returns the path.
    fn save_console(&self) -> String {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tests.parent().unwrap_or(tests).join("target/hosts");
        let log = folder.join(format!("{}-console.log", self.number));
        let copied = std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::copy(self.qemu.console_log(), &log));
        match copied {
            Ok(_) => format!("its console log is saved as {}", log.display()),
            Err(error) => format!("its console log cannot be saved as {}: {error}", log.display()),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.log_progress(&self.save_console());
        }
    }
}
