//! States of a reservation and of a host's availability, and the transitions between them.
//!
//! The code follows these tables: [`ReservationRecords`](super::reservation_records::ReservationRecords) and
//! [`HostAvailability`](super::availability::HostAvailability) refuse other transitions in debug builds, and a test
//! compares the tables with [`RESERVATION_TRANSITIONS`] and [`AVAILABILITY_TRANSITIONS`].
//!
//! # Reservations
//!
//! A pod has at most one reservation. `none` means that the pod has no reservation.
//!
//! | from | to | when |
//! |---|---|---|
//! | none | reserved | `filter` chooses the host; or, after a restart, the host is the nominated node or the selected node of a claim |
//! | none | kept | after a restart, the VM has no pod and only this host can reach its volumes; or `filter` has removed the reservation and finds no host |
//! | none | bound | the watch shows the pod on the host |
//! | reserved | reserved | the selected node of a claim is this host: the reservation gets the longer timeout for volumes, also when it expires |
//! | reserved | binding | `bind` checks the reservation again, and the binding is sent |
//! | reserved | bound | the watch shows the pod on the host |
//! | reserved | kept | the first-consumer pod of a VM ends |
//! | reserved | none | the reservation expires; the pod ends; `filter` chooses another host; `bind` finds insufficient resources |
//! | binding | reserved | the API server refuses the binding |
//! | binding | bound | the API server accepts the binding, or the watch shows the pod on the host |
//! | binding | kept | the first-consumer pod of a VM ends |
//! | binding | leaving | the pod ends, and no report has listed its exclusive CPUs or huge pages |
//! | binding | none | the reservation expires, or the pod ends |
//! | bound | bound | the pod changes |
//! | bound | released | the pod is terminating, and the report no longer lists it |
//! | bound | kept | the first-consumer pod of a VM ends |
//! | bound | leaving | the pod ends, and no report has listed its exclusive CPUs or huge pages |
//! | bound | none | the pod ends; the report then shows how long its resources are in use |
//! | released | kept | the first-consumer pod of a VM ends |
//! | released | none | the pod ends |
//! | kept | bound | the watch shows the first-consumer pod on the host again |
//! | kept | none | `filter` uses the reservation for the VM's launcher pod; the VM ends; the reservation expires |
//! | leaving | bound | the watch shows the pod on the host again |
//! | leaving | none | the report lists the pod, so its allocation counts; or the reservation expires |
//!
//! # Availability of hosts
//!
//! A host in state `available` accepts pods. A host in state `unusable` accepts none. In the other states, a host
//! accepts no pods with exclusive CPUs or huge pages, because its free zones are unknown. If several states apply, the
//! first of `unusable`, `awaiting report` and `awaiting pod removal` is used.
//!
//! | from | to | when |
//! |---|---|---|
//! | available | unusable | the Node or the InfraNode becomes unreadable, or the InfraNode is deleted |
//! | available | awaiting report | the report and the pods of the host differ, right after a start or when the host is new |
//! | available | awaiting pod removal | a pod with exclusive CPUs or huge pages is terminating, or the report no longer lists such a pod; or the report lists an unused allocation of a pod that does not exist |
//! | awaiting pod removal | available | the report no longer lists any of these pods, or only stale allocations of them; or the reservation of the last of them expires |
//! | awaiting pod removal | awaiting report | as from `available` |
//! | awaiting pod removal | unusable | as from `available` |
//! | awaiting report | available | a report agrees with the pods, or a minute passes |
//! | awaiting report | awaiting pod removal | a report agrees with the pods, or a minute passes, and a pod is not removed yet |
//! | awaiting report | unusable | as from `available` |
//! | unusable | available | Node and InfraNode are readable again |
//! | unusable | awaiting report | Node and InfraNode are readable again, and the report is still awaited |
//! | unusable | awaiting pod removal | Node and InfraNode are readable again, and a pod is not removed yet |

/// Stage of a reservation ([`Stage`](super::reservation::Stage)) without its expiry, or `None` without a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReservationState {
    None,
    Reserved,
    Binding,
    Bound,
    Released,
    Kept,
    Leaving,
}

/// Availability of a host that has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    Available,
    AwaitingPodRemoval,
    AwaitingReport,
    Unusable,
}

pub(super) const RESERVATION_TRANSITIONS: [(ReservationState, ReservationState); 24] = {
    use ReservationState::{Binding, Bound, Kept, Leaving, None, Released, Reserved};
    [
        (None, Reserved),
        (None, Kept),
        (None, Bound),
        (Reserved, Reserved),
        (Reserved, Binding),
        (Reserved, Bound),
        (Reserved, Kept),
        (Reserved, None),
        (Binding, Reserved),
        (Binding, Bound),
        (Binding, Kept),
        (Binding, Leaving),
        (Binding, None),
        (Bound, Bound),
        (Bound, Released),
        (Bound, Kept),
        (Bound, Leaving),
        (Bound, None),
        (Released, Kept),
        (Released, None),
        (Kept, Bound),
        (Kept, None),
        (Leaving, Bound),
        (Leaving, None),
    ]
};

pub(super) const AVAILABILITY_TRANSITIONS: [(Availability, Availability); 12] = {
    use Availability::{Available, AwaitingPodRemoval, AwaitingReport, Unusable};
    [
        (Available, Unusable),
        (Available, AwaitingReport),
        (Available, AwaitingPodRemoval),
        (AwaitingPodRemoval, Available),
        (AwaitingPodRemoval, AwaitingReport),
        (AwaitingPodRemoval, Unusable),
        (AwaitingReport, Available),
        (AwaitingReport, AwaitingPodRemoval),
        (AwaitingReport, Unusable),
        (Unusable, Available),
        (Unusable, AwaitingReport),
        (Unusable, AwaitingPodRemoval),
    ]
};

impl ReservationState {
    /// Returns true if [`RESERVATION_TRANSITIONS`] has this transition.
    pub(super) fn can_transition_to(self, next: Self) -> bool {
        RESERVATION_TRANSITIONS.contains(&(self, next))
    }
}

impl Availability {
    /// Returns true if [`AVAILABILITY_TRANSITIONS`] has this transition, or if both states are equal.
    pub(super) fn can_transition_to(self, next: Self) -> bool {
        self == next || AVAILABILITY_TRANSITIONS.contains(&(self, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first two columns of the table below a heading in this file's module documentation.
    fn documented_transitions(heading: &str) -> Vec<(String, String)> {
        let text = include_str!("state_transitions.rs");
        let rows = text.split(heading).nth(1).unwrap().lines().skip(1);
        let rows = rows.take_while(|line| line.starts_with("//!") && !line.starts_with("//! # "));
        let cells = rows.filter_map(|line| {
            let mut cells = line.strip_prefix("//! | ")?.split(" | ");
            Some((cells.next()?.to_owned(), cells.next()?.to_owned()))
        });
        cells.filter(|(from, _)| from != "from").collect()
    }

    /// Returns the name of a variant as lower-case words: `awaiting report`.
    fn variant_to_words(state: impl std::fmt::Debug) -> String {
        let mut words = String::new();
        for letter in format!("{state:?}").chars() {
            if letter.is_uppercase() && !words.is_empty() {
                words.push(' ');
            }
            words.push(letter.to_ascii_lowercase());
        }
        words
    }

    #[test]
    fn documented_transitions_match_the_code() {
        let reservations = RESERVATION_TRANSITIONS
            .map(|(from, to)| (variant_to_words(from), variant_to_words(to)));
        assert_eq!(documented_transitions("//! # Reservations"), reservations);
        let hosts = AVAILABILITY_TRANSITIONS
            .map(|(from, to)| (variant_to_words(from), variant_to_words(to)));
        assert_eq!(documented_transitions("//! # Availability of hosts"), hosts);
    }
}
