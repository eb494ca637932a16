//! `berth-agent`: finds out what a host can do for virtual machines, and says so.

fn main() -> std::process::ExitCode {
    berth_agent::cli::main()
}
