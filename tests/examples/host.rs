//! Boots an emulated host and runs the given commands in order:
//! `cargo run -p berth-tests --example host -- [--smt] [--backports] 'lscpu' 'berth-agent check'`.

use std::io::Write;

use berth_tests::host::{Host, HostOptions, Kernel, Machine};

fn main() -> anyhow::Result<()> {
    let agent = berth_tests::program("berth-agent");
    let mut options = HostOptions { agent: Some(&agent), ..HostOptions::default() };
    let mut commands = Vec::new();
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--smt" => options.machine = Machine::IntelSmt,
            "--backports" => options.kernel = Kernel::Backports,
            _ => commands.push(word),
        }
    }
    let mut host = Host::boot(&options)?;
    for command in commands {
        let result = host.run(&command)?;
        writeln!(std::io::stdout(), "# {command}\n{}[{}]", result.output, result.code)?;
    }
    Ok(())
}
