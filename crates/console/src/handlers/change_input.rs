//! Forms of simulated changes. Messages name the field and its value.

use berth_api::Problem;

use crate::new_deployment::NewDeployment;
use crate::pages::what_if_forms::ProfileForm;
use crate::query::{Fields, is_object_name};
use crate::what_if::{Change, MAX_ADDED_HOSTS, MAX_LISTED_HOSTS, ProfileSource};

/// Returns the number of additional hosts; `None` if the field is empty, or its problem.
pub(super) fn host_count(text: &str) -> Option<Result<u32, Problem>> {
    if text.is_empty() {
        return None;
    }
    let count = text.parse().ok().filter(|count| (1..=MAX_ADDED_HOSTS).contains(count));
    let message = format!("must be a number from 1 to {MAX_ADDED_HOSTS}");
    Some(count.ok_or_else(|| problem("count", text, message)))
}

/// Returns the YAML of a form, or an empty text. The first line may be indented.
pub(super) fn yaml_text(fields: &Fields) -> String {
    fields.get("yaml").trim_end().to_owned()
}

fn problem(field: &str, value: &str, message: impl Into<String>) -> Problem {
    Problem::new("the form", field, value, message)
}

/// Returns the change, or the fields that are not valid.
pub(super) fn profile_change(sent: &ProfileForm) -> Result<Change, Vec<Problem>> {
    let mut problems = Vec::new();
    let profile = match (sent.profile.as_str(), sent.yaml.as_str()) {
        ("", "") => {
            problems.push(problem("profile", "", "is empty, and yaml too: specify one of them"));
            ProfileSource::Existing(String::new())
        }
        ("", yaml) => ProfileSource::Yaml(yaml.to_owned()),
        (name, "") => {
            if !is_object_name(name) {
                problems.push(problem("profile", name, "is not the name of an object"));
            }
            ProfileSource::Existing(name.to_owned())
        }
        (name, _) => {
            problems.push(problem("profile", name, "must be empty if there is YAML"));
            ProfileSource::Existing(String::new())
        }
    };
    let is_separator = |c: char| c.is_whitespace() || c == ',';
    let hosts: Vec<String> =
        sent.hosts.split(is_separator).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let invalid = hosts.iter().filter(|name| !is_object_name(name)).take(MAX_LISTED_HOSTS);
    problems.extend(invalid.map(|name| problem("hosts", name, "is not the name of an object")));
    if hosts.len() > MAX_LISTED_HOSTS {
        let message = format!("must be at most {MAX_LISTED_HOSTS} hosts");
        problems.push(problem("hosts", &format!("{} names", hosts.len()), message));
    }
    if problems.is_empty() { Ok(Change::Profile { profile, hosts }) } else { Err(problems) }
}

/// Returns the YAML, or that of the object of the form that creates machines; or the fields that are not valid.
pub(super) fn deployment(
    tenant: &str,
    fields: &Fields,
    yaml: &str,
) -> Result<String, Vec<Problem>> {
    if !yaml.is_empty() {
        return Ok(yaml.to_owned());
    }
    if ["name", "replicas"].iter().all(|field| fields.get(field).is_empty()) {
        return Err(vec![problem("yaml", "", "is empty: paste a MachineDeployment")]);
    }
    let new = NewDeployment::parse(tenant, fields).map_err(|errors| {
        let errors = errors.into_iter();
        let problem_of = |name: &str, error: String| problem(name, fields.get(name), error);
        errors.map(|(field, error)| problem_of(field.name(), error.to_string())).collect::<Vec<_>>()
    })?;
    let text = serde_saphyr::to_string(&new.to_object());
    text.map_err(|_| vec![problem("name", &new.name, "the object cannot be written as YAML")])
}
