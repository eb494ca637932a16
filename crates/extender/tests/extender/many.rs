//! Calls with the names of 5,000 hosts, from the bytes of the request body to the bytes of the response.

use std::time::Instant;

use berth_extender::{Extender, FilterAnswer, wire};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::PodForm;
use super::scenarios::report;

const HOSTS: usize = 5_000;
const CALLS: usize = 200;

fn fleet() -> (Extender, Vec<String>) {
    let zone = ZoneForm { cpus: 48, memory: 256, huge: 192, small: 0 };
    let (mut extender, mut names) = (Extender::new(), Vec::new());
    for at in 0..HOSTS {
        let name = format!("rack{}-host{}.example.com", at / 40, at % 40);
        report(
            &mut extender,
            &HostForm { name: name.clone(), zones: vec![zone; 2], ..HostForm::default() },
            1,
        );
        names.push(name);
    }
    (extender, names)
}

fn body(form: &PodForm, names: &[String]) -> String {
    json!({"Pod": form.build(), "Nodes": null, "NodeNames": names}).to_string()
}

/// Returns true if the response names a host.
fn filter_finds_host(extender: &mut Extender, body: &str) -> bool {
    let read = wire::parse_filter_args(body.as_bytes()).expect("the request body should be valid");
    let answer = extender.filter(Instant::now(), &read.pod, &read.node_names);
    let is_host = matches!(answer, FilterAnswer::Host(_));
    let body = match answer {
        FilterAnswer::Host(name) => wire::host_response(name),
        FilterAnswer::Refused(hosts) => wire::refusal_response(&hosts),
        FilterAnswer::NotReady(why) => wire::filter_error_response(&why.to_string()),
        FilterAnswer::Failed(error) => wire::filter_error_response(&error.to_string()),
    };
    assert!(!body.is_empty());
    is_host
}

#[test]
fn five_thousand_host_names_are_filtered() {
    let (mut extender, names) = fleet();
    for number in 0..CALLS {
        let form =
            PodForm { huge: 8, ..PodForm::vm(&format!("vm-{number}"), [2, 4, 8, 16][number % 4]) };
        assert!(filter_finds_host(&mut extender, &body(&form, &names)));
    }
    for number in 0..50 {
        let form = PodForm::vm(&format!("wide-{number}"), 64);
        assert!(
            !filter_finds_host(&mut extender, &body(&form, &names)),
            "the VM has more CPUs than any zone"
        );
    }
}
