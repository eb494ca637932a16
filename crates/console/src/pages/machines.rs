//! All VMs.

use berth_views::Snapshot;
use berth_views::machines::{self, MachineFilter, MachineRow};
use maud::{Markup, html};

use super::layout::Content;
use super::parts::{
    badge, bytes, excerpt, filter_form, host_link, known, machine_link, notices, table,
    tenant_link, text_or_dash,
};
use crate::query::{Fields, url};

/// Number of VMs on a page.
const PAGE_ROWS: usize = 100;

/// Returns the page of all VMs that match the text in the field `q`.
pub(crate) fn content(snapshot: &Snapshot, fields: &Fields) -> Content {
    let (text, tenant) = (fields.get("q"), fields.get("tenant"));
    let filter = MachineFilter {
        tenant: Some(tenant.to_owned()).filter(|tenant| !tenant.is_empty()),
        ..MachineFilter::default()
    };
    let lower = text.to_lowercase();
    let parts: Vec<&str> = lower.split_whitespace().collect();
    let rows = machines::rows(snapshot, &filter);
    let rows: Vec<MachineRow> = rows.into_iter().filter(|row| matches(row, &parts)).collect();
    let pages = rows.len().div_ceil(PAGE_ROWS).max(1);
    let page: usize = fields.get("page").parse().unwrap_or(1);
    let page = page.clamp(1, pages);
    let shown: Vec<MachineRow> =
        rows.iter().skip((page - 1) * PAGE_ROWS).take(PAGE_ROWS).cloned().collect();
    let link =
        |page: usize| url("/vms", &[("q", text), ("tenant", tenant), ("page", &page.to_string())]);
    let view = html! {
        (notices(snapshot))
        p .count { (rows.len()) " VMs" @if pages > 1 { ", page " (page) " of " (pages) } }
        (machine_table(&shown, "No VMs are visible."))
        @if pages > 1 {
            nav .pages aria-label="Pages" {
                @if page > 1 { a href=(link(page - 1)) rel="prev" { "Previous" } " " }
                @if page < pages { a href=(link(page + 1)) rel="next" { "Next" } }
            }
        }
    };
    let tenant_field = html! {
        @if !tenant.is_empty() {
            div {
                label for="tenant" { "Tenant" }
                input #tenant name="tenant" value=(tenant);
            }
        }
    };
    let form = filter_form("/vms", text, "Name, host, address, state…", &tenant_field);
    Content { form: Some(form), view }
}

fn matches(row: &MachineRow, parts: &[&str]) -> bool {
    let has = |part: &str| {
        let texts = [
            Some(&row.name.name),
            Some(&row.name.namespace),
            row.host.as_ref(),
            row.deployment.as_ref(),
        ];
        texts.into_iter().flatten().any(|text| text.to_lowercase().contains(part))
            || row.state.to_string().to_lowercase() == part
            || row.addresses.iter().any(|address| address.to_string().contains(part))
    };
    parts.iter().all(|part| has(part))
}

/// Returns a table of VMs.
pub(super) fn machine_table(rows: &[MachineRow], empty: &str) -> Markup {
    let rows: Vec<Markup> = rows.iter().map(machine_row).collect();
    let head = ["VM", "Tenant", "State", "Host", "CPUs", "Memory", "Addresses", "Why"];
    table("VMs", &head, &rows, empty)
}

fn machine_row(row: &MachineRow) -> Markup {
    html! {
        tr {
            th scope="row" { (machine_link(&row.name)) }
            td { @if let Some(tenant) = &row.tenant { (tenant_link(tenant)) } @else { (row.name.namespace) } }
            td { (badge(row.severity, row.state)) }
            td { @if let Some(host) = &row.host { (host_link(host)) } @else { "-" } }
            td { (known(row.vcpus)) @if row.is_pinned { ", pinned" } }
            td { (known(row.memory.map(bytes))) }
            td { (addresses(row)) }
            td { (excerpt(row.message.as_deref().unwrap_or_default())) }
        }
    }
}

/// Returns the addresses of a VM.
pub(super) fn addresses(row: &MachineRow) -> String {
    let addresses: Vec<String> = row.addresses.iter().map(ToString::to_string).collect();
    text_or_dash(&addresses.join(", ")).to_owned()
}

#[cfg(test)]
mod tests {
    use berth_views::Kind;
    use serde_json::json;

    use super::*;

    fn page(query: &str) -> String {
        let mut snapshot = Snapshot::default();
        for number in 0..250 {
            let name = format!("vm-{number:03}");
            let machine = json!({"metadata": {"namespace": "cluster-a", "name": name},
                "status": {"printableStatus": "<script>"}});
            snapshot.add(Kind::VirtualMachine, &machine);
        }
        let content = content(&snapshot, &Fields::parse(query.as_bytes()));
        format!("{}{}", content.form.unwrap().into_string(), content.view.into_string())
    }

    #[test]
    fn pages_have_a_limited_number_of_rows() {
        for (query, first, last, count) in [
            ("", "vm-000", "vm-099", 100),
            ("page=3", "vm-200", "vm-249", 50),
            ("page=999", "vm-200", "vm-249", 50),
            ("page=-1", "vm-000", "vm-099", 100),
            ("q=VM-01", "vm-010", "vm-019", 10),
            ("tenant=b", "No VMs", "No VMs", 0),
        ] {
            let text = page(query);
            assert!(text.contains(first) && text.contains(last), "{query}: {text}");
            assert_eq!(text.matches("<th scope=\"row\">").count(), count, "{query}");
        }
    }

    #[test]
    fn hostile_filters_are_escaped() {
        let text = page("q=%22%3E%3Cscript%3E&page=1");
        assert!(!text.contains("<script>"), "{text}");
    }
}
