//! Parts that several pages have.

use std::fmt::Display;

use berth_api::Bytes;
use berth_views::hosts::Amount;
use berth_views::{ConditionRow, Issue, ObjectName, Severity, Snapshot};
use maud::{Markup, html};

/// Text of a value that is not known.
const UNKNOWN: &str = "-";
/// Text of the state of a host of which neither the report nor the Node is visible.
pub(super) const UNKNOWN_STATE: &str = "Unknown";
/// Maximum number of characters of a message on a page. Users can write messages of any length into objects.
const MAX_MESSAGE: usize = 2000;
/// Maximum number of rows of a table whose length a user can choose.
pub(super) const MAX_ROWS: usize = 200;

/// Returns the class of the style of a severity.
pub(super) const fn severity_class(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Warning => "warning",
        Severity::Failure => "failure",
    }
}

/// Returns a state with its severity as colour and as symbol, so that no information depends on the colour alone.
pub(super) fn badge(severity: Severity, text: impl Display) -> Markup {
    let symbol = match severity {
        Severity::Ok => "✓",
        Severity::Warning => "!",
        Severity::Failure => "✗",
    };
    html! {
        span class={ "badge " (severity_class(severity)) } {
            span aria-hidden="true" { (symbol) } " " (text.to_string())
        }
    }
}

/// Returns a value, or a dash if it is not known.
pub(super) fn known(value: Option<impl Display>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// Returns a text, or a dash if it is empty.
pub(super) fn text_or_dash(text: &str) -> &str {
    if text.is_empty() { UNKNOWN } else { text }
}

/// Returns the beginning of a message, so that one object cannot make a page large. Characters that change the direction of
/// the text after them are left out: with them, a message could rearrange what the page shows.
pub(super) fn excerpt(message: &str) -> String {
    let is_shown = |c: &char| !matches!(*c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut chars = message.chars().filter(is_shown);
    let mut text: String = chars.by_ref().take(MAX_MESSAGE).collect();
    if chars.next().is_some() {
        text.push('…');
    }
    text
}

/// Returns an amount of bytes for people.
pub(super) fn bytes(bytes: u64) -> String {
    Bytes(bytes).to_human_readable()
}

/// Returns the used and the total amount of a resource, with a bar.
pub(super) fn amount(label: &str, amount: Amount, format: impl Fn(u64) -> String) -> Markup {
    let text = format!("{} of {}", format(amount.used), format(amount.total));
    html! {
        meter min="0" max=(amount.total) value=(amount.used) aria-label={ (label) ": " (text) } {}
        " " (text)
    }
}

/// Returns a table that can be scrolled sideways on narrow screens, also with the keyboard.
pub(super) fn table(label: &str, head: &[&str], rows: &[Markup], empty: &str) -> Markup {
    html! {
        @if rows.is_empty() {
            p .empty { (empty) }
        } @else {
            div .scroll id=(region_id(label)) role="region" aria-label=(label) tabindex="0" {
                table {
                    thead { tr { @for title in head { th scope="col" { (title) } } } }
                    tbody { @for row in rows { (row) } }
                }
            }
        }
    }
}

/// Returns a table as [`table`] does, with at most [`MAX_ROWS`] rows.
pub(super) fn limited_table<T>(
    label: &str,
    head: &[&str],
    all: &[T],
    row: impl Fn(&T) -> Markup,
    empty: &str,
) -> Markup {
    let rows: Vec<Markup> = all.iter().take(MAX_ROWS).map(row).collect();
    html! {
        (table(label, head, &rows, empty))
        @if all.len() > rows.len() { p { "And " (all.len() - rows.len()) " more." } }
    }
}

/// Returns the id of a region, with which the focus and the position survive a refresh of the page. It cannot be the id of a
/// host in the fleet, which begins with `host-`.
fn region_id(label: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    format!("region-{}", label.chars().map(safe).collect::<String>())
}

/// Returns the form that filters the objects of a page while the user types. The text is the field `q`; `fields` are further ones.
pub(super) fn filter_form(path: &str, text: &str, placeholder: &str, fields: &Markup) -> Markup {
    html! {
        form #filter .filter method="get" action=(path) role="search" hx-get=(path)
            hx-trigger="input delay:200ms, submit" hx-target="#view" hx-select="#view" hx-swap="outerHTML" hx-replace-url="true" {
            div {
                label for="q" { "Filter" }
                input #q type="search" name="q" value=(text) placeholder=(placeholder) accesskey="f";
            }
            (fields)
            button type="submit" { "Apply" }
        }
    }
}

/// Returns pairs of names and values.
pub(super) fn facts(pairs: &[(&str, Markup)]) -> Markup {
    html! {
        dl .facts {
            @for (name, value) in pairs {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// Returns problems with their remedies.
pub(super) fn issue_list(issues: &[Issue]) -> Markup {
    html! {
        @if !issues.is_empty() {
            ul .issues {
                @for issue in issues {
                    li {
                        (badge(issue.severity, &issue.source)) " " strong { (issue.reason) } " " (excerpt(&issue.message))
                        @if let Some(remedy) = &issue.remedy { p .remedy { "Remedy: " (remedy) } }
                    }
                }
            }
        }
    }
}

/// Returns the conditions of an object, with remedies.
pub(super) fn condition_table(conditions: &[ConditionRow]) -> Markup {
    let rows: Vec<Markup> = conditions
        .iter()
        .map(|one| {
            html! {
                tr {
                    th scope="row" { (one.type_) }
                    td { (badge(one.severity, one.status)) }
                    td { (one.reason) }
                    td {
                        (excerpt(&one.message))
                        @if let Some(remedy) = &one.remedy { p .remedy { "Remedy: " (remedy) } }
                    }
                    td { (one.since.to_string()) }
                }
            }
        })
        .collect();
    let head = ["Condition", "Status", "Reason", "Message", "Since"];
    table("Conditions", &head, &rows, "No conditions are reported.")
}

/// Returns the reasons why objects are missing on a page.
pub(super) fn notices(snapshot: &Snapshot) -> Markup {
    let problems: Vec<String> = snapshot.problems().take(10).map(ToString::to_string).collect();
    html! {
        @if !snapshot.outdated.is_empty() {
            ul .outdated {
                @for (kind, since) in &snapshot.outdated {
                    @let [_, _, _, objects] = kind.resource();
                    li .warning { (objects) ": may have changed since " (since.to_string()) ", because the console cannot watch them" }
                }
            }
        }
        @if !snapshot.unread.is_empty() || !problems.is_empty() {
            details #notices .notices {
                summary { "Not everything is shown" }
                ul {
                    @for unread in &snapshot.unread { li { (unread.to_string()) } }
                    @for problem in &problems { li { (excerpt(problem)) } }
                }
            }
        }
    }
}

/// Returns a part of a path: names of objects need no encoding, but a malformed name must not lead to another page.
fn segment(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

pub(super) fn host_link(name: &str) -> Markup {
    html! { a href={ "/hosts/" (segment(name)) } { (name) } }
}

pub(super) fn tenant_link(name: &str) -> Markup {
    html! { a href=(tenant_path(name)) { (name) } }
}

/// Returns the path of the page of a tenant.
pub(super) fn tenant_path(name: &str) -> String {
    format!("/tenants/{}", segment(name))
}

pub(super) fn machine_link(name: &ObjectName) -> Markup {
    html! { a href=(machine_path(name)) { (name.name) } }
}

/// Returns the path of the page of a VM.
pub(super) fn machine_path(name: &ObjectName) -> String {
    format!("/vms/{}/{}", segment(&name.namespace), segment(&name.name))
}

/// Returns the path of the page of a host.
pub(super) fn host_path(name: &str) -> String {
    format!("/hosts/{}", segment(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_limited_and_keep_the_direction_of_the_text() {
        assert_eq!(excerpt("no host fits: ä"), "no host fits: ä");
        assert_eq!(excerpt("a\u{202e}b\u{2066}c"), "abc");
        let long = excerpt(&"ä".repeat(MAX_MESSAGE + 1));
        assert_eq!((long.chars().count(), long.ends_with("ä…")), (MAX_MESSAGE + 1, true));
        assert_eq!(excerpt(&"ä".repeat(MAX_MESSAGE)).chars().count(), MAX_MESSAGE);
    }

    #[test]
    fn names_and_messages_are_escaped() {
        let hostile = "<img src=x onerror=alert(1)>\"'&\u{1b}";
        let issue = Issue {
            severity: Severity::Failure,
            source: hostile.to_owned(),
            reason: hostile.to_owned(),
            message: hostile.to_owned(),
            remedy: Some(hostile.to_owned()),
        };
        let name = ObjectName::new(hostile, "../../sign-out?x=\"");
        for text in [
            issue_list(&[issue]),
            host_link(hostile),
            tenant_link(hostile),
            machine_link(&name),
            badge(Severity::Ok, hostile),
            table(hostile, &[hostile], &[html! { tr { td { (hostile) } } }], ""),
        ] {
            let text = text.into_string();
            assert!(!text.contains("<img"), "{text}");
            assert!(!text.contains("href=\"/hosts/<"), "{text}");
        }
        let link = machine_link(&name).into_string();
        assert!(link.contains("/..%2F..%2Fsign-out%3Fx%3D%22\">"), "{link}");
        assert_eq!(host_path("a/../b?c"), "/hosts/a%2F..%2Fb%3Fc");
    }
}
