//! Calls with the names of 5,000 hosts, from the bytes of the body to those of the answer.

use std::time::Instant;

use berth_extender::{Answer, Desk, wire};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::PodForm;
use super::scenes::tell;

const HOSTS: usize = 5_000;
const CALLS: usize = 200;

fn fleet() -> (Desk, Vec<String>) {
    let zone = ZoneForm { cpus: 48, memory: 256, huge: 192, small: 0 };
    let (mut desk, mut names) = (Desk::new(), Vec::new());
    for at in 0..HOSTS {
        let name = format!("rack{}-host{}.example.com", at / 40, at % 40);
        tell(
            &mut desk,
            &HostForm { name: name.clone(), zones: vec![zone; 2], ..HostForm::default() },
            1,
        );
        names.push(name);
    }
    (desk, names)
}

fn body(form: &PodForm, names: &[String]) -> String {
    json!({"Pod": form.build(), "Nodes": null, "NodeNames": names}).to_string()
}

/// Whether a host was answered.
fn call(desk: &mut Desk, body: &str) -> bool {
    let read = wire::filter(body.as_bytes()).expect("a body");
    let answer = desk.filter(Instant::now(), &read.pod, &read.names);
    let is_host = matches!(answer, Answer::Host(_));
    let said = match answer {
        Answer::Host(name) => wire::host(name),
        Answer::Refused(hosts) => wire::refused(&hosts),
        Answer::NotYet(why) | Answer::Wrong(why) => wire::filter_error(&why),
    };
    assert!(!said.is_empty());
    is_host
}

#[test]
fn five_thousand_names_are_answered() {
    let (mut desk, names) = fleet();
    for number in 0..CALLS {
        let form =
            PodForm { huge: 8, ..PodForm::vm(&format!("vm-{number}"), [2, 4, 8, 16][number % 4]) };
        assert!(call(&mut desk, &body(&form, &names)));
    }
    for number in 0..50 {
        let form = PodForm::vm(&format!("wide-{number}"), 64);
        assert!(!call(&mut desk, &body(&form, &names)), "it is wider than any zone");
    }
}
