//! Objects that users paste into the web console: one object of one kind. Messages have no values of other kinds, which may be
//! credentials.

use berth_api::{HostProfile, Problem};
use berth_console::SimulationError;
use berth_kubevirt_render::machines::{
    MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND, MachineDeployment,
};
use berth_views::deserialize_object;
use serde_json::Value;

use crate::fleet::{InputObject, stream};

/// Name of the input in messages.
const SOURCE: &str = "the text";
/// Maximum number of machines of a MachineDeployment, as in the form that creates one.
const MAX_MACHINES: i32 = 1000;

/// Reads a MachineDeployment of a namespace. If the object has no namespace, it gets this one.
pub(super) fn read_deployment(namespace: &str, text: &str) -> Result<InputObject, SimulationError> {
    let mut found = read_one(text, MACHINE_DEPLOYMENT_KIND, MACHINE_DEPLOYMENT_GROUP)?;
    let metadata = found.object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        metadata.entry("namespace").or_insert_with(|| namespace.into());
    }
    let read = MachineDeployment::read(&found.location, found.object.clone());
    let deployment = read.map_err(invalid)?;
    let object = deployment.qualified_name();
    let reject = |field: &str, value: &str, message: String| {
        Err(invalid(Problem::new(&object, field, value, message)))
    };
    if deployment.metadata.namespace != namespace {
        let message = format!("must be {namespace}, the namespace of the tenant");
        return reject("metadata.namespace", &deployment.metadata.namespace, message);
    }
    let replicas = deployment.spec.replicas.unwrap_or(1);
    if !(0..=MAX_MACHINES).contains(&replicas) {
        let message = format!("must be from 0 to {MAX_MACHINES}");
        return reject("spec.replicas", &replicas.to_string(), message);
    }
    Ok(found)
}

/// Reads a HostProfile.
pub(super) fn read_profile(text: &str) -> Result<HostProfile, SimulationError> {
    let found = read_one(text, "HostProfile", "berth.dev")?;
    let profile: HostProfile =
        deserialize_object("HostProfile", &found.location, &found.object).map_err(invalid)?;
    if profile.metadata.name.as_deref().unwrap_or_default().is_empty() {
        let object = format!("HostProfile in {}", found.location);
        return Err(invalid(Problem::new(object, "metadata.name", "", "is missing")));
    }
    Ok(profile)
}

fn invalid(problem: Problem) -> SimulationError {
    SimulationError::Invalid(vec![problem])
}

/// Reads one object of this kind.
fn read_one(text: &str, kind: &str, group: &str) -> Result<InputObject, SimulationError> {
    let mut problems = Vec::new();
    let mut found = stream::for_each_object(SOURCE, text, &mut problems, |found| found);
    if let Some(other) = found.iter().find(|found| !is_kind(&found.object, kind, group)) {
        let name =
            |field: &str| other.object.get(field).and_then(Value::as_str).unwrap_or_default();
        let problem = Problem::new(
            &other.location,
            "kind",
            format!("{} {}", name("apiVersion"), name("kind")),
            format!("must be {kind} of the group {group}"),
        );
        return Err(SimulationError::OtherKind(problem));
    }
    // The values of texts that are no objects are not shown.
    let problems = problems.into_iter().map(|problem| Problem { value: String::new(), ..problem });
    let problems: Vec<Problem> = problems.collect();
    if !problems.is_empty() {
        return Err(SimulationError::Invalid(problems));
    }
    let count = found.len();
    match found.pop() {
        Some(one) if count == 1 => Ok(one),
        _ => {
            let message = format!("must have one {kind}");
            Err(invalid(Problem::new(SOURCE, "", format!("{count} objects"), message)))
        }
    }
}

fn is_kind(object: &Value, kind: &str, group: &str) -> bool {
    let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let found = version.split_once('/').map_or("", |(group, _)| group);
    object.get("kind").and_then(Value::as_str) == Some(kind) && found == group
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPLOYMENT: &str = "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineDeployment\n";

    fn problem<T: std::fmt::Debug>(result: Result<T, SimulationError>) -> String {
        match result.unwrap_err() {
            SimulationError::Invalid(problems) => problems[0].to_string(),
            other => format!("{other}"),
        }
    }

    #[test]
    fn deployment_of_the_tenant_is_read() {
        for namespace in ["", ", namespace: cluster-bank"] {
            let text =
                format!("{DEPLOYMENT}metadata: {{name: web{namespace}}}\nspec: {{replicas: 2}}");
            let found = read_deployment("cluster-bank", &text).unwrap();
            assert_eq!(found.object["metadata"]["namespace"], "cluster-bank");
        }
    }

    #[test]
    fn invalid_deployments_are_named() {
        let long = "- ".repeat(30_000);
        for (text, words) in [
            ("", "0 objects"),
            ("a: [", "is not valid YAML"),
            (long.as_str(), "is not valid YAML"),
            ("metadata: {name: secret-text}", "must be an object with apiVersion, kind"),
            (&format!("{DEPLOYMENT}metadata: {{}}"), "metadata.name"),
            (
                &format!("{DEPLOYMENT}metadata: {{name: web, namespace: cluster-shop}}"),
                "MachineDeployment cluster-shop/web: metadata.namespace: `cluster-shop`: must be cluster-bank",
            ),
            (
                &format!("{DEPLOYMENT}metadata: {{name: web}}\nspec: {{replicas: 1001}}"),
                "MachineDeployment cluster-bank/web: spec.replicas: `1001`: must be from 0 to 1000",
            ),
            (
                &format!("{DEPLOYMENT}metadata: {{name: web}}\nspec: {{replicas: x}}"),
                "spec.replicas",
            ),
            (
                &format!(
                    "{DEPLOYMENT}metadata: {{name: a}}\n---\n{DEPLOYMENT}metadata: {{name: b}}"
                ),
                "2 objects",
            ),
            (
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}",
                "`apps/v1 Deployment`: must be MachineDeployment",
            ),
        ] {
            let found = problem(read_deployment("cluster-bank", text));
            assert!(found.contains(words), "{words}: {found}");
            assert!(!found.contains("secret-text"), "{found}");
        }
    }

    #[test]
    fn credentials_are_never_shown() {
        for text in [
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {password: hunter2}",
            "{\"kind\": \"Secret\", \"apiVersion\": \"v1\", \"stringData\": {\"password\": \"hunter2\"}}",
        ] {
            for result in [read_deployment("a", text).map(drop), read_profile(text).map(drop)] {
                assert!(matches!(result, Err(SimulationError::OtherKind(_))), "{result:?}");
                let found = problem(result);
                assert!(
                    found.contains("kind: `v1 Secret`") && !found.contains("hunter2"),
                    "{found}"
                );
            }
        }
    }

    #[test]
    fn profiles_are_read() {
        let head = "apiVersion: berth.dev/v1alpha1\nkind: HostProfile\n";
        let profile = read_profile(&format!("{head}metadata: {{name: p}}\nspec: {{priority: 3}}"));
        assert_eq!(profile.unwrap().spec.priority, 3);
        for (rest, words) in [
            ("metadata: {name: p}\nspec: {priority: high}", "HostProfile p: spec.priority"),
            ("metadata: {}\nspec: {}", "metadata.name"),
        ] {
            let found = problem(read_profile(&format!("{head}{rest}")));
            assert!(found.contains(words), "{found}");
        }
    }
}
