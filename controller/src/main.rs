//! `berth-controller`: reconciles hosts, tenants and machines, assigns virtual machines to hosts, and explains why a
//! virtual machine fits on no host.

/// The global allocator is mimalloc. The program spends half of its time on allocating and freeing memory, on all
/// threads, because each object consists of about a hundred small allocations. With glibc's allocator, 50,000 pods take
/// an additional 1.5 seconds and 5% more memory (docs/benchmarks.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    berth_controller::cli::main()
}
