//! CDI's own cdi-controller and cdi-apiserver beside a real API server: golden images are imported once, and the disks of
//! machines are clones of them, by the strategy that the InfraConfig announces.
//!
//! `CDI_ASSETS` names the folder of CDI's programs. kubelets, the programs in CDI's pods, CSI drivers and virt-controller are
//! simulated ([`berth_tests::cdi::Simulation`]). The simulated storage knows what each volume contains, and what has written
//! it.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "cdi/classes.rs"]
mod classes;
#[path = "cdi/clones.rs"]
mod clones;
#[path = "cdi/schedule.rs"]
mod schedule;
#[path = "cdi/testbed.rs"]
mod testbed;

use berth_tests::tenant_clusters::is_in_namespace;

use testbed::Testbed;

/// Machines of the first storage class, with `BERTH_FAULTS` and without.
const MANY: u32 = 100;
const FEW: u32 = 8;
/// Machines of each other storage class.
const OTHERS: u32 = 3;

/// All scenarios share one control plane, because starting it is the slowest step. CDI's programs reach the API server from
/// network namespaces of their own, so it must not have a loopback address.
#[test]
#[ignore = "needs CDI_ASSETS: make test-current"]
fn disks_are_cloned_with_real_cdi() {
    if !is_in_namespace("disks_are_cloned_with_real_cdi") {
        return;
    }
    let mut bed = Testbed::start();
    let many = if std::env::var_os("BERTH_FAULTS").is_some() { MANY } else { FEW };
    let mut table = vec![clones::HEADER.to_owned()];
    for (at, class) in classes::CLASSES.iter().enumerate() {
        let count = if at == 0 { many } else { OTHERS };
        table.push(clones::disks_are_clones(&bed, class, count));
    }
    table.push(schedule::scheduled_image_is_cloned(&bed, OTHERS));
    eprintln!("\nCDI {}\n\n{}", bed.cdi_version, table.join("\n"));
    clones::unused_image_is_deleted(&mut bed);
    bed.assert_no_refusals();
}
