//! Fleet: all hosts as a dense map. The script of the page computes the sums again when the user changes the filter, from
//! the attributes of the hosts.

use std::collections::BTreeMap;

use berth_api::infra_node::Zone;
use berth_views::hosts::{Amount, HostRow, HostState};
use berth_views::{Severity, Snapshot, hosts};
use maud::{Markup, html};

use super::cpu_map::{cpu_map, legend};
use super::fleet_filter::{FACETS, FleetFilter, options, words};
use super::layout::Content;
use super::parts::{UNKNOWN_STATE, amount, badge, bytes, host_path, notices, severity_class};

/// Size of a CPU in the map, in pixels.
const CELL_PIXELS: usize = 5;

/// Returns the id of the element of a host.
pub(crate) fn element_id(host: &str) -> String {
    format!("host-{host}")
}

/// Returns the page of all hosts.
pub(crate) fn content(snapshot: &Snapshot, filter: &FleetFilter) -> Content {
    let rows = hosts::rows(snapshot);
    let racks: Vec<Option<&str>> = rows.iter().map(|row| rack(snapshot, &row.name)).collect();
    let all_words: Vec<String> =
        rows.iter().zip(&racks).map(|(row, rack)| words(row, *rack)).collect();
    let mut by_rack: BTreeMap<&str, Vec<(&HostRow, &str, bool)>> = BTreeMap::new();
    let mut shown = Vec::new();
    for ((row, rack), words) in rows.iter().zip(&racks).zip(&all_words) {
        let is_shown = filter.accepts(words);
        let hosts = by_rack.entry(rack.unwrap_or_default()).or_default();
        hosts.push((row, words.as_str(), is_shown));
        shown.extend(is_shown.then_some(row));
    }
    let view = html! {
        (notices(snapshot))
        (summary(&shown))
        @if rows.is_empty() { p .empty { "No hosts are visible." } }
        (legend())
        // The page has all hosts, so that the script of the page can show others when the user changes the filter.
        @for (rack, hosts) in &by_rack {
            section hidden[!hosts.iter().any(|(_, _, is_shown)| *is_shown)] {
                @if by_rack.len() > 1 || !rack.is_empty() {
                    h2 { @if rack.is_empty() { "Without a rack label" } @else { "Rack " (rack) } }
                }
                ul .map {
                    @for (row, words, is_shown) in hosts {
                        (tile(row, words, zones_of(snapshot, &row.name), *is_shown))
                    }
                }
            }
        }
        p #no-match .empty hidden[rows.is_empty() || !shown.is_empty()] { "No host matches the filter." }
    };
    Content { form: Some(form(filter, &all_words)), view }
}

/// Returns the element of one host, to replace it in an open page; `None` if there is no such host.
pub(crate) fn host_tile(snapshot: &Snapshot, name: &str) -> Option<Markup> {
    let row = hosts::find_without_vms(snapshot, name)?;
    let words = words(&row, rack(snapshot, name));
    Some(tile(&row, &words, zones_of(snapshot, name), true))
}

/// Returns the rack of a host, if the user sees its Node.
fn rack<'s>(snapshot: &'s Snapshot, host: &str) -> Option<&'s str> {
    snapshot.nodes.get(host)?.rack.as_deref()
}

fn zones_of<'s>(snapshot: &'s Snapshot, host: &str) -> &'s [Zone] {
    let status = snapshot.infra_nodes.get(host).and_then(|infra| infra.status.as_ref());
    status.map(|status| status.zones.as_slice()).unwrap_or_default()
}

fn tile(row: &HostRow, words: &str, zones: &[Zone], is_shown: bool) -> Markup {
    let text = match (row.states.first(), row.issues.len()) {
        (None, _) => UNKNOWN_STATE.to_owned(),
        (Some(HostState::Ready), 1) => "1 issue".to_owned(),
        (Some(HostState::Ready), count) => format!("{count} issues"),
        (Some(state), _) => state.to_string(),
    };
    let is_healthy = row.states == [HostState::Ready] && row.severity == Severity::Ok;
    let (cpus, pages) = (row.pinnable_cpus, row.hugepages);
    html! {
        li id=(element_id(&row.name)) class={ "host " (severity_class(row.severity)) } data-words=(words) hidden[!is_shown]
            data-severity=(severity_class(row.severity))
            data-cpus=[cpus.map(|cpus| format!("{} {}", cpus.used, cpus.total))]
            data-pages=[pages.map(|pages| format!("{} {}", pages.used, pages.total))] {
            a href=(host_path(&row.name)) { (row.name) }
            @if !is_healthy { " " (badge(row.severity, text)) }
            (cpu_map(zones, CELL_PIXELS))
            p {
                @if let Some(cpus) = row.pinnable_cpus { (cpus.used) "/" (cpus.total) " CPUs pinned" }
                @if let Some(pages) = row.hugepages.filter(|pages| pages.total > 0) {
                    ", " (bytes(pages.used)) "/" (bytes(pages.total)) " huge pages"
                }
                @if let Some(memory) = row.memory { ", " (bytes(memory)) }
                @if row.ksm == Some(true) { ", KSM" }
            }
        }
    }
}

fn summary(rows: &[&HostRow]) -> Markup {
    let count = |severity: Severity| rows.iter().filter(|row| row.severity == severity).count();
    let sum = |of: fn(&HostRow) -> Option<Amount>| {
        rows.iter().filter_map(|row| of(row)).reduce(|a, b| Amount {
            used: a.used.saturating_add(b.used),
            total: a.total.saturating_add(b.total),
        })
    };
    html! {
        dl .sums aria-label="Shown hosts" {
            div { dt { "Hosts" } dd #counter-hosts { (rows.len()) } }
            @for (severity, text) in [
                (Severity::Ok, "healthy"),
                (Severity::Warning, "with warnings"),
                (Severity::Failure, "with failures"),
            ] {
                div { dt { (badge(severity, text)) } dd id={ "counter-" (severity_class(severity)) } { (count(severity)) } }
            }
            @let (cpus, pages) = (sum(|row| row.pinnable_cpus), sum(|row| row.hugepages));
            div hidden[cpus.is_none()] {
                dt { "Pinned CPUs" }
                dd #counter-cpus { (amount("Pinned CPUs", cpus.unwrap_or_default(), |count| count.to_string())) }
            }
            div hidden[pages.is_none()] {
                dt { "Huge pages" }
                dd #counter-pages { (amount("Huge pages", pages.unwrap_or_default(), bytes)) }
            }
        }
    }
}

fn form(filter: &FleetFilter, all_words: &[String]) -> Markup {
    let options = options(all_words.iter().map(String::as_str));
    html! {
        form #filter .filter method="get" action="/" role="search" data-local {
            div {
                label for="q" { "Filter" }
                input #q type="search" name="q" value=(filter.text) placeholder="Name, class, rack…" accesskey="f";
            }
            @for (((key, label), options), selected) in FACETS.iter().zip(&options).zip(&filter.selected) {
                @if !options.is_empty() {
                    div {
                        label for={ "facet-" (key) } { (label) }
                        select id={ "facet-" (key) } name=(key) {
                            option value="" { "all" }
                            @for option in options {
                                option value=(option) selected[*option == selected.as_str()] {
                                    (option.split_once('=').map_or(*option, |(_, value)| value))
                                }
                            }
                        }
                    }
                }
            }
            button type="submit" { "Apply" }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_views::Kind;
    use serde_json::json;

    use super::*;
    use crate::objects::visible::{Scope, Visible};
    use crate::query::Fields;

    fn test_snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        for name in ["rack1-a", "rack1-b"] {
            let zones = json!([{"id": 0, "cpus": "0-3", "pinnableCPUs": "1-3", "pinnedCPUs": "1"}]);
            let infra = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": name},
                "spec": {"profile": "<b>bold</b>"}, "status": {"zones": zones},
            });
            snapshot.add(Kind::InfraNode, &infra);
            let labels = json!({"example.com/rack": "<i>r1</i>"});
            snapshot.add(Kind::Node, &json!({"metadata": {"name": name, "labels": labels}}));
        }
        snapshot
    }

    #[test]
    fn shown_hosts_match_the_filter() {
        let snapshot = test_snapshot();
        for (query, a, b) in [("", true, true), ("q=1-b", false, true), ("q=none", false, false)] {
            let filter = FleetFilter::parse(&Fields::parse(query.as_bytes()));
            let text = content(&snapshot, &filter).view.into_string();
            let is_shown = |host: &str| {
                let (_, tile) = text.split_once(&format!("id=\"host-{host}\"")).unwrap();
                !tile.split('>').next().unwrap().contains("hidden")
            };
            assert_eq!((is_shown("rack1-a"), is_shown("rack1-b")), (a, b), "{query}: {text}");
        }
    }

    #[test]
    fn hostile_profiles_are_escaped() {
        let content = content(&test_snapshot(), &FleetFilter::default());
        for text in [content.view.into_string(), content.form.unwrap().into_string()] {
            assert!(!text.contains("<b>") && !text.contains("<i>"), "{text}");
        }
    }

    #[test]
    fn racks_are_shown_only_to_users_who_see_the_nodes() {
        let everything = Visible::new(Kind::ALL.map(|kind| (kind, Scope::All)).into());
        let hosts = Visible::new(BTreeMap::from([(Kind::InfraNode, Scope::All)]));
        for (visible, is_shown) in [(everything, true), (hosts, false)] {
            let selected = visible.select(&test_snapshot());
            let page = content(&selected, &FleetFilter::default());
            let tile = host_tile(&selected, "rack1-a").unwrap().into_string();
            // Without the Node, the state of the host is not known.
            assert_eq!(tile.contains("Unknown"), !is_shown, "{tile}");
            for text in [page.view.into_string(), page.form.unwrap().into_string(), tile] {
                assert!(is_shown || !text.contains("r1&lt;"), "{text}");
            }
            assert_eq!(rack(&selected, "rack1-a").is_some(), is_shown);
        }
    }

    #[test]
    fn one_host_is_rendered_as_in_the_page() {
        let snapshot = test_snapshot();
        let page = content(&snapshot, &FleetFilter::default()).view.into_string();
        let tile = host_tile(&snapshot, "rack1-a").unwrap().into_string();
        assert!(page.contains(&tile), "{tile}\n{page}");
        assert!(host_tile(&snapshot, "rack9").is_none());
    }
}
