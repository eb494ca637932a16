//! The API server goes away and comes back; objects are deleted and made anew.

use std::time::Duration;

use berth_tests::cluster::ControlPlane;
use serde_json::json;

use crate::agent::Agent;
use crate::shapes::{SLEEP, answered};
use crate::tree::Tree;
use crate::{ask, file, infra_node, make_node};

const SOON: Duration = Duration::from_secs(30);

pub(crate) fn server_goes_away(plane: &mut ControlPlane, tree: &Tree, agent: &mut Agent) {
    ask(plane, &json!({"ksm": {"sleepMillis": 55}}));
    answered(plane, "True");
    plane.stop_server();
    let repaired = |plane: &ControlPlane| {
        tree.file(SLEEP, "1\n");
        plane
            .until("drift is repaired without the server", SOON, |_| {
                (file(tree, SLEEP) == "55").then_some(())
            })
            .unwrap();
    };
    repaired(plane);
    // One that starts meanwhile knows what was asked for last.
    agent.restart();
    repaired(plane);
    plane.start_server().unwrap();
    ask(plane, &json!({"ksm": {"sleepMillis": 56}}));
    // A minute, as whoever waited for the server waits ever longer.
    plane
        .until("it goes on", Duration::from_secs(60), |_| (file(tree, SLEEP) == "56").then_some(()))
        .unwrap();
    answered(plane, "True");
}

pub(crate) fn objects_are_made_anew(plane: &ControlPlane, tree: &Tree) {
    plane.kubectl(&["delete", "infranode", "rack1-a"]).unwrap();
    let there = |plane: &ControlPlane, owner: &serde_json::Value| {
        plane
            .until("a new InfraNode", SOON, |plane| {
                let node = infra_node(plane);
                let ready = node["status"]["conditions"].is_array();
                (ready && node["metadata"]["ownerReferences"][0]["uid"] == *owner).then_some(())
            })
            .unwrap();
    };
    let uid = crate::node(plane)["metadata"]["uid"].clone();
    there(plane, &uid);
    // The last good shape is kept: the one that the agent made asks for nothing.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(file(tree, SLEEP), "56");

    // Its Node goes, and with it the InfraNode; then both come back.
    plane.kubectl(&["delete", "node", "rack1-a"]).unwrap();
    plane
        .until("the InfraNode is collected", Duration::from_secs(60), |plane| {
            infra_node(plane).is_null().then_some(())
        })
        .unwrap();
    make_node(plane, "rack1-a");
    let new = crate::node(plane)["metadata"]["uid"].clone();
    assert_ne!(new, uid);
    there(plane, &new);
    assert_eq!(file(tree, SLEEP), "56");
}
