//! Hundreds of agents with one real API server: what they ask of it and take while nothing changes, how large their
//! objects are, and how soon a spec is carried out; beside loops of `kubectl` in the same minutes.

mod audit;
mod fleet;
mod peers;
mod server;
mod text;
mod watch;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_api::names::AGENT;
use berth_tests::cluster::{ControlPlane, Version};
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Value, json};

use audit::Requests;
use fleet::Fleet;
use peers::Peers;
use server::Sizes;
use watch::Watch;

use crate::memory::Taken;

/// Who the agents are to the server.
const AGENTS: &str = "system:serviceaccount:berth-system:berth-agent";
/// After the last agent has published and before the quiet.
const SETTLE: Duration = Duration::from_secs(30);
/// Until all have published, or answered. An agent that started badly tries again after half a minute.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Specs for all agents at once.
const ALL_ROUNDS: u32 = 3;

/// Measures hundreds of agents with one API server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent to measure: the dist build, since that is what is shipped
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Number of agents, each with a made-up host and a Node of its own
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=2000))]
    agents: u32,
    /// Minutes in which nothing changes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Specs applied to one InfraNode
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The directory to write the report to
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    results: PathBuf,
    /// The date the report carries, instead of today's in UTC
    #[arg(long)]
    date: Option<Date>,
}

/// All that is measured.
#[derive(Debug)]
struct Measured {
    version: Version,
    /// Of the API server and etcd: with Nodes alone, at the end of the quiet, and at the very end.
    servers: [Vec<Taken>; 3],
    quiet: Quiet,
    /// Of agents, at the very end.
    at_the_end: Vec<Taken>,
    sizes: Sizes,
    one: Vec<One>,
    all: Vec<All>,
    /// Peak resident MiB of `kubectl`.
    peaks: Vec<f64>,
}

/// What was asked for and taken while nothing changed.
#[derive(Debug)]
struct Quiet {
    seconds: f64,
    agents: Requests,
    peers: Requests,
    peers_took: Peers,
    /// Of agents, at its end.
    taken: Vec<Taken>,
    /// Of all agents, during it.
    cpu_seconds: f64,
}

/// A spec applied to one InfraNode, in milliseconds since `kubectl apply` was started.
#[derive(Debug, Clone, Copy)]
struct One {
    kubectl: f64,
    ready: f64,
    /// Only from the changed spec to the status that answers it, as a watch sees both.
    agent: Option<f64>,
}

/// A spec for all at once, in milliseconds since its first request.
#[derive(Debug)]
struct All {
    asked: f64,
    last: f64,
    /// Of each, as in [`One`].
    agents: Vec<f64>,
}

/// Measures, prints and writes the report; tells whether all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let measured = measure(args)?;
    let date = args.date.unwrap_or_else(|| Timestamp::now().to_zoned(TimeZone::UTC).date());
    let (text, met) = text::write(args, date, &crate::report::host()?, &measured);
    write!(std::io::stdout(), "{text}")?;
    let path = args.results.join(format!("{date}-agents.md"));
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(met)
}

fn measure(args: &Args) -> Result<Measured> {
    let plane = server::start()?;
    let names: Vec<String> = (1..=args.agents).map(|number| format!("host-{number}")).collect();
    let kubeconfig = plane.kubeconfig_for(AGENT, &plane.token_of(AGENT)?, false)?;
    let mut fleet = Fleet::prepare(&args.agent, &kubeconfig, names)?;
    server::make_nodes(&plane, fleet.names())?;
    server::make_nodes(&plane, &peers::names())?;
    peers::warm_up(&plane)?;
    let before = servers(&plane)?;
    let mut watch = Watch::begin(&plane)?;
    fleet.start()?;
    watch.answers(fleet.names(), TIMEOUT).map_err(|late| late.with_log(|name| fleet.said(name)))?;
    std::thread::sleep(SETTLE);
    let quiet = quiet(&plane, &fleet, args.minutes)?;
    let idle = servers(&plane)?;
    let sizes = server::sizes(&plane, fleet.names())?;
    let mut asked = 0;
    let one = one(&plane, &mut watch, &fleet, args.rounds, &mut asked)?;
    let all = all(&plane, &mut watch, &fleet, &mut asked)?;
    Ok(Measured {
        version: plane.version(),
        servers: [before, idle, servers(&plane)?],
        quiet,
        at_the_end: fleet.taken()?,
        sizes,
        one,
        all,
        peaks: peers::peaks(&plane)?,
    })
}

fn servers(plane: &ControlPlane) -> Result<Vec<Taken>> {
    let (server, etcd) = plane.processes();
    Ok(vec![Taken::by(server.context("kube-apiserver is gone")?)?, Taken::by(etcd)?])
}

fn quiet(plane: &ControlPlane, fleet: &Fleet, minutes: u32) -> Result<Quiet> {
    let log_begin = audit_log(plane)?.len();
    let cpu = |taken: &[Taken]| taken.iter().map(|one| one.cpu_seconds).sum::<f64>();
    let before = cpu(&fleet.taken()?);
    let begin = Instant::now();
    let peers_took = peers::run(plane, minutes)?;
    let seconds = begin.elapsed().as_secs_f64();
    let log = audit_log(plane)?;
    let taken = fleet.taken()?;
    let log = log.get(log_begin..).context("the audit log was rotated")?;
    // The last line may be half written.
    let log = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    Ok(Quiet {
        seconds,
        agents: Requests::count(log, |user| user == AGENTS)?,
        peers: Requests::count(log, |user| user.starts_with(peers::USER))?,
        peers_took,
        cpu_seconds: cpu(&taken) - before,
        taken,
    })
}

#[expect(clippy::disallowed_methods, reason = "the log is our own server's")]
fn audit_log(plane: &ControlPlane) -> Result<String> {
    let path = plane.folder().join("audit.log");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// A spec that asks for what none before it did, and the files that then say so.
fn spec(asked: &mut u32) -> (Value, [(&'static str, u32); 2]) {
    *asked += 1;
    let (millis, pages) = (100 + *asked, 4096 + *asked);
    let spec = json!({
        "ksm": {"mode": "On", "sleepMillis": millis},
        "hugepages": [{"size": "2Mi", "zone": 1, "count": pages}],
    });
    let pool = "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    (spec, [("sys/kernel/mm/ksm/sleep_millisecs", millis), (pool, pages)])
}

fn must_be_done(fleet: &Fleet, names: &[String], files: &[(&str, u32)]) -> Result<()> {
    for name in names {
        for (path, value) in files {
            let there = fleet.file(name, path)?;
            ensure!(
                there == value.to_string(),
                "{name} says Ready, and {path} is {there}, not {value}"
            );
        }
    }
    Ok(())
}

fn millis(begin: Instant, end: Instant) -> f64 {
    end.saturating_duration_since(begin).as_secs_f64() * 1e3
}

fn one(
    plane: &ControlPlane,
    watch: &mut Watch<'_>,
    fleet: &Fleet,
    rounds: u32,
    asked: &mut u32,
) -> Result<Vec<One>> {
    let names = fleet.names().get(..1).unwrap_or_default();
    let mut measured = Vec::new();
    for _ in 0..rounds {
        // At rest again.
        std::thread::sleep(Duration::from_secs(1));
        let (spec, files) = spec(asked);
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": names.first()}, "spec": spec,
        });
        let begin = Instant::now();
        plane.apply(&object.to_string())?;
        let kubectl = millis(begin, Instant::now());
        let answers =
            watch.answers(names, TIMEOUT).map_err(|late| late.with_log(|name| fleet.said(name)))?;
        must_be_done(fleet, names, &files)?;
        measured.extend(answers.iter().map(|answer| One {
            kubectl,
            ready: millis(begin, answer.answered),
            agent: answer.asked.map(|asked| millis(asked, answer.answered)),
        }));
    }
    Ok(measured)
}

fn all(
    plane: &ControlPlane,
    watch: &mut Watch<'_>,
    fleet: &Fleet,
    asked: &mut u32,
) -> Result<Vec<All>> {
    let mut measured = Vec::new();
    for _ in 0..ALL_ROUNDS {
        std::thread::sleep(Duration::from_secs(5));
        let (spec, files) = spec(asked);
        let begin = Instant::now();
        server::ask_all(plane, fleet.names(), &spec)?;
        let asked = millis(begin, Instant::now());
        let answers = watch
            .answers(fleet.names(), TIMEOUT)
            .map_err(|late| late.with_log(|name| fleet.said(name)))?;
        must_be_done(fleet, fleet.names(), &files)?;
        measured.push(All {
            asked,
            last: answers.iter().map(|one| millis(begin, one.answered)).fold(0.0, f64::max),
            agents: answers
                .iter()
                .filter_map(|one| Some(millis(one.asked?, one.answered)))
                .collect(),
        });
    }
    Ok(measured)
}
