//! Objects that a page reads itself, with the credential of its user, because only that page shows them.

use berth_runtime::object_events::ObjectEvent;
use maud::{Markup, html};

use super::parts::{excerpt, table};

/// Reason why objects could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("you have no permission to list them")]
    Forbidden,
    #[error("the API server does not serve them")]
    NotServed,
    #[error("the API server did not answer")]
    Unavailable,
}

/// Objects that were read, or the reason why not.
pub(crate) type Read<T> = Result<Rows<T>, ReadError>;

/// Rows of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows<T> {
    pub(crate) rows: Vec<T>,
    /// True if the API server has more objects.
    pub(crate) is_partial: bool,
}

/// A resource of a ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaRow {
    pub(crate) quota: String,
    pub(crate) resource: String,
    pub(crate) used: String,
    pub(crate) hard: String,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeRow {
    pub(crate) name: String,
    pub(crate) phase: String,
    pub(crate) size: String,
    pub(crate) class: String,
}

pub(super) fn event_section(events: &Read<ObjectEvent>) -> Markup {
    let row = |event: &ObjectEvent| {
        html! {
            tr {
                td { (event.time) }
                td { (event.type_) }
                th scope="row" { (event.reason) }
                td { (excerpt(&event.message)) @if event.count > 1 { " (" (event.count) " times)" } }
                td { (event.source) }
            }
        }
    };
    let head = ["Time", "Type", "Reason", "Message", "Source"];
    section("Latest Events", &head, events, row, "The API server stores no Events.")
}

pub(super) fn quota_section(quotas: &Read<QuotaRow>) -> Markup {
    let row = |quota: &QuotaRow| {
        html! {
            tr {
                th scope="row" { (quota.resource) }
                td { (quota.used) }
                td { (quota.hard) }
                td { (quota.quota) }
            }
        }
    };
    section(
        "Quota",
        &["Resource", "Used", "Limit", "ResourceQuota"],
        quotas,
        row,
        "The namespace has no ResourceQuota.",
    )
}

pub(super) fn volume_section(volumes: &Read<VolumeRow>) -> Markup {
    let row = |volume: &VolumeRow| {
        html! {
            tr {
                th scope="row" { (volume.name) }
                td { (volume.phase) }
                td { (volume.size) }
                td { (volume.class) }
            }
        }
    };
    section(
        "Storage",
        &["Volume", "Phase", "Size", "StorageClass"],
        volumes,
        row,
        "The namespace has no volumes.",
    )
}

fn section<T>(
    title: &str,
    head: &[&str],
    read: &Read<T>,
    row: impl Fn(&T) -> Markup,
    empty: &str,
) -> Markup {
    html! {
        section {
            h2 { (title) }
            @match read {
                Ok(read) => {
                    (table(title, head, &read.rows.iter().map(row).collect::<Vec<_>>(), empty))
                    @if read.is_partial { p .warning { "Only the first " (read.rows.len()) " rows are shown." } }
                }
                Err(reason) => { p .empty { "Not shown: " (reason.to_string()) } }
            }
        }
    }
}
