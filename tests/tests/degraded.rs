//! Tests of an agent and a controller whose API server is degraded: the server refuses requests, is slow, stops
//! answering, resets connections, or sends malformed responses.
//!
//! A fault-injecting proxy is between the client and a real control plane.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, run programs and read files"
)]

#[path = "../../agent/tests/common/host.rs"]
mod host;
#[path = "../../agent/tests/common/tree.rs"]
mod tree;

#[path = "cluster/agent.rs"]
mod agent;

#[path = "degraded/controller.rs"]
mod controller;
#[path = "degraded/malformed_responses.rs"]
mod malformed_responses;
#[path = "degraded/refusals.rs"]
mod refusals;
#[path = "degraded/slow.rs"]
mod slow;
#[path = "degraded/stalled_watches.rs"]
mod stalled_watches;
#[path = "degraded/testbed.rs"]
mod testbed;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use testbed::Testbed;
use tree::Tree;

/// All tests share one control plane, because starting it is the slowest step. The test of stalled watches has its own
/// agent, because the agent needs minutes to detect a stalled watch.
#[test]
fn an_agent_tolerates_a_degraded_server() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.deploy(&[]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stalled_watches::stalled_watch_is_restarted(&Testbed::start(&plane, "rack1-b"))
        });
        let mut bed = Testbed::start(&plane, "rack1-a");
        refusals::refusals_with_retry_after_are_tolerated(&bed);
        refusals::internal_errors_are_tolerated(&bed);
        refusals::write_conflicts_are_tolerated(&bed);
        slow::slow_responses_are_tolerated(&bed);
        slow::timeouts_are_tolerated(&mut bed);
        malformed_responses::truncated_responses_are_tolerated(&bed);
        malformed_responses::invalid_json_is_tolerated(&bed);
        malformed_responses::malformed_objects_are_tolerated(&bed);
    });
}

#[test]
fn a_controller_tolerates_a_degraded_server() {
    controller::refused_requests_are_tolerated();
}
