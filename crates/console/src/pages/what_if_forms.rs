//! Forms of simulated changes. They work without scripts.

use maud::{Markup, html};

use super::layout::Content;
use super::parts::{host_link, host_path, tenant_path};
use super::what_if::{Answer, answer};
use crate::what_if::{MAX_ADDED_HOSTS, MAX_LISTED_HOSTS};

/// Path of the page for profiles.
pub(crate) const PROFILE_PATH: &str = "/what-if/profile";

/// Text of the button of all these forms.
const SIMULATE: &str = "Simulate";

/// Returns the page for additional hosts. `count` is the field as it was sent.
pub(crate) fn add_hosts_content(host: &str, count: &str, shown: &Answer) -> Content {
    let path = format!("{}/add", host_path(host));
    let count = if count.is_empty() { "1" } else { count };
    let form = html! {
        form .create method="get" action=(path) autocomplete="off" {
            label for="count" { "Number of additional hosts" }
            input #count name="count" value=(count) inputmode="numeric" aria-describedby="count-hint";
            span #count-hint .hint { "From 1 to " (MAX_ADDED_HOSTS) }
            button type="submit" { (SIMULATE) }
        }
    };
    let view = html! {
        p { "Adds hosts like " (host_link(host)) " without VMs, in a simulation." }
        (form)
        (answer(shown))
    };
    Content { form: None, view }
}

/// Fields of the form for profiles, as they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileForm {
    pub(crate) profile: String,
    pub(crate) yaml: String,
    pub(crate) hosts: String,
}

/// Returns the page for HostProfiles. `known` are the names of profiles that visible hosts have.
pub(crate) fn profile_content(
    csrf: &str,
    sent: &ProfileForm,
    known: &[String],
    shown: &Answer,
) -> Content {
    let view = html! {
        p { "Applies a HostProfile to hosts, in a simulation: one of the cluster, or a new one." }
        form .create method="post" action=(PROFILE_PATH) autocomplete="off" {
            input type="hidden" name="csrf" value=(csrf);
            label for="profile" { "Name of a HostProfile" }
            input #profile name="profile" value=(sent.profile) list="profile-list" spellcheck="false";
            datalist #profile-list { @for name in known { option value=(name) {} } }
            label for="yaml" { "Or its YAML" }
            (yaml_field(&sent.yaml, "A HostProfile with an existing name replaces it"))
            label for="hosts" { "Hosts" }
            input #hosts name="hosts" value=(sent.hosts) spellcheck="false" aria-describedby="hosts-hint";
            span #hosts-hint .hint {
                "Up to " (MAX_LISTED_HOSTS) " names, separated by spaces: their Nodes get the labels that the profile selects. "
                "Empty: the labels of the Nodes decide."
            }
            button type="submit" { (SIMULATE) }
        }
        (answer(shown))
    };
    Content { form: None, view }
}

/// Returns the page for a MachineDeployment of a tenant.
pub(crate) fn machines_content(tenant: &str, csrf: &str, yaml: &str, shown: &Answer) -> Content {
    let path = tenant_path(tenant);
    let view = html! {
        p {
            "Adds the machines of a MachineDeployment of the tenant " a href=(path) { (tenant) } ", in a simulation. "
            a href={ (path) "/create" } { "Create machines" } " has a form for the YAML."
        }
        form .create method="post" action={ (path) "/what-if" } autocomplete="off" {
            input type="hidden" name="csrf" value=(csrf);
            label for="yaml" { "YAML of the MachineDeployment" }
            (yaml_field(yaml, "A MachineDeployment with an existing name replaces it"))
            button type="submit" { (SIMULATE) }
        }
        (answer(shown))
    };
    Content { form: None, view }
}

fn yaml_field(text: &str, hint: &str) -> Markup {
    html! {
        // Browsers remove the first line break of this element.
        textarea #yaml name="yaml" rows="14" spellcheck="false" aria-describedby="yaml-hint" { "\n" (text) }
        span #yaml-hint .hint { (hint) }
    }
}
