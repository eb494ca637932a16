//! Selects the HostProfile of a Node: the profile with the highest priority whose node selector matches. If several
//! profiles have this priority, none of them is applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::HostProfile;
use berth_api::names::{CLASS_LABEL, PROFILE_LABEL};

/// Result of the selection of a HostProfile for a Node.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection {
    /// No profile selects the Node, so the configuration of the host does not change.
    None,
    /// This profile is applied.
    One(Arc<HostProfile>),
    /// Several profiles have the highest priority: none of them is applied, and the configuration of the host does
    /// not change. The profiles are sorted by name.
    Tie(Vec<Arc<HostProfile>>),
}

/// Selects the profile of a Node with these labels.
#[must_use]
pub fn select_profile(
    profiles: &[Arc<HostProfile>],
    labels: &BTreeMap<String, String>,
) -> Selection {
    let is_eligible = |profile: &&Arc<HostProfile>| ineligibility_reason(profile).is_none();
    let selecting = profiles.iter().filter(is_eligible).filter(|profile| profile.selects(labels));
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
        [] => Selection::None,
        [one] => Selection::One(Arc::clone(one)),
        several => Selection::Tie(several.iter().map(|one| Arc::clone(one)).collect()),
    }
}

/// Returns the reason why a profile cannot select any Node; `None` if it can select Nodes.
#[must_use]
pub fn ineligibility_reason(profile: &HostProfile) -> Option<String> {
    if profile.metadata.deletion_timestamp.is_some() {
        return Some("the profile is being deleted".to_owned());
    }
    // A profile must not select Nodes by the labels that it sets itself, because two profiles could then be applied
    // alternately forever.
    let own = [CLASS_LABEL, PROFILE_LABEL];
    let key = own.into_iter().find(|key| profile.spec.node_selector.contains_key(*key))?;
    Some(format!(
        "spec.nodeSelector: {key} is a label that the profile itself sets; select by another label"
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

    fn selected_names(selection: &Selection) -> Vec<&str> {
        let all = match selection {
            Selection::None => &[],
            Selection::One(one) => std::slice::from_ref(one),
            Selection::Tie(all) => all.as_slice(),
        };
        all.iter().map(|one| one.metadata.name.as_deref().unwrap()).collect()
    }

    #[test]
    fn the_highest_priority_is_selected_and_a_tie_selects_none() {
        let all = [
            profile("wide", 0, &[]),
            profile("rack", 10, &[("rack", "1")]),
            profile("disk", 10, &[("disk", "nvme")]),
        ];
        assert_eq!(selected_names(&select_profile(&all, &labels(&[]))), ["wide"]);
        assert_eq!(selected_names(&select_profile(&all, &labels(&[("rack", "1")]))), ["rack"]);
        let both = select_profile(&all, &labels(&[("rack", "1"), ("disk", "nvme")]));
        assert_eq!(selected_names(&both), ["disk", "rack"]);
        assert!(matches!(both, Selection::Tie(_)));
        assert_eq!(select_profile(&[], &labels(&[])), Selection::None);
    }

    #[test]
    fn a_profile_that_selects_by_its_own_labels_selects_no_node() {
        let own = profile("own", 10, &[("berth.dev/class", "Density")]);
        assert!(ineligibility_reason(&own).unwrap().contains("berth.dev/class"));
        let all = [own, profile("wide", 0, &[])];
        assert_eq!(
            selected_names(&select_profile(&all, &labels(&[("berth.dev/class", "Density")]))),
            ["wide"]
        );
    }

    proptest! {
        /// The result does not depend on the order in which the API server lists profiles.
        #[test]
        fn the_order_of_profiles_does_not_matter(priorities in prop::collection::vec(-2_i32..3, 0..6), turn in 0_usize..6) {
            let mut all: Vec<_> = priorities.iter().enumerate().map(|(n, p)| profile(&format!("p{n}"), *p, &[])).collect();
            let before = select_profile(&all, &labels(&[]));
            let turn = turn.min(all.len());
            all.rotate_left(turn);
            prop_assert_eq!(&select_profile(&all, &labels(&[])), &before);
            let most = priorities.iter().max();
            let holders = priorities.iter().filter(|p| Some(*p) == most).count();
            prop_assert_eq!(selected_names(&before).len(), holders);
        }
    }
}
