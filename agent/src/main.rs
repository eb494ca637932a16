//! `berth-agent`: reports the capabilities of a host for virtual machines, and reconciles the host
//! with its desired state.

fn main() -> std::process::ExitCode {
    berth_agent::cli::main()
}
