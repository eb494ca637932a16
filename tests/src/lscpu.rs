//! Output of lscpu on a host.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::host::Host;

/// Numbers of online CPUs, cores and sockets that lscpu prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuCounts {
    /// Logical CPUs.
    pub threads: usize,
    /// Physical cores.
    pub cores: usize,
    /// Packages.
    pub sockets: usize,
}

/// Runs lscpu on the host.
///
/// # Errors
/// Fails like [`Host::run_checked`].
pub fn read_counts(host: &mut Host) -> Result<CpuCounts> {
    let output = host.run_checked("lscpu -p=CPU,CORE,SOCKET,NODE")?;
    let rows: Vec<Vec<&str>> = output
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(',').collect())
        .collect();
    let distinct = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).collect::<BTreeSet<_>>().len()
    };
    Ok(CpuCounts { threads: rows.len(), cores: distinct(1), sockets: distinct(2) })
}
