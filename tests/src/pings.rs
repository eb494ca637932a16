//! Pings that run during another operation, in the output format of `tests/host/tenants.sh watch`.

use std::collections::BTreeSet;

const PINGS_PER_SECOND: u32 = 5;
/// A lost control ping explains the loss of another ping if their sequence numbers differ by at most this number.
const CONTROL_PING_DISTANCE: u32 = 10 * PINGS_PER_SECOND;

/// Returns the sequence numbers of all replies, in their order.
pub(crate) fn replies(log: &str) -> impl Iterator<Item = u32> {
    let number = |line: &str| {
        let (_, rest) = line.split_once("icmp_seq=")?;
        line.contains("bytes from").then(|| rest.split_whitespace().next()?.parse().ok())?
    };
    log.lines().filter_map(number)
}

/// Returns the sequence numbers, from 1 to the last answered ping, that have no answer.
#[must_use]
pub fn lost_pings(log: &str) -> Vec<u32> {
    let answered: BTreeSet<u32> = replies(log).collect();
    let last = answered.last().copied().unwrap_or_default();
    (1..=last).filter(|number| !answered.contains(number)).collect()
}

/// Returns the largest number of consecutive pings in a list of lost pings.
pub(crate) fn longest_loss(lost: &[u32]) -> u32 {
    let runs = lost.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    runs.map(|run| u32::try_from(run.len()).unwrap_or(u32::MAX)).max().unwrap_or_default()
}

/// Returns the sequence numbers of lost pings that no lost control ping explains. The control pings start together with
/// the other pings and use a link that is not under test. A busy machine delays and drops frames on both links.
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
    fn unanswered_pings_are_counted() {
        let count = |answered: &[u32]| {
            let lost = lost_pings(&log(answered.iter().copied()));
            (lost.len(), longest_loss(&lost))
        };
        assert_eq!(count(&[]), (0, 0));
        assert_eq!(count(&[1, 2, 3]), (0, 0));
        assert_eq!(count(&[2, 3, 3, 7, 5]), (3, 1));
        assert_eq!(count(&[1, 9, 4]), (6, 4));
        assert_eq!(replies(&log([2, 3, 3, 7, 5])).count(), 5);
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
