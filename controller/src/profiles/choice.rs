//! Which HostProfile holds for a Node: the highest priority that selects it; a tie is a conflict.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::HostProfile;
use berth_api::names::{CLASS_LABEL, PROFILE_LABEL};

/// What profiles say of one Node.
#[derive(Debug, Clone, PartialEq)]
pub enum Choice {
    /// None selects it: it is left as it is.
    None,
    /// This one holds.
    One(Arc<HostProfile>),
    /// These have the same priority: none holds, and the host stays as it is. In the order of their names.
    Tie(Vec<Arc<HostProfile>>),
}

/// Chooses for a Node with these labels.
#[must_use]
pub fn choose(profiles: &[Arc<HostProfile>], labels: &BTreeMap<String, String>) -> Choice {
    let fine = |profile: &&Arc<HostProfile>| fault(profile).is_none();
    let selecting = profiles.iter().filter(fine).filter(|profile| profile.selects(labels));
    let mut best: Vec<&Arc<HostProfile>> = Vec::new();
    for profile in selecting {
        match best.first().map(|first| profile.spec.priority.cmp(&first.spec.priority)) {
            Some(std::cmp::Ordering::Less) => {}
            Some(std::cmp::Ordering::Equal) => best.push(profile),
            Some(std::cmp::Ordering::Greater) | None => best = vec![profile],
        }
    }
    best.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    match best.as_slice() {
        [] => Choice::None,
        [one] => Choice::One(Arc::clone(one)),
        several => Choice::Tie(several.iter().map(|one| Arc::clone(one)).collect()),
    }
}

/// Why a profile selects nothing, whatever its selector says.
#[must_use]
pub fn fault(profile: &HostProfile) -> Option<String> {
    if profile.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".to_owned());
    }
    // It would select by what it makes itself, and might take turns with another one for ever.
    let own = [CLASS_LABEL, PROFILE_LABEL];
    let key = own.into_iter().find(|key| profile.spec.node_selector.contains_key(*key))?;
    Some(format!(
        "spec.nodeSelector: {key} is a label that the profile itself sets; select by another one"
    ))
}

#[cfg(test)]
mod tests {
    use berth_api::HostProfileSpec;
    use proptest::prelude::*;

    use super::*;

    fn profile(name: &str, priority: i32, selector: &[(&str, &str)]) -> Arc<HostProfile> {
        let node_selector = selector.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        Arc::new(HostProfile::new(
            name,
            HostProfileSpec { priority, node_selector, ..HostProfileSpec::default() },
        ))
    }

    fn labels(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    fn names(choice: &Choice) -> Vec<&str> {
        let all = match choice {
            Choice::None => &[],
            Choice::One(one) => std::slice::from_ref(one),
            Choice::Tie(all) => all.as_slice(),
        };
        all.iter().map(|one| one.metadata.name.as_deref().unwrap()).collect()
    }

    #[test]
    fn the_highest_that_selects_wins_and_a_tie_is_nobodys() {
        let all = [
            profile("wide", 0, &[]),
            profile("rack", 10, &[("rack", "1")]),
            profile("disk", 10, &[("disk", "nvme")]),
        ];
        assert_eq!(names(&choose(&all, &labels(&[]))), ["wide"]);
        assert_eq!(names(&choose(&all, &labels(&[("rack", "1")]))), ["rack"]);
        let both = choose(&all, &labels(&[("rack", "1"), ("disk", "nvme")]));
        assert_eq!(names(&both), ["disk", "rack"]);
        assert!(matches!(both, Choice::Tie(_)));
        assert_eq!(choose(&[], &labels(&[])), Choice::None);
    }

    #[test]
    fn what_selects_by_its_own_labels_selects_nothing() {
        let own = profile("own", 10, &[("berth.dev/class", "Density")]);
        assert!(fault(&own).unwrap().contains("berth.dev/class"));
        let all = [own, profile("wide", 0, &[])];
        assert_eq!(names(&choose(&all, &labels(&[("berth.dev/class", "Density")]))), ["wide"]);
    }

    proptest! {
        /// The order in which the server lists profiles decides nothing.
        #[test]
        fn order_decides_nothing(priorities in prop::collection::vec(-2_i32..3, 0..6), turn in 0_usize..6) {
            let mut all: Vec<_> = priorities.iter().enumerate().map(|(n, p)| profile(&format!("p{n}"), *p, &[])).collect();
            let before = choose(&all, &labels(&[]));
            let turn = turn.min(all.len());
            all.rotate_left(turn);
            prop_assert_eq!(&choose(&all, &labels(&[])), &before);
            let most = priorities.iter().max();
            let holders = priorities.iter().filter(|p| Some(*p) == most).count();
            prop_assert_eq!(names(&before).len(), holders);
        }
    }
}
