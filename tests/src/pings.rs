//! Pings that run during another operation, in the output format of `tests/host/tenants.sh watch`.

/// Pings per second.
const PINGS_PER_SECOND: u32 = 5;
/// A lost control ping explains the loss of another ping if their sequence numbers differ by at most this number.
const CONTROL_PING_DISTANCE: u32 = 10 * PINGS_PER_SECOND;

/// Returns the sequence numbers, from 1 to the last answered ping, that have no answer.
#[must_use]
pub fn lost_pings(log: &str) -> Vec<u32> {
    let number = |line: &str| {
        let (_, rest) = line.split_once("icmp_seq=")?;
        line.contains("bytes from").then(|| rest.split_whitespace().next()?.parse().ok())?
    };
    let answered: std::collections::BTreeSet<u32> = log.lines().filter_map(number).collect();
    let last = answered.last().copied().unwrap_or_default();
    (1..=last).filter(|number| !answered.contains(number)).collect()
}

/// Returns the sequence numbers of lost pings that no lost control ping explains. The control pings start together with
/// the other pings and use a link that is not under test. A busy machine delays and drops frames of both.
#[must_use]
pub fn unexplained_losses(log: &str, control: &str) -> Vec<u32> {
    let of_control = lost_pings(control);
    let near = |number: u32| {
        of_control.iter().any(|other| number.abs_diff(*other) <= CONTROL_PING_DISTANCE)
    };
    lost_pings(log).into_iter().filter(|number| !near(*number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(answered: impl IntoIterator<Item = u32>) -> String {
        let line =
            |number| format!("64 bytes from 10.1.0.2: icmp_seq={number} ttl=64 time=0.4 ms\n");
        let lines: String = answered.into_iter().map(line).collect();
        format!(
            "PING 10.1.0.2 (10.1.0.2) 56(84) bytes of data.\n{lines}no answer yet for icmp_seq=9\n"
        )
    }

    #[test]
    fn a_loss_is_explained_by_a_control_ping_lost_near_it() {
        let tenant = log((1..=300).filter(|number| ![20, 290].contains(number)));
        assert_eq!(lost_pings(&tenant), [20, 290]);
        let control = log((1..=300).filter(|number| *number != 250));
        assert_eq!(unexplained_losses(&tenant, &control), [20]);
        assert_eq!(unexplained_losses(&tenant, &log(1..=300)), [20, 290]);
        assert!(lost_pings("").is_empty());
    }
}
