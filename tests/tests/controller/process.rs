//! Logs and requests of the controllers' processes.

use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;

/// Starts a controller with a resync every two seconds.
pub(crate) fn start_controller(plane: &ControlPlane, name: &str) -> Controller {
    Controller::start(plane, name, &["--resync=2"]).unwrap()
}

/// Returns the logs of all controllers.
pub(crate) fn controller_logs(plane: &ControlPlane) -> String {
    let log = |name: &str| format!("--- {name} ---\n{}\n", plane.log_tail(name));
    ["first", "second", "third"].map(log).concat()
}

/// Returns the write requests of controllers, except writes of the Lease.
pub(crate) fn write_requests(plane: &ControlPlane) -> Vec<serde_json::Value> {
    let log = std::fs::read_to_string(plane.folder().join("audit.log")).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let ours = lines.filter(|line| {
        line["user"]["username"].as_str().unwrap_or_default().ends_with(":berth-controller")
    });
    let reads = ["get", "list", "watch"];
    let writes = ours.filter(|line| !reads.contains(&line["verb"].as_str().unwrap_or_default()));
    writes.filter(|line| line["objectRef"]["resource"] != "leases").collect()
}
