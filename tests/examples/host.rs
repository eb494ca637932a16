//! Boots an emulated host and runs the commands given, one after the other:
//! `cargo run --release -p berth-tests --example host -- 'lscpu' 'berth-agent check'`.

use std::io::Write;
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/berth-agent");
    let mut host = berth_tests::host::Host::boot(&agent, 1)?;
    for command in std::env::args().skip(1) {
        let said = host.run(&command)?;
        writeln!(std::io::stdout(), "# {command}\n{}[{}]", said.output, said.code)?;
    }
    Ok(())
}
