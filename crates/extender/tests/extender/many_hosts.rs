//! Calls of kube-scheduler with the names of 5,000 hosts, from the bytes of the request body to the bytes of the
//! response.

use std::time::Instant;

use berth_extender::{Extender, FilterAnswer, scheduler_api};
use serde_json::json;

use super::host::{HostDescription, ZoneDescription};
use super::pod::PodBuilder;
use super::scenarios::report_host;

const HOST_COUNT: usize = 5_000;
const CALL_COUNT: usize = 200;

fn extender_with_hosts() -> (Extender, Vec<String>) {
    let zone = ZoneDescription { cpus: 48, memory: 256, huge_pages_gib: 192, small_pages_mib: 0 };
    let (mut extender, mut names) = (Extender::new(), Vec::new());
    for at in 0..HOST_COUNT {
        let name = format!("rack{}-host{}.example.com", at / 40, at % 40);
        report_host(
            &mut extender,
            &HostDescription {
                name: name.clone(),
                zones: vec![zone; 2],
                ..HostDescription::default()
            },
            1,
        );
        names.push(name);
    }
    (extender, names)
}

fn request_body(builder: &PodBuilder, names: &[String]) -> String {
    json!({"Pod": builder.build(), "Nodes": null, "NodeNames": names}).to_string()
}

/// Returns true if the response names a host.
fn filter_finds_host(extender: &mut Extender, body: &str) -> bool {
    let read = scheduler_api::parse_filter_args(body.as_bytes())
        .expect("the request body should be valid");
    let answer = extender.answer_filter(Instant::now(), &read.pod, &read.node_names);
    let is_host = matches!(answer, FilterAnswer::ReservedHost(_));
    let body = match answer {
        FilterAnswer::ReservedHost(name) => scheduler_api::hosts_response(&[name]),
        FilterAnswer::UnreservedHosts(names) => scheduler_api::hosts_response(&names),
        FilterAnswer::Refused(hosts) => scheduler_api::refusal_response(&hosts),
        FilterAnswer::NotReady(why) => scheduler_api::filter_error_response(&why.to_string()),
        FilterAnswer::Failed(error) => scheduler_api::filter_error_response(&error.to_string()),
    };
    assert!(!body.is_empty());
    is_host
}

#[test]
fn five_thousand_host_names_are_filtered() {
    let (mut extender, names) = extender_with_hosts();
    for number in 0..CALL_COUNT {
        let builder = PodBuilder {
            huge_pages_gib: 8,
            ..PodBuilder::vm(&format!("vm-{number}"), [2, 4, 8, 16][number % 4])
        };
        assert!(filter_finds_host(&mut extender, &request_body(&builder, &names)));
    }
    for number in 0..50 {
        let builder = PodBuilder::vm(&format!("wide-{number}"), 64);
        assert!(
            !filter_finds_host(&mut extender, &request_body(&builder, &names)),
            "the VM has more CPUs than any zone"
        );
    }
}
