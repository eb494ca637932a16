//! Form that creates a MachineDeployment, with the YAML and the answer of the API server.

use berth_views::Severity;
use maud::{Markup, html};

use super::layout::Content;
use super::parts::{badge, excerpt, tenant_path};
use crate::new_deployment::{Field, FieldError, Spread};
use crate::query::Fields;

/// Values that the form suggests, from the InfraConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    pub(crate) operating_systems: Vec<String>,
    /// Versions of operating systems.
    pub(crate) images: Vec<String>,
    pub(crate) storage_classes: Vec<String>,
}

/// Result of the check of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// The form was not sent yet.
    Nothing,
    Invalid(Vec<(Field, FieldError)>),
    /// The API server refuses the object: the YAML, and the message.
    Refused(String, String),
    /// The API server did not confirm the creation of the object with this YAML.
    Unconfirmed(String),
    /// The API server would create the object: the YAML, and a token for this YAML.
    Accepted(String, String),
}

/// Content of the page.
pub(crate) struct CreatePage<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) csrf: &'a str,
    /// The form as it was sent; `None` for the defaults.
    pub(crate) sent: Option<&'a Fields>,
    pub(crate) choices: &'a Choices,
    pub(crate) checked: &'a Checked,
}

/// Returns the page with the form.
pub(crate) fn content(page: &CreatePage<'_>) -> Content {
    let action = format!("{}/create", tenant_path(page.tenant));
    let value = |field: Field| match page.sent {
        Some(sent) => sent.get(field.name()).to_owned(),
        None => field.default_value().to_owned(),
    };
    let text = |field: Field, label: &str, hint: &str, list: &[String]| {
        input(field, label, hint, &value(field), list)
    };
    let Choices { operating_systems, images, storage_classes } = page.choices;
    let spread = value(Field::Spread);
    let view = html! {
        p { "Creates a MachineDeployment of the tenant " a href=(tenant_path(page.tenant)) { (page.tenant) } ". Berth creates its machines." }
        div .columns {
            form #create .create method="post" action=(action) autocomplete="off" hx-post=(action) hx-trigger="change delay:400ms"
                hx-target="#preview" hx-select="#preview" hx-swap="outerHTML" hx-sync="this:replace" {
                input type="hidden" name="csrf" value=(page.csrf);
                (text(Field::Name, "Name", "Machines are called NAME-…", &[]))
                (text(Field::Replicas, "Number of machines", "", &[]))
                (text(Field::Flavor, "Instance type", "Cluster instance type; without one, CPUs and memory", &[]))
                (text(Field::Cpus, "CPUs", "", &[]))
                (text(Field::Memory, "Memory", "", &[]))
                (text(Field::OperatingSystem, "Operating system", "", operating_systems))
                (text(Field::Image, "Image", "Version, URL or volume; may be empty if there is only one version", images))
                (text(Field::Disk, "Size of the disk", "", &[]))
                (text(Field::StorageClass, "Storage class", "Empty for the default", storage_classes))
                label for=(Field::Spread.name()) { "Spread over hosts" }
                select id=(Field::Spread.name()) name=(Field::Spread.name()) {
                    @for one in Spread::ALL {
                        option value=(one.as_str()) selected[one.as_str() == spread] { (one.label()) }
                    }
                }
                button type="submit" { "Check" }
                // Without scripts too, the browser sends the form to another page.
                button type="submit" formaction={ (tenant_path(page.tenant)) "/what-if" } { "Where would the machines go?" }
            }
            (preview(page.checked))
        }
    };
    Content { form: None, view }
}

/// Returns the page for users who may not create MachineDeployments.
pub(crate) fn forbidden_content(tenant: &str, namespace: &str) -> Content {
    let view = html! {
        p .failure { "You have no permission to create MachineDeployments in the namespace " (namespace) "." }
        p { a href=(tenant_path(tenant)) { "Tenant " (tenant) } }
    };
    Content { form: None, view }
}

fn input(field: Field, label: &str, hint: &str, value: &str, list: &[String]) -> Markup {
    let name = field.name();
    let (hint_id, list_id) = (format!("{name}-hint"), format!("{name}-list"));
    html! {
        label for=(name) { (label) }
        input id=(name) name=(name) value=(value) autocomplete="off" spellcheck="false"
            aria-describedby=[(!hint.is_empty()).then_some(hint_id.as_str())] list=[(!list.is_empty()).then_some(list_id.as_str())];
        @if !hint.is_empty() { span .hint id=(hint_id) { (hint) } }
        @if !list.is_empty() { datalist id=(list_id) { @for one in list { option value=(one) {} } } }
    }
}

fn preview(checked: &Checked) -> Markup {
    html! {
        section #preview aria-live="polite" {
            h2 { "Result" }
            @match checked {
                Checked::Nothing => { p .empty { "The YAML, and the answer of the API server to a dry run, are shown here." } }
                Checked::Invalid(errors) => {
                    p { (badge(Severity::Failure, "Not valid")) }
                    ul {
                        @for (field, error) in errors {
                            li { a href={ "#" (field.name()) } { (field.name()) } ": " (error.to_string()) }
                        }
                    }
                }
                Checked::Refused(yaml, message) => {
                    p { (badge(Severity::Failure, "The API server refuses it")) " " (excerpt(message)) }
                    (yaml_block(yaml))
                }
                Checked::Unconfirmed(yaml) => {
                    p {
                        (badge(Severity::Warning, "The API server did not confirm the creation")) " "
                        "It may have created the object nevertheless. The page of the tenant shows it then."
                    }
                    (yaml_block(yaml))
                }
                Checked::Accepted(yaml, token) => {
                    p { (badge(Severity::Ok, "The API server accepts it (dry run)")) }
                    input type="hidden" name="checked" value=(token) form="create";
                    p { button type="submit" name="action" value="create" form="create" { "Create the machines" } }
                    (yaml_block(yaml))
                }
            }
        }
    }
}

fn yaml_block(yaml: &str) -> Markup {
    html! { pre tabindex="0" role="region" aria-label="YAML" { code { (yaml) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\"><script>alert(1)</script>";

    fn page(sent: Option<&Fields>, checked: &Checked) -> String {
        let choices = Choices { images: vec![HOSTILE.to_owned()], ..Choices::default() };
        let page = CreatePage { tenant: "bank", csrf: "token", sent, choices: &choices, checked };
        content(&page).view.into_string()
    }

    #[test]
    fn form_has_defaults_or_what_was_sent() {
        let text = page(None, &Checked::Nothing);
        assert!(text.contains("value=\"4Gi\"") && text.contains("action=\"/tenants/bank/create\""));
        assert!(!text.contains("value=\"create\""), "nothing was checked: {text}");
        let sent = Fields::parse(b"name=%22%3E%3Cscript%3E&memory=8Gi&spread=hard");
        let text = page(Some(&sent), &Checked::Invalid(vec![(Field::Name, FieldError::Name)]));
        assert!(text.contains("value=\"8Gi\"") && !text.contains("value=\"4Gi\""), "{text}");
        assert!(text.contains("value=\"hard\" selected") && !text.contains("<script>"), "{text}");
    }

    #[test]
    fn only_accepted_objects_can_be_created() {
        let hostile = || HOSTILE.to_owned();
        for (checked, may_create) in [
            (Checked::Nothing, false),
            (Checked::Invalid(vec![]), false),
            (Checked::Refused(hostile(), hostile()), false),
            (Checked::Unconfirmed(hostile()), false),
            (Checked::Accepted(hostile(), hostile()), true),
        ] {
            let text = page(None, &checked);
            assert_eq!(text.contains("value=\"create\""), may_create, "{text}");
            assert!(!text.contains("<script>"), "{text}");
        }
    }
}
