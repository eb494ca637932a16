//! Builds the result of the benchmark of trunks from the measured values.

use anyhow::Result;
use jiff::civil::Date;

use super::cost::Cost;
use super::ends::{MeasuredAgent, MeasuredPeer};
use crate::report::describe_host;
use crate::result::{BenchResult, Goal, Section, Table};

/// Goal for the time until all VLANs are verified, in seconds.
const VERIFIED_GOAL_SECONDS: f64 = 10.0;
/// Goal for the time until both hosts name a dropped VLAN, in seconds.
const NAMED_GOAL_SECONDS: f64 = 10.0;
/// Goal for the CPU time while nothing changes, in percent of a core.
const CPU_GOAL_PERCENT: f64 = 0.1;

/// Size of a run, from the arguments.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunSize {
    pub(super) vlans: u16,
    pub(super) settle: u32,
    pub(super) seconds: u32,
    pub(super) before_drops: u32,
    pub(super) drops: u16,
}

pub(super) fn build_result(
    date: Date,
    size: RunSize,
    fping_version: &str,
    agents: &[MeasuredAgent; 2],
    peer: &MeasuredPeer,
) -> Result<BenchResult> {
    let RunSize { vlans, settle, seconds, before_drops, drops } = size;
    let largest = |value: fn(&MeasuredAgent) -> f64| agents.iter().map(value).fold(0.0, f64::max);
    let verified = largest(|agent| agent.verified_seconds);
    let percent = largest(|agent| agent.idle.cpu_percent());
    let text = "CPU time: user and system time of the process. A frame that a process sends by a veth link is delivered to the other end \
                in its own system time, and an answer of the kernel to a ping is too. Frames: those that the link sent and received. \
                Wake-ups: voluntary context switches.";
    Ok(BenchResult {
        name: "trunk".to_owned(),
        title: "Verification of a trunk".to_owned(),
        date,
        conditions: vec![
            format!("measured on: {}", describe_host()?),
            format!(
                "two processes with the code of the agent that probes a trunk of {vlans} VLANs, in two network namespaces that a veth pair \
                 connects; neither a bridge nor a switch"
            ),
            format!("{seconds} s without a change, {settle} s after all VLANs were verified"),
            format!(
                "peer: fping {fping_version}, which sends as many pings as give the same number of frames, and receives the answers of the \
                 kernel at the other end. Pings are neither tagged nor authenticated, and prove no VLAN"
            ),
        ],
        sections: [Section::untitled(text, vec![cost_table(agents, peer)])]
            .into_iter()
            .chain((drops > 0).then(|| dropped_section(size, agents)))
            .collect(),
        goals: [
            Goal::new(
                format!("{vlans} VLANs are verified in less than {VERIFIED_GOAL_SECONDS} s"),
                verified < VERIFIED_GOAL_SECONDS,
                format!("{verified:.1} s"),
            ),
            Goal::new(
                format!("less than {CPU_GOAL_PERCENT} % of a core while nothing changes"),
                percent < CPU_GOAL_PERCENT,
                format!("{percent:.3} %"),
            ),
        ]
        .into_iter()
        .chain((drops > 0).then(|| named_goal(size, agents)))
        .collect(),
        command: format!(
            "berth-benches trunk --vlans {vlans} --settle {settle} --seconds {seconds} --before-drops {before_drops} --drops {drops}"
        ),
    })
}

/// Returns the goal for the time until both hosts name a dropped VLAN.
fn named_goal(size: RunSize, agents: &[MeasuredAgent; 2]) -> Goal {
    let all = agents.iter().flat_map(|agent| &agent.named);
    let longest = all.map(|named| named.seconds).fold(0.0, f64::max);
    Goal::new(
        format!(
            "a dropped VLAN of {} is named by both hosts in less than {NAMED_GOAL_SECONDS} s",
            size.vlans
        ),
        longest < NAMED_GOAL_SECONDS,
        format!("{longest:.1} s, the longest of {}", size.drops),
    )
}

fn dropped_section(size: RunSize, agents: &[MeasuredAgent; 2]) -> Section {
    let text = format!(
        "Seconds from the moment at which the veth pair drops the frames of one VLAN in both directions until a host reports exactly \
         this VLAN as missing. All VLANs were verified before each measurement, the first {} s after the measurement above. Of 4000 \
         VLANs, each has a probe of one of the hosts every 8 s (docs/trunks.md).",
        size.before_drops
    );
    let mut table = Table::new(&["dropped VLAN"], &["first host s", "second host s"]);
    let [first, second] = agents;
    for (ours, theirs) in first.named.iter().zip(&second.named) {
        table.push([
            ours.vlan.to_string(),
            format!("{:.1}", ours.seconds),
            format!("{:.1}", theirs.seconds),
        ]);
    }
    Section::new("A dropped VLAN", text, vec![table])
}

fn cost_table(agents: &[MeasuredAgent; 2], peer: &MeasuredPeer) -> Table {
    let mut table = Table::new(
        &["program"],
        &[
            "frames sent per second",
            "received per second",
            "wake-ups per second",
            "CPU us per frame",
            "% of a core",
            "ratio",
        ],
    );
    let [first, second] = agents;
    let ours = first.idle;
    let rows: [(&str, Cost); 3] = [
        ("probes of the first host", ours),
        ("probes of the second host", second.idle),
        ("fping", peer.cost),
    ];
    for (name, cost) in rows {
        let per_second = |count: f64| format!("{:.0}", count / cost.seconds);
        table.push([
            name.to_owned(),
            per_second(cost.sent),
            per_second(cost.received),
            per_second(cost.wake_ups),
            format!("{:.2}", cost.micros_per_frame()),
            format!("{:.3}", cost.cpu_percent()),
            format!("{:.2}", ours.cpu_percent() / cost.cpu_percent()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::drops::NamedVlan;
    use super::*;

    #[test]
    fn both_agents_must_meet_the_goals() {
        let cost = |cpu_seconds| Cost {
            seconds: 60.0,
            cpu_seconds,
            wake_ups: 240.0,
            sent: 16_200.0,
            received: 16_200.0,
        };
        let agent = |verified_seconds, cpu| {
            let named = vec![NamedVlan { vlan: 402, seconds: 9.0 }];
            MeasuredAgent { verified_seconds, idle: cost(cpu), named }
        };
        let peer = MeasuredPeer { cost: cost(0.6) };
        let build = |second| {
            let size =
                RunSize { vlans: 4000, settle: 60, seconds: 60, before_drops: 120, drops: 1 };
            let date = "2026-01-02".parse().unwrap();
            build_result(date, size, "5.1", &[agent(3.0, 0.03), second], &peer).unwrap()
        };
        let result = build(agent(4.0, 0.054));
        assert!(result.all_goals_met());
        let rows = &result.sections[0].tables[0].rows;
        assert_eq!(rows[0][1..], ["270", "270", "4", "0.93", "0.050", "1.00"]);
        assert_eq!(rows[2][5..], ["1.000", "0.05"]);
        assert!(!build(agent(11.0, 0.03)).all_goals_met());
        assert!(!build(agent(3.0, 0.066)).all_goals_met());
        let mut late = agent(3.0, 0.03);
        late.named[0].seconds = 14.2;
        let result = build(late);
        let met: Vec<bool> = result.goals.iter().map(|goal| goal.met).collect();
        assert_eq!(met, [true, true, false]);
        assert_eq!(result.sections[1].tables[0].rows[0], ["402", "9.0", "14.2"]);
    }
}
