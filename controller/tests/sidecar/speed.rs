//! How long a call takes at 5,000 hosts, from the bytes of its body to those of its answer.

use std::time::{Duration, Instant};

use berth_controller::sidecar::{Answer, Desk, wire};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::PodForm;
use super::scenes::tell;

const HOSTS: usize = 5_000;
const CALLS: usize = 2_000;

/// The fastest tenth, the middle, and all but the slowest hundredth.
fn quantiles(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    [10, 50, 99].map(|part| times[times.len() * part / 100])
}

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

fn call(desk: &mut Desk, body: &str) -> (bool, Duration) {
    let begin = Instant::now();
    let read = wire::filter(body.as_bytes()).expect("a body");
    let answer = desk.filter(begin, &read.pod, &read.names);
    let is_host = matches!(answer, Answer::Host(_));
    let said = match answer {
        Answer::Host(name) => wire::host(name),
        Answer::Refused(hosts) => wire::refused(&hosts),
        Answer::NotYet(why) | Answer::Wrong(why) => wire::filter_error(&why),
    };
    assert!(!said.is_empty());
    (is_host, begin.elapsed())
}

#[test]
fn a_call_with_five_thousand_names_takes_well_under_two_milliseconds() {
    let (mut desk, names) = fleet();
    let (mut placed, mut refused) = (Vec::new(), Vec::new());
    for number in 0..CALLS {
        let form =
            PodForm { huge: 8, ..PodForm::vm(&format!("vm-{number}"), [2, 4, 8, 16][number % 4]) };
        let (is_host, took) = call(&mut desk, &body(&form, &names));
        assert!(is_host);
        placed.push(took);
    }
    for number in 0..50 {
        let form = PodForm::vm(&format!("wide-{number}"), 64);
        let (is_host, took) = call(&mut desk, &body(&form, &names));
        assert!(!is_host);
        refused.push(took);
    }
    let (placed, refused) = (quantiles(placed), quantiles(refused));
    println!("{HOSTS} names, p10 p50 p99: placed {placed:?}, refused {refused:?}");
    // The rest of the machine may be busy; some calls are never disturbed by that.
    assert!(placed[0] < Duration::from_millis(2), "{placed:?}");
    assert!(refused[0] < Duration::from_millis(20), "{refused:?}");
}
