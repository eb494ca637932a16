//! Implements `make demo`: starts all of Berth on this machine, prints its state, and runs until Ctrl-C.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use berth_tests::console::ConsoleProcess;
use berth_tests::demo::Demo;
use berth_tests::demo::logs::copy_temporary_logs;
use berth_tests::demo::screen::Screen;
use berth_tests::repository;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Time that the worker thread may take to end after a stop signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts all of Berth on this machine: a control plane, three emulated hosts, two tenants; prints its state and
/// runs until Ctrl-C
#[derive(Debug, Parser)]
#[command(name = "berth-demo")]
struct Arguments {
    /// Exit after the tables: exit code 0 if all checks pass, else 1
    #[arg(long)]
    once: bool,
    /// Before the tables: restart every component while pings run, edit a profile, add and remove a tenant, drain a
    /// host under the PodDisruptionBudget of a tenant, switch off another host
    #[arg(long)]
    faults: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let screen = Screen::default();
    match run_demo(&screen, &arguments) {
        Ok(code) => code,
        Err(error) => {
            screen.print(&format!("berth-demo: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run_demo(screen: &Screen, arguments: &Arguments) -> Result<ExitCode> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let logs = repository().join(format!("target/demo/{now}"));
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let logs = logs.canonicalize()?;
    screen.print(&format!("Other output is in {}/demo.log\n", logs.display()));
    nix::unistd::dup2_stderr(File::create(logs.join("demo.log"))?)?;
    // The folder has a short name because paths of sockets have a length limit. All temporary files are in this folder,
    // which is removed at the end.
    let folder = tempfile::Builder::new().prefix("berth-demo-").tempdir()?;
    tempfile::env::override_temp_dir(folder.path()).map_err(|other| {
        anyhow::anyhow!("the folder of temporary files is already set to {}", other.display())
    })?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let result = std::thread::scope(|scope| {
        let (end, ended_signal) = oneshot::channel();
        let (stop_sender, stop_receiver) = std::sync::mpsc::channel::<()>();
        let (temporary, logs) = (folder.path(), logs.as_path());
        let work = scope.spawn(move || {
            let result = run_steps(screen, arguments, temporary, logs, &stop_receiver);
            end.send(()).unwrap_or_default();
            result
        });
        runtime.block_on(async {
            if !wait_for_end(ended_signal).await {
                screen.stop();
                drop(stop_sender);
            }
        });
        // After a signal, the worker thread may still wait for a slow operation. After `STOP_TIMEOUT`, this process
        // exits, which also ends all its child processes.
        let begin = std::time::Instant::now();
        while !work.is_finished() {
            if screen.is_stopped() && begin.elapsed() > STOP_TIMEOUT {
                copy_temporary_logs(temporary, logs);
                fs::remove_dir_all(temporary).unwrap_or_default();
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    folder.close()?;
    result
}

/// Returns true if the work ended without a signal.
async fn wait_for_end(work: oneshot::Receiver<()>) -> bool {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return work.await.is_ok();
    };
    tokio::select! {
        _ = work => true,
        _ = interrupt.recv() => false,
        _ = terminate.recv() => false,
    }
}

fn run_steps(
    screen: &Screen,
    arguments: &Arguments,
    folder: &Path,
    logs: &Path,
    stop_receiver: &std::sync::mpsc::Receiver<()>,
) -> Result<ExitCode> {
    let mut demo = Demo::start_all(screen, folder, logs)?;
    demo.create_tenants()?;
    let fault_outcomes = if arguments.faults { demo.run_faults()? } else { String::new() };
    let (mut tables, problems) = demo.final_state()?;
    tables.push_str(&fault_outcomes);
    fs::write(logs.join("tables.txt"), &tables)?;
    screen.print(&tables);
    screen.print("\n");
    for problem in &problems {
        screen.print_step(&format!("problem: {problem}"));
    }
    let code = if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if problems.is_empty() {
        screen.print_step("no problem found");
    }
    if !arguments.once {
        let kubectl = kubectl_commands(&demo)?;
        let kubeconfig = demo.plane().kubeconfig();
        let console = ConsoleProcess::start(&kubeconfig, &[], &logs.join("console.log"))?;
        let url = &console.url;
        screen.print(&format!(
            "\nThe demo runs until Ctrl-C:\n{kubectl}\n\n  kubectl get inode,tcluster,vmi -A\n\nWeb console:  {url}\n\n"
        ));
        // This call ends after a signal, because the signal handler drops the sender.
        stop_receiver.recv().unwrap_or_default();
    }
    Ok(code)
}

/// Returns shell commands that configure kubectl in another terminal.
fn kubectl_commands(demo: &Demo<'_>) -> Result<String> {
    let plane = demo.plane();
    let assets: PathBuf = plane.assets().canonicalize()?;
    Ok(format!(
        "\n  export KUBECONFIG={} PATH={}:$PATH",
        plane.kubeconfig().display(),
        assets.display()
    ))
}
