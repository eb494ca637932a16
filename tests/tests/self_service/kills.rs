//! A controller that is killed between two steps.

use std::time::Duration;

use crate::bed::{Bed, flavors};

/// Times after the start of the leader at which it is killed: before, during and after the steps of the first request.
const KILL_TIMES: [u64; 5] = [20, 80, 160, 320, 640];

/// Kills the controller again and again while it grants requests and deletes others. Each request has one tenant and is counted
/// once in the end.
pub(crate) fn killed_controller_grants_each_request_once(bed: &Bed) {
    let before = bed.used("teams")["tenants"].as_u64().unwrap();
    for (number, time) in KILL_TIMES.into_iter().enumerate() {
        bed.create_request("team-b", &format!("killed-{number}"), &flavors(1));
        if number > 1 {
            let name = format!("killed-{}", number - 2);
            let arguments = ["delete", "tenantrequest", &name, "-n", "team-b", "--wait=false"];
            bed.plane.kubectl(&arguments).unwrap();
        }
        let mut controller = bed.start_controller("killed");
        bed.wait_until_leader(&controller);
        std::thread::sleep(Duration::from_millis(time));
        controller.running.stop();
    }
    let _controller = bed.start_controller("last");
    for number in [3, 4] {
        bed.wait_for("team-b", &format!("killed-{number}"), "Ready", "True Ready");
    }
    bed.wait_until("the deleted requests are finalized", |bed| {
        let list = bed.plane.get_json(&["tenantrequests", "-n", "team-b"]).ok()?;
        (list["items"].as_array()?.len() == 3).then_some(())
    });
    let tenants = bed.tenants();
    let mut killed: Vec<&String> =
        tenants.iter().filter(|name| name.starts_with("killed-")).collect();
    killed.sort();
    assert_eq!(killed, ["killed-3", "killed-4"]);
    assert_eq!(bed.used("teams")["tenants"], before + 2);
}
