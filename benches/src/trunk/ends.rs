//! The two ends of the trunk. Both ends run the code of the agent that sends probes, or one end runs a program that
//! sends pings. Each end is a process in a separate network namespace, and prints its measured values as JSON.

#![expect(
    clippy::disallowed_methods,
    reason = "the benchmark reads its links, and runs other programs"
)]

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_agent::trunk::LinkProbe;
use berth_api::{LinkName, MacAddress, VlanId, VlanSet};
use nix::sys::resource::UsageWho;
use serde::{Deserialize, Serialize};

use super::cost::{Cost, Period};
use super::drops::{NamedVlan, is_verified, measure_drops, wait_until};

/// Key with which both agents authenticate their probes.
const PROBE_KEY: &str = "0123456789abcdef0123456789abcdef";

/// Probes the VLANs of a link with the code of the agent.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    #[arg(long)]
    link: String,
    #[arg(long)]
    node: String,
    #[arg(long)]
    vlans: u16,
    #[arg(long)]
    settle: u32,
    #[arg(long)]
    seconds: u32,
    #[arg(long)]
    drops: u16,
}

/// Runs a program that uses a link, and measures it.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    #[arg(long)]
    link: String,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Measured values of one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredAgent {
    /// Seconds from the start until all VLANs were verified.
    pub(super) verified_seconds: f64,
    /// Cost while nothing changed.
    pub(super) idle: Cost,
    /// VLANs that were dropped, in the order of the measurement.
    pub(super) named: Vec<NamedVlan>,
}

/// Measured values of the program that sends pings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredPeer {
    pub(super) cost: Cost,
}

/// Probes the VLANs of the link, and prints the measured values.
pub(crate) fn run_agent(args: &AgentArgs) -> Result<()> {
    // A single-threaded runtime, as in the daemon.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    print_line(&runtime.block_on(measure_agent(args))?)
}

async fn measure_agent(args: &AgentArgs) -> Result<MeasuredAgent> {
    let vlans: VlanSet =
        (2..args.vlans + 2).map(VlanId::try_from).collect::<Result<_, _>>().context("VLANs")?;
    let begin = Instant::now();
    let link = (
        LinkName::from_str(&args.link)?,
        read_link::<u32>(&args.link, "ifindex")?,
        read_link::<MacAddress>(&args.link, "address")?,
    );
    let probe = LinkProbe::start(&args.node, PROBE_KEY, link, vlans)?;
    wait_until(&args.node, &probe, is_verified).await?;
    let verified_seconds = begin.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs(args.settle.into())).await;
    let period = Period::begin(&args.link, UsageWho::RUSAGE_SELF)?;
    tokio::time::sleep(Duration::from_secs(args.seconds.into())).await;
    let idle = period.end()?;
    if !probe.status().is_some_and(|status| is_verified(&status)) {
        bail!("{}: no longer verified: {:?}", args.node, probe.status());
    }
    let named = measure_drops(&args.node, args.drops, &probe).await?;
    Ok(MeasuredAgent { verified_seconds, idle, named })
}

/// Reads an attribute of a link.
fn read_link<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    link: &str,
    attribute: &str,
) -> Result<T> {
    let path = format!("/sys/class/net/{link}/{attribute}");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.trim().parse().with_context(|| path)
}

/// Runs the program as the only child, and prints the measured values.
pub(crate) fn run_peer(args: &PeerArgs) -> Result<()> {
    let [path, arguments @ ..] = args.command.as_slice() else { bail!("no program to run") };
    let period = Period::begin(&args.link, UsageWho::RUSAGE_CHILDREN)?;
    let status = Command::new(path).args(arguments).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "{}: {status}", path.display());
    print_line(&MeasuredPeer { cost: period.end()? })
}

fn print_line(measured: &impl Serialize) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(measured)?)?;
    Ok(())
}
