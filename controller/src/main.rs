//! `berth-controller`: says where virtual machines would land, and why not.

/// Half of what it does is to read objects of a hundred small parts each and drop them again, on any of its threads:
/// with glibc's allocator 50,000 pods take it a second and a half more, and a twentieth more memory (docs/benchmarks.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    berth_controller::cli::main()
}
