//! Tests of an agent and a controller whose API server is degraded: the server refuses requests, is slow, stops
//! answering, resets connections, or sends malformed responses.
//!
//! A fault-injecting proxy is between the client and a real control plane.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, run programs and look at files"
)]

#[path = "../../agent/tests/common/host.rs"]
mod host;
#[path = "../../agent/tests/common/tree.rs"]
mod tree;

#[path = "cluster/agent.rs"]
mod agent;

#[path = "degraded/bed.rs"]
mod bed;
#[path = "degraded/broken.rs"]
mod broken;
#[path = "degraded/controller.rs"]
mod controller;
#[path = "degraded/refusals.rs"]
mod refusals;
#[path = "degraded/silence.rs"]
mod silence;
#[path = "degraded/slow.rs"]
mod slow;

use bed::Bed;
use berth_tests::cluster::{ControlPlane, Parts};
use tree::Tree;

/// All tests share one control plane, because its start takes longest. The test of silent watches has its own
/// agent, because the agent needs minutes to detect the silence.
#[test]
fn an_agent_tolerates_a_degraded_server() {
    let plane = ControlPlane::start(Parts::default()).unwrap();
    plane.deploy(&[]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| silence::is_noticed(&Bed::start(&plane, "rack1-b")));
        let mut bed = Bed::start(&plane, "rack1-a");
        refusals::with_a_time_to_come_again(&bed);
        refusals::of_all_requests(&bed);
        refusals::of_writes(&bed);
        slow::but_in_time(&bed);
        slow::beyond_patience(&mut bed);
        broken::off_in_the_middle_of_lines(&bed);
        broken::lines_are_no_json(&bed);
        broken::objects_are_malformed(&bed);
    });
}

#[test]
fn a_controller_tolerates_a_degraded_server() {
    controller::tolerates_it();
}
