//! `berth-controller`: says where virtual machines would land, and why not.

fn main() -> std::process::ExitCode {
    berth_controller::cli::main()
}
