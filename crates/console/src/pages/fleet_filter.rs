//! Filter of the hosts on the fleet page. The script of the page filters in the same way.

use std::collections::BTreeSet;

use berth_views::hosts::HostRow;

use super::parts::UNKNOWN_STATE;
use crate::query::Fields;

/// Words that describe a host: its name, and `key=value` for each facet. In lower case, separated by spaces.
pub(crate) fn words(row: &HostRow, rack: Option<&str>) -> String {
    let mut words = vec![row.name.clone()];
    words.extend(row.states.iter().map(|state| format!("state={state}")));
    words.extend(row.states.is_empty().then(|| format!("state={UNKNOWN_STATE}")));
    let facets =
        [("class", row.class.as_deref()), ("profile", row.profile.as_deref()), ("rack", rack)];
    words.extend(facets.iter().filter_map(|(key, value)| Some(format!("{key}={}", (*value)?))));
    words.join(" ").to_lowercase()
}

/// Facets of hosts in the order in which the form shows them.
pub(crate) const FACETS: [(&str, &str); 4] =
    [("state", "State"), ("class", "Class"), ("profile", "Profile"), ("rack", "Rack")];

/// Selection in the form: text, and a word for each facet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FleetFilter {
    pub(crate) text: String,
    /// Selected words, such as `class=performance`; empty for facets without a selection.
    pub(crate) selected: [String; 4],
}

impl FleetFilter {
    pub(crate) fn parse(fields: &Fields) -> Self {
        Self {
            text: fields.get("q").to_lowercase(),
            selected: FACETS.map(|(key, _)| fields.get(key).to_lowercase()),
        }
    }

    /// Returns true if a host with these words is shown.
    pub(crate) fn accepts(&self, words: &str) -> bool {
        self.text.split_whitespace().all(|part| words.contains(part))
            && self
                .selected
                .iter()
                .filter(|word| !word.is_empty())
                .all(|selected| words.split(' ').any(|word| word == selected))
    }
}

/// Returns the words of each facet that occur.
pub(crate) fn options<'w>(words: impl Iterator<Item = &'w str>) -> [BTreeSet<&'w str>; 4] {
    let mut options: [BTreeSet<&str>; 4] = Default::default();
    for word in words.flat_map(|words| words.split(' ')) {
        let Some((key, _)) = word.split_once('=') else { continue };
        for (options, (facet, _)) in options.iter_mut().zip(FACETS) {
            if facet == key {
                options.insert(word);
            }
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use berth_views::hosts::HostState;

    use super::*;

    #[test]
    fn hosts_are_found_by_text_and_by_facets() {
        let row = HostRow {
            name: "rack1-a".to_owned(),
            states: vec![HostState::Draining, HostState::Cordoned],
            class: Some("Performance".to_owned()),
            ..HostRow::default()
        };
        let words = words(&row, Some("r1"));
        assert_eq!(words, "rack1-a state=draining state=cordoned class=performance rack=r1");
        let unread = HostRow { name: "a".to_owned(), ..HostRow::default() };
        assert_eq!(super::words(&unread, None), "a state=unknown");
        for (query, expected) in [
            ("", true),
            ("q=RACK1", true),
            ("q=rack1+perf", true),
            ("q=rack2", false),
            ("state=state%3Ddraining&rack=rack%3Dr1", true),
            ("rack=rack%3Dr", false),
            ("class=class%3Ddensity", false),
        ] {
            let filter = FleetFilter::parse(&Fields::parse(query.as_bytes()));
            assert_eq!(filter.accepts(&words), expected, "{query}");
        }
        let options = options([words.as_str()].into_iter());
        assert_eq!(options[0].len(), 2);
        assert_eq!(options[3].iter().copied().collect::<Vec<_>>(), ["rack=r1"]);
    }
}
