//! Result of the benchmark of DHCP answers.

use jiff::civil::Date;

use super::measure::{MeasuredLoad, MeasuredServer};
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, percentile};

/// Goal for the 99th percentile of the time until an answer, in milliseconds. It applies to each load separately.
const P99_GOAL_MILLIS: f64 = 5.0;

pub(super) fn build_result(
    date: Date,
    conditions: Vec<String>,
    agent: &MeasuredServer,
    dnsmasq: &MeasuredServer,
    command: String,
) -> BenchResult {
    let text = "Milliseconds from the first message of a guest to the answer, as the guest receives it: DHCPOFFER, and DHCPACK. \
                The time includes the work of the kernel for the bridge. If a message or an answer is lost, the guest repeats the \
                message after 1 s.";
    let costs = "CPU time: user and system time of the server. Resident memory: at the end, after the answers to all guests.";
    BenchResult {
        name: "dhcp".to_owned(),
        title: "DHCP answers to the guests of one host".to_owned(),
        date,
        conditions,
        sections: vec![
            Section::untitled(text, vec![answer_table(agent, dnsmasq)]),
            Section::new("Costs", costs, vec![cost_table(agent, dnsmasq)]),
        ],
        goals: agent.loads.iter().map(|(load, measured)| answer_goal(*load, measured)).collect(),
        command,
    }
}

/// Returns the goal for the answers of the agent under one load.
fn answer_goal(load: u16, measured: &MeasuredLoad) -> Goal {
    let p99 = percentile(&measured.times.all_millis(), 99);
    let guests = if load == 1 {
        "one guest at a time".to_owned()
    } else {
        format!("{load} guests at the same time")
    };
    Goal::new(
        format!("99th percentile of the answers to {guests} below {P99_GOAL_MILLIS} ms"),
        p99 < P99_GOAL_MILLIS,
        format!("{p99:.2} ms"),
    )
}

/// Returns the measured values for a load; empty values if the load was not measured.
fn load_of(server: &MeasuredServer, load: u16) -> MeasuredLoad {
    server.loads.get(&load).cloned().unwrap_or_default()
}

fn answer_table(agent: &MeasuredServer, dnsmasq: &MeasuredServer) -> Table {
    let mut table = Table::new(
        &["guests at the same time", "answer"],
        &[
            "berth-agent ms, median",
            "99th percentile",
            "dnsmasq ms, median",
            "99th percentile",
            "ratio of medians",
            "ratio of 99th percentiles",
        ],
    );
    for load in agent.loads.keys() {
        let (ours, theirs) = (load_of(agent, *load).times, load_of(dnsmasq, *load).times);
        let both = ours.millis_by_type().into_iter().zip(theirs.millis_by_type());
        for ((answer, ours), (_, theirs)) in both {
            let [median_ratio, p99_ratio] =
                [50, 99].map(|at| percentile(ours, at) / percentile(theirs, at));
            table.push([
                load.to_string(),
                answer.to_owned(),
                format!("{:.2}", median(ours)),
                format!("{:.2}", percentile(ours, 99)),
                format!("{:.2}", median(theirs)),
                format!("{:.2}", percentile(theirs, 99)),
                format!("{median_ratio:.2}"),
                format!("{p99_ratio:.2}"),
            ]);
        }
    }
    table
}

fn cost_table(agent: &MeasuredServer, dnsmasq: &MeasuredServer) -> Table {
    let mut table = Table::new(
        &["server", "guests at the same time"],
        &["answers", "CPU us per answer", "repeated messages", "resident MiB"],
    );
    for server in [agent, dnsmasq] {
        for (load, measured) in &server.loads {
            let answers = measured.times.all_millis().len();
            table.push([
                server.server.label().to_owned(),
                load.to_string(),
                answers.to_string(),
                format!("{:.0}", measured.cpu_seconds / answers as f64 * 1e6),
                measured.times.retransmissions.to_string(),
                format!("{:.1}", server.resident_mib),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::exchange::AnswerTimes;
    use super::super::guests::Server;
    use super::*;

    /// Returns measured values of a server whose offers take these times, by load.
    fn measured(server: Server, millis: [(u16, f64); 2]) -> MeasuredServer {
        let load = |millis: f64| {
            let times = AnswerTimes {
                offer_millis: vec![millis; 10],
                ack_millis: vec![millis / 2.0; 10],
                retransmissions: 0,
            };
            MeasuredLoad { times, cpu_seconds: 0.001 }
        };
        let loads = millis.into_iter().map(|(guests, millis)| (guests, load(millis))).collect();
        MeasuredServer { server, loads, resident_mib: 10.0 }
    }

    #[test]
    fn each_load_has_its_goal() {
        let build = |one, thousand| {
            let agent = measured(Server::Agent, [(1, one), (1000, thousand)]);
            let dnsmasq = measured(Server::Dnsmasq, [(1, 4.0), (1000, 4.0)]);
            let date = "2026-01-02".parse().unwrap();
            build_result(date, Vec::new(), &agent, &dnsmasq, String::new())
        };
        let result = build(1.0, 1.0);
        assert!(result.all_goals_met());
        let rows = &result.sections[0].tables[0].rows;
        assert_eq!(rows[0], ["1", "DHCPOFFER", "1.00", "1.00", "4.00", "4.00", "0.25", "0.25"]);
        assert_eq!(rows.len(), 4);
        let costs = &result.sections[1].tables[0].rows;
        assert_eq!(costs[0], ["berth-agent", "1", "20", "50", "0", "10.0"]);
        assert!(!build(5.5, 1.0).all_goals_met());
        let goals = build(1.0, 7.5).goals;
        assert_eq!(goals.iter().map(|goal| goal.met).collect::<Vec<_>>(), [true, false]);
        let words = "answers to 1000 guests at the same time below 5 ms";
        assert!(goals[1].text.contains(words) && goals[1].value == "7.50 ms", "{goals:?}");
    }
}
