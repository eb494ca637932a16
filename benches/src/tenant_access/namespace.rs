//! Runs the benchmark in a separate network namespace, in which the address of the tenants' API servers is an
//! additional address of the loopback link. It is not in 127.0.0.0/8, because the controller refuses loopback
//! addresses.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Address of the tenants' API servers, from a range that is reserved for documentation.
pub(super) const TENANT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);

/// Environment variable that is set for the process in the namespace.
const IN_NAMESPACE: &str = "BERTH_BENCH_IN_NAMESPACE";

/// Returns true if this process runs in the namespace.
pub(super) fn is_in_namespace() -> bool {
    std::env::var_os(IN_NAMESPACE).is_some()
}

/// Runs this command again in a new network namespace. Returns true if all goals are met.
pub(super) fn run_in_namespace() -> Result<bool> {
    let script = format!(
        "ip link set lo up && ip address add {TENANT_ADDRESS}/32 dev lo && exec \"$0\" \"$@\""
    );
    #[expect(clippy::disallowed_methods, reason = "this crate runs other programs")]
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]).arg(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(IN_NAMESPACE, "1");
    let status = command.status().context("run unshare")?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => bail!("{status} in the network namespace, which requires root; see the error above"),
    }
}
