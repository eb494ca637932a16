//! Checks of CustomResourceDefinitions.

use std::sync::LazyLock;

use kube::ResourceExt as _;
use serde_json::Value;

use super::definition::Check;
use super::difference::first_difference;
use super::input::Input;
use super::read::Unread;
use super::release::Release;
use super::values::{condition, items, join_names, text, texts};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "crd.installed",
        title: "Berth's CustomResourceDefinitions",
        explanation: "All CustomResourceDefinitions of Berth must exist and be established, and must serve and store the \
            version of this program. FAIL otherwise: agents and controller cannot read or write their objects.",
        run: check_installed,
    },
    Check {
        id: "crd.schema",
        title: "schemas equal those of this program",
        explanation: "Compares the schemas of Berth's CustomResourceDefinitions with those that `berth-controller \
            crds` prints. WARN if a schema differs: the API server drops fields that its schema does not have. API \
            servers before 1.25 drop validation rules, so validation rules are not compared on them.",
        run: check_schema,
    },
    Check {
        id: "crd.machine-deployments",
        title: "MachineDeployments",
        explanation: "WARN if the CustomResourceDefinition of MachineDeployments (cluster.k8s.io) does not exist, \
            because tenants then cannot create machines. It is installed by machine-controller, or with \
            deploy/overlays/machine-crds.",
        run: check_machine_deployments,
    },
];

/// Name of the CustomResourceDefinition of MachineDeployments.
const MACHINE_DEPLOYMENTS: &str = "machinedeployments.cluster.k8s.io";
/// First release of Kubernetes in which the API server stores the validation rules of schemas.
const FIRST_WITH_RULES: Release = Release(1, 25, 0);
/// Command that installs the CustomResourceDefinitions.
const REMEDY: &str = "berth-controller crds | kubectl apply -f -";

/// A CustomResourceDefinition of this program.
#[derive(Debug)]
struct DesiredCrd {
    name: String,
    /// The only version of the resource.
    version: String,
    schema: Value,
}

/// All CustomResourceDefinitions of this program. To generate them takes longer than to check them.
static DESIRED_CRDS: LazyLock<Vec<DesiredCrd>> = LazyLock::new(|| {
    let desired = berth_api::all_crds().into_iter().map(|crd| {
        let version = crd.spec.versions.first().map(|version| version.name.clone());
        let version = version.unwrap_or_default();
        let object = serde_json::to_value(&crd).unwrap_or_default();
        let schema = schema_of(&object, &version).clone();
        DesiredCrd { name: crd.name_any(), version, schema }
    });
    desired.collect()
});

/// Returns the names of the CustomResourceDefinitions that the checks examine.
#[must_use]
pub fn crd_names() -> Vec<String> {
    let own = DESIRED_CRDS.iter().map(|desired| desired.name.clone());
    own.chain([MACHINE_DEPLOYMENTS.to_owned()]).collect()
}

fn check_installed(input: &Input) -> Result<Outcome, Unread> {
    let (mut problems, mut names) = (Vec::new(), Vec::new());
    for DesiredCrd { name, version, .. } in &*DESIRED_CRDS {
        let problem = match input.crd(name)? {
            None => Some("does not exist".to_owned()),
            Some(found) => find_problem(version, found),
        };
        problems.extend(problem.map(|problem| (name.as_str(), problem)));
        names.push(name.as_str());
    }
    if problems.is_empty() {
        return Ok(Outcome::pass(format!("{} are established", names.len()))
            .with_evidence("customresourcedefinitions", join_names(&names)));
    }
    let failed: Vec<&str> = problems.iter().map(|(name, _)| *name).collect();
    let outcome = Outcome::fail(format!("not usable: {}", join_names(&failed))).remedy(REMEDY);
    Ok(problems.into_iter().fold(outcome, |outcome, (name, problem)| {
        outcome.with_evidence(format!("CustomResourceDefinition {name}"), problem)
    }))
}

/// Returns the reason why a CustomResourceDefinition cannot be used for this version; `None` if it can.
fn find_problem(version: &str, found: &Value) -> Option<String> {
    if text(condition(found, "Established"), "/status") != "True" {
        return Some("is not established".to_owned());
    }
    let served = items(found, "/spec/versions").find(|one| one["name"] == version);
    if !served.is_some_and(|one| one["served"] == true) {
        return Some(format!("does not serve {version}"));
    }
    let stored = texts(found, "/status/storedVersions");
    (stored != [version]).then(|| {
        format!("status.storedVersions is [{}] instead of [{version}]", join_names(&stored))
    })
}

fn check_schema(input: &Input) -> Result<Outcome, Unread> {
    let keeps_rules = input.kubernetes_release().is_some_and(|release| release >= FIRST_WITH_RULES);
    let ignored: &[&str] = if keeps_rules { &[] } else { &["x-kubernetes-validations"] };
    let (mut differences, mut compared) = (Vec::new(), 0);
    for DesiredCrd { name, version, schema: desired } in &*DESIRED_CRDS {
        let Some(found) = input.crd(name)? else { continue };
        compared += 1;
        let found = schema_of(found, version);
        // The second comparison finds fields that are only in the cluster's schema.
        let path = first_difference(desired, found, ignored)
            .or_else(|| first_difference(found, desired, ignored));
        differences.extend(path.map(|path| (name.as_str(), path)));
    }
    if compared == 0 {
        return Ok(Outcome::skip("no CustomResourceDefinition of Berth exists, see crd.installed"));
    }
    if differences.is_empty() {
        return Ok(Outcome::pass("equal")
            .with_evidence("customresourcedefinitions", format!("{compared} compared")));
    }
    let names: Vec<&str> = differences.iter().map(|(name, _)| *name).collect();
    let message =
        format!("CRDs from a different release than this program: {}", join_names(&names));
    let outcome = Outcome::warn(message).remedy(format!(
        "use the program of the installed release; or upgrade the CRDs ({REMEDY}), and then agents and controller"
    ));
    Ok(differences.iter().fold(outcome, |outcome, (name, path)| {
        outcome
            .with_evidence(format!("CustomResourceDefinition {name}"), format!("differs at {path}"))
    }))
}

/// Returns the schema of a version of a CustomResourceDefinition; null if the version does not exist.
fn schema_of<'v>(crd: &'v Value, version: &str) -> &'v Value {
    let found = items(crd, "/spec/versions").find(|one| one["name"] == version);
    found.and_then(|one| one.pointer("/schema/openAPIV3Schema")).unwrap_or(&Value::Null)
}

fn check_machine_deployments(input: &Input) -> Result<Outcome, Unread> {
    let evidence = format!("CustomResourceDefinition {MACHINE_DEPLOYMENTS}");
    let outcome = match input.crd(MACHINE_DEPLOYMENTS)? {
        None => Outcome::warn("tenants cannot create MachineDeployments")
            .with_evidence(evidence, "does not exist")
            .remedy("kubectl apply -k deploy/overlays/machine-crds"),
        Some(crd) if text(condition(crd, "Established"), "/status") != "True" => {
            Outcome::warn("tenants cannot create MachineDeployments")
                .with_evidence(evidence, "is not established")
                .remedy(format!("kubectl describe crd {MACHINE_DEPLOYMENTS}"))
        }
        Some(_) => Outcome::pass("can be created").with_evidence(evidence, "established"),
    };
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Status;
    use crate::check::read::ReadError;
    use crate::check::test_helpers::{empty_cluster, run_check};

    /// A function that changes a CustomResourceDefinition.
    type Change = fn(&mut Value);

    /// Returns a cluster with Berth's CustomResourceDefinitions, of which that of InfraNodes was changed.
    fn cluster(change: impl Fn(&mut Value)) -> Input {
        let mut input = empty_cluster();
        for crd in berth_api::all_crds() {
            let name = crd.name_any();
            let mut object = serde_json::to_value(&crd).unwrap();
            object["status"] = json!({
                "conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1alpha1"],
            });
            if name.starts_with("infranodes.") {
                change(&mut object);
            }
            input.crds.insert(name, Ok(object));
        }
        input
    }

    #[test]
    fn definitions_of_this_release_pass() {
        for id in ["crd.installed", "crd.schema"] {
            let outcome = run_check(id, &cluster(|_| {}));
            assert_eq!(outcome.status, Status::Pass, "{outcome:?}");
        }
    }

    #[test]
    fn unusable_definitions_are_named() {
        let changes: [(Change, &str); 5] = [
            (|crd| crd["status"]["conditions"][0]["status"] = "False".into(), "not established"),
            (|crd| crd["spec"]["versions"][0]["served"] = false.into(), "does not serve v1alpha1"),
            (|crd| crd["spec"]["versions"] = "v1alpha1".into(), "does not serve v1alpha1"),
            (
                |crd| crd["status"]["storedVersions"] = json!(["v1", 7]),
                "[v1] instead of [v1alpha1]",
            ),
            (|crd| *crd = json!([]), "not established"),
        ];
        for (change, problem) in changes {
            let outcome = run_check("crd.installed", &cluster(change));
            assert_eq!(outcome.status, Status::Fail, "{problem}");
            assert_eq!(outcome.evidence[0].path, "CustomResourceDefinition infranodes.berth.dev");
            assert!(outcome.evidence[0].value.contains(problem), "{outcome:?}");
        }
        let mut input = cluster(|_| {});
        input.crds.insert("vlanclaims.berth.dev".to_owned(), Err(ReadError::NotFound));
        assert_eq!(run_check("crd.installed", &input).status, Status::Fail);
        let forbidden = ReadError::Forbidden("crds".to_owned());
        input.crds.insert("vlanclaims.berth.dev".to_owned(), Err(forbidden));
        assert_eq!(run_check("crd.installed", &input).status, Status::Skip);
    }

    #[test]
    fn other_schemas_are_named() {
        const STATUS: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        let remove: fn(&mut Value) = |crd| {
            let fields = crd.pointer_mut(STATUS).and_then(Value::as_object_mut).unwrap();
            fields.remove("zones").unwrap();
        };
        let add: fn(&mut Value) = |crd| {
            let fields = crd.pointer_mut(STATUS).unwrap();
            fields["later"] = json!({"type": "string"});
        };
        for (change, path) in [(remove, "zones"), (add, "later")] {
            let outcome = run_check("crd.schema", &cluster(change));
            assert_eq!(outcome.status, Status::Warn);
            let value = &outcome.evidence[0].value;
            assert!(value.ends_with(&format!("status.properties.{path}")), "{value}");
        }
        // An API server before 1.25 does not store validation rules.
        let drop_rules = |crd: &mut Value| {
            let schema = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
            schema.unwrap().as_object_mut().unwrap().remove("x-kubernetes-validations").unwrap();
        };
        let input = Input { kubernetes: Ok("v1.20.2".to_owned()), ..cluster(drop_rules) };
        assert_eq!(run_check("crd.schema", &input).status, Status::Pass);
        assert_eq!(run_check("crd.schema", &cluster(drop_rules)).status, Status::Warn);
    }

    #[test]
    fn missing_machine_deployments_cause_a_warning() {
        let check = |crd| {
            let mut input = empty_cluster();
            input.crds.insert(MACHINE_DEPLOYMENTS.to_owned(), crd);
            run_check("crd.machine-deployments", &input).status
        };
        let established = json!({"type": "Established", "status": "True"});
        assert_eq!(check(Ok(json!({"status": {"conditions": [established]}}))), Status::Pass);
        assert_eq!(check(Ok(json!({"status": {}}))), Status::Warn);
        assert_eq!(check(Err(ReadError::NotFound)), Status::Warn);
        assert_eq!(check(Err(ReadError::Refused("500".to_owned()))), Status::Skip);
    }
}
