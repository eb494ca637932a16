//! Pings of a tenant's VM to its peer on the other host, which run during a change.

use berth_tests::host::Host;
use berth_tests::pings::unexplained_losses;

/// Logs of the pings within the tenant, and of pings over a link that Berth does not manage.
const LOGS: [&str; 2] = ["/run/tenant.pings", "/run/control.pings"];

/// Starts pings from the VM `a1` on the first host to `a2` on the second.
pub(crate) fn start(hosts: &mut [Host; 2]) {
    let peer = hosts[1].number();
    let [tenant, control] = LOGS;
    hosts[0]
        .run_checked(&format!(
            "tenants watch control 10.77.0.{peer} {control}; tenants watch a1 10.1.0.2 {tenant}"
        ))
        .unwrap();
}

/// Ends the pings, and asserts that all pings were answered, except pings that the cable lost.
#[track_caller]
pub(crate) fn assert_answered(host: &mut Host) {
    let [tenant, control] =
        LOGS.map(|log| host.run_checked(&format!("tenants unwatch {log}")).unwrap());
    assert!(tenant.contains("icmp_seq=1 "), "no ping within the tenant was answered:\n{tenant}");
    let lost = unexplained_losses(&tenant, &control);
    assert!(lost.is_empty(), "pings {lost:?} within the tenant were lost:\n{tenant}");
}
