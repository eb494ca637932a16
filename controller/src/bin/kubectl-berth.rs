//! `kubectl-berth`, which kubectl starts as `kubectl berth`: shows the state of an infra cluster.

/// The global allocator is mimalloc, as in `berth-controller`: a list of 100,000 VMs is parsed faster with it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    berth_controller::cli::kubectl::main()
}
